// What an error says when a deadline passes: first the rank to blame, then what every rank does, and the stacks of
// ranks that are stuck.

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <thread>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::Contains;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr auto kDeadline = 2000ms;

// The tests look for these names in stacks. So these functions are not inlined, and are outside the anonymous
// namespace.
[[gnu::noinline]] void spin_for_ever() {
  for (std::atomic<int> i = 0;; ++i) {
  }
}

[[gnu::noinline]] void sleep_for_ever() {
  for (;;) ::pause();
}

void spin_before_barrier(CpuWorker& worker, Comm& comm, int rank) {
  if (worker.rank() == rank) {
    std::fprintf(stderr, "about to spin\n");
    spin_for_ever();
  }
  comm.barrier();
}

std::string who(int rank, const std::vector<int>& pids) {
  return "rank " + std::to_string(rank) + " (cpu" + std::to_string(rank) + ", pid " +
         std::to_string(pids[static_cast<std::size_t>(rank)]) + ")";
}
std::string first_line_of(const Error& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

class DeadlineReport : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  int last() const { return GetParam() - 1; }
  SessionOptions options() const { return workers(GetParam()); }

  const RankState& state(const Error& error, int rank) {
    EXPECT_EQ(error.failure().ranks.size(), static_cast<std::size_t>(size())) << error.what();
    static const RankState nothing;
    if (error.failure().ranks.size() != static_cast<std::size_t>(size())) return nothing;
    return error.failure().ranks[static_cast<std::size_t>(rank)];
  }

  /// The first line is short. It names the rank, process, device, call, phase and cause.
  void expect_first_line(const Error& error, int rank, const std::string& phase, const std::string& call,
                         const std::vector<int>& pids) {
    EXPECT_EQ(error.kind(), ErrorKind::timeout) << error.what();
    EXPECT_EQ(first_line_of(error), who(rank, pids) + " is in phase " + phase + " at the deadline: call '" + call +
                                        "' did not finish within " + std::to_string(kDeadline.count()) +
                                        " ms (--timeout or CallOptions::timeout sets another limit)");
    EXPECT_EQ(error.failure().cause, "deadline");
    EXPECT_EQ(error.failure().rank, rank);
  }
};
INSTANTIATE_WITH_WORKERS(DeadlineReport);

/// Stacks require libdw, and a system that allows a process to trace its children.
#define SKIP_WITHOUT_STACK(state) \
  if (!(state).no_stack.empty()) GTEST_SKIP() << "no stacks here: " << (state).no_stack

TEST_P(DeadlineReport, SaysOfEveryRankWhereItIsAndForHowLong) {
  Session session(options());
  const auto pids = session.worker_pids();
  const auto f = session.function(spin_before_barrier, "f");
  const Error error = error_of([&] { f(last(), {.timeout = kDeadline}); });
  expect_first_line(error, last(), "function", "f", pids);
  for (int rank = 0; rank < size(); ++rank) {
    const RankState& there = state(error, rank);
    EXPECT_EQ(there.rank, rank);
    EXPECT_EQ(there.pid, pids[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(there.device, "cpu" + std::to_string(rank));
    EXPECT_EQ(there.call, "f");
    EXPECT_EQ(there.phase, rank == last() ? "function" : "collective");
    EXPECT_FALSE(there.has_finished);
    EXPECT_EQ(there.stop_signal, 0);
    EXPECT_EQ(there.tracer, 0);
    EXPECT_EQ(there.end, "");
    EXPECT_GE(there.no_progress_for, 1000ms);
    EXPECT_LE(there.no_progress_for, kDeadline + kErrorLimit);
    EXPECT_THAT(error.what(), HasSubstr("\n  " + who(rank, pids) + " is in phase " + there.phase + ", call 'f'"));
  }
  EXPECT_THAT(error.what(), ContainsRegex("no progress for [0-9]+[.][0-9] s"));
  EXPECT_THAT(error.failure().last_stderr, Contains("about to spin"));
  EXPECT_THAT(error.what(), HasSubstr("\n  [rank " + std::to_string(last()) + "] about to spin\n"));
  // The lines after the first are indented. So a reader (and `syncrun`) can see where the next message begins.
  std::istringstream lines(error.what());
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) EXPECT_THAT(line, StartsWith("  "));
  for (int rank = 0; rank < last(); ++rank) EXPECT_THAT(state(error, rank).stack, IsEmpty()) << "it only waits";
  SKIP_WITHOUT_STACK(state(error, last()));
  EXPECT_THAT(state(error, last()).stack, Contains(HasSubstr("spin_for_ever")));
  EXPECT_THAT(error.what(), ContainsRegex("\n    #[0-9]+ [^\n]*spin_for_ever"));
}

/// All ranks come to the first barrier. The stopped rank stays in it. The others pass it and wait in the second
/// barrier.
void meet_twice(CpuWorker& worker, Comm& comm, int rank, BoardView board) {
  if (worker.rank() != rank) {
    while (field(board, 1).load() == 0) ::usleep(1000);
  }
  field(board, 0).fetch_add(1);
  comm.barrier();
  comm.barrier();
}

TEST_P(DeadlineReport, NamesAWorkerThatIsStoppedInACollectiveBeforeThoseThatWaitForIt) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to wait for";
  Session session(options());
  const auto pids = session.worker_pids();
  Board board(session);
  const auto f = session.function(meet_twice, "f");
  auto future = f.async(last(), board.data(), {.timeout = kDeadline});
  ASSERT_TRUE(board.reaches(0, 1));
  ASSERT_TRUE(falls_asleep(pids.back()));
  stop(pids.back());
  board.set(1, 1);
  ASSERT_TRUE(board.reaches(0, size()));
  const Error error = error_of([&] { future.get(); });
  expect_first_line(error, last(), "collective, stopped by SIGSTOP", "f", pids);
  for (int rank = 0; rank < size(); ++rank) EXPECT_EQ(state(error, rank).phase, "collective");
  SKIP_WITHOUT_STACK(state(error, last()));
  EXPECT_THAT(state(error, last()).stack, Contains(HasSubstr("meet_twice")));
}

