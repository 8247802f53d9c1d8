// Functions that throw. The master gets the error with its rank and message, no rank is left waiting, and the session
// can still be used.

#include <stdexcept>
#include <tuple>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

enum class Throws : std::uint8_t { nothing, standard, error, usage_error, number, speechless, speechless_error };

void throw_one(Throws what) {
  switch (what) {
    case Throws::nothing: return;
    case Throws::standard: throw std::out_of_range("row 17 is bad");
    case Throws::error: throw Error(ErrorKind::system, "row 17 is bad", 28);
    case Throws::usage_error: throw Error(ErrorKind::usage, "row 17 is bad");
    case Throws::number: throw 17;
    case Throws::speechless: throw Speechless();
    case Throws::speechless_error: throw SpeechlessError();
  }
}

void throw_on(CpuWorker& worker, int rank, Throws what) {
  if (worker.rank() == rank || rank < 0) throw_one(what);
}

class Exception : public WithWorkers {
 protected:
  void expect_thrown(const Error& error, int rank, ErrorKind kind, const std::string& call, const std::string& phase,
                     const std::string& cause) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_EQ(error.rank(), rank);
    EXPECT_EQ(error.failure().pid, session.worker_pids()[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(error.failure().device, "cpu" + std::to_string(rank));
    EXPECT_EQ(error.failure().call, call);
    EXPECT_EQ(error.failure().phase, phase);
    EXPECT_EQ(error.failure().cause, cause);
    for (const auto& word : {"rank " + std::to_string(rank), call, phase, cause}) {
      EXPECT_THAT(error.what(), HasSubstr(word));
    }
  }
};
INSTANTIATE_WITH_WORKERS(Exception);

TEST_P(Exception, ReachesTheMasterWithRankAndMessageOrItsType) {
  const auto f = session.function(throw_on, "throw_on");
  const std::string untold = " without a text (what() is null)";
  const std::vector<std::tuple<Throws, ErrorKind, std::string>> cases{
      {Throws::standard, ErrorKind::function, "row 17 is bad"},
      {Throws::error, ErrorKind::system, "row 17 is bad"},
      {Throws::usage_error, ErrorKind::function, "row 17 is bad"},
      {Throws::number, ErrorKind::function, "an exception that is not a std::exception, of type int: 17"},
      {Throws::speechless, ErrorKind::function, "an exception of type syncrun::test::Speechless" + untold},
      {Throws::speechless_error, ErrorKind::system, "an exception of type syncrun::test::SpeechlessError" + untold}};
  for (const auto& [what, kind, cause] : cases) {
    const Error error = error_of([&] { f(last(), what); });
    expect_thrown(error, last(), kind, "throw_on", "function", cause);
    EXPECT_EQ(error.native_code(), kind == ErrorKind::system ? 28 : 0);
    expect_usable(session);
  }
  const Error error = error_of([&] { f(-1, Throws::standard); });  // on every rank
  ASSERT_GE(error.rank(), 0);
  expect_thrown(error, error.rank(), ErrorKind::function, "throw_on", "function", "row 17 is bad");
  expect_usable(session);
  session.close();
}

TEST_P(Exception, OfACollectiveThatARankDoesNotComeToNamesWhoWaitsAndNeedsNoDeadline) {
  if (GetParam() == 1) GTEST_SKIP() << "nobody waits";
  const auto f = session.function([](CpuWorker& worker, Comm& comm) {
    if (worker.rank() != 0) comm.barrier();
  });
  for (int call = 0; call < 3; ++call) {
    const auto begin = Clock::now();
    const Error error = error_of([&] { f(); });
    EXPECT_LT(Clock::now() - begin, kErrorLimit);
    EXPECT_EQ(error.kind(), ErrorKind::function) << error.what();
    EXPECT_GT(error.rank(), 0);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 has left the call"));
    expect_usable(session);
  }
}

/// Rank 0 leaves the function without the second collective.
void update_and_leave(CpuWorker& worker, Comm& comm, Update<op::sum, float, 1> variable) {
  variable.value()[0] = 100;
  comm.barrier();
  if (worker.rank() != 0) comm.barrier();
}

Sum<float, 1> compute_and_leave(CpuWorker& worker, Comm& comm) {
  if (worker.rank() != 0) comm.barrier();
  return Sum<float, 1>(worker, {100'000});
}

/// Rank 0 takes the all_reduce of the others for that of the train step, and has no other one.
void gradient_and_leave(CpuWorker& worker, Comm& comm, Scattered<const float, 1>, Local<float, 1>,
                        Local<float, 1> gradient) {
  if (worker.rank() != 0) comm.all_reduce(gradient, Reduction::avg);
}

TEST_P(Exception, OfACollectiveThatARankDoesNotComeToNeedsNoDeadlineBeforeAnUpdate) {
  if (GetParam() == 1) GTEST_SKIP() << "nobody waits";
  auto variable = session.shared("v", std::vector<float>{1, 2});
  const auto rows = session.data(std::vector<float>(8, 1));
  const auto update = session.function(update_and_leave, "update_and_leave");
  const auto compute = session.function(compute_and_leave, "compute_and_leave");
  auto step = train_step<Sgd>(session, gradient_and_leave, variable);
  const std::vector<std::function<void()>> calls{[&] { update(variable); }, [&] { compute(); },
                                                 [&] { step(rows, {.learning_rate = 1}); }};
  for (int round = 0; round < 3; ++round) {
    for (const auto& call : calls) {
      const auto begin = Clock::now();
      const Error error = error_of(call);
      EXPECT_LT(Clock::now() - begin, kErrorLimit);
      EXPECT_EQ(error.kind(), ErrorKind::function) << error.what();
      EXPECT_GT(error.rank(), 0);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 has left the call, and rank " + std::to_string(error.rank())));
      for (int copy = 0; copy < GetParam(); ++copy) EXPECT_EQ(variable.get(copy)[0], 1) << "nothing is committed";
      expect_usable(session);
    }
  }
}

Sum<float, 1> update_and_throw(CpuWorker& worker, Update<op::sum, float, 1> variable, Local<float, 1> local, int rank) {
  variable.value()[0] = 100;
  static_cast<void>(local);
  if (worker.rank() == rank) throw std::runtime_error("no update");
  return Sum<float, 1>(worker, {100'000});
}

TEST_P(Exception, CommitsNoUpdateAnywhere) {
  auto variable = session.shared<float, 1>("v");
  auto other = session.shared<float, 1>("w");
  variable.broadcast(std::vector<float>{1, 2});
  other.broadcast(std::vector<float>{1, 2});
  const auto f = session.function(update_and_throw, "update_and_throw");
  for (int rank = 0; rank < GetParam(); ++rank) {
    EXPECT_EQ(error_of([&] { f(variable, other, rank); }).rank(), rank);
    for (int copy = 0; copy < GetParam(); ++copy) EXPECT_EQ(variable.get(copy)[0], 1);
  }
  f(variable, other, -1);
  for (int copy = 0; copy < GetParam(); ++copy) EXPECT_EQ(variable.get(copy)[0], 100);
}

// ---- replicated objects ---------------------------------------------------------------------------------------

struct BuiltSpeechless {
  BuiltSpeechless() { throw Speechless(); }
};

class Picky {
 public:
  Picky(CpuWorker& worker, int rank) {
    if (worker.rank() == rank) throw std::invalid_argument("not on this rank");
    living += 1;
  }
  Picky(const Picky&) = delete;
  Picky& operator=(const Picky&) = delete;
  ~Picky() { living -= 1; }
  Sum<int> count() { return living; }
  inline static int living = 0;
};

TEST_P(Exception, OfAConstructorReachesTheMasterAndLeavesNoObjectElsewhere) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto object = session.replicate<Picky>(last());
    const auto count = session.function(&Picky::count, object);
    auto in_flight = count.async();
    for (const auto& use : std::vector<std::function<void()>>{[&] { in_flight.get(); }, [&] { count(); }}) {
      expect_thrown(error_of(use), last(), ErrorKind::function, "construction of a replicated object", "function",
                    "not on this rank");
    }
    session.wait();  // the program has seen the failure
  }
  const auto object = session.replicate<Picky>(-1);
  EXPECT_EQ(session.function(&Picky::count, object)(), GetParam()) << "one on each rank, and no others";
  const auto speechless = session.replicate<BuiltSpeechless>();
  expect_error([&] { session.wait(); }, ErrorKind::function,
               {"an exception of type syncrun::test::Speechless without a text"});
  expect_usable(session);
}

}  // namespace
}  // namespace syncrun::test
