// SessionOptions::on_worker_lost = respawn: a new worker takes the rank of one that was lost, and the session goes on.

#include <cmath>
#include <csignal>
#include <numeric>
#include <thread>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

enum class Where : std::uint8_t { before_a_collective, without_one };

/// One rank dies. The other ranks wait for it in a collective, or need no other rank.
void lose_one(CpuWorker& worker, Comm& comm, BoardView board, int rank, Where where) {
  if (worker.rank() == rank) die(Death::kill, board);
  if (where == Where::before_a_collective) comm.barrier();
}

/// Waits until all ranks are in the body. If a peer dies, a rank that is not in the body yet does not begin it.
void wait_for_all(CpuWorker& worker, BoardView board) {
  field(board, 0).fetch_add(1);
  while (field(board, 0).load() < worker.world_size()) std::this_thread::sleep_for(1ms);
}

Sum<int> one() { return 1; }

void half_of_params(CpuWorker& worker, Scattered<const double, 1>, BoardView board, int rank, Local<double, 1> params,
                    Local<double, 1> gradient) {
  if (worker.rank() == rank) die(Death::kill, board);
  for (std::int64_t i = 0; i < params.size(); ++i) gradient[i] = params[i] / 2;
}

template <class T>
std::vector<T> copy_on(Shared<T, 1>& variable, int rank) {
  const auto values = variable.get(rank);
  return {values.begin(), values.end()};
}

class Respawn : public testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }
  int last() const { return world_size() - 1; }
  Session session_{workers(GetParam(), OnWorkerLost::respawn)};
  Board board_{session_};

  Error lose(int rank, Where where = Where::before_a_collective) {
    return error_of([&] { session_.function(lose_one, "lose_one")(board_.data(), rank, where); });
  }
};
INSTANTIATE_WITH_WORKERS(Respawn);

TEST_P(Respawn, GivesTheRankToANewWorker) {
  const auto before = session_.worker_pids();
  const Error error = lose(last());
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_EQ(error.failure().pid, before.back());
  EXPECT_EQ(error.failure().call, "lose_one");
  EXPECT_EQ(error.failure().cause, cause_of(Death::kill));
  EXPECT_THAT(error.what(), testing::StartsWith("rank " + std::to_string(last()) + " (cpu" + std::to_string(last())));
  const auto after = session_.worker_pids();
  EXPECT_EQ(error.failure().respawned_pid, after.back());
  EXPECT_NE(after.back(), before.back());
  EXPECT_TRUE(is_alive(after.back()));
  EXPECT_FALSE(is_alive(before.back()));
  for (int rank = 0; rank < last(); ++rank) EXPECT_EQ(after[rank], before[rank]);
  EXPECT_THAT(error.what(), HasSubstr("is new"));
  expect_usable(session_);
}

TEST_P(Respawn, IsToldByTheNextCallWhereNobodyWasAtWork) {
  const auto pids = session_.worker_pids();
  ASSERT_EQ(::kill(pids.back(), SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return !is_alive(pids.back()); }));
  const Error error = expect_error([&] { session_.function(one)(); }, ErrorKind::worker_lost);
  EXPECT_EQ(error.failure().phase, "idle");
  expect_usable(session_);
}

TEST_P(Respawn, KeepsTheWeightsOfTheRanks) {
  std::vector<double> weights(static_cast<std::size_t>(world_size()));
  std::iota(weights.begin(), weights.end(), 1);
  session_.set_weights(weights);
  lose(last());
  EXPECT_EQ(session_.weights(), weights);
  const auto rows = session_.function([](CpuWorker& worker) -> Stack<std::int64_t> { return worker.rows(); });
  std::vector<std::int64_t> expected(weights.begin(), weights.end());
  for (auto& share : expected) share *= 5;
  EXPECT_EQ(rows({.rows = std::accumulate(expected.begin(), expected.end(), std::int64_t{0})}).to_vector(), expected);
}

TEST_P(Respawn, ATrainStepWithGroupsGoesOn) {
  auto weights = session_.shared<double, 1>("weights");
  weights.broadcast(std::vector<double>{1, 2, 3});
  auto step = train_step<Momentum>(session_, half_of_params, weights,
                                   {.groups = {{.begin = 1, .end = 2, .learning_rate = 0}}, .clip_norm = 1e9});
  const auto x = session_.data(std::vector<double>(static_cast<std::size_t>(world_size()), 1.0));
  for (int round = 0; round < 2; ++round) {
    expect_error([&] { step(x, board_.data(), last(), {.learning_rate = 1}); }, ErrorKind::worker_lost);
    weights.broadcast(std::vector<double>{1, 2, 3});
    for (auto& vector : step.state()) vector.broadcast(std::vector<double>{0, 0, 0});
    step(x, board_.data(), -1, {.learning_rate = 1});
    for (int rank = 0; rank < world_size(); ++rank) EXPECT_THAT(copy_on(weights, rank), ElementsAre(0.5, 2, 1.5));
    EXPECT_DOUBLE_EQ(step.gradient_norm(), std::sqrt(0.5 * 0.5 + 1.5 * 1.5));
  }
}

