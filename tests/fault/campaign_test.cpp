// Kills a random process of a job at a random moment, again and again. Checks that nothing hangs, that nothing is left
// behind, and that the verdict names the killed process. This runs more rounds, from another seed:
//
//   SYNCRUN_CAMPAIGN_ROUNDS=100 SYNCRUN_CAMPAIGN_SEED=7 syncrun_deadline_tests --gtest_filter='Campaign*'

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <random>
#include <set>
#include <string_view>
#include <thread>

#include "common/os/file_descriptor.hpp"
#include "tests/fault/leak_check.hpp"
#include "tests/fault/programs.hpp"
#include "tests/fault/scene.hpp"
#include "tests/support/command_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

long number_from(const char* variable, long otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::stol(text) : otherwise;
}

enum class Role : std::uint8_t { syncrun, master, worker, unborn, child };
const char* name_of(Role role) {
  switch (role) {
    case Role::syncrun: return "syncrun";
    case Role::master: return "master";
    case Role::worker: return "worker";
    case Role::unborn: return "worker before exec";
    case Role::child: return "child of a worker";
  }
  return "";
}

struct Victim {
  pid_t pid = -1;
  Role role = Role::child;
  int rank = -1;  // set for workers
};

pid_t parent_of(pid_t pid) {
  const std::string stat = text_of("/proc/" + std::to_string(pid) + "/stat");
  const auto after_name = stat.rfind(')');
  return after_name == std::string::npos ? -1 : std::atoi(stat.c_str() + after_name + 4);
}

/// The rank with which a process was started; -1 if it has none.
int rank_of(pid_t pid) {
  const std::string environment = '\0' + text_of("/proc/" + std::to_string(pid) + "/environ");
  using namespace std::string_view_literals;
  constexpr auto name = "\0SYNCRUN_WORKER_RANK="sv;
  const auto at = environment.find(name);
  return at == std::string::npos ? -1 : std::atoi(environment.c_str() + at + name.size());
}

Victim look_at(pid_t pid, pid_t syncrun) {
  if (pid == syncrun) return {pid, Role::syncrun, -1};
  const pid_t parent = parent_of(pid);
  // `syncrun` also adopts orphans, but these are in the process group of a worker.
  const bool is_programs = text_of("/proc/" + std::to_string(pid) + "/cmdline").find("--program") != std::string::npos;
  if (parent == syncrun && ::getpgid(pid) == syncrun) return {pid, Role::master, -1};
  if (is_programs && parent_of(parent) == syncrun && ::getpgid(parent) == syncrun) {
    const int rank = rank_of(pid);
    return {pid, rank >= 0 ? Role::worker : Role::unborn, rank};
  }
  return {pid, Role::child, -1};
}

/// Sends SIGKILL unless the process has ended. It uses a pidfd, so that it cannot hit another process with the same
/// pid.
bool kill_if_alive(pid_t pid) {
  const detail::os::FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return process.is_open() && is_alive(pid) &&
         ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0) == 0;
}

std::string describe_all(const CommandRun& run) {
  std::string text = "left behind:";
  for (const pid_t pid : run.processes()) {
    std::string command = text_of("/proc/" + std::to_string(pid) + "/cmdline");
    std::replace(command.begin(), command.end(), '\0', ' ');
    text += "\n  " + text_of("/proc/" + std::to_string(pid) + "/stat").substr(0, 60) + " " + command;
  }
  return text;
}

class Campaign : public testing::Test {
 protected:
  void TearDown() override { ::unsetenv("SYNCRUN_NPROC_PER_NODE"); }

  int pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  /// Picks a role first, then a process. So each role is equally likely, even if few processes have it.
  Victim pick_victim(const CommandRun& run) {
    std::map<Role, std::vector<Victim>> by_role;
    for (const pid_t pid : run.processes()) {
      const Victim victim = look_at(pid, run.pid());
      by_role[victim.role].push_back(victim);
    }
    if (by_role.empty()) return {};
    auto role = by_role.begin();
    std::advance(role, pick(static_cast<int>(by_role.size())));
    return role->second[static_cast<std::size_t>(pick(static_cast<int>(role->second.size())))];
  }

