// Tasks: a function that runs in a process of its own, and the pipe between the task and its master.

#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <thread>

#include "tests/fault/leak_check.hpp"
#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Point {
  double x;
  double y;
  std::int32_t tag;
  friend bool operator==(const Point&, const Point&) = default;
};

template <class T>
int echo(Pipe<T, T>& pipe) {
  int count = 0;
  while (const auto message = pipe.receive()) {
    pipe.send(*message);
    ++count;
  }
  return count;
}

template <class T>
void expect_echo(const std::vector<T>& messages) {
  auto task = syncrun::task(echo<T>, {.name = "echo"});
  for (const T& message : messages) {
    task.send(message);
    EXPECT_EQ(task.receive(), std::optional<T>(message));
  }
  EXPECT_EQ(task.get(), static_cast<int>(messages.size()));
}

TEST(Task, SendsBackMessagesOfEachType) {
  expect_echo<int>({0, -1, 1 << 30});
  expect_echo<double>({0.5, -std::numeric_limits<double>::infinity()});
  expect_echo<Point>({{1, 2, 3}, {-1, 0.25, -7}});
  expect_echo<std::array<std::uint8_t, 5>>({{1, 2, 3, 4, 5}});
  expect_echo<std::string>({"", "text", std::string("with\0zero", 9), std::string(100'000, 'x')});
  expect_echo<std::vector<float>>({{}, {1.5F}, std::vector<float>(8 << 20, 2.5F), {}});  // larger than the pipe
  expect_echo<std::vector<Point>>({{}, {{1, 2, 3}}, std::vector<Point>(100, Point{4, 5, 6})});
}

TEST(Task, KeepsTheOrderOfManyMessages) {
  auto task = syncrun::task(echo<std::string>);
  constexpr int kMessages = 200;
  for (int i = 0; i < kMessages; ++i) task.send(std::to_string(i));
  for (int i = 0; i < kMessages; ++i) EXPECT_EQ(task.receive(), std::to_string(i));
  task.end_messages();
  EXPECT_EQ(task.receive(), std::nullopt) << "the function has returned";
  EXPECT_EQ(task.get(), kMessages);
}

TEST(Task, PassesArgumentsAndReturnsAResultWithoutAPipe) {
  auto sum = syncrun::task(
      +[](const std::vector<double>& values, double scale, const std::string& name) {
        return name + " " + std::to_string(scale * std::accumulate(values.begin(), values.end(), 0.0));
      },
      {}, std::vector<double>{1, 2, 3.5}, 2, "sum");
  EXPECT_EQ(sum.get(), "sum 13.000000");
  auto none = syncrun::task([] {});
  none.get();
}

TEST(Task, RunsBesideTheProgram) {
  auto task = syncrun::task(+[](Pipe<int, int>& pipe) {
    pipe.send(static_cast<int>(::getpid()));
    return static_cast<int>(::getppid());
  });
  EXPECT_NE(task.pid(), ::getpid());
  EXPECT_EQ(task.receive(), task.pid());
  EXPECT_EQ(task.get(), ::getpid());
}

std::string variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "(not set)" : value;
}

TEST(Task, HasItsEnvironmentBeforeItStarts) {
  ::setenv("TASK_TEST_KEPT", "kept", 1);
  ::setenv("TASK_TEST_REPLACED", "the master's", 1);
  const TaskOptions options{.environment = {{"TASK_TEST_REPLACED", "the task's"}, {"TASK_TEST_NEW", "a=b"}}};
  auto task = syncrun::task(
      +[](const std::string& at_exec) {
        std::ifstream file(at_exec, std::ios::binary);  // shows what exec was given, not what the process has set since
        std::string found;
        for (std::string entry; std::getline(file, entry, '\0');) {
          if (entry.starts_with("TASK_TEST_")) found += entry + ";";
        }
        return found + variable("TASK_TEST_KEPT") + "|" + variable("TASK_TEST_REPLACED") + "|" +
               variable("TASK_TEST_NEW");
      },
      options, "/proc/self/environ");
  const std::string found = task.get();
  for (const auto* part : {"TASK_TEST_KEPT=kept;", "TASK_TEST_REPLACED=the task's;", "TASK_TEST_NEW=a=b;"}) {
    EXPECT_THAT(found, HasSubstr(part));
  }
  EXPECT_THAT(found, HasSubstr("kept|the task's|a=b"));
  EXPECT_THAT(found, Not(HasSubstr("master")));
  EXPECT_EQ(variable("TASK_TEST_REPLACED"), "the master's");
  ::unsetenv("TASK_TEST_KEPT");
  ::unsetenv("TASK_TEST_REPLACED");
}

TEST(Task, HasNothingOfASessions) {
  Session session(workers(2));
  const auto data = session.data(std::vector<float>(1000, 1.0F));
  auto task = syncrun::task(+[] {
    std::string found;
    for (char** entry = ::environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const bool is_fault_test = text.starts_with("SYNCRUN_FAULT_TEST");
      const bool is_mark = text.starts_with("SYNCRUN_JOB=");  // stays set for processes that the task starts
      if ((text.starts_with("SYNCRUN_") && !is_fault_test && !is_mark) || text.starts_with("RANK="))
        found += text + "\n";
    }
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
      if (target.find("memfd") != std::string::npos) found += target + "\n";
    }
    return found;
  });
  EXPECT_EQ(task.get(), "");
  expect_usable(session);
  session.close();
}

TEST(Task, BearsItsName) {
  auto task = syncrun::task(
      +[] {
        std::array<char, 16> name{};
        ::prctl(PR_GET_NAME, name.data());
        return std::string(name.data());
      },
      {.name = "validation"});
  EXPECT_EQ(task.name(), "validation");
  EXPECT_EQ(task.get(), "validation");
  EXPECT_EQ(syncrun::task(echo<int>).name(), "syncrun::test::echo<int>");
}

// ---- failures -------------------------------------------------------------------------------------------------

int fails_after(Pipe<int, int>& pipe, int messages, bool is_error) {
  for (int i = 0; i < messages; ++i) pipe.send(i);
  if (is_error) throw Error(ErrorKind::system, "the disk is full", ENOSPC);
  throw std::runtime_error("no value for this row");
}

TEST(Task, ThatThrowsGivesItsTextToWhoWaitsForIt) {
  auto task = syncrun::task(fails_after, {.name = "validation"}, 2, false);
  EXPECT_EQ(task.receive(), 0);
  EXPECT_EQ(task.receive(), 1);
  for (int time = 0; time < 2; ++time) {
    const Error error = error_of([&] { task.receive(); });
    EXPECT_EQ(error.kind(), ErrorKind::function);
    EXPECT_EQ(error.failure().call, "validation");
    EXPECT_EQ(error.failure().pid, task.pid());
    EXPECT_EQ(error.failure().cause, "no value for this row");
    EXPECT_EQ(std::string(error.what()),
              "task 'validation' (pid " + std::to_string(task.pid()) + ") failed: no value for this row");
  }
  EXPECT_EQ(error_of([&] { task.send(1); }).kind(), ErrorKind::function);
  EXPECT_EQ(error_of([&] { task.get(); }).kind(), ErrorKind::function);
}

TEST(Task, ThatThrowsAnErrorKeepsItsKind) {
  auto task = syncrun::task(fails_after, {}, 0, true);
  const Error error = error_of([&] { task.get(); });
  EXPECT_EQ(error.kind(), ErrorKind::system);
  EXPECT_EQ(error.native_code(), ENOSPC);
}

TEST(Task, ThatThrowsWithoutATextIsNamedByItsType) {
  auto task = syncrun::task(+[] { throw Speechless(); });
  EXPECT_THAT(error_of([&] { task.get(); }).what(),
              HasSubstr("failed: an exception of type syncrun::test::Speechless"));
  auto other = syncrun::task(+[] { throw SpeechlessError(); });
  const Error error = error_of([&] { other.get(); });
  EXPECT_EQ(error.native_code(), 28);
  EXPECT_THAT(error.what(), HasSubstr("without a text (what() is null)"));
  EXPECT_STREQ(SpeechlessError().std::runtime_error::what(), "system");
}

int dies_after(Pipe<int, int>& pipe, int messages, int signal) {
  for (int i = 0; i < messages; ++i) pipe.send(i);
  std::fprintf(stderr, "these are my last words\n");
  if (signal == 0) std::_Exit(3);
  ::raise(signal);
  return 0;
}

void expect_lost(const Error& error, int pid, const std::string& cause) {
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost) << error.what();
  EXPECT_EQ(error.failure().pid, pid);
  EXPECT_THAT(error.what(), HasSubstr("task 'doomed' (pid " + std::to_string(pid) + ") was lost"));
  EXPECT_THAT(error.what(), HasSubstr(cause));
  EXPECT_THAT(error.what(), HasSubstr("[doomed] these are my last words"));
}

