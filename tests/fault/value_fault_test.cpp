// A worker dies while a value moves: the source, the destination, or a rank that takes no part. Rank 0 is the source,
// rank 1 the destination. Rank 2 takes no part.

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/scene.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

enum class Victim : std::uint8_t { source, destination, uninvolved };
constexpr int rank_of(Victim victim) { return static_cast<int>(victim); }

Keep<double, 1> twice(CpuWorker& worker, Local<const double, 1> x) {
  Keep<double, 1> y(worker, x.shape());
  for (std::int64_t i = 0; i < x.rows(); ++i) y[i] = 2 * x[i];
  return y;
}
/// Says that it runs, and goes on when it may.
Keep<double, 1> twice_when_told(CpuWorker& worker, Local<const double, 1> x, BoardView board) {
  field(board, 0).store(1);
  while (field(board, 1).load() == 0) std::this_thread::sleep_for(1ms);
  return twice(worker, x);
}
Sum<double> first_element(Local<const double, 1> x) { return x[0]; }

class Moves : public testing::TestWithParam<Victim> {
 protected:
  static constexpr int kWorkers = 3;

  static void kill_victim(Session& session) {
    ASSERT_EQ(::kill(session.worker_pids()[static_cast<std::size_t>(rank_of(GetParam()))], SIGKILL), 0);
  }
  static void await_field(const Board& board, int index) {
    while (board.get(index) == 0) std::this_thread::sleep_for(1ms);
  }
};
std::string name_of_victim(const testing::TestParamInfo<Victim>& victim) {
  constexpr std::array kNames{"Source", "Destination", "Uninvolved"};
  return kNames[static_cast<std::size_t>(victim.param)];
}
INSTANTIATE_TEST_SUITE_P(OfAValue, Moves, testing::Values(Victim::source, Victim::destination, Victim::uninvolved),
                         name_of_victim);

TEST_P(Moves, ThatWaitForTheirSourceEndWithALoss) {
  Session session(workers(kWorkers, OnWorkerLost::end));
  const Board board(session);
  const auto f = session.function(twice_when_told);
  const auto x = session.value(std::vector<double>(100, 1.0), Shape{100}, session.device(0));
  const auto y = f.on(session.device(0))(x, board.data());
  auto read = session.function(first_element).on(session.device(1)).async(y);
  await_field(board, 0);
  kill_victim(session);
  const Error error = expect_error([&] { static_cast<void>(read.get()); }, ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), rank_of(GetParam()));
}

TEST_P(Moves, ThatWaitForTheirSourceAreOverAndTheSessionGoesOn) {
  Session session(workers(kWorkers, OnWorkerLost::respawn));
  Board board(session);
  const auto f = session.function(twice_when_told, "f");
  const auto g = session.function(twice);
  const auto read = session.function(first_element);
  const auto x = session.value(std::vector<double>(100, 1.0), Shape{100});
  const auto y = f.on(session.device(0))(x, board.data());
  auto future = read.on(session.device(1)).async(y);
  await_field(board, 0);
  kill_victim(session);
  board.set(1, 1);
  if (GetParam() == Victim::uninvolved) {
    EXPECT_EQ(future.get(), 2) << "neither the call nor the move ran on the lost rank";
    const auto surface = [&] {
      session.function(first_element)(x);
      session.wait();
    };
    EXPECT_EQ(error_of(surface).kind(), ErrorKind::worker_lost) << "no call was lost, so a wait throws it";
  } else {
    const Error error = expect_error([&] { static_cast<void>(future.get()); }, ErrorKind::worker_lost);
    EXPECT_EQ(error.rank(), rank_of(GetParam()));
  }
  if (GetParam() == Victim::source) {
    expect_error([&] { static_cast<void>(y.get()); }, ErrorKind::worker_lost, {"which 'f' was to make"});
  }
  // x is still on the host. A new value moves between the new workers.
  const auto z = g.on(session.device(0))(x);
  EXPECT_EQ(read.on(session.device(1))(z), 2);
  EXPECT_EQ(read.on(session.device(2))(z), 2);
  session.wait();
}

