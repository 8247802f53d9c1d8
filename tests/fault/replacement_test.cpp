// A worker is replaced while the master waits in an operation, and while its peers still use its memory or that of others.

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <stdexcept>
#include <thread>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> copy_of(Shared<float, 1>& variable, int rank) {
  const auto values = variable.get(rank);
  return {values.begin(), values.end()};
}

// ---- a worker is replaced in the midst of an operation --------------------------------------------------------

/// The master takes in the loss only when it waits for this call.
void dies_with(CpuWorker&, Local<const float, 1>, BoardView board) { die(Death::kill, board); }

using Rows = Shared<float, 1>;
struct Operation {
  const char* name;
  void (*act)(Rows& x, int last);
};
constexpr std::array kOperations{
    Operation{"broadcast", [](Rows& x, int last) { x.broadcast(last); }},
    Operation{"all_gather", [](Rows& x, int) { x.all_gather(); }},
    Operation{"all_reduce", [](Rows& x, int) { x.all_reduce(Reduction::sum); }},
    Operation{"reduce", [](Rows& x, int) { x.reduce(Reduction::sum, 0); }},
    Operation{"reduce_scatter", [](Rows& x, int) { x.reduce_scatter(Reduction::sum); }},
    Operation{"reduce to the master", [](Rows& x, int) { static_cast<void>(x.reduce(Reduction::sum)); }},
    Operation{"gather", [](Rows& x, int) { static_cast<void>(x.gather()); }},
    Operation{"gather_stacked", [](Rows& x, int) { static_cast<void>(x.gather_stacked()); }},
    Operation{"get", [](Rows& x, int last) { static_cast<void>(x.get(last)); }},
    Operation{"get_async", [](Rows& x, int last) { static_cast<void>(x.get_async(last).get()); }},
};

class RespawnInAWait : public testing::TestWithParam<int> {
 protected:
  static SessionOptions many_losses() {
    SessionOptions options = workers(GetParam(), OnWorkerLost::respawn);
    options.max_respawns = 100;
    return options;
  }
  int last() const { return GetParam() - 1; }
  Future<void> lose_with(const Rows& x) { return session_.function(dies_with).on_rank(last()).async(x, board_.data()); }
  void expect_lost(const Error& error, const std::string& operation) {
    EXPECT_TRUE(error.kind() == ErrorKind::usage || error.kind() == ErrorKind::worker_lost) << operation;
    EXPECT_THAT(error.what(), HasSubstr("'x'")) << operation;
    EXPECT_THAT(error.what(), HasSubstr("lost")) << operation;
  }
  Session session_{many_losses()};
  Board board_{session_};
};
INSTANTIATE_TEST_SUITE_P(Workers, RespawnInAWait, testing::Values(2, 4), testing::PrintToStringParamName());

TEST_P(RespawnInAWait, OperationsOnLostValuesSayThatTheyWereLost) {
  auto x = session_.shared<float, 1>("x");
  for (const Operation& operation : kOperations) {
    x.scatter(std::vector<float>(8, 3));
    auto gone = lose_with(x);
    expect_lost(error_of([&] { operation.act(x, last()); }), operation.name);
    EXPECT_EQ(error_of([&] { gone.get(); }).kind(), ErrorKind::worker_lost) << operation.name;
    expect_lost(error_of([&] { operation.act(x, last()); }), operation.name);
  }
  expect_lost(error_of([&] { x.copy(last(), 0); }), "copy");
}

TEST_P(RespawnInAWait, ACopyFromALostRankHasItsValuesOrFails) {
  auto x = session_.shared<float, 1>("x");
  x.scatter(std::vector<float>(8, 3));
  auto gone = lose_with(x);
  try {
    x.copy(last(), 0);
    EXPECT_THAT(copy_of(x, 0), testing::Each(3)) << "a survivor can still read the memory of a lost worker";
  } catch (const Error& error) {
    expect_lost(error, "copy");
  }
  EXPECT_EQ(error_of([&] { gone.get(); }).kind(), ErrorKind::worker_lost);
}

TEST_P(RespawnInAWait, CollectivesHaveTheValuesThatWereRestored) {
  auto x = session_.shared<float, 1>("x");
  const auto ranks = static_cast<float>(GetParam());
  const auto after = [&](void (*act)(Rows&, int)) {
    x.broadcast(std::vector<float>{1, 2});
    auto gone = lose_with(x);
    act(x, last());
    EXPECT_EQ(error_of([&] { gone.get(); }).kind(), ErrorKind::worker_lost);
    return copy_of(x, last());
  };
  EXPECT_THAT(after([](Rows& x, int last) { x.broadcast(last); }), ElementsAre(1, 2));
  EXPECT_THAT(after([](Rows& x, int) { x.all_reduce(Reduction::sum); }), ElementsAre(ranks, 2 * ranks));
  const auto all = after([](Rows& x, int) { x.all_gather(); });
  ASSERT_EQ(all.size(), 2 * static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i % 2 == 0 ? 1 : 2);
}

