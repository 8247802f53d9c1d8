// A Syncrun program that runs long and prints values from before and after, which show whether anything has grown:
//   long_program calls N      makes N calls in one session
//   long_program sessions N   opens N sessions, one after the other

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace {

namespace sr = syncrun;
namespace fs = std::filesystem;
using Count = std::int64_t;

Count resident_kib(const std::string& process) {
  std::ifstream status("/proc/" + process + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::atoll(line.c_str() + 6);
  }
  return -1;
}

Count entries_of(const char* folder) { return std::distance(fs::directory_iterator(folder), fs::directory_iterator()); }

/// A thread that was joined may still be listed for a moment.
Count threads() {
  for (int looks = 0; looks < 5000 && entries_of("/proc/self/task") != 1; ++looks) ::usleep(1000);
  return entries_of("/proc/self/task");
}

Count mappings() {
  std::ifstream maps("/proc/self/maps");
  Count count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

Count children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ? 1 : 0;
}

/// What this process holds. `resident` is its resident memory in KiB.
struct Holdings {
  Count descriptors = entries_of("/proc/self/fd");
  Count running = threads();
  Count mapped = mappings();
  Count has_children = children();
  Count resident = resident_kib("self");
};

void say(const char* name, Count before, Count after) {
  std::printf("%s %lld %lld\n", name, static_cast<long long>(before), static_cast<long long>(after));
}

sr::Sum<Count> sum_and_add(sr::Scattered<const Count, 1> rows, Count value) {
  for (const Count row : rows) value += row;
  return value;
}

/// Makes calls with data, a value and a result. After some calls, it drops the result of one more call and makes one
/// that fails.
void make_calls(sr::Session& session, Count calls) {
  const auto f = session.function(sum_and_add);
  const auto data = session.data<Count, 1>({64});
  const auto throws = session.function(
      +[] { throw std::runtime_error("as it should"); }, "throws");
  for (Count call = 0; call < calls; ++call) {
    if (f(data, call).value() != call * session.world_size()) throw std::runtime_error("a wrong sum");
    if (call % 10'000 != 0) continue;
    static_cast<void>(f.async(data, call));
    try {
      throws();
    } catch (const sr::Error&) {
    }
  }
}

std::vector<Count> residents(const sr::Session& session) {
  std::vector<Count> kib{resident_kib("self")};
  for (const int pid : session.worker_pids()) kib.push_back(resident_kib(std::to_string(pid)));
  return kib;
}

int run_calls(Count calls) {
  sr::Session session;
  make_calls(session, calls / 10 + 20'000);
  const auto before = residents(session);
  make_calls(session, calls);
  const auto after = residents(session);
  say("master", before[0], after[0]);
  for (std::size_t i = 1; i < before.size(); ++i) say("worker", before[i], after[i]);
  session.close();
  return 0;
}

/// Every tenth session loses its worker. Another tenth has a call that fails. Another tenth is destroyed without a close.
void open_and_end_one(Count index) {
  sr::Session session;
  const auto data = session.data<Count, 1>({100'000});
  const auto f = session.function(
      +[](sr::Scattered<const Count, 1>, Count way) {
        if (way == 3) std::raise(SIGKILL);
        if (way == 5) throw std::runtime_error("as it should");
      },
      "f");
  const Count way = index % 10;
  std::optional<sr::ErrorKind> kind;
  try {
    f(data, way);
  } catch (const sr::Error& error) {
    kind = error.kind();
  }
  if ((kind == sr::ErrorKind::worker_lost) != (way == 3) || (kind == sr::ErrorKind::function) != (way == 5))
    throw std::runtime_error("a session ended in the wrong way");
  if (way != 7) session.close();
}

int run_sessions(Count sessions) {
  for (Count i = 0; i < 50; ++i) open_and_end_one(i);
  const Holdings before;
  for (Count i = 0; i < sessions; ++i) open_and_end_one(i);
  const Holdings after;
  say("descriptors", before.descriptors, after.descriptors);
  say("threads", before.running, after.running);
  say("mappings", before.mapped, after.mapped);
  say("children", before.has_children, after.has_children);
  say("resident", before.resident, after.resident);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = sr::serve_if_worker(argc, argv)) return *code;
  const std::string_view name = argc > 1 ? argv[1] : "";
  const Count count = argc > 2 ? std::atoll(argv[2]) : 1000;
  try {
    if (name == "calls") return run_calls(count);
    if (name == "sessions") return run_sessions(count);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 2;
}
