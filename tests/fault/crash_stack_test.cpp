// The native stack of a worker, a producer or a task that crashes is in the error, and in the error file of `syncrun`.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/programs.hpp"
#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {

// The tests look for these names in stacks. So these functions are not inlined, and are outside the anonymous namespace.
// The compiler must not see that they cannot work. The sanitizers would report that before it happens.
#define SYNCRUN_CRASHES [[gnu::noinline]] __attribute__((no_sanitize("address", "undefined")))
int* volatile nowhere = nullptr;
void (*volatile no_function)() = nullptr;

SYNCRUN_CRASHES void read_nothing() { no_function = *nowhere == 0 ? nullptr : no_function; }
SYNCRUN_CRASHES int recurse_for_ever(volatile const int* outer) {
  volatile int inner[100]{};
  inner[0] = *outer + 1;
  return *outer < 0 ? 0 : recurse_for_ever(inner) + inner[0];
}
SYNCRUN_CRASHES void call_nothing() {
  no_function();
  *nowhere = 1;  // so that the call is not the last thing that the function does
}
[[gnu::noinline]] void abort_here() { std::abort(); }

namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

/// A sanitizer may have its own handler of this signal.
bool is_handled_by_sanitizer(int signal) {
  struct sigaction present {};
  return ::sigaction(signal, nullptr, &present) == 0 && present.sa_handler != SIG_DFL;
}

enum class Crash : std::uint8_t { null_read, stack_overflow, null_call, abort_in_thread, terminate };

void crash(Crash way) {
  constexpr int kOuter = 0;
  switch (way) {
    case Crash::null_read: return read_nothing();
    case Crash::stack_overflow: static_cast<void>(recurse_for_ever(&kOuter)); return;
    case Crash::null_call: return call_nothing();
    case Crash::abort_in_thread: std::thread(abort_here).join(); return;
    case Crash::terminate: die(Death::terminate);
  }
}

void crash_on(CpuWorker& worker, Comm& comm, int rank, Crash way) {
  if (worker.rank() == rank) crash(way);
  comm.barrier();
}

/// The stacks require libdw, and a system that allows a process to read the memory of its children.
#define SKIP_WITHOUT_STACK(failure) \
  if (!(failure).no_stack.empty()) GTEST_SKIP() << "no stacks here: " << (failure).no_stack

struct CrashSite {
  Crash way;
  const char* name;
  int signal;
  std::string first_line;
  std::string function;
};
std::ostream& operator<<(std::ostream& to, const CrashSite& site) { return to << site.name; }

class CrashStack : public testing::TestWithParam<CrashSite> {};
INSTANTIATE_TEST_SUITE_P(
    Of, CrashStack,
    testing::Values(CrashSite{Crash::null_read, "NullRead", SIGSEGV, "#0 syncrun::test::read_nothing (", "crash_on ("},
                    CrashSite{Crash::stack_overflow, "StackOverflow", SIGSEGV, "#0 ", "recurse_for_ever ("},
                    CrashSite{Crash::null_call, "NullCall", SIGSEGV, "#0 ?? (address 0x0)", "call_nothing ("},
                    CrashSite{Crash::abort_in_thread, "AbortInThread", SIGABRT, "thread ", "abort_here ("},
                    CrashSite{Crash::terminate, "Terminate", SIGABRT, "#0 ", "crash_on ("}),
    [](const auto& test) { return test.param.name; });

TEST_P(CrashStack, IsInTheError) {
  const CrashSite& site = GetParam();
  if (is_handled_by_sanitizer(site.signal)) GTEST_SKIP() << "the sanitizer handles this signal";
  Session session(workers(3));
  const Error error = error_of([&] { session.function(crash_on, "f")(1, site.way); });
  const Failure& failure = error.failure();
  EXPECT_EQ(error.rank(), 1);
  EXPECT_EQ(failure.cause, cause_of(site.signal == SIGSEGV ? Death::segfault : Death::abort));
  SKIP_WITHOUT_STACK(failure);
  ASSERT_THAT(failure.stack, Not(IsEmpty())) << error.what();
  EXPECT_THAT(failure.stack.front(), StartsWith(site.first_line));
  EXPECT_THAT(failure.stack, Contains(HasSubstr(site.function)));
  EXPECT_THAT(failure.stack, Not(Contains(HasSubstr("syncrun::detail"))))
      << "neither the handler nor what calls bodies";
  for (const auto& line : failure.stack) EXPECT_THAT(error.what(), HasSubstr("\n    " + line));
}

class CrashOf : public testing::Test {
 protected:
  void SetUp() override {
    if (is_handled_by_sanitizer(SIGSEGV)) GTEST_SKIP() << "the sanitizer handles this signal";
  }
};

