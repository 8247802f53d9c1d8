// exec in user code. The worker is gone, but its process still runs. The error names this at once, and the master kills
// the process.

#include <unistd.h>

#include <array>
#include <string>

#include "tests/fault/scene.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

// The master checks three times, 25 ms apart, what the kernel says about the process. Other programs may use the
// machine too.
constexpr auto kNamedLimit = 1500ms;

void call_exec() { ::execlp("sleep", "sleep", "1000", nullptr); }
void call_exec_on_rank_1(CpuWorker& worker, Comm& comm) {
  if (worker.rank() == 1) call_exec();
  comm.barrier();
}

TEST(Exec, InABodyIsNamedAtOnce) {
  Session session(workers(3));
  const auto pids = session.worker_pids();
  const auto f = session.function(call_exec_on_rank_1, "f");
  const auto begin = Clock::now();
  const Error error = error_of([&] { f(); });
  EXPECT_LT(Clock::now() - begin, kNamedLimit);
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), 1);
  EXPECT_EQ(error.failure().call, "f");
  EXPECT_THAT(error.what(), HasSubstr("called exec: its process runs "));
  EXPECT_THAT(error.what(), HasSubstr("sleep now"));
  for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
  expect_over(session, error);
}

TEST(Exec, InABodyIsALossThatCanBeReplaced) {
  auto options = workers(3);
  options.on_worker_lost = OnWorkerLost::respawn;
  Session session(options);
  const auto pids = session.worker_pids();
  const auto f = session.function(call_exec_on_rank_1, "f");
  EXPECT_THAT(error_of([&] { f(); }).what(), HasSubstr("called exec"));
  EXPECT_FALSE(is_alive(pids[1]));
  expect_usable(session);
}

/// The environments with which a function may call exec.
enum class Variables : int { none, those_of_the_worker };

void call_exec_with(CpuWorker& worker, Comm& comm, Variables variables) {
  std::string program = "sleep";
  std::string role = "SYNCRUN_WORKER_RANK=1";  // a program may have saved its environment before it became a worker
  std::array<char*, 2> environment{variables == Variables::none ? nullptr : role.data(), nullptr};
  std::string count = "1000";
  std::array<char*, 3> arguments{program.data(), count.data(), nullptr};
  if (worker.rank() == 1) ::execvpe(program.c_str(), arguments.data(), environment.data());
  comm.barrier();
}

TEST(Exec, IsNamedAtOnceWithAnyEnvironment) {
  for (const Variables variables : {Variables::none, Variables::those_of_the_worker}) {
    Session session(workers(2));
    const auto f = session.function(call_exec_with, "f");
    const auto begin = Clock::now();
    const Error error = error_of([&] { f(variables); });
    EXPECT_LT(Clock::now() - begin, kNamedLimit);
    EXPECT_THAT(error.what(), HasSubstr("called exec: its process runs "));
    EXPECT_THAT(error.what(), HasSubstr("sleep now"));
  }
}

TEST(Exec, OfTheSameProgramIsNamedAtOnceWithoutAnEnvironment) {
  Session session(workers(2));
  const auto f = session.function(
      +[](CpuWorker& worker, Comm& comm) {
        std::string program = "/proc/self/exe";
        std::string flag = "--program";
        std::string name = "task-with-daemon";
        std::array<char*, 4> arguments{program.data(), flag.data(), name.data(), nullptr};
        char* end = nullptr;
        if (worker.rank() == 1) ::execve(program.c_str(), arguments.data(), &end);
        comm.barrier();
      },
      "f");
  const auto begin = Clock::now();
  const Error error = error_of([&] { f(); });
  EXPECT_LT(Clock::now() - begin, kNamedLimit);
  EXPECT_THAT(error.what(), HasSubstr("called exec: its process runs "));
}

TEST(Exec, InATaskIsNamedAtOnce) {
  auto task = syncrun::task(call_exec, {.name = "execs"});
  const auto begin = Clock::now();
  const Error error = error_of([&] { task.get(); });
  EXPECT_LT(Clock::now() - begin, kNamedLimit);
  EXPECT_THAT(error.what(), HasSubstr("task 'execs'"));
  EXPECT_THAT(error.what(), HasSubstr("called exec"));
}

TEST(Exec, InAProducerIsNamedAtOnce) {
  Session session(workers(2));
  using Numbers = Data<std::int64_t, 1>;
  auto queue = session.producers(
      1, +[](Producer<Numbers>&) { call_exec(); }, BatchShapes<Numbers>{{4}});
  const auto begin = Clock::now();
  const Error error = error_of([&] { static_cast<void>(queue.next()); });
  EXPECT_LT(Clock::now() - begin, kNamedLimit);
  EXPECT_THAT(error.what(), HasSubstr("called exec"));
  expect_usable(session);
}

}  // namespace
}  // namespace syncrun::test
