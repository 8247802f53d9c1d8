// A Syncrun program that closes file descriptors which it has not opened:
//
//   closing_program SCENE HOW FILE
//
// SCENE says what the program has when it closes them, and what it waits for then: "idle", "call" (a call is in
// flight), "end" (the session closes next), "queue", "task", or "body", in which a worker closes its descriptors.
// HOW says which it closes: "all" (closefrom), "reused" (all, and then the program opens files, which get their
// numbers), or a number N (the Nth descriptor that the session has opened; a file of the program then gets its number).
// FILE is the file that the program opens. The program prints what becomes of the session, "named MILLISECONDS KIND:
// MESSAGE" or "fine", and "kept N of N": how many of its own files are still open.

#include <dirent.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <thread>
#include <vector>

namespace {

namespace sr = syncrun;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

Clock::time_point closed_at;

/// Leaves out those that a thread of Syncrun opens for a moment, to read about a process or a control group.
std::set<int> open_descriptors() {
  std::set<int> numbers;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    std::array<char, 8> target{};
    if (::readlinkat(::dirfd(folder), entry->d_name, target.data(), target.size() - 1) < 0) continue;
    const std::string_view start = target.data();
    if (!start.starts_with("/proc/") && !start.starts_with("/sys/")) numbers.insert(std::atoi(entry->d_name));
  }
  ::closedir(folder);
  return numbers;
}

/// The descriptors that the program has opened itself, and a check that they have not changed.
class Own {
 public:
  /// Opens files, pipes that contain some bytes, and eventfds, which look like descriptors of Syncrun.
  void open_some(const char* file) {
    for (int round = 0; round < 8; ++round) {
      add(::open(file, O_RDWR));
      std::array<int, 2> ends{};
      if (::pipe(ends.data()) != 0 || ::write(ends[1], "12345", 5) != 5) std::abort();
      pipes_.push_back(ends[0]);
      add(ends[0]);
      add(ends[1]);
      add(::eventfd(0, 0));
    }
  }
  /// Opens the file at this number, which must be free.
  void open_at(int number, const char* file) {
    if (::dup2(::open(file, O_RDWR), number) != number) std::abort();
    add(number);
  }
  void say_what_is_kept() const {
    std::size_t kept = 0;
    for (const auto& [number, inode] : files_) kept += inode_of(number) == inode ? 1 : 0;
    for (const int pipe : pipes_) {
      int bytes = 0;
      if (::ioctl(pipe, FIONREAD, &bytes) != 0 || bytes != 5) std::printf("a pipe has %d bytes\n", bytes);
    }
    std::printf("kept %zu of %zu\n", kept, files_.size());
  }

 private:
  static ino_t inode_of(int number) {
    struct stat status {};
    return ::fstat(number, &status) == 0 ? status.st_ino : 0;
  }
  void add(int number) { files_.emplace_back(number, inode_of(number)); }
  std::vector<std::pair<int, ino_t>> files_;
  std::vector<int> pipes_;
};

struct Plan {
  std::string scene;
  std::string how;
  const char* file;
  std::set<int> before;  // open before the session was opened
};

void close_as(const Plan& plan, Own& own) {
  closed_at = Clock::now();
  if (plan.how == "all" || plan.how == "reused") {
    ::closefrom(3);
    if (plan.how == "reused") own.open_some(plan.file);
    return;
  }
  std::vector<int> opened;
  for (const int number : open_descriptors()) {
    if (!plan.before.contains(number)) opened.push_back(number);
  }
  std::printf("%zu to close\n", opened.size());
  const int number = opened.at(std::stoul(plan.how));
  ::close(number);
  own.open_at(number, plan.file);
}

sr::Sum<int> add_up(sr::CpuWorker& worker) {
  std::printf("a line from rank %d\n", worker.rank());
  return 1;
}
void take_long(sr::CpuWorker&) { std::this_thread::sleep_for(20s); }

/// The master makes calls for a while, and allocates shared memory.
void use(sr::Session& session) {
  for (int round = 0; round < 3; ++round) {
    session.function(add_up)();
    session.data<float, 1>({1 << 20}).fill(1);
    std::this_thread::sleep_for(200ms);
  }
}

void run_session(Plan& plan, Own& own) {
  plan.before = open_descriptors();
  sr::Session session({.timeout = 10s});
  if (plan.scene == "call") {
    auto future = session.function(take_long).async();
    std::this_thread::sleep_for(50ms);
    close_as(plan, own);
    future.get();
  } else {
    session.function(add_up)();
    close_as(plan, own);
    if (plan.scene == "idle") use(session);
  }
  session.close();
}

struct Batch {
  sr::Data<float, 1> values;
};
void build(sr::Producer<Batch>& out) {
  std::this_thread::sleep_for(20s);
  static_cast<void>(out.next());
}

void run_queue(Plan& plan, Own& own) {
  sr::Session session({.timeout = 10s});
  auto queue = session.producers(2, build, {{16}}, {.timeout = 10s});
  close_as(plan, own);
  queue.next();
}

int wait_for_a_message(sr::Pipe<int, int>& pipe) { return pipe.receive().value_or(0); }

void run_task(Plan& plan, Own& own) {
  auto task = sr::task(wait_for_a_message, {.timeout = 10s});
  close_as(plan, own);
  task.receive();
}

sr::Sum<float, 1> large(sr::CpuWorker& worker) { return {worker, {1 << 20}}; }
void close_all_on(sr::CpuWorker& worker, int rank) {
  if (worker.rank() == rank) ::closefrom(3);
}

/// A worker has closed its descriptors. Its calls still run, but it can get no more shared memory.
void run_body(Plan&, Own&) {
  sr::Session session({.timeout = 10s});
  session.function(close_all_on)(1);
  for (int round = 0; round < 3; ++round) {
    std::printf("sum %d\n", session.function(add_up)().value());
    try {
      session.function(large)();
    } catch (const sr::Error& error) {
      std::printf("%s\n", error.what());
    }
  }
  std::printf("ready\n");
  std::fflush(stdout);
  if (const char* holds = std::getenv("CLOSING_HOLDS"); holds != nullptr) std::this_thread::sleep_for(20s);
  session.close();
}

void run(Plan& plan, Own& own) {
  if (plan.scene == "queue") return run_queue(plan, own);
  if (plan.scene == "task") return run_task(plan, own);
  if (plan.scene == "body") return run_body(plan, own);
  run_session(plan, own);
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = sr::serve_if_worker(argc, argv)) return *code;
  if (argc < 4) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 4096);
  Plan plan{argv[1], argv[2], argv[3], {}};
  Own own;
  try {
    run(plan, own);
    std::printf("fine\n");
  } catch (const sr::Error& error) {
    const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - closed_at);
    std::printf("named %lld %s: %s\n", static_cast<long long>(time.count()),
                std::string(to_string(error.kind())).c_str(), error.what());
  }
  own.say_what_is_kept();
  return 0;
}
