// The order in which the program takes batches from producers, tested without producers. The test does in the queue's
// block what producers would do.

#include "launcher/helpers/batch_turns.hpp"

#include <gmock/gmock.h>

#include <array>
#include <vector>

#include "common/os/segment.hpp"
#include "launcher/helpers/queue_layout.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using Found = BatchTurns::Found;
using testing::ElementsAre;
using testing::HasSubstr;

class Turns : public testing::Test {
 protected:
  static constexpr int kProducers = 2;
  static constexpr int kCapacity = 3;  // two batches belong to the first producer, one to the second

  Turns() {
    for (int producer = 0; producer < kProducers; ++producer) set_state(producer, ProducerState::running);
    turns.attach({block});
    by_arrival.attach({block});
  }
  static QueueLayout layout() {
    QueueLayout layout{};
    layout.producers = kProducers;
    layout.capacity = kCapacity;
    layout.arrays_count = 1;
    return layout;
  }
  void set_state(int producer, ProducerState state) { block.producer(producer).state.store(state); }
  /// The producer pushes the batch with this index in the queue's block.
  void push(int producer, int batch) { block.note_pushed(producer, batch); }
  int take() {
    EXPECT_EQ(turns.look(), Found::batch);
    const int batch = turns.next_batch();
    turns.take_next_batch();
    return batch;
  }

  Segment segment = Segment::create(Segment::kSmallestReservation);
  QueueBlock block = prepare_block(segment.base(), layout());
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
  EXPECT_EQ(block.producer(1).freed.load(), 2U);
}

TEST_F(Turns, FreeBatchesInTheOrderInWhichTheProgramDropsThem) {
  EXPECT_EQ(block.producer(0).freed.load(), 2U) << "all are free at the start";
  EXPECT_EQ(block.freed_as(0, 0), 0);
  EXPECT_EQ(block.freed_as(0, 1), 1);
  EXPECT_EQ(block.freed_as(1, 0), 2);
  push(0, 0);
  push(1, 2);
  push(0, 1);
  for (int i = 0; i < 3; ++i) take();
  for (const int batch : {1, 2, 0}) turns.give_back(batch);
  EXPECT_EQ(block.freed_as(0, 2), 1);
  EXPECT_EQ(block.freed_as(0, 3), 0);
  EXPECT_EQ(block.freed_as(1, 1), 2);
}

/// A queue with producers on three nodes. The test does what the producers of all nodes would do.
class TurnsOfNodes : public Turns {
 protected:
  static constexpr int kNodes = 3;

  TurnsOfNodes() {
    std::vector<QueueBlock> all{block};
    for (int node = 1; node < kNodes; ++node)
      all.push_back(prepare_block(segment.base() + (static_cast<std::ptrdiff_t>(node) << 20), layout()));
    for (std::size_t node = 0; node < all.size(); ++node) blocks[node] = all[node];
    for (int node = 1; node < kNodes; ++node) {
      for (int producer = 0; producer < kProducers; ++producer) set_state_on(node, producer, ProducerState::running);
    }
    turns.attach(all, &freed);
    by_arrival.attach(all);
  }
  void set_state_on(int node, int producer, ProducerState state) {
    blocks[static_cast<std::size_t>(node)].producer(producer).state.store(state);
  }
  void push_on(int node, int producer, int batch, std::int64_t rows = 8) {
    const QueueBlock& there = blocks[static_cast<std::size_t>(node)];
    there.batch(batch).rows[0] = rows;
    there.note_pushed(producer, batch);
  }
  void push_on_all(int producer, int batch) {
    for (int node = 0; node < kNodes; ++node) push_on(node, producer, batch);
  }

  struct Log final : FreedBatches {
    void add(int batch) noexcept override { batches.push_back(batch); }
    std::vector<int> batches;
  };
  Log freed;
  std::array<QueueBlock, kNodes> blocks;
};

TEST_F(TurnsOfNodes, WaitUntilAllNodesHaveTheBatch) {
  push_on(0, 0, 0);
  push_on(2, 0, 0);
  EXPECT_EQ(turns.look(), Found::none);
  EXPECT_EQ(turns.node(), 1) << "the node that is waited for";
  push_on(1, 0, 0);
  EXPECT_EQ(take(), 0);
}