TEST_P(DeadlineReport, SaysWhoHasFinished) {
  if (size() == 1) GTEST_SKIP() << "one rank is the one that hangs";
  Session session(options());
  const auto f = session.function([](CpuWorker& worker, int rank) {
    if (worker.rank() == rank) spin_for_ever();
  });
  const Error error = error_of([&] { f(last(), {.timeout = kDeadline}); });
  EXPECT_TRUE(state(error, 0).has_finished);
  EXPECT_EQ(state(error, 0).phase, "idle");
  EXPECT_THAT(error.what(), HasSubstr("has finished, is in phase idle"));
}

// ---- heartbeats -----------------------------------------------------------------------------------------------

TEST_P(DeadlineReport, KnowsThatARankMoves) {
  if (size() == 1) GTEST_SKIP() << "a collective of one rank has no steps";
  Session session(options());
  const auto f = session.function([](Comm& comm) {
    for (;;) comm.barrier();
  });
  const Error error = expect_error([&] { f({.timeout = 5000ms}); }, ErrorKind::timeout);
  for (int rank = 0; rank < size(); ++rank) EXPECT_LT(state(error, rank).no_progress_for, 4000ms);
}

// ---- which deadline -------------------------------------------------------------------------------------------

/// Rank 0 takes this long. The other ranks return at once.
void take_time(CpuWorker& worker, std::int64_t milliseconds) {
  if (worker.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST_P(DeadlineReport, ACallMayHaveMoreTimeThanTheSession) {
  auto short_options = options();
  short_options.timeout = 200ms;
  Session session(short_options);
  const auto f = session.function(take_time, "f");
  for (const auto limit : {0ms, 20000ms}) {
    const auto begin = Clock::now();
    EXPECT_NO_THROW(f(400, {.timeout = limit}));
    EXPECT_GE(Clock::now() - begin, 400ms);
  }
  EXPECT_EQ(error_of([&] { f(20000); }).kind(), ErrorKind::timeout);
}

TEST_P(DeadlineReport, OfAQueuedCallRunsFromItsTurn) {
  Session session(options());
  const auto pids = session.worker_pids();
  const auto f = session.function(take_time, "f");
  const auto g = session.function(take_time, "g");
  auto longer = f.async(3000, {.timeout = 0ms});
  auto in_time = g.async(0, {.timeout = kDeadline});
  auto late = g.async(20000, {.timeout = kDeadline});
  EXPECT_NO_THROW(longer.get());
  EXPECT_NO_THROW(in_time.get());
  const auto begin = Clock::now();
  const Error error = error_of([&] { late.get(); });
  EXPECT_GE(Clock::now() - begin, kDeadline / 2);
  expect_first_line(error, 0, "function", "g", pids);
}

TEST_P(DeadlineReport, OfTheSessionHoldsForCollectivesOfTheMaster) {
  auto short_options = options();
  short_options.timeout = kDeadline;
  Session session(short_options);
  const auto pids = session.worker_pids();
  auto variable = session.shared<float, 1>("v");
  variable.broadcast(std::vector<float>(100));
  stop(pids.back());
  const Error error = error_of([&] { variable.all_reduce(Reduction::sum); });
  expect_first_line(error, last(), "idle, stopped by SIGSTOP", "all_reduce of v", pids);
  EXPECT_THAT(error.what(), HasSubstr("is in phase idle, stopped by SIGSTOP, before call 'all_reduce of v'"));
}

struct Endless {
  [[gnu::noinline]] Endless(CpuWorker& worker, int rank) {
    if (worker.rank() == rank) sleep_for_ever();
  }
};

TEST_P(DeadlineReport, OfTheSessionHoldsForConstructors) {
  auto short_options = options();
  short_options.timeout = kDeadline;
  Session session(short_options);
  const auto pids = session.worker_pids();
  const auto object = session.replicate<Endless>(last());
  const Error error = error_of([&] { session.wait(); });
  expect_first_line(error, last(), "function", "construction of a replicated object", pids);
  SKIP_WITHOUT_STACK(state(error, last()));
  EXPECT_THAT(state(error, last()).stack, Contains(HasSubstr("Endless::Endless")));
}

// ---- start and close ------------------------------------------------------------------------------------------

/// The limit for the start of all workers, or for their end.
constexpr auto kLimit = kSlowdown * 3000ms;

TEST_P(DeadlineReport, OfTheStartNamesWhoDoesNotStart) {
  const AtStart told(last(), "static-hang");
  auto short_options = options();
  short_options.start_timeout = kLimit;
  const Error error = expect_error([&] { Session session(short_options); }, ErrorKind::timeout);
  EXPECT_EQ(error.rank(), last());
  EXPECT_THAT(first_line_of(error),
              ContainsRegex("^rank " + std::to_string(last()) + " [(]cpu" + std::to_string(last()) +
                            ", pid [0-9]+[)] is in phase (spawn|attach|device) at the "
                            "deadline: it did not start within " +
                            std::to_string(kLimit.count()) + " ms"));
  EXPECT_THAT(error.failure().last_stderr, Contains(kLastWords));
  for (int rank = 0; rank < last(); ++rank) EXPECT_TRUE(state(error, rank).has_finished);
  SKIP_WITHOUT_STACK(state(error, last()));
  EXPECT_THAT(state(error, last()).stack, Contains(HasSubstr("pause")));
}

TEST_P(DeadlineReport, OfCloseSaysWhereTheWorkerHangs) {
  const AtStart told(last(), "end-hang");
  auto short_options = options();
  short_options.grace = kLimit;
  Session session(short_options);
  const auto pids = session.worker_pids();
  const Error error = expect_error([&] { session.close(); }, ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), last());
  EXPECT_EQ(first_line_of(error), who(last(), pids) + " was lost while closing (phase close): did not end within " +
                                      std::to_string(kLimit.count()) + " ms and was killed");
  EXPECT_EQ(state(error, last()).phase, "close");
  for (int rank = 0; rank < last(); ++rank) EXPECT_EQ(state(error, rank).end, "exited with code 0");
  expect_over(session, error);
  SKIP_WITHOUT_STACK(state(error, last()));
  EXPECT_THAT(state(error, last()).stack, Contains(HasSubstr("StaticObject")));
}

/// In the destructor, rank 0 dies and the last rank hangs.
struct BadEnd {
  explicit BadEnd(CpuWorker& worker) : rank(worker.rank()), size(worker.world_size()) {}
  ~BadEnd() {
    if (rank == 0) die(Death::segfault);
    if (rank == size - 1) sleep_for_ever();
  }
  BadEnd(const BadEnd&) = delete;
  BadEnd& operator=(const BadEnd&) = delete;
  int rank;
  int size;
};

TEST_P(DeadlineReport, OfCloseTellsWhoDiedFromWhoHangs) {
  if (size() == 1) GTEST_SKIP() << "it takes one that dies and one that hangs";
  auto short_options = options();
  short_options.grace = kLimit;
  Session session(short_options);
  const auto pids = session.worker_pids();
  const auto object = session.replicate<BadEnd>();
  const Error error = error_of([&] { session.close(); });
  EXPECT_EQ(first_line_of(error),
            who(0, pids) + " was lost while closing (phase close): killed by SIGSEGV (Segmentation fault)");
  EXPECT_EQ(state(error, 0).end, "killed by SIGSEGV (Segmentation fault)");
  EXPECT_EQ(state(error, last()).end, "");
}

// ---- where stacks are refused ---------------------------------------------------------------------------------

TEST_P(DeadlineReport, SaysWhyThereIsNoStack) {
  if (::geteuid() == 0) GTEST_SKIP() << "the superuser may trace whom it likes";
  Session session(options());
  const auto f = session.function([](CpuWorker& worker, int rank) {
    ::prctl(PR_SET_DUMPABLE, 0);
    if (worker.rank() == rank) spin_for_ever();
  });
  const Error error = error_of([&] { f(last(), {.timeout = kDeadline}); });
  EXPECT_THAT(state(error, last()).stack, IsEmpty());
  EXPECT_THAT(state(error, last()).no_stack, Not(IsEmpty()));
  EXPECT_THAT(error.what(), HasSubstr("\n    no stack: " + state(error, last()).no_stack));
}

}  // namespace
}  // namespace syncrun::test