TEST(Task, ThatDiesIsNamedAfterTheMessagesThatItSent) {
  for (const auto& [signal, cause] :
       {std::pair(SIGKILL, "killed by SIGKILL"), std::pair(SIGSEGV, "killed by SIGSEGV"), std::pair(0, "code 3")}) {
    auto task = syncrun::task(dies_after, {.name = "doomed"}, 2, signal);
    EXPECT_EQ(task.receive(), 0);
    EXPECT_EQ(task.receive(), 1);
    expect_lost(error_of([&] { task.receive(); }), task.pid(), cause);
    expect_lost(error_of([&] { task.send(1); }), task.pid(), cause);
    expect_lost(error_of([&] { task.get(); }), task.pid(), cause);
  }
}

/// A child of a task inherits the task's end of the pipe. If the task is killed while the master waits, the wait ends at
/// once, even if the child lives.
TEST(Task, ThatIsKilledReleasesWhoWaitsThoughAChildOfItLives) {
  auto task = syncrun::task(+[](Pipe<int, int>& pipe) {
    const int child = ::fork();
    if (child == 0) {
      ::setpgid(0, 0);  // so that the end of the task's group does not end it
      std::this_thread::sleep_for(30s);
      ::_exit(0);
    }
    pipe.send(child);
    std::this_thread::sleep_for(100ms);
    ::raise(SIGKILL);
  });
  const int child = task.receive().value();
  const auto start = Clock::now();
  EXPECT_EQ(error_of([&] { task.receive(); }).kind(), ErrorKind::worker_lost);
  EXPECT_LT(Clock::now() - start, 100ms + kErrorLimit);
  ::kill(child, SIGKILL);
}

