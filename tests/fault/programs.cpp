#include "tests/fault/programs.hpp"

#include <limits.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <syncrun/syncrun.hpp>
#include <thread>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace {
bool has_no_leak_check = false;
}  // namespace

/// The leak checker of the address sanitizer calls this at the end of a process.
extern "C" int __lsan_is_turned_off() { return has_no_leak_check ? 1 : 0; }

namespace syncrun::test {

namespace {

/// Prints "ready" and the pids of the workers and helpers. Called when each is in the intended state.
void say_ready(const Session& session, const std::vector<int>& helpers = {}) {
  std::string line = "ready";
  for (const int pid : session.worker_pids()) line += " " + std::to_string(pid);
  for (const int pid : helpers) line += " " + std::to_string(pid);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void fork_a_sleeper() {
  if (::fork() != 0) return;
  ::execlp("sleep", "sleep", "1000", nullptr);
  ::_exit(127);
}

/// Starts two processes: a child of the worker, and a process whose parent has ended. They hold no descriptor of Syncrun.
void start_children() {
  fork_a_sleeper();
  static_cast<void>(std::system("sleep 1000 &"));
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
  session.function(start_children)();
  auto future = session.function(wait_endlessly, "wait_endlessly").async(board.data());
  board.reaches(0, session.world_size());
  say_ready(session);
  future.get();
}

/// Starts workers with children, and then makes no calls.
void idle(Session& session) {
  session.function(start_children)();
  say_ready(session);
  for (;;) ::pause();
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
  auto helpers = queue.producer_pids();
  helpers.insert(helpers.end(), {first.pid(), second.pid()});
  say_ready(session, helpers);
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

void say(const char* stage) {
  std::printf("stage %s\n", stage);
  std::fflush(stdout);
}

Sum<std::int64_t> add_ranks(CpuWorker& worker, Comm& comm, Scattered<const float, 1> rows,
                            Update<op::sum, float, 1> variable) {
  variable.value()[0] = static_cast<float>(rows.rows());
  return comm.all_reduce(std::int64_t{worker.rank()}, Reduction::sum);
}

/// Does a little of everything that a job does.
void live(Session& session) {
  session.function(start_children)();
  const auto data = session.data(std::vector<float>(1000, 1));
  auto variable = session.shared<float, 1>("v");
  variable.broadcast(std::vector<float>{0});
  const auto f = session.function(add_ranks, "add_ranks");
  say("calls");
  for (int call = 0; call < 50; ++call) f(data, variable);
  for (int call = 0; call < 20; ++call) static_cast<void>(f.async(data, variable));
  session.wait();
  say("idle");
  std::this_thread::sleep_for(30ms);
  f(data, variable);
  say("closing");
  session.close();
  say("closed");
}

pid_t master_to_kill = 0;

/// Kills the master once, as long as it is the parent. Later the parent would be whoever has adopted this process.
void kill_master() {
  // The other thread of the worker gets the signal of the master's death.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  if (::getppid() == master_to_kill) ::kill(master_to_kill, SIGKILL);
}
void wait_for_another_parent() {
  while (::getppid() == master_to_kill) ::sched_yield();
}

/// Closes the session. In an exit handler, the first worker that ends kills the master. It then waits until the kernel has
/// told it so, or it goes on at once. In the second case, it may end before the master, and could then not end a process
/// in a session of its own.
void kill_master_at_end(Session& session, bool waits) {
  const auto prepare = session.function(+[](bool waits) {
    turn_off_leak_check();
    start_children();
    master_to_kill = ::getppid();
    if (waits) {
      static_cast<void>(std::system("setsid sleep 1000 & exit"));
      static_cast<void>(std::atexit(wait_for_another_parent));
    }
    static_cast<void>(std::atexit(kill_master));  // runs first
  });
  prepare(waits);
}

/// Runs a task that starts a daemon and then never ends. There are no workers.
int run_task_with_daemon() {
  auto task = syncrun::task(+[] {
    static_cast<void>(std::system("setsid sleep 1000 & exit"));
    say("ready");
    for (;;) ::pause();
  });
  task.get();
  return 0;
}

/// Starts workers that do not end when asked. With `in_master`, the master does not either.
void ignore_requests(Session& session, bool in_master) {
  if (in_master) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::signal(signal, SIG_IGN);
  }
  const Board board(session);
  const auto f = session.function(
      +[](BoardView board) {
        for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::signal(signal, SIG_IGN);
        start_children();
        field(board, 0).fetch_add(1);
        for (;;) ::pause();
      },
      "f");
  auto future = f.async(board.data());
  board.reaches(0, session.world_size());
  say("ready");
  future.get();
}

/// Returns 1 if SIGTERM ends a child that this process has forked.
int end_a_child() {
  const pid_t child = ::fork();
  while (child == 0) ::pause();
  ::kill(child, SIGTERM);
  int status = 0;
  for (int naps = 0; naps < 5000 && ::waitpid(child, &status, WNOHANG) == 0; ++naps) std::this_thread::sleep_for(1ms);
  ::kill(child, SIGKILL);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM ? 1 : 0;
}

std::atomic<bool> has_said_who_asked = false;

int stop_when_asked(Session& session, bool ends) {
  const auto f = session.function(
      +[]() -> Sum<int> { return end_a_child(); }, "f");
  f();
  say("ready");
  while (!stop_requested() || !has_said_who_asked) std::this_thread::sleep_for(1ms);
  say((std::to_string(f().value() + end_a_child()) + " children end").c_str());
  while (!ends) std::this_thread::sleep_for(1s);
  return kRequeueExitCode;
}

/// Handles two of the signals itself.
int stop_by_handler(Session& session) {
  std::signal(SIGUSR1, [](int) {
    if (::write(STDOUT_FILENO, "handled 10\n", 11) < 0) std::abort();
  });
  std::signal(SIGUSR2, [](int) { request_stop(); });
  return stop_when_asked(session, true);
}

}  // namespace

void turn_off_leak_check() { has_no_leak_check = true; }

void get_signals_at_birth(int argc, char** argv) {
  if (argc < 3 || std::strcmp(argv[2], "stop-at-birth") != 0) return;
  if (std::getenv("RANK") == nullptr && std::getenv("SYNCRUN_HELPER") == nullptr) return;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) std::raise(signal);
}

int run_program(int argc, char** argv) {
  const std::string name = argv[2];
  const SessionOptions options{.timeout = 60s, .start_timeout = 20s};
  const auto run_with = [&](const auto& body) { return run(argc, argv, body, options); };
  if (name == "hang") return run_with(hang);
  if (name == "idle") return run_with(idle);
  if (name == "fail") return run_with(fail);
  if (name == "helpers-busy" || name == "helpers-waiting") {
    const auto keep = [&](Session& session) { keep_helpers(session, name == "helpers-busy"); };
    return run(argc, argv, keep, {.processes = "2", .timeout = 60s, .start_timeout = 20s});
  }
  if (name == "live") say("starting");
  if (name == "live") return run_with(live);
  if (name == "kill-master-and-wait" || name == "kill-master-and-end")
    return run_with([&](Session& session) { kill_master_at_end(session, name == "kill-master-and-wait"); });
  if (name == "task-with-daemon") return run_task_with_daemon();
  if (name.starts_with("stop")) {
    on_stop([](int signal) {
      say(("asked by " + std::to_string(signal)).c_str());
      has_said_who_asked = true;
    });
  }
  if (name == "stop-at-birth") {
    return run_with([](Session& session) {
      task(+[] { say("the task runs"); }).get();
      return stop_when_asked(session, true);
    });
  }
  if (name == "stop" || name == "stop-never")
    return run_with([&](Session& session) { return stop_when_asked(session, name == "stop"); });
  if (name == "stop-by-handler") return run_with(stop_by_handler);
  if (name == "stubborn-workers" || name == "stubborn-job")
    return run_with([&](Session& session) { ignore_requests(session, name == "stubborn-job"); });
  std::fprintf(stderr, "no program '%s'\n", name.c_str());
  return 2;
}

std::string own_binary() {
  std::array<char, PATH_MAX> path{};
  const auto length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return {path.data(), length > 0 ? static_cast<std::size_t>(length) : 0};
}

}  // namespace syncrun::test