TEST_P(Respawn, RestoresWhatWasBroadcast) {
  auto w = session_.shared<float, 1>("w");
  w.broadcast(std::vector<float>{1, 2, 3});
  const Error error = lose(last());
  if (world_size() == 1) {
    EXPECT_THAT(error.failure().undefined, ElementsAre("w"));
    expect_usage([&] { static_cast<void>(w.get(0)); }, {"'w'", "no values on rank 0", "lost"});
    return;
  }
  EXPECT_THAT(error.failure().restored, ElementsAre("w"));
  EXPECT_THAT(error.failure().undefined, IsEmpty());
  EXPECT_THAT(error.what(), HasSubstr("restored from a peer: 'w'"));
  EXPECT_THAT(copy_on(w, last()), ElementsAre(1, 2, 3));
  w.all_reduce(Reduction::sum);
  EXPECT_THAT(copy_on(w, last()), ElementsAre(world_size(), 2 * world_size(), 3 * world_size()));
}

TEST_P(Respawn, NamesWhatIsGone) {
  auto rows = session_.shared<float, 1>("rows");
  auto elsewhere = session_.shared<float, 1>("elsewhere");
  if (world_size() > 1) elsewhere.set(0, std::vector<float>{1});  // the lost rank has no rows of it
  std::vector<float> values(8);
  std::iota(values.begin(), values.end(), 0.0F);
  rows.scatter(values);
  const Error error = lose(last());
  EXPECT_THAT(error.failure().undefined, ElementsAre("rows"));
  EXPECT_THAT(error.what(), HasSubstr("undefined: 'rows'"));
  EXPECT_EQ(rows.lengths().back(), 0);
  for (int rank = 0; rank < last(); ++rank) EXPECT_GT(rows.lengths()[rank], 0);
  const auto f = session_.function([](Local<float, 1> x) -> Sum<float> { return x[0]; });
  const std::string why = "has no values on rank " + std::to_string(last());
  expect_usage([&] { f(rows); }, {"'rows'", why, "scatter"});
  if (world_size() > 1) {
    EXPECT_EQ(f.on_rank(0)(rows), 0) << "the others have their copies";
  }
  rows.scatter(values);
  EXPECT_GE(f(rows), 0);
  const auto gathered = rows.gather();
  EXPECT_EQ(std::vector<float>(gathered.begin(), gathered.end()), values);
}

TEST_P(Respawn, NamesCopiesThatDiffer) {
  auto w = session_.shared<float, 1>("w");
  w.broadcast(std::vector<float>{1, 2, 3});
  session_.function([](CpuWorker& worker, Local<float, 1> w) { w[0] = static_cast<float>(worker.rank()); })(w);
  const Error error = lose(last());
  EXPECT_THAT(error.failure().undefined, ElementsAre("w"));
}

TEST_P(Respawn, NamesWhatTheCallMayHaveHalfWritten) {
  auto w = session_.shared<float, 1>("w");
  w.broadcast(std::vector<float>{1, 2, 3});
  const auto f = session_.function([](CpuWorker& worker, Comm& comm, Local<float, 1> w, int rank) {
    w[0] = 7;
    if (worker.rank() == rank) die(Death::segfault);
    comm.barrier();
    w[1] = 7;
  });
  EXPECT_THAT(error_of([&] { f(w, last()); }).failure().undefined, ElementsAre("w"));
}

Sum<int> wait_for_field(BoardView board, int index) {
  while (field(board, index).load() == 0) std::this_thread::sleep_for(1ms);
  return 1;
}