TEST_P(RespawnInAWait, ACollectiveFailsIfTheLostCallWasToWriteTheVariable) {
  auto x = session_.shared<float, 1>("x");
  x.broadcast(std::vector<float>{1, 2});
  const auto f = session_.function([](CpuWorker&, Local<float, 1>, BoardView board) { die(Death::kill, board); });
  auto gone = f.on_rank(last()).async(x, board_.data());
  EXPECT_EQ(error_of([&] { x.all_reduce(Reduction::sum); }).kind(), ErrorKind::worker_lost);
  EXPECT_EQ(error_of([&] { gone.get(); }).kind(), ErrorKind::worker_lost);
  x.all_reduce(Reduction::sum);  // the program has seen the loss
  EXPECT_THAT(copy_of(x, last()), ElementsAre(GetParam(), 2 * GetParam()));
}

/// Computes until the other call has died, and some time longer. The master waits for it meanwhile, and sees the loss.
Keep<double, 1> made_during_the_loss(CpuWorker& worker, BoardView board) {
  while (field(board, Board::kTimeOfDeath).load() == 0) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(300ms);
  Keep<double, 1> made(worker, {4});
  std::fill(made.begin(), made.end(), 1.0);
  return made;
}

TEST_P(RespawnInAWait, ACallIsCheckedAgainAfterItHasWaitedForTheShapeOfAValue) {
  auto x = session_.shared<float, 1>("x");
  const auto local = session_.function(
      [](Local<const float, 1> x, Sliced<const double, 1>) -> Sum<int> { return x[0] == 3 ? 1 : -1; });
  const auto sliced =
      session_.function([](Sliced<const float, 1> x, Local<const double, 1>, Sliced<const double, 1>) -> Sum<int> {
        return x.size() != 0 && x[0] == 3 ? 1 : -1;
      });
  const auto make = session_.function(made_during_the_loss);
  for (const bool is_sliced : {false, true}) {
    x.scatter(std::vector<float>(static_cast<std::size_t>(4 * GetParam()), 3));
    board_.set(Board::kTimeOfDeath, 0);
    auto gone = lose_with(x);
    const auto value = make.on(session_.device(0))(board_.data());
    const auto call = [&] {
      if (is_sliced) sliced.on_rank(last())(x, value, value);
      else local.on_rank(last())(x, value);
    };
    expect_lost(error_of(call), is_sliced ? "sliced" : "local");
    EXPECT_EQ(error_of([&] { gone.get(); }).kind(), ErrorKind::worker_lost);
  }
}

TEST_P(RespawnInAWait, ACallIsCheckedAgainAfterItHasWaitedForRoomForAMove) {
  constexpr int kInbox = 32;  // how many commands a rank may have
  auto x = session_.shared<float, 1>("x");
  const auto f = session_.function(
      [](Sliced<const float, 1> x, Local<const double, 1>) -> Sum<int> { return x.size() != 0 && x[0] == 3 ? 1 : -1; });
  const auto none = session_.function([] {});
  for (const int free_places : {0, 1, 2}) {
    x.scatter(std::vector<float>(8, 3));
    const auto value = session_.value(std::vector<double>{1}, Shape{1}, session_.device(0));
    session_.wait();
    auto gone = lose_with(x);
    std::vector<Future<void>> queued;
    for (int i = 1; i < kInbox - free_places; ++i) queued.push_back(none.on_rank(last()).async());
    expect_lost(error_of([&] { f.on_rank(last())(x, value); }), std::to_string(free_places) + " places are free");
    EXPECT_EQ(error_of([&] { gone.get(); }).kind(), ErrorKind::worker_lost);
  }
}

// ---- memory that a peer still writes ---------------------------------------------------------------------------

enum class Memory : std::uint8_t { output, scratch };
constexpr std::int64_t kMany = 1 << 18;
constexpr int kIsHeld = 10, kMayGoOn = 11, kHasLeft = 12;  // fields of the board
std::int64_t* held_board = nullptr;
std::byte* held_page = nullptr;