TEST(Task, ThatDoesNotAnswerIsAnErrorAtTheDeadlineAndCanBeAskedAgain) {
  auto task = syncrun::task(
      +[](Pipe<int, int>& pipe) {
        pipe.receive();
        pipe.send(7);
      },
      {.name = "slow", .timeout = 100ms});
  const Error error = error_of([&] { task.receive(); });
  EXPECT_EQ(error.kind(), ErrorKind::timeout);
  EXPECT_THAT(error.what(), HasSubstr("task 'slow' (pid "));
  EXPECT_THAT(error.what(), HasSubstr("sent no message within 100 ms"));
  stop(task.pid());
  EXPECT_THAT(error_of([&] { task.receive(); }).what(), HasSubstr("stopped by SIGSTOP"));
  ::kill(task.pid(), SIGCONT);
  task.send(0);
  EXPECT_EQ(task.receive(20s), 7);
  task.get(20s);
}

TEST(Task, ThatDoesNotReceiveIsAnErrorAtTheDeadline) {
  auto task = syncrun::task(
      +[](Pipe<std::vector<char>, std::vector<char>>& pipe) {
        pipe.send(std::vector<char>(8 << 20));  // both ends send, and neither receives
        pipe.receive();
      },
      {.name = "stubborn", .timeout = 200ms});
  const std::vector<char> large(8 << 20);
  const Error error = error_of([&] { task.send(large); });
  EXPECT_EQ(error.kind(), ErrorKind::timeout);
  EXPECT_THAT(error.what(), HasSubstr("task 'stubborn'"));
  EXPECT_THAT(error.what(), HasSubstr("did not take a message of 8388616 bytes"));
  expect_usage([&] { task.send(large); }, {"task 'stubborn' takes no more messages: one was sent in part"});
}

