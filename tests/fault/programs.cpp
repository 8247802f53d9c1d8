#include "tests/fault/programs.hpp"

#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <syncrun/syncrun.hpp>

#include "tests/fault/long_programs.hpp"
#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace {
bool has_no_leak_check = false;
}  // namespace

/// The leak checker of the address sanitizer calls this at the end of a process.
extern "C" int __lsan_is_turned_off() { return has_no_leak_check ? 1 : 0; }

namespace syncrun::test {

namespace {

/// Prints "ready" and the pids of the workers. Called when every worker is in the intended state.
void say_ready(const Session& session) {
  std::string line = "ready";
  for (const int pid : session.worker_pids()) line += " " + std::to_string(pid);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

/// Starts children that do not disturb the test: they hold no descriptor of Syncrun.
void start_child(BoardView board, int fields) {
  const int child = ::fork();
  if (child == 0) {
    ::execlp("sleep", "sleep", "1000", nullptr);
    ::_exit(127);
  }
  static_cast<void>(std::system("sleep 1000 &"));
  field(board, fields).fetch_add(1);
}

void wait_endlessly(CpuWorker& worker, Comm& comm, BoardView board) {
  field(board, 0).fetch_add(1);
  if (worker.rank() == 0) {
    for (;;) ::pause();
  }
  comm.barrier();
}

/// Starts workers with children, in a call that never ends. Rank 0 stays in its body, and the others wait in a barrier.
void hang(Session& session) {
  const Board board(session);
  session.function(start_child)(board.data(), 1);
  auto future = session.function(wait_endlessly, "wait_endlessly").async(board.data());
  board.reaches(0, session.world_size());
  say_ready(session);
  future.get();
}

/// Starts workers with children, and then makes no calls.
void idle(Session& session) {
  const Board board(session);
  session.function(start_child)(board.data(), 1);
  say_ready(session);
  for (;;) ::pause();
}

void fork_a_sleeper() {
  if (::fork() != 0) return;
  ::execlp("sleep", "sleep", "1000", nullptr);
  ::_exit(127);
}

using Numbers = Data<float, 1>;
void fill(Producer<Numbers>& out, bool is_busy) {
  fork_a_sleeper();
  while (auto draft = out.next()) {
    draft.push();
    while (is_busy) ::pause();  // NOLINT(bugprone-infinite-loop): until it is killed
  }
}
int answer(Pipe<int, int>& pipe, bool is_busy) {
  fork_a_sleeper();
  pipe.send(0);
  while (is_busy) ::pause();  // NOLINT(bugprone-infinite-loop): as above
  return pipe.receive().value_or(0);
}

/// Starts producers and tasks, each with a child. They are busy, or they wait for the program.
void keep_helpers(Session& session, bool is_busy) {
  auto queue = session.producers(3, fill, {{4}}, {.capacity = 3}, is_busy);
  auto first = task(answer, {}, is_busy);
  auto second = task(answer, {}, is_busy);
  first.receive();
  second.receive();
  queue.next();
  std::string line = "ready";
  for (const int pid : session.worker_pids()) line += " " + std::to_string(pid);
  for (const int pid : queue.producer_pids()) line += " " + std::to_string(pid);
  line += " " + std::to_string(first.pid()) + " " + std::to_string(second.pid());
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  for (;;) ::pause();
}

/// Fails in the way that the argument names. The failure leaves the program.
int fail(Session& session, int, char** argv) {
  const std::string what = argv[3];
  if (what == "throw") throw std::runtime_error("the program's own failure");
  if (what == "throw-number") throw 17;
  if (what == "throw-lines") throw std::runtime_error("one line\n[rank 9] another");
  if (what == "throw-speechless") throw Speechless();
  if (what == "child-throws") {
    const pid_t child = ::fork();
    if (child == 0) turn_off_leak_check();
    if (child == 0) throw std::runtime_error("a child's failure");
    ::waitpid(child, nullptr, 0);
    throw std::runtime_error("the program's own failure");
  }
  if (what == "return") return 42;
  const auto f = session.function(
      +[](CpuWorker& worker, bool dies) {
        std::fprintf(stderr, "rank %d says something\n", worker.rank());
        if (worker.rank() == 0 && dies) die(Death::segfault);
        if (worker.rank() == 0) throw std::runtime_error("the function's own failure");
      },
      "f");
  f(what == "lose-worker");
  return 0;
}

/// Prints the total of many calls, so that a test can check jobs that run side by side.
void add_up(Session& session) {
  const auto f = session.function(+[](CpuWorker& worker, Comm& comm) {
    return Sum<std::int64_t>(comm.all_reduce(std::int64_t{worker.rank() + 1}, Reduction::sum));
  });
  std::int64_t total = 0;
  for (int call = 0; call < 500; ++call) total += f().value();
  std::printf("total %lld\n", static_cast<long long>(total));
}

}  // namespace

void turn_off_leak_check() { has_no_leak_check = true; }

int run_program(int argc, char** argv) {
  const std::string name = argv[2];
  if (const auto code = run_long_program(name, argc, argv)) return *code;
  const SessionOptions options{.timeout = 30s, .start_timeout = 20s};
  if (name == "hang") return run(argc, argv, hang, options);
  if (name == "idle") return run(argc, argv, idle, options);
  if (name == "fail") return run(argc, argv, fail, options);
  SessionOptions two = options;
  two.processes = "2";
  if (name == "helpers-busy")
    return run(
        argc, argv, [](Session& session) { keep_helpers(session, true); }, two);
  if (name == "helpers-waiting")
    return run(
        argc, argv, [](Session& session) { keep_helpers(session, false); }, two);
  if (name == "add-up") return run(argc, argv, add_up, options);
  std::fprintf(stderr, "no program '%s'\n", name.c_str());
  return 2;
}

std::string own_binary() {
  std::array<char, PATH_MAX> path{};
  const auto length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return {path.data(), length > 0 ? static_cast<std::size_t>(length) : 0};
}

}  // namespace syncrun::test
