// User code that forks or calls exec. If a child returns from user code, Syncrun ends it before it acts as a second copy of
// its rank, and the caller gets an error. Children that end by themselves or run another program cause no error. After
// exec, the worker is gone, but its process still runs. The error names this at once, and the master kills the process.

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/fault/scene.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

/// What a forked child does.
enum class Child : int { returns, throws, reduces, takes_scratch, makes_an_output, updates, combines, copies };

void act_as_child(CpuWorker& worker, Comm& comm, Local<int, 1> calls, Local<float, 1> params, Child child) {
  switch (child) {
    case Child::returns: return;
    case Child::throws: throw std::runtime_error("thrown by the child");
    case Child::reduces: static_cast<void>(comm.all_reduce(1000, Reduction::sum)); return;
    case Child::takes_scratch: worker.scratch<float>(1 << 20)[0] = 1; return;
    case Child::makes_an_output: Sum<float, 1>(worker, {1 << 20})[0] = 1; return;
    case Child::updates: update(worker, Sgd{.learning_rate = 1}, params, std::vector<float>{1000}); return;
    // No public function calls only these two. easgd() and downpour() call both.
    case Child::combines: detail::combine<float>(worker, params, {params.data(), params.shape()}, {1, 1}); return;
    case Child::copies: {
      const int value = 1000;
      detail::copy_values(detail::HandleAccess::command_loop(worker), calls.data(), &value, sizeof value);
      return;
    }
  }
}

struct Counts {
  Sum<int> ranks;
  Sum<float, 1> values;  // in memory of the worker, which the destructor must not free in a child
};

Counts fork_and_count(CpuWorker& worker, Comm& comm, Local<int, 1> calls, Local<float, 1> params, Child child) {
  Counts own{.ranks = 1, .values = {worker, {100}}};
  for (auto& value : own.values) value = 1;
  if (worker.rank() == 0 && ::fork() == 0) {
    act_as_child(worker, comm, calls, params, child);
    own.ranks = 1000;
    return own;
  }
  ++calls[0];
  return own;
}