/// A wait with a limit of 1 ms ends after about that time, not only when the 100 ms between two checks of the clock
/// have passed. The test takes the shortest of 20 waits, because other programs may use the cores.
TEST(Task, EndsAWaitAtADeadlineOfAMillisecond) {
  auto task = syncrun::task(
      +[](Pipe<int, int>& pipe) {
        auto shortest = Clock::duration::max();
        for (int i = 0; i < 20; ++i) {
          const auto start = Clock::now();
          try {
            pipe.receive(1ms);
          } catch (const Error&) {
          }
          shortest = std::min(shortest, Clock::now() - start);
        }
        pipe.send(static_cast<int>(std::chrono::duration_cast<std::chrono::microseconds>(shortest).count()));
        std::this_thread::sleep_for(1h);
      },
      {.name = "silent"});
  const auto shortest = [](auto&& wait, const std::string& member) {
    auto shortest = Clock::duration::max();
    for (int i = 0; i < 20; ++i) {
      const auto start = Clock::now();
      const Error error = error_of(wait);
      shortest = std::min(shortest, Clock::now() - start);
      EXPECT_EQ(error.kind(), ErrorKind::timeout);
      EXPECT_THAT(error.what(), HasSubstr("within 1 ms (the timeout argument of Task::" + member + " sets another"));
    }
    EXPECT_GE(shortest, 1ms);
    return shortest;
  };
  EXPECT_LT(task.receive(20s), 20'000) << "microseconds, of a task's own wait";
  EXPECT_LT(shortest([&] { task.receive(1ms); }, "receive"), 20ms);
  EXPECT_LT(shortest([&] { task.get(1ms); }, "get"), 20ms);
  const std::string text = error_of([&] { task.get(1ms); }).what();
  EXPECT_THAT(text, testing::AllOf(HasSubstr("task 'silent'"), HasSubstr("did not return within 1 ms")));
}

TEST(Task, IsReadyWhenAMessageWaitsOrItHasEnded) {
  auto task = syncrun::task(
      +[](Pipe<int, std::vector<char>>& pipe) {
        while (const auto bytes = pipe.receive()) pipe.send(std::vector<char>(static_cast<std::size_t>(*bytes)));
      },
      {.name = "echo"});
  const auto becomes_ready = [](auto& task) { return eventually([&] { return task.is_ready(); }); };
  const auto start = Clock::now();
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(task.is_ready());
  EXPECT_LT(Clock::now() - start, 5s);
  for (const int bytes : {1, 8 << 20}) {  // the first fits into the pipe, the second arrives in parts
    task.send(bytes);
    EXPECT_TRUE(becomes_ready(task));
    EXPECT_TRUE(task.is_ready()) << "until the message is received";
    EXPECT_EQ(task.receive()->size(), static_cast<std::size_t>(bytes));
    EXPECT_FALSE(task.is_ready());
  }
  task.end_messages();
  EXPECT_TRUE(becomes_ready(task)) << "it has returned";
  EXPECT_EQ(task.receive(), std::nullopt);
  EXPECT_TRUE(task.is_ready());
  task.get();
  EXPECT_FALSE(task.is_ready());

  auto plain = syncrun::task(+[] { return 7; });
  EXPECT_TRUE(becomes_ready(plain));
  EXPECT_EQ(plain.get(), 7);
  auto thrower = syncrun::task(fails_after, {}, 0, false);
  EXPECT_TRUE(becomes_ready(thrower));
  EXPECT_EQ(error_of([&] { thrower.receive(); }).kind(), ErrorKind::function);
  EXPECT_TRUE(thrower.is_ready());
  auto doomed = syncrun::task(dies_after, {}, 0, SIGKILL);
  EXPECT_TRUE(becomes_ready(doomed));
  EXPECT_TRUE(doomed.is_ready());
  EXPECT_EQ(error_of([&] { doomed.receive(); }).kind(), ErrorKind::worker_lost);
}

TEST(Task, CanGiveUpWaitingItself) {
  auto task = syncrun::task(+[](Pipe<int, int>& pipe) { pipe.receive(50ms); }, {.name = "impatient"});
  const Error error = error_of([&] { task.receive(); });
  EXPECT_EQ(error.kind(), ErrorKind::timeout);
  EXPECT_THAT(error.what(), HasSubstr("task 'impatient' received no message within 50 ms"));
}

// ---- ends -----------------------------------------------------------------------------------------------------

TEST(Task, ThatIsDroppedIsKilledWithItsChildrenAtOnce) {
  std::optional task = syncrun::task(+[](Pipe<int, int>& pipe) {
    const int child = ::fork();
    if (child == 0) {
      ::execlp("sleep", "sleep", "1000", nullptr);
      ::_exit(127);
    }
    pipe.send(child);
    std::this_thread::sleep_for(1h);
  });
  const int child = task->receive().value();
  const int pid = task->pid();
  const auto start = Clock::now();
  task.reset();
  EXPECT_LT(Clock::now() - start, 15s);
  EXPECT_FALSE(is_alive(pid));
  EXPECT_TRUE(eventually([&] { return !is_alive(child); }));
}

TEST(Task, GoesOnIfAGetWasRefused) {
  auto task = syncrun::task(+[](Pipe<int, int>& pipe) { return pipe.receive().value_or(0); });
  EXPECT_THROW(task.get(-1ms), Error) << "no such timeout";
  task.send(42);
  EXPECT_EQ(task.get(), 42);
}

TEST(Task, UsedAfterItsEndIsAnError) {
  auto task = syncrun::task(echo<int>, {.name = "done"});
  task.send(1);
  EXPECT_EQ(task.get(), 1) << "a message that nobody has received is dropped";
  expect_usage([&] { task.get(); }, {"task 'done' is over: get() was called"});
  expect_usage([&] { task.receive(); }, {"task 'done' is over: get() was called"});
  expect_usage([&] { task.send(1); }, {"task 'done' is over: get() was called"});

  auto told = syncrun::task(echo<int>, {.name = "told"});
  told.end_messages();
  expect_usage([&] { told.send(1); }, {"task 'told' was told that there are no more messages"});

  auto returned = syncrun::task(+[](Pipe<int, int>&) {}, {.name = "returned"});
  EXPECT_EQ(returned.receive(), std::nullopt);
  expect_usage([&] { returned.send(1); }, {"task 'returned' has returned, and takes no more messages"});
}

TEST(Task, ThatDiesAfterItHasReturnedIsAnError) {
  auto task = syncrun::task(+[] { std::atexit([] { ::raise(SIGKILL); }); }, {.name = "late"});
  const Error error = error_of([&] { task.get(); });
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_THAT(error.what(), HasSubstr("was lost after it had returned: killed by SIGKILL"));
}

TEST(Task, ThatDoesNotEndOnceItHasReturnedIsKilled) {
  auto task = syncrun::task(+[] { std::atexit([] { std::this_thread::sleep_for(1h); }); },
                            {.name = "lingering", .grace = 100ms});
  EXPECT_THAT(error_of([&] { task.get(); }).what(), HasSubstr("did not end within 100 ms and was killed"));
}

TEST(Task, OptionsAreChecked) {
  const auto start = [](const TaskOptions& options) { return [options] { syncrun::task(echo<int>, options); }; };
  expect_usage(start({.environment = {{"A=B", "c"}}}), {"TaskOptions::environment", "got 'A=B'"});
  expect_usage(start({.environment = {{"", "c"}}}), {"TaskOptions::environment"});
  expect_usage(start({.timeout = -1ms}), {"TaskOptions::timeout is at least 0, got -1 ms"});
  expect_usage(start({.grace = -1ms}), {"TaskOptions::grace is at least 0, got -1 ms"});
  expect_usage(start({.name = "two\nlines"}), {"TaskOptions::name requires one line"});
}

TEST(Task, IsRefusedInAWorker) {
  Session session(workers(1));
  const auto f = session.function([] { syncrun::task([] {}); });
  EXPECT_THAT(error_of([&] { f(); }).what(), HasSubstr("a task is started by the program itself, and not in a worker"));
  session.close();
}

TEST(Task, CanOpenASessionOfItsOwn) {
  Session session(workers(1));
  auto task = syncrun::task(+[] {
    Session own({.processes = "2"});
    const int sum = own.function(+[](CpuWorker& worker) { return Sum<int>(worker.rank() + 1); })().value();
    own.close();
    return sum;
  });
  EXPECT_EQ(task.get(), 3);
  session.close();
}

TEST(Tasks, RunAtTheSameTime) {
  std::vector<Task<int, int, int>> tasks;
  for (int i = 0; i < 4; ++i) {
    tasks.push_back(syncrun::task(
        +[](Pipe<int, int>& pipe, int offset) {
          while (const auto value = pipe.receive()) pipe.send(*value + offset);
          return offset;
        },
        {}, i * 100));
  }
  for (int round = 0; round < 3; ++round) {
    for (auto& task : tasks) task.send(round);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(tasks[static_cast<std::size_t>(i)].receive(), i * 100 + round);
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(tasks[static_cast<std::size_t>(i)].get(), i * 100);
}

TEST(Tasks, LeaveNothingInTheMaster) {
  const auto before = open_descriptors();
  for (int round = 0; round < 100; ++round) {
    auto task = syncrun::task(echo<int>);
    if (round % 3 == 0) continue;
    task.send(round);
    EXPECT_EQ(task.receive(), round);
    if (round % 3 == 1) task.get();
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_TRUE(eventually([] { return count_threads() == 1; }));
  EXPECT_FALSE(has_children());
}

TEST(ForkInTheMaster, ThatDestroysItsCopyLeavesTheTaskAlone) {
  std::optional task = syncrun::task(echo<int>);
  const int child = fork_when_quiet();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int refused = 0;
    try {
      task->send(1);
    } catch (const Error& error) {
      refused = error.kind() == ErrorKind::usage ? 1 : 0;
    }
    task.reset();
    ::_exit(refused);
  }
  int status = -1;
  ASSERT_TRUE(eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; })) << "the child hangs";
  EXPECT_EQ(WEXITSTATUS(status), 1);
  task->send(5);
  EXPECT_EQ(task->receive(), 5);
  EXPECT_EQ(task->get(), 1);
}

}  // namespace
}  // namespace syncrun::test