TEST_F(TurnsOfNodes, TakeByArrivalWhatAllNodesHave) {
  push_on(0, 0, 0);
  push_on_all(1, 2);
  EXPECT_EQ(by_arrival.look(), Found::batch);
  EXPECT_EQ(by_arrival.turn(), 1);
}

TEST_F(TurnsOfNodes, TellWhichBatchesAreFree) {
  push_on_all(0, 0);
  push_on_all(1, 2);
  take();
  take();
  turns.give_back(2);
  turns.give_back(0);
  EXPECT_THAT(freed.batches, ElementsAre(2, 0));
}

TEST_F(TurnsOfNodes, EndWhenTheFunctionHasReturnedOnAllNodes) {
  push_on_all(0, 0);
  for (int node = 0; node < kNodes; ++node) set_state_on(node, 0, ProducerState::ended);
  for (int node = 0; node < kNodes; ++node) set_state_on(node, 1, ProducerState::ended);
  EXPECT_EQ(take(), 0);
  EXPECT_EQ(turns.look(), Found::end);
}

TEST_F(TurnsOfNodes, WaitForANodeWhoseFunctionHasNotReturnedYet) {
  set_state_on(0, 0, ProducerState::ended);
  set_state_on(2, 0, ProducerState::ended);
  EXPECT_EQ(turns.look(), Found::none);
  EXPECT_EQ(turns.node(), 1);
}

TEST_F(TurnsOfNodes, GiveAFailureOfOneNodeAfterTheBatchesBeforeIt) {
  push_on_all(0, 0);
  push_on(0, 0, 1);
  set_state_on(2, 0, ProducerState::failed);
  EXPECT_EQ(take(), 0);
  EXPECT_EQ(turns.look(), Found::none) << "it is the other producer's turn";
  push_on_all(1, 2);
  EXPECT_EQ(take(), 2);
  EXPECT_EQ(turns.look(), Found::failure);
  EXPECT_EQ(turns.turn(), 0);
  EXPECT_EQ(turns.node(), 2);
}

TEST_F(TurnsOfNodes, FindNodesWithDifferentNumbersOfRows) {
  push_on(0, 0, 0, 8);
  push_on(1, 0, 0, 8);
  push_on(2, 0, 0, 7);
  ASSERT_EQ(turns.look(), Found::difference);
  EXPECT_EQ(turns.turn(), 0);
  EXPECT_EQ(turns.difference().first, 0);
  EXPECT_EQ(turns.difference().second, 2);
  EXPECT_THAT(turns.describe_next(0), HasSubstr("pushed 8 rows as its batch 0"));
  EXPECT_THAT(turns.describe_next(2), HasSubstr("pushed 7 rows as its batch 0"));
}

TEST_F(TurnsOfNodes, FindANodeThatHasFilledOnlyItsOwnRows) {
  blocks[1].batch(0).has_rows_here_only = true;
  push_on_all(0, 0);
  ASSERT_EQ(turns.look(), Found::difference);
  EXPECT_EQ(turns.difference().second, 1);
  EXPECT_THAT(turns.describe_next(1), HasSubstr("with push_here"));
}

TEST_F(TurnsOfNodes, FindNodesThatHaveFilledDifferentBatches) {
  push_on(0, 0, 0);
  push_on(1, 0, 1);
  push_on(2, 0, 0);
  ASSERT_EQ(turns.look(), Found::difference);
  EXPECT_EQ(turns.difference().second, 1);
  EXPECT_THAT(turns.describe_next(1), HasSubstr("in place 1"));
}

TEST_F(TurnsOfNodes, FindANodeThatEndsEarlier) {
  push_on(0, 0, 0);
  set_state_on(1, 0, ProducerState::ended);
  ASSERT_EQ(turns.look(), Found::difference) << "node 2 can be anything";
  EXPECT_EQ(turns.difference().first, 0);
  EXPECT_EQ(turns.difference().second, 1);
  EXPECT_EQ(turns.describe_next(1), "returned after 0 batches");
}

}  // namespace
}  // namespace syncrun::test
