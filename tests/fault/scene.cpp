#include "tests/fault/scene.hpp"
#include "tests/support/temporary_folder.hpp"

#include <dirent.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>

namespace syncrun::test {

using testing::HasSubstr;

namespace {

struct Totals {
  Sum<std::int64_t> rows;
  Sum<std::int64_t> values;
  Max<std::int64_t> ranks;
};

Totals add_up(CpuWorker& worker, Comm& comm, Scattered<const std::int64_t, 1> rows) {
  const std::int64_t sum = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  return {rows.rows(), sum, comm.all_reduce(std::int64_t{worker.rank()}, Reduction::sum)};
}

}  // namespace

bool is_alive(pid_t pid) {
  const char state = state_of(pid);
  return state != '-' && state != 'Z' && state != 'X';
}

void stop(pid_t pid) {
  ASSERT_GT(pid, 1);
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  ASSERT_TRUE(eventually([&] { return state_of(pid) == 'T'; }));
}

bool falls_asleep(pid_t pid) {
  return eventually([&] { return state_of(pid) == 'S'; });
}

pid_t fork_when_quiet() {
  const auto is_quiet = [] {
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", gone)) {
      const pid_t thread = std::atoi(entry.path().filename().c_str());
      if (thread != ::gettid() && state_of(thread) == 'R') return false;
    }
    return true;
  };
  EXPECT_TRUE(eventually(is_quiet));
  return ::fork();
}

std::vector<pid_t> processes_with(const std::string& environment_text) {
  std::vector<pid_t> pids;
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> directory(::opendir("/proc"), close);
  while (const dirent* entry = ::readdir(directory.get())) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0 || pid == ::getpid()) continue;
    const std::string environment = text_of("/proc/" + std::to_string(pid) + "/environ");
    if ((environment + '\0').find(environment_text + '\0') != std::string::npos) pids.push_back(pid);
  }
  return pids;
}

SessionOptions workers(int world_size, OnWorkerLost on_lost) {
  SessionOptions options{.processes = std::to_string(world_size), .timeout = 20s, .start_timeout = 20s};
  options.on_worker_lost = on_lost;
  return options;
}

std::atomic_ref<std::int64_t> field(const BoardView& board, int index) {
  return std::atomic_ref(const_cast<std::int64_t&>(board.data()[index]));
}

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw no Error, but " << error.what();
    return Error(ErrorKind::usage, "none");
  }
  ADD_FAILURE() << "threw nothing";
  return Error(ErrorKind::usage, "none");
}

void expect_loss(const Error& error, const Loss& loss, const std::vector<int>& pids, Clock::time_point death) {
  const auto reported = Clock::now();
  const Failure& failure = error.failure();
  const std::string device = "cpu" + std::to_string(loss.rank);
  ASSERT_EQ(error.kind(), ErrorKind::worker_lost) << error.what();
  EXPECT_EQ(error.rank(), loss.rank);
  EXPECT_EQ(failure.rank, loss.rank);
  EXPECT_EQ(failure.pid, pids[static_cast<std::size_t>(loss.rank)]);
  EXPECT_EQ(failure.device, device);
  EXPECT_EQ(failure.call, loss.call);
  EXPECT_EQ(failure.phase, loss.phase);
  EXPECT_EQ(failure.cause, loss.cause);
  EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(loss.rank) + " (" + device + ", pid " +
                                      std::to_string(failure.pid) + ")"));
  for (const auto& word : {loss.call, loss.phase, loss.cause}) EXPECT_THAT(error.what(), HasSubstr(word));

  const auto release = failure.master_released - death;
  EXPECT_GT(release, Clock::duration(0));
  EXPECT_LT(reported - death, kErrorLimit);
  testing::Test::RecordProperty("release_us",
                                std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(release).count()));
  for (const int pid : pids) EXPECT_FALSE(is_alive(pid)) << "a worker outlives the session";
}

void expect_over(Session& session, const Error& cause) {
  const std::vector<std::string> words{"the session is over", cause.what()};
  expect_usage([&] { session.data<float, 1>({4}); }, words);
  expect_usage([&] { session.shared<float, 1>(); }, words);
  expect_usage([&] { session.function(add_up); }, words);
  expect_usage([&] { session.wait(); }, words);
  expect_usage([&] { static_cast<void>(session.worker_pids()); }, words);
  EXPECT_NO_THROW(session.close()) << "there is nothing left to end";
}

void expect_usable(Session& session) {
  constexpr std::int64_t kRows = 1001;
  std::vector<std::int64_t> values(kRows);
  std::iota(values.begin(), values.end(), 0);
  const auto data = session.data(values);
  const auto f = session.function(add_up, "add_up");
  const Totals totals = f(data);
  EXPECT_EQ(totals.rows, kRows);
  EXPECT_EQ(totals.values, kRows * (kRows - 1) / 2);
  EXPECT_EQ(totals.ranks, session.world_size() * (session.world_size() - 1) / 2);
  auto variable = session.shared<float, 1>("check");
  variable.broadcast(std::vector<float>{1, 2, 3});
  variable.all_reduce(Reduction::sum);
  EXPECT_EQ(variable.get(session.world_size() - 1)[2], 3.0F * static_cast<float>(session.world_size()));
}

Error expect_error(const std::function<void()>& action, ErrorKind kind, const std::vector<std::string>& words) {
  Error error = error_of(action);
  EXPECT_EQ(error.kind(), kind) << error.what();
  for (const auto& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  return error;
}

void expect_usage(const std::function<void()>& action, const std::vector<std::string>& words) {
  expect_error(action, ErrorKind::usage, words);
}

}  // namespace syncrun::test
