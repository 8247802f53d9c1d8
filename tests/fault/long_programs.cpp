#include "tests/fault/long_programs.hpp"

#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <syncrun/syncrun.hpp>
#include <thread>

#include "tests/fault/programs.hpp"
#include "tests/fault/scene.hpp"

namespace syncrun::test {

namespace {

void say(const char* stage) {
  std::printf("stage %s\n", stage);
  std::fflush(stdout);
}

/// Starts two processes: a child of the worker, and a process whose parent has ended.
void start_children() {
  if (::fork() == 0) {
    ::execlp("sleep", "sleep", "1000", nullptr);
    ::_exit(127);
  }
  static_cast<void>(std::system("sleep 1000 &"));
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

}  // namespace

std::optional<int> run_long_program(const std::string& name, int argc, char** argv) {
  const SessionOptions options{.timeout = 60s, .start_timeout = 20s};
  if (name == "live") {
    say("starting");
    return run(argc, argv, live, options);
  }
  if (name == "kill-master-and-wait" || name == "kill-master-and-end") {
    const bool waits = name == "kill-master-and-wait";
    return run(
        argc, argv, [&](Session& session) { kill_master_at_end(session, waits); }, options);
  }
  if (name == "task-with-daemon") return run_task_with_daemon();
  if (name == "stubborn-workers" || name == "stubborn-job") {
    return run(
        argc, argv, [&](Session& session) { ignore_requests(session, name == "stubborn-job"); }, options);
  }
  return std::nullopt;
}

}  // namespace syncrun::test