/// Runs in the middle of the reduction of rank 1: waits until rank 0 has left the call and uses its memory again.
void hold_reduction(int) {
  std::atomic_ref(held_board[kIsHeld]).store(1);
  while (std::atomic_ref(held_board[kMayGoOn]).load() == 0) {
  }
  ::mprotect(held_page, 4096, PROT_READ | PROT_WRITE);
}

struct NotesEnd {
  BoardView board;
  int rank;
  ~NotesEnd() {
    if (rank == 1) field(board, kHasLeft).store(1);
  }
};

std::span<double> filled(CpuWorker& worker, Sum<double, 1>& output, Memory memory, double value) {
  const std::span<double> values =
      memory == Memory::output ? std::span<double>(output.begin(), output.end()) : worker.scratch<double>(kMany);
  std::ranges::fill(values, value);
  return values;
}

/// Rank 2 is lost while rank 1 adds up an array in the memory of all ranks. Rank 1 comes to a page that it may not
/// write, in its own part of its own array, and waits there.
Sum<double, 1> lose_in_reduction(CpuWorker& worker, Comm& comm, BoardView board, Memory memory) {
  const NotesEnd end{board, worker.rank()};
  Sum<double, 1> output{worker, {memory == Memory::output ? kMany : 1}};
  const std::span<double> values = filled(worker, output, memory, 1);
  if (worker.rank() == 1) {
    held_board = const_cast<std::int64_t*>(&board[0]);
    const auto middle = reinterpret_cast<std::uintptr_t>(&values[kMany / 2]);
    held_page = reinterpret_cast<std::byte*>(middle / 4096 * 4096);
    ::signal(SIGSEGV, hold_reduction);
    ::mprotect(held_page, 4096, PROT_READ);
  }
  if (worker.rank() == 2) {
    std::thread([board] {
      while (field(board, kIsHeld).load() == 0) std::this_thread::sleep_for(1ms);
      die(Death::kill, board);
    }).detach();
  }
  comm.all_reduce(values, Reduction::sum);
  return output;
}

/// How many elements of an array of rank 0 another process has changed.
Sum<int> count_overwritten(CpuWorker& worker, BoardView board, Memory memory) {
  Sum<double, 1> output{worker, {memory == Memory::output ? kMany : 1}};
  const std::span<double> values = filled(worker, output, memory, 7);
  field(board, kMayGoOn).store(1);
  while (field(board, kHasLeft).load() == 0) std::this_thread::sleep_for(1ms);
  return static_cast<int>(std::ranges::count_if(values, [](double value) { return value != 7; }));
}

class RespawnMemory : public testing::TestWithParam<Memory> {};
INSTANTIATE_TEST_SUITE_P(Of, RespawnMemory, testing::Values(Memory::output, Memory::scratch),
                         [](const auto& info) { return info.param == Memory::output ? "Outputs" : "Scratch"; });

TEST_P(RespawnMemory, IsNotUsedAgainWhileAPeerStillWritesThere) {
  Session session{workers(3, OnWorkerLost::respawn)};
  const Board board{session};
  auto lost = session.function(lose_in_reduction).async(board.data(), GetParam());
  auto later = session.function(count_overwritten).on_rank(0).async(board.data(), GetParam());
  EXPECT_EQ(error_of([&] { lost.get(); }).kind(), ErrorKind::worker_lost);
  EXPECT_EQ(later.get(), 0);
}

/// Throws on rank 0, and keeps rank 1 busy until the test allows it to end. No rank waits for another one.
void throw_beside_a_busy_rank(CpuWorker& worker, BoardView board) {
  if (worker.rank() == 0) throw std::runtime_error("no value for this row");
  while (field(board, kMayGoOn).load() == 0) std::this_thread::sleep_for(1ms);
}

/// Where an array lay that this body has made and given back.
Max<std::int64_t> place_of_array(CpuWorker& worker) {
  const Sum<double, 1> array{worker, {kMany}};
  return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(array.data()));
}

TEST(MemoryAfterAFailure, IsUsedAgainIfNoPeerCanReachIt) {
  Session session{workers(2)};
  Board board{session};
  auto fails = session.function(throw_beside_a_busy_rank).async(board.data());
  const auto place = session.function(place_of_array).on_rank(0);
  std::set<std::int64_t> places;
  for (int call = 0; call < 20; ++call) places.insert(place().value());
  EXPECT_LT(places.size(), 10U) << "while rank 1 still runs the call that failed";
  board.set(kMayGoOn, 1);
  EXPECT_EQ(error_of([&] { fails.get(); }).kind(), ErrorKind::function);
}

}  // namespace
}  // namespace syncrun::test