TEST_F(CrashOf, AWorkerIsInTheErrorFile) {
  const TemporaryFolder folder;
  CommandRun run({"--error-file", folder.at("error"), own_binary(), "--program", "fail", "lose-worker"});
  run.expect_end(1);
  if (run.errors().find("\n    no stack: ") != std::string::npos) GTEST_SKIP() << run.errors();
  EXPECT_THAT(run.errors(), HasSubstr("\n    #0 syncrun::test::die ("));
  EXPECT_THAT(text_of(folder / "error"), HasSubstr("\"stack\": [\"#0 syncrun::test::die ("));
}

TEST_F(CrashOf, ATaskAndAProducerAreInTheError) {
  auto task = syncrun::task(
      +[](int) { read_nothing(); }, {}, 0);
  const Error of_task = error_of([&] { task.get(); });
  EXPECT_EQ(of_task.kind(), ErrorKind::worker_lost);
  Session session(workers(1));
  auto queue = session.producers(1, +[](Producer<Data<float, 1>>&) { read_nothing(); }, {{4}}, {});
  const Error of_producer = error_of([&] { queue.next(); });
  EXPECT_EQ(of_producer.kind(), ErrorKind::worker_lost);
  SKIP_WITHOUT_STACK(of_task.failure());
  for (const Error& error : {of_task, of_producer}) {
    EXPECT_THAT(error.failure().stack, Contains(HasSubstr("read_nothing"))) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("\n    #0 syncrun::test::read_nothing ("));
  }
}

/// The child crashes in a function of its own. Then the rank crashes too, if it shall.
void crash_in_child(CpuWorker& worker, bool shall_crash) {
  if (worker.rank() != 0) return;
  const pid_t child = ::fork();
  if (child == 0) {
    call_nothing();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) throw std::runtime_error("the child did not crash");
  if (shall_crash) read_nothing();
}

TEST_F(CrashOf, AForkedChildDisturbsNobody) {
  Session session(workers(2));
  const auto f = session.function(crash_in_child, "f");
  EXPECT_NO_THROW(f(false));
  const Error error = error_of([&] { f(true); });
  EXPECT_EQ(error.failure().cause, cause_of(Death::segfault));
  SKIP_WITHOUT_STACK(error.failure());
  EXPECT_THAT(error.failure().stack, Contains(HasSubstr("read_nothing")));
  EXPECT_THAT(error.failure().stack, Not(Contains(HasSubstr("call_nothing"))));
}

/// All threads of all ranks crash at about the same time.
void crash_everywhere(Comm& comm) {
  comm.barrier();
  std::array<std::thread, 4> threads;
  for (std::thread& thread : threads) thread = std::thread(read_nothing);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CrashOf, AllRanksAtOnceNamesOneWithItsStack) {
  Session session(workers(8));
  const auto pids = session.worker_pids();
  const auto begin = Clock::now();
  const Error error = error_of([&] { session.function(crash_everywhere, "f")(); });
  EXPECT_LT(Clock::now() - begin, kErrorLimit);
  EXPECT_EQ(error.failure().cause, cause_of(Death::segfault));
  EXPECT_EQ(error.failure().pid, pids[static_cast<std::size_t>(error.rank())]);
  for (const int pid : pids) EXPECT_TRUE(eventually([&] { return !is_alive(pid); }));
  SKIP_WITHOUT_STACK(error.failure());
  EXPECT_THAT(error.failure().stack, Contains(HasSubstr("read_nothing")));
}

TEST_F(CrashOf, AWorkerWithAHandlerOfItsOwnIsLeftToThisHandler) {
  const AtStart told(0, "static-handler");
  Session session(workers(1));
  const Error error = error_of([&] { session.function(crash_on, "f")(0, Crash::null_read); });
  EXPECT_EQ(error.failure().cause, "exited with code 9");
  EXPECT_THAT(error.failure().stack, IsEmpty());
  EXPECT_EQ(error.failure().no_stack, "");
}

/// Some programs close all descriptors before they start others.
void crash_without_descriptors() {
  for (int fd = 3; fd < 1000; ++fd) ::close(fd);
  read_nothing();
}

TEST_F(CrashOf, AWorkerThatHasClosedItsDescriptorsHasNoStack) {
  Session session(workers(1));
  const Error error = error_of([&] { session.function(crash_without_descriptors, "f")(); });
  EXPECT_EQ(error.failure().cause, cause_of(Death::segfault));
  EXPECT_THAT(error.failure().stack, IsEmpty());
}

TEST_F(CrashOf, AWorkerThatMayNotBeTracedSaysWhyThereIsNoStack) {
  if (::geteuid() == 0) GTEST_SKIP() << "the superuser may trace whom it likes";
  Session session(workers(1));
  const auto f = session.function([](CpuWorker&) {
    ::prctl(PR_SET_DUMPABLE, 0);
    read_nothing();
  });
  const Error error = error_of([&] { f(); });
  EXPECT_EQ(error.failure().cause, cause_of(Death::segfault));
  EXPECT_THAT(error.failure().stack, IsEmpty());
  EXPECT_THAT(error.failure().no_stack, Not(IsEmpty()));
  EXPECT_THAT(error.what(), HasSubstr("\n    no stack: " + error.failure().no_stack));
}

}  // namespace
}  // namespace syncrun::test