TEST_P(Respawn, CallsThatDoNotDependOnALostRankAreReadyOnceTheyAreDone) {
  if (world_size() == 1) GTEST_SKIP() << "there is no other rank";
  const auto wait = session_.function(wait_for_field, "wait_for_field");
  const auto doomed = session_.function([](BoardView board) -> Sum<int> {
    die(Death::kill, board);
    return 0;
  });
  auto slow = wait.on_rank(0).async(board_.data(), 1);
  auto lost = doomed.on_rank(last()).async(board_.data());
  std::optional<Future<Sum<int>>> quick;
  if (world_size() > 2) quick = wait.on_rank(1).async(board_.data(), 2);
  const auto pid = session_.worker_pids().back();
  while (is_alive(pid)) std::this_thread::sleep_for(1ms);
  for (int poll = 0; poll < 50; ++poll, std::this_thread::sleep_for(5ms)) {
    ASSERT_FALSE(slow.is_ready()) << "it is still running";
    ASSERT_FALSE(lost.is_ready()) << "get() would wait until the survivors are done";
  }
  if (quick) {
    EXPECT_FALSE(quick->is_ready());
    board_.set(2, 1);
    while (!quick->is_ready()) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(quick->get(), 1) << "while another survivor is busy";
  }
  EXPECT_FALSE(slow.is_ready());
  board_.set(1, 1);
  while (!slow.is_ready()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(slow.get(), 1);
  while (!lost.is_ready()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(error_of([&] { lost.get(); }).kind(), ErrorKind::worker_lost);
  expect_usable(session_);
}

TEST_P(Respawn, ACallThatSurvivorsGaveUpIsReadyOnceAllSurvivorsAreDone) {
  if (world_size() < 3) GTEST_SKIP() << "requires two survivors";
  const std::vector<Device> devices{session_.device(1), session_.device(last())};
  const auto wait = session_.function(wait_for_field, "wait_for_field");
  const auto doomed = session_.function(lose_one, "lose_one");
  auto slow = wait.on_rank(0).async(board_.data(), 1);
  auto lost = doomed.on(devices).async(board_.data(), last(), Where::before_a_collective);
  const auto pid = session_.worker_pids().back();
  while (is_alive(pid)) std::this_thread::sleep_for(1ms);
  for (int poll = 0; poll < 50; ++poll, std::this_thread::sleep_for(5ms)) ASSERT_FALSE(lost.is_ready());
  board_.set(1, 1);
  while (!lost.is_ready()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(error_of([&] { lost.get(); }).kind(), ErrorKind::worker_lost);
  EXPECT_EQ(slow.get(), 1);
}

TEST_P(Respawn, ALossThatOnlyDroppedFuturesHaveHadSurfacesAtWait) {
  const auto doomed = session_.function(lose_one, "lose_one");
  {
    auto lost = doomed.async(board_.data(), last(), Where::without_one);
    while (!lost.is_ready()) std::this_thread::sleep_for(1ms);
    session_.wait_all(std::span(&lost, 1));
  }
  EXPECT_EQ(error_of([&] { session_.wait(); }).kind(), ErrorKind::worker_lost);
  EXPECT_NO_THROW(session_.wait());
  expect_usable(session_);
}

class Counter {
 public:
  Counter(CpuWorker& worker, int start) : rank_(worker.rank()), count_(start) {}
  Sum<int> add(int number) { return count_ += number; }
  Max<int> rank() { return rank_; }

 private:
  int rank_;
  int count_;
};

TEST_P(Respawn, BuildsReplicatedObjectsAnew) {
  const auto counter = session_.replicate<Counter>(10);
  const auto add = session_.function(&Counter::add, counter);
  EXPECT_EQ(add(5).value(), 15 * world_size());
  lose(last());
  EXPECT_EQ(add(0).value(), 15 * last() + 10);  // the new object is as constructed, the others have kept their values
  EXPECT_EQ(session_.function(&Counter::rank, counter)().value(), last());
}

TEST_P(Respawn, ReplacesAllThatDieAtOnce) {
  const auto before = session_.worker_pids();
  const auto f = session_.function([](CpuWorker& worker, BoardView board) {
    wait_for_all(worker, board);
    die(Death::kill, board);
  });
  EXPECT_EQ(error_of([&] { f(board_.data()); }).kind(), ErrorKind::worker_lost);
  const auto after = session_.worker_pids();
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_NE(after[rank], before[rank]);
  expect_usable(session_);
}

TEST_P(Respawn, HasAnEnd) {
  SessionOptions options = workers(world_size(), OnWorkerLost::respawn);
  options.max_respawns = 1;
  session_.close();
  Session session(options);
  const Board board(session);
  const auto f = session.function(lose_one, "lose_one");
  error_of([&] { f(board.data(), last(), Where::without_one); });
  const Error error = error_of([&] { f(board.data(), last(), Where::without_one); });
  EXPECT_THAT(error.what(), HasSubstr("max_respawns"));
  expect_over(session, error);
}

TEST_P(Respawn, EndsTheSessionWhereTheNewWorkerCannotStart) {
  const AtStart bad(last(), "static-exit-7");
  const Error error = lose(last());
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_THAT(error.what(), HasSubstr("could not be replaced"));
  expect_over(session_, error);
}

TEST_P(Respawn, EndsTheSessionWhereAnotherWorkerDoesNotComeBack) {
  if (world_size() == 1) return;
  const auto f = session_.function([](CpuWorker& worker, BoardView board) {
    wait_for_all(worker, board);
    if (worker.rank() == 0) die(Death::kill, board);
    for (;;) ::pause();
  });
  const Error error = error_of([&] { f(board_.data(), {.timeout = 3s}); });
  EXPECT_THAT(error.what(), HasSubstr("did not come to the end of their calls within 3000 ms"));
  expect_over(session_, error);
}

TEST(RespawnOptions, AreChecked) {
  SessionOptions options = workers(1, OnWorkerLost::respawn);
  options.max_respawns = -1;
  expect_usage([&] { Session{options}; }, {"max_respawns", "-1"});
}

}  // namespace
}  // namespace syncrun::test