TEST_P(Moves, OfManyBytesEndWhenAWorkerDies) {
  constexpr std::int64_t kElements = std::int64_t{24} << 20U;  // the copy takes tens of milliseconds
#if defined(SYNCRUN_ADDRESS_SANITIZER) || defined(SYNCRUN_THREAD_SANITIZER)
  constexpr std::array kDelaysMs{10};  // one session computes its values for several seconds
#else
  constexpr std::array kDelaysMs{0, 10, 30};
#endif
  for (const int delay_ms : kDelaysMs) {
    Session session(workers(kWorkers, OnWorkerLost::respawn));
    const auto g = session.function(twice);
    const auto read = session.function(first_element);
    const auto x = session.value(std::vector<double>(static_cast<std::size_t>(kElements), 1.0), Shape{kElements},
                                 session.device(0));
    const auto y = g.on(session.device(0))(x);
    session.wait();
    auto future = read.on(session.device(1)).async(y);
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    kill_victim(session);
    try {
      EXPECT_EQ(future.get(), 2) << "the call was over before the loss, or did not notice it";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
    }
    // The values that only the lost rank had are gone. The others are right.
    try {
      const auto values = y.get();
      EXPECT_EQ(values[0], 2);
      EXPECT_EQ(values[kElements - 1], 2);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
      EXPECT_EQ(GetParam(), Victim::source);
    }
    const auto small = session.value(std::vector<double>(3, 4.0), Shape{3}, session.device(0));
    EXPECT_EQ(read.on(session.device(1))(g.on(session.device(2))(small)), 8);
  }
}

TEST_P(Moves, LoseOnlyWhatTheLostRankHad) {
  Session session(workers(kWorkers, OnWorkerLost::respawn));
  const auto g = session.function(twice, "g");
  const auto read = session.function(first_element);
  const auto x = session.value(std::vector<double>(10, 1.0), Shape{10}, session.device(0), "x");
  const auto y = g.on(session.device(0))(x);
  const auto copied = g.on(session.device(0))(x);
  EXPECT_EQ(read.on(session.device(1))(copied), 2);
  kill_victim(session);
  EXPECT_EQ(error_of([&] { session.function(first_element)(copied); }).kind(), ErrorKind::worker_lost);
  EXPECT_EQ(copied.get()[9], 2) << "it was on two ranks";
  if (GetParam() == Victim::source) {
    EXPECT_THAT(error_of([&] { static_cast<void>(y.get()); }).what(), HasSubstr("which was lost"));
    EXPECT_THAT(error_of([&] { static_cast<void>(x.get()); }).what(), HasSubstr("value 'x' no longer exists"));
  } else {
    EXPECT_EQ(y.get()[9], 2);
    EXPECT_EQ(x.get()[9], 1);
  }
  EXPECT_EQ(read.on(session.device(rank_of(GetParam())))(copied), 2);
}

// ---- the center of asynchronous training ----------------------------------------------------------------------

enum class Dies : std::uint8_t { never, in_its_round, in_its_exchange };
constexpr std::int64_t kParams = 8192;  // several pages

void add_one(CpuWorker&, Local<double, 1> params, Dies dies) {
  if (dies == Dies::in_its_round) std::raise(SIGKILL);
  for (double& x : params) x += 1;
  if (dies != Dies::in_its_exchange) return;
  // The exchange reads this page, and nothing else is in it.
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto middle = reinterpret_cast<std::uintptr_t>(&params[kParams / 2]) / page * page;
  ::mprotect(reinterpret_cast<void*>(middle), page, PROT_NONE);
}

class Center : public testing::TestWithParam<Dies> {
 protected:
  /// Trains on rank 1, whose worker dies in its second round or in the exchange after it. Then trains for another round.
  template <class Train>
  void expect_kept(Train train, const char* exchange, double last) {
    Session session(workers(2, OnWorkerLost::respawn));
    const auto f = session.function(add_one, "round");
    const auto center = session.value(std::vector<double>(kParams, 10.0), Shape{kParams}, session.device(0), "center");
    const std::vector<Device> devices{session.device(1)};
    Dies second = GetParam();
    const auto start = [&](const Round<double>& round) {
      return f.on(round.device).async(round.params, round.number == 1 ? second : Dies::never);
    };
    const auto after = [](const Round<double>&) { return true; };
    const Error error = expect_error([&] { train(session, center, devices, start, after); }, ErrorKind::worker_lost);
    EXPECT_EQ(error.failure().call, GetParam() == Dies::in_its_round ? "round" : exchange);
    EXPECT_THAT(center.get().to_vector(), testing::Each(11)) << "as after the first exchange";
    second = Dies::never;
    train(session, center, devices, start, after);
    EXPECT_THAT(center.get().to_vector(), testing::Each(last)) << "it goes on from there";
  }
};
INSTANTIATE_TEST_SUITE_P(OfAsynchronousTraining, Center, testing::Values(Dies::in_its_round, Dies::in_its_exchange),
                         [](const auto& dies) {
                           return dies.param == Dies::in_its_round ? "WhenARoundDies" : "WhenAnExchangeDies";
                         });