void expect_child_named(const Error& error, const std::string& call, const std::string& act) {
  EXPECT_EQ(error.kind(), ErrorKind::function) << error.what();
  for (const auto& word : {std::string("in call '" + call + "'"), std::string("a child that the function had forked"),
                           act, std::string("must end with _exit or call exec")}) {
    EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

class ForkInABody : public testing::TestWithParam<Child> {};
INSTANTIATE_TEST_SUITE_P(Children, ForkInABody,
                         testing::Values(Child::returns, Child::throws, Child::reduces, Child::takes_scratch,
                                         Child::makes_an_output, Child::updates, Child::combines, Child::copies));

TEST_P(ForkInABody, FailsTheCallByNameAndActsNoMore) {
  Session session(workers(2));
  auto calls = session.shared<int, 1>("calls");
  auto params = session.shared<float, 1>("params");
  calls.broadcast(std::vector<int>{0});
  params.broadcast(std::vector<float>{1});
  const auto f = session.function(fork_and_count, "fork_and_count");
  const bool came_back = GetParam() == Child::returns || GetParam() == Child::throws;
  for (int round = 1; round <= 3; ++round) {
    expect_child_named(error_of([&] { f(calls, params, GetParam()); }), "fork_and_count",
                       came_back ? "came back" : "called the library");
    EXPECT_EQ(calls.get(0)[0], round);
    EXPECT_EQ(calls.get(1)[0], round);
    EXPECT_EQ(params.get(0)[0], 1);
  }
  for (int call = 0; call < 100; ++call) expect_usable(session);
  session.close();
}

TEST(ForkInABody, IsNamedByTheNextCallOrTheCloseWhereItComesBackLate) {
  Session session(workers(2));
  Board board(session);
  const auto f = session.function([](CpuWorker& worker, BoardView board) -> Sum<int> {
    const pid_t child = worker.rank() == 0 ? ::fork() : -1;
    if (child > 0) field(board, 1).store(child);
    while (child == 0 && field(board, 0).load() == 0) std::this_thread::sleep_for(1ms);
    return child == 0 ? 1000 : 1;
  });
  const auto fork_late = [&] {
    board.set(0, 0);
    EXPECT_EQ(f(board.data()), 2);
    board.set(0, 1);
    EXPECT_TRUE(eventually([&] { return !is_alive(static_cast<pid_t>(board.get(1))); }));
  };
  fork_late();
  const auto g = session.function([]() -> Sum<int> { return 1; });
  const std::string named = "a child that the function of an earlier call had forked";
  EXPECT_THAT(error_of([&] { g(); }).what(), HasSubstr(named));
  EXPECT_EQ(g(), 2);
  expect_usable(session);
  fork_late();
  EXPECT_THAT(error_of([&] { session.close(); }).what(), HasSubstr(named));
}

/// Uses children correctly, in one of several ways.
Sum<int> fork_properly(int how) {
  if (how == 0) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
  } else if (how == 1) {
    if (::fork() == 0) {
      ::execlp("sleep", "sleep", "1000", nullptr);
      ::_exit(127);
    }
  } else if (how == 2) {
    static_cast<void>(std::system("true"));
  } else if (how == 3) {
    const pid_t child = ::vfork();
    if (child == 0) {
      ::execl("/nowhere/to/be/found", "found", nullptr);
      ::_exit(127);
    }
    ::waitpid(child, nullptr, 0);
  } else if (::fork() == 0) {
    std::exit(0);  // runs the exit handlers of a worker in a process that is not a worker
  }
  return 1;
}

TEST(ForkInABody, OfAChildThatEndsOrCallsExecIsNobodysBusiness) {
  Session session(workers(2));
  const auto f = session.function(fork_properly, "fork_properly");
  for (int how = 0; how < 5; ++how) {
    for (int call = 0; call < 5; ++call) EXPECT_EQ(f(how), 2) << how;
  }
  expect_usable(session);
  session.close();
}

/// A mistake in user code: it calls vfork and exec in one function and returns in the child when exec fails.
__attribute__((noinline)) Sum<int> vfork_and_return(CpuWorker& worker) {
  if (worker.rank() == 1) {
    const pid_t child = ::vfork();
    if (child == 0) {
      ::execl("/nowhere/to/be/found", "found", nullptr);
      return 1000;
    }
  }
  return 1;
}

TEST(Vfork, EndsTheWorkerByNameWhereTheChildComesBackFromABody) {
  Session session(workers(2));
  const auto f = session.function(vfork_and_return, "vfork_and_return");
  const auto begin = Clock::now();
  const Error error = expect_error([&] { f(); }, ErrorKind::worker_lost,
                                   {"a child that a function made with vfork() came back from it"});
  EXPECT_LT(Clock::now() - begin, kErrorLimit);
  EXPECT_EQ(error.rank(), 1);
}

struct VforksInItsConstructor {
  __attribute__((noinline)) VforksInItsConstructor() {
    if (::vfork() == 0) ::execl("/nowhere/to/be/found", "found", nullptr);  // the child goes on if exec fails
  }
};

TEST(Vfork, EndsAWorkerATaskOrAProducerByName) {
  Session session(workers(2));
  auto queue = session.producers(1, +[](Producer<Data<std::int64_t, 1>>&) { const VforksInItsConstructor object; },
                                 BatchShapes<Data<std::int64_t, 1>>{{4}}, {.name = "vforks"});
  auto task = syncrun::task(+[] { const VforksInItsConstructor object; }, {.name = "vforks"});
  const auto begin = Clock::now();
  const std::string named = "came back from vfork() in a function of ";
  expect_error([&] { task.get(); }, ErrorKind::worker_lost, {named + "task 'vforks'"});
  expect_error([&] { static_cast<void>(queue.next()); }, ErrorKind::worker_lost, {named + "producer 0 of 'vforks'"});
  expect_usable(session);
  const auto object = session.replicate<VforksInItsConstructor>();
  expect_error([&] { session.wait(); }, ErrorKind::worker_lost,
               {"a child that a function made with vfork() came back from it"});
  EXPECT_LT(Clock::now() - begin, kErrorLimit);
}

struct ForksInItsConstructor {
  ForksInItsConstructor() { static_cast<void>(::fork()); }
};
struct ForksInItsDestructor {
  ~ForksInItsDestructor() { static_cast<void>(::fork()); }
};

TEST(ForkOfAnObject, FailsItsConstructionItsDestructionAndTheCloseByName) {
  Session session(workers(2));
  const auto pids = session.worker_pids();
  const auto expect_named = [&] {  // the next use of the session destroys the object
    EXPECT_THAT(error_of([&] { session.wait(); }).what(), HasSubstr("came back"));
    expect_usable(session);
  };
  {
    const auto object = session.replicate<ForksInItsConstructor>();
    expect_named();
  }
  {
    const auto object = session.replicate<ForksInItsDestructor>();
    expect_usable(session);
  }
  expect_named();
  const auto object = session.replicate<ForksInItsDestructor>();
  const Error error = error_of([&] { session.close(); });
  EXPECT_THAT(error.what(), HasSubstr("a child that the function had forked, came back from it"));
  for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
}

int fork_in_task(Pipe<int, int>& pipe) {
  const pid_t child = ::fork();
  if (child != 0) pipe.send(1);
  return child == 0 ? 1000 : 1;
}

int use_the_pipe_of_a_parent(Pipe<int, int>& pipe, bool sends) {
  if (::fork() == 0) {
    if (sends) pipe.send(2);
    else static_cast<void>(pipe.receive());
    ::_exit(0);
  }
  pipe.send(1);
  return 1;
}

TEST(ForkInATask, FailsItByNameAndHasNoUseOfItsPipe) {
  auto task = syncrun::task(fork_in_task, {.name = "forks"});
  EXPECT_EQ(task.receive(), 1);
  expect_error([&] { static_cast<void>(task.get()); }, ErrorKind::function, {"came back", "forks"});
  for (const bool sends : {false, true}) {
    auto other = syncrun::task(use_the_pipe_of_a_parent, {.name = "forks"}, sends);
    EXPECT_EQ(other.receive(), 1);
    EXPECT_THAT(error_of([&] { static_cast<void>(other.get()); }).what(), HasSubstr("had forked, called the library"));
  }
}

struct ForksWhenAsked : std::exception {
  const char* what() const noexcept override {
    static_cast<void>(::fork());
    return "asked";
  }
};

TEST(ForkInAnException, ActsNoMore) {
  Session session(workers(2));
  const auto f = session.function([](CpuWorker& worker) {
    if (worker.rank() == 0) throw ForksWhenAsked();
  });
  for (int call = 0; call < 3; ++call) EXPECT_THAT(error_of([&] { f(); }).what(), HasSubstr("asked"));
  for (int call = 0; call < 100; ++call) expect_usable(session);
}

/// Forks when it is destroyed: after the library has caught it. The child comes back after a delay.
struct ForksAtItsEnd : std::runtime_error {
  explicit ForksAtItsEnd(std::chrono::milliseconds child_delay = 0ms)
      : std::runtime_error("thrown"), delay(child_delay) {}
  ForksAtItsEnd(const ForksAtItsEnd&) = delete;
  ~ForksAtItsEnd() override {
    if (::fork() == 0) std::this_thread::sleep_for(delay);
  }
  std::chrono::milliseconds delay;
};

TEST(ForkInTheDestructorOfAnException, IsNamedByTheNextCallAndActsNoMore) {
  Session session(workers(2));
  auto calls = session.shared<int, 1>("calls");
  calls.broadcast(std::vector<int>{0});
  const auto f = session.function([](CpuWorker& worker, Local<int, 1> count) -> Sum<float, 1> {
    ++count[0];
    if (worker.rank() == 0) throw ForksAtItsEnd();
    return {worker, {1 << 20}};  // large, so the ranks vote
  });
  const auto g = session.function([](Local<int, 1> count) -> Sum<int> { return ++count[0]; });
  for (int call = 0; call < 3; ++call) {
    EXPECT_THAT(error_of([&] { f(calls); }).what(), HasSubstr("thrown"));
    EXPECT_THAT(error_of([&] { g(calls); }).what(),
                HasSubstr("a child that the function of an earlier call had forked"));
    EXPECT_EQ(calls.get(0)[0], 2 * call + 2);
  }
  for (int call = 0; call < 100; ++call) expect_usable(session);
}

TEST(ForkInTheDestructorOfAnException, DoesNotVoteLater) {
  Session session(workers(2));
  const auto f = session.function([](CpuWorker& worker) -> Sum<float, 1> {
    if (worker.rank() == 0) throw ForksAtItsEnd(3s);
    return {worker, {1 << 20}};
  });
  const auto g = session.function([](CpuWorker& worker) -> Sum<float, 1> { return {worker, {1 << 20}}; });
  const auto slow = session.function([]() -> Sum<int> {
    std::this_thread::sleep_for(5s);
    return 1;
  });
  EXPECT_THAT(error_of([&] { f(); }).what(), HasSubstr("thrown"));
  // The child comes back when rank 0 has voted in g, and rank 1 has not begun it. The vote of another call, here of
  // `slow`, would replace this vote.
  auto future = slow.on_rank(1).async();
  EXPECT_EQ(g().size(), 1 << 20);
  EXPECT_EQ(future.get(), 1);
  EXPECT_THAT(error_of([&] { g(); }).what(), HasSubstr("a child that the function of an earlier call had forked"));
  expect_usable(session);
}

TEST(ForkInTheDestructorOfAnException, OfATaskOrAProducerActsNoMore) {
  auto task = syncrun::task(+[]() -> int { throw ForksAtItsEnd(); }, {.name = "forks"});
  EXPECT_THAT(error_of([&] { static_cast<void>(task.get()); }).what(), HasSubstr("thrown"));
  Session session(workers(2));
  auto queue = session.producers(
      1, +[](Producer<Data<std::int64_t, 1>>&) { throw ForksAtItsEnd(); }, BatchShapes<Data<std::int64_t, 1>>{{4}});
  EXPECT_THAT(error_of([&] { static_cast<void>(queue.next()); }).what(), HasSubstr("thrown"));
  expect_usable(session);
}

/// What the program does in a child right after a fork, before the library learns of the child. pthread_atfork calls the
/// handlers of children in the order of their registration, and this one is registered before main.
void (*after_fork)() = nullptr;
[[maybe_unused]] const int is_registered = ::pthread_atfork(nullptr, nullptr, [] {
  if (after_fork != nullptr) after_fork();
});
CpuWorker* forking_worker = nullptr;

/// Forks a child that ends at once. Before that, it acts in its handler.
Sum<int> fork_with_handler(CpuWorker& worker, bool throws) {
  forking_worker = &worker;
  if (throws) after_fork = [] { throw std::runtime_error("thrown by a handler"); };
  else after_fork = [] { forking_worker->scratch<float>(1 << 20)[0] = 1; };
  const pid_t child = worker.rank() == 0 ? ::fork() : -1;
  if (child == 0) ::_exit(0);
  after_fork = nullptr;
  return 1;
}

/// The compiler may assume that fork throws nothing. So the exception leaves the function, or it ends the child at once.
TEST(HandlerOfForks, ThatCallsTheLibraryOrThrowsMakesNoSecondRank) {
  Session session(workers(2));
  const auto f = session.function(fork_with_handler, "f");
  for (int call = 0; call < 3; ++call) expect_child_named(error_of([&] { f(false); }), "f", "called the library");
  for (int call = 0; call < 3; ++call) {
    try {
      EXPECT_EQ(f(true), 2);
    } catch (const Error& error) {
      expect_child_named(error, "f", "came back");
    }
  }
  for (int call = 0; call < 100; ++call) expect_usable(session);
}

TEST(ForkInABody, ThatForksAgainIsNamedInTheSameCall) {
  Session session(workers(2));
  const auto f = session.function(
      [](CpuWorker& worker) -> Sum<int> {
        if (worker.rank() == 0 && ::fork() == 0) {
          if (::fork() == 0) return 1000;  // a grandchild returns from user code
          ::_exit(0);
        }
        return 1;
      },
      "f");
  for (int call = 0; call < 3; ++call) expect_child_named(error_of([&] { f(); }), "f", "came back");
  expect_usable(session);
}

using Numbers = Data<std::int64_t, 1>;

void fork_in_producer(Producer<Numbers>& out, bool pushes) {
  for (int batch = 0; batch < 2; ++batch) {
    auto draft = out.next();
    if (!draft) return;
    draft.array()[0] = 7;
    draft.push();
  }
  auto held = out.next();
  if (::fork() == 0) {
    if (pushes) held.push();
    return;  // frees `held`, which still belongs to the parent
  }
  held.array()[0] = 8;
  held.push();
}

TEST(ForkInAProducer, FailsItByName) {
  for (const bool pushes : {false, true}) {
    Session session(workers(2));
    auto queue = session.producers(1, fork_in_producer, BatchShapes<Numbers>{{4}}, {.capacity = 4}, pushes);
    EXPECT_EQ(queue.next().value().view()[0], 7);
    EXPECT_EQ(queue.next().value().view()[0], 7);
    EXPECT_EQ(queue.next().value().view()[0], 8);
    expect_error([&] { static_cast<void>(queue.next()); }, ErrorKind::function,
                 {"a child that the function had forked"});
    expect_usable(session);
  }
}

void fork_in_step(CpuWorker& worker, Scattered<const float, 1> x, Local<float, 1> params, Local<float, 1> gradient) {
  for (auto& value : gradient) value = params[0] + x[0];
  if (worker.rank() == 0) static_cast<void>(::fork());
}

TEST(ForkInATrainStep, FailsItByName) {
  Session session(workers(2));
  auto params = session.shared<float, 1>("params");
  params.broadcast(std::vector<float>{1, 1});
  auto x = session.data(std::vector<float>{1, 1, 1, 1});
  auto step = train_step<Sgd>(session, fork_in_step, params);
  for (const std::int64_t slices : {1, 2}) {
    const Error error = error_of([&] { step(x, Sgd{}, {.slices = slices}); });
    EXPECT_THAT(error.what(), HasSubstr("had forked"));
  }
  expect_usable(session);
}

TEST(ForkInAThreadOfABody, EndsWithItsThread) {
  Session session(workers(2));
  const auto f = session.function([]() -> Sum<int> {
    std::thread([] { static_cast<void>(::fork()); }).join();
    return 1;
  });
  for (int call = 0; call < 5; ++call) EXPECT_EQ(f(), 2);
  expect_usable(session);
}

// ---- exec --------------------------------------------------------------------------------------------------------

// The master checks three times, 25 ms apart, what the kernel says about the process. The limit of a call is longer.
constexpr auto kNamedLimit = 15s;

void call_exec() { ::execlp("sleep", "sleep", "1000", nullptr); }
void call_exec_on_rank_1(CpuWorker& worker, Comm& comm) {
  if (worker.rank() == 1) call_exec();
  comm.barrier();
}

TEST(Exec, InABodyIsALossThatCanBeReplaced) {
  Session session(workers(3, OnWorkerLost::respawn));
  const auto pids = session.worker_pids();
  const auto f = session.function(call_exec_on_rank_1, "f");
  expect_error([&] { f(); }, ErrorKind::worker_lost, {"called exec"});
  EXPECT_FALSE(is_alive(pids[1]));
  expect_usable(session);
}

/// What rank 1 executes.
enum class Image : int { sleep, sleep_without_variables, sleep_with_those_of_a_worker, this_program_without_variables };

void call_exec_with(CpuWorker& worker, Comm& comm, Image image) {
  std::array<std::string, 3> sleep{"sleep", "1000", ""};
  std::array<std::string, 3> own{"/proc/self/exe", "--program", "task-with-daemon"};
  auto& words = image == Image::this_program_without_variables ? own : sleep;
  std::array<char*, 4> arguments{words[0].data(), words[1].data(), words[2].data(), nullptr};
  std::string role = "SYNCRUN_WORKER_RANK=1";  // a program may have saved its environment before it became a worker
  std::array<char*, 2> variables{image == Image::sleep_with_those_of_a_worker ? role.data() : nullptr, nullptr};
  if (image != Image::this_program_without_variables) arguments[2] = nullptr;
  if (worker.rank() == 1)
    ::execvpe(words[0].c_str(), arguments.data(), image == Image::sleep ? environ : variables.data());
  comm.barrier();
}

TEST(Exec, InABodyIsNamedAtOnceWithAnyEnvironment) {
  for (const Image image : {Image::sleep, Image::sleep_without_variables, Image::sleep_with_those_of_a_worker,
                            Image::this_program_without_variables}) {
    Session session(workers(2));
    const auto pids = session.worker_pids();
    const auto f = session.function(call_exec_with, "f");
    const auto begin = Clock::now();
    const Error error =
        expect_error([&] { f(image); }, ErrorKind::worker_lost, {"called exec: its process runs ", " now"});
    EXPECT_LT(Clock::now() - begin, kNamedLimit);
    EXPECT_EQ(error.rank(), 1);
    EXPECT_EQ(error.failure().call, "f");
    for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
    expect_over(session, error);
  }
}

TEST(Exec, InATaskIsNamedAtOnce) {
  auto task = syncrun::task(call_exec, {.name = "execs"});
  const auto begin = Clock::now();
  expect_error([&] { task.get(); }, ErrorKind::worker_lost, {"task 'execs'", "called exec"});
  EXPECT_LT(Clock::now() - begin, kNamedLimit);
}

TEST(Exec, InAProducerIsNamedAtOnce) {
  Session session(workers(2));
  using Numbers = Data<std::int64_t, 1>;
  auto queue = session.producers(
      1, +[](Producer<Numbers>&) { call_exec(); }, BatchShapes<Numbers>{{4}});
  const auto begin = Clock::now();
  expect_error([&] { static_cast<void>(queue.next()); }, ErrorKind::worker_lost, {"called exec"});
  EXPECT_LT(Clock::now() - begin, kNamedLimit);
  expect_usable(session);
}

}  // namespace
}  // namespace syncrun::test
