// The order in which the program takes batches from producers, tested without producers. The test does in the queue's
// block what producers would do.

#include "launcher/helpers/batch_turns.hpp"

#include <gtest/gtest.h>

#include "common/os/segment.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using Found = BatchTurns::Found;

class Turns : public testing::Test {
 protected:
  static constexpr int kProducers = 2;
  static constexpr int kCapacity = 3;  // two batches belong to the first producer, one to the second

  Turns() {
    block.header().producers = kProducers;
    block.header().capacity = kCapacity;
    for (int producer = 0; producer < kProducers; ++producer) set_state(producer, ProducerState::running);
    turns.attach(block);
    by_arrival.attach(block);
  }
  void set_state(int producer, ProducerState state) { block.producer(producer).state.store(state); }
  /// The producer pushes the batch with this index in the queue's block.
  void push(int producer, int batch) {
    const auto count = static_cast<std::uint64_t>(block.batches_of(producer));
    const auto before = block.producer(producer).pushed.load();
    block.batch(block.first_batch(producer) + static_cast<int>(before % count)).pushed =
        static_cast<std::uint32_t>(batch);
    block.producer(producer).pushed.store(before + 1);
  }
  int take() {
    EXPECT_EQ(turns.look(), Found::batch);
    const int batch = turns.next_batch();
    turns.take_next_batch();
    return batch;
  }

  Segment segment = Segment::create(Segment::kSmallestReservation);
  QueueBlock block{segment.base()};
  BatchTurns turns{kProducers, BatchOrder::round_robin};
  BatchTurns by_arrival{kProducers, BatchOrder::arrival};
};

TEST_F(Turns, GoRoundHoweverManyBatchesAProducerHasPushed) {
  push(0, 1);
  push(0, 0);
  push(1, 2);
  EXPECT_EQ(take(), 1) << "as it was pushed, not as it lies";
  EXPECT_EQ(take(), 2);
  EXPECT_EQ(take(), 0);
  EXPECT_EQ(turns.look(), Found::none);
  EXPECT_EQ(turns.turn(), 1);
}

TEST_F(Turns, WaitForTheProducerWhoseTurnItIs) {
  push(1, 2);
  EXPECT_EQ(turns.look(), Found::none);
  EXPECT_EQ(turns.turn(), 0);
  EXPECT_EQ(by_arrival.look(), Found::batch) << "unless the order is that of arrival";
  EXPECT_EQ(by_arrival.turn(), 1);
}

TEST_F(Turns, PassProducersThatHaveEnded) {
  set_state(0, ProducerState::ended);
  push(1, 2);
  EXPECT_EQ(take(), 2);
  set_state(1, ProducerState::ended);
  EXPECT_EQ(turns.look(), Found::end);
}

TEST_F(Turns, GiveAllBatchesOfAProducerBeforeItsFailure) {
  push(0, 0);
  set_state(0, ProducerState::failed);
  set_state(1, ProducerState::ended);
  EXPECT_EQ(take(), 0);
  EXPECT_EQ(turns.look(), Found::failure);
  EXPECT_EQ(turns.turn(), 0);
}

TEST_F(Turns, AreStuckWhereTheProgramHasAllBatchesOfAProducerThatWaitsForOne) {
  push(0, 0);
  push(1, 2);
  take();
  take();
  block.producer(0).waits.store(true);
  block.producer(1).waits.store(true);
  EXPECT_FALSE(turns.is_stuck()) << "the first producer has one more batch";
  push(0, 1);
  EXPECT_EQ(take(), 1);
  EXPECT_EQ(turns.look(), Found::none);
  EXPECT_TRUE(turns.is_stuck());
  turns.give_back(2);
  EXPECT_FALSE(turns.is_stuck());
  EXPECT_TRUE(block.batch(2).is_free.load());
}

}  // namespace
}  // namespace syncrun::test