  void play(int round);
  void expect_verdict(CommandRun& run, const Victim& victim);

  std::mt19937 random_;
  std::map<std::string, int> played_;
};

void Campaign::play(int round) {
  const std::vector<std::string> stages{"starting", "calls", "idle", "closing"};
  const std::string& stage = stages[static_cast<std::size_t>(pick(4))];
  const int world_size = 1 + pick(4);
  // The longest delay is about as long as the stage takes.
  const auto delay = std::chrono::microseconds(pick(stage == "starting"  ? 60'000
                                                    : stage == "closing" ? 3'000
                                                                         : 25'000));
  ::setenv("SYNCRUN_NPROC_PER_NODE", std::to_string(world_size).c_str(), 1);
  CommandRun run({"--quiet", own_binary(), "--program", "live"});
  // Closing ends before all processes can be examined. So the victim for this stage is picked in advance.
  const bool is_picked_before = stage == "closing";
  ASSERT_TRUE(run.prints(is_picked_before ? "stage idle" : "stage " + stage)) << run.errors();
  Victim victim = is_picked_before ? pick_victim(run) : Victim{};
  ASSERT_TRUE(run.prints("stage " + stage)) << run.errors();
  std::this_thread::sleep_for(delay);
  if (!is_picked_before) victim = pick_victim(run);
  const bool was_alive = victim.pid > 0 && kill_if_alive(victim.pid);
  SCOPED_TRACE("round " + std::to_string(round) + ": " + name_of(victim.role) + " " + std::to_string(victim.rank) +
               " (pid " + std::to_string(victim.pid) + "), " + std::to_string(delay.count()) + " us after '" + stage +
               "', " + std::to_string(world_size) + " workers");
  ++played_[std::string(was_alive ? name_of(victim.role) : "nobody (too late)") + " while " + stage];
  if (was_alive) {
    expect_verdict(run, victim);
  } else {
    EXPECT_EQ(run.exit_code(), 0) << run.errors();
  }
  EXPECT_TRUE(run.nothing_remains()) << describe_all(run);
}

void Campaign::expect_verdict(CommandRun& run, const Victim& victim) {
  const int code = run.exit_code();
  const std::string errors = run.errors();
  // If the victim was about to end anyway, the job may have finished all its work.
  if (code == 0 && run.output().find("stage closed") != std::string::npos) return;
  switch (victim.role) {
    case Role::syncrun: EXPECT_EQ(code, 1000 + SIGKILL); return;
    case Role::master:
      EXPECT_EQ(code, 128 + SIGKILL);
      EXPECT_EQ(run.last_error_line(),
                "syncrun: the master (pid " + std::to_string(victim.pid) + ") was killed by SIGKILL (Killed)");
      return;
    case Role::child: EXPECT_EQ(code, 0) << "children are the worker's own affair: " << errors; return;
    case Role::worker:
    case Role::unborn: break;
  }
  EXPECT_EQ(code, 1) << errors;
  const std::string rank = victim.rank < 0 ? "[0-9]+" : std::to_string(victim.rank);
  EXPECT_THAT(errors, testing::ContainsRegex("syncrun: rank " + rank + " [(]cpu" + rank + ", pid " +
                                             std::to_string(victim.pid) +
                                             "[)] was lost [^\n]*: killed by SIGKILL [(]Killed[)]"));
}

TEST_F(Campaign, KillsARandomProcessAtARandomMoment) {
  const auto rounds = static_cast<int>(number_from("SYNCRUN_CAMPAIGN_ROUNDS", 25));
  const auto seed = static_cast<unsigned>(number_from("SYNCRUN_CAMPAIGN_SEED", std::random_device()()));
  std::printf("%d rounds, SYNCRUN_CAMPAIGN_SEED=%u\n", rounds, seed);
  RecordProperty("seed", std::to_string(seed));
  random_.seed(seed);
  for (int round = 0; round < rounds && !HasFatalFailure(); ++round) play(round);
  EXPECT_EQ(named_shared_memory(), std::set<std::string>());
  for (const auto& [what, count] : played_) std::printf("%4d  %s\n", count, what.c_str());
}

}  // namespace
}  // namespace syncrun::test