TEST_P(Center, IsKeptByEasgd) {
  expect_kept(
      [](auto& session, const auto& center, const auto& devices, const auto& start, const auto& after) {
        return easgd(session, center, devices, start, after, {.moving_rate = 1, .rounds = 2});
      },
      "easgd exchange", 12);  // the second round begins at the center from before the first
}

TEST_P(Center, IsKeptByDownpour) {
  expect_kept([](auto& session, const auto& center, const auto& devices, const auto& start,
                 const auto& after) { return downpour(session, center, devices, start, after, {.rounds = 2}); },
              "downpour exchange", 13);
}

/// Says that it runs, and ends when it may.
void stay_busy(BoardView board) {
  field(board, 0).fetch_add(1);
  while (field(board, 1).load() == 0) std::this_thread::sleep_for(1ms);
}
Keep<double, 1> make(CpuWorker& worker, std::int64_t count) { return Keep<double, 1>(worker, {count}); }

/// Where else the value lies, apart from the busy device.
enum class Elsewhere : std::uint8_t { nowhere, idle_device, host, all_busy };
class BusyDevice : public testing::TestWithParam<Elsewhere> {};
INSTANTIATE_TEST_SUITE_P(And, BusyDevice,
                         testing::Values(Elsewhere::nowhere, Elsewhere::idle_device, Elsewhere::host,
                                         Elsewhere::all_busy));

TEST_P(BusyDevice, DoesNotDelayThoseWhoReadAFinishedValue) {
  Session session(workers(2));
  Board board(session);
  const auto busy = session.function(stay_busy);
  const auto x = session.function(make).on(session.device(0))(3);
  session.wait();
  if (GetParam() == Elsewhere::all_busy) x.to(session.device(1));
  busy.on(session.device(0))(board.data());
  if (GetParam() == Elsewhere::all_busy) busy.on(session.device(1))(board.data());
  if (GetParam() == Elsewhere::idle_device) x.to(session.device(1));
  if (GetParam() == Elsewhere::host) x.to_host();  // waits for the device, and so does no get()
  ASSERT_TRUE(board.reaches(0, GetParam() == Elsewhere::all_busy ? 2 : 1));
  EXPECT_EQ(x.get().rows(), 3);
  EXPECT_EQ(x.get_async().get()[2], 0);
  EXPECT_EQ(board.get(1), 0);
  board.set(1, 1);
  session.wait();
}

TEST(PinnedValue, ThatIsLostIsSetAgain) {
  Session session(workers(2, OnWorkerLost::respawn));
  const auto read = session.function(first_element);
  auto x = session.value(std::vector<double>(10, 1.0), Shape{10}, session.device(1), "x");
  x.pin(session.device(1));
  EXPECT_EQ(read.on(session.device(1))(x), 1);
  ASSERT_EQ(::kill(session.worker_pids()[1], SIGKILL), 0);
  EXPECT_EQ(error_of([&] { read.on(session.device(1))(x); }).kind(), ErrorKind::worker_lost);
  for (const int rank : {0, 1}) {
    expect_error([&] { read.on(session.device(rank))(x); }, ErrorKind::worker_lost,
                 {"no longer exists (its member set() gives it new values)"});
  }
  x.set(std::vector<double>(4, 3.0));
  EXPECT_EQ(read.on(session.device(1))(x), 3);
  expect_usage([&] { read.on(session.device(0))(x); }, {"pinned to rank 1"});
}

}  // namespace
}  // namespace syncrun::test
