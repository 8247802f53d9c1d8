// Producers on two nodes, in one process and without producers: the master's part (RemoteQueues), and an agent's
// (NodeQueues) with a segment of its own. The test does in the agent's block what the producers there would do.

#include "launcher/nodes/node_queues.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launcher/nodes/command_message.hpp"
#include "launcher/nodes/remote_nodes.hpp"
#include "launcher/nodes/remote_queues.hpp"
#include "launcher/queues/queue_layout.hpp"
#include "tests/launcher/nodes/fake_mailboxes.hpp"
#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;

/// Producers without processes. The test says what happens to them.
class FakeProducers final : public ProducerProcesses {
 public:
  /// It outlives the processes.
  struct Life {
    std::vector<std::string> log;
    std::map<int, ChildEnd> ends;
    int lost = -1;
    bool dies_when_killed = true;
  };
  FakeProducers(Life& life, int count) : life_(life), count_(count) {}
  ~FakeProducers() override { life_.log.emplace_back("gone"); }
  void watch() override { life_.log.emplace_back("watch"); }
  int pid(int producer) const noexcept override { return 500 + producer; }
  int lost() const noexcept override { return life_.lost; }
  void expect_ends() noexcept override { life_.log.emplace_back("expect ends"); }
  void kill_all() noexcept override {
    life_.log.emplace_back("kill all");
    for (int producer = 0; life_.dies_when_killed && producer < count_; ++producer)
      life_.ends.try_emplace(producer, FakePool::killed());
  }
  std::optional<int> end_status(int producer) override {
    const auto end = life_.ends.find(producer);
    return end == life_.ends.end() ? std::nullopt : end->second.wait_status;
  }
  ChildEnd await_end(int producer) override { return life_.ends.at(producer); }
  std::vector<std::string> last_stderr(int producer) override { return {"words of " + std::to_string(producer)}; }

 private:
  Life& life_;
  int count_;
};

class QueuesOfNodes : public testing::Test {
 protected:
  static constexpr int kProducers = 2;
  static constexpr int kCapacity = 4;
  static constexpr NodePlace kHere{0, 2, 0, 2};
  static constexpr NodePlace kThere{1, 2, 2, 2};

  QueuesOfNodes() { heap.note_changes(nodes.changes()); }

  /// Opens a queue whose producers begin on node 1. Its memory is an extent of the master's heap.
  std::shared_ptr<RemoteQueue> open() {
    QueueStart start;
    start.layout.producers = kProducers;
    start.layout.capacity = kCapacity;
    start.layout.arrays_count = 1;
    start.layout.batch_bytes = 1 << 15;
    start.producers.name = "reader";
    start.producers.grace = Milliseconds(60'000);
    start.producers.start_timeout = Milliseconds(1000);
    const auto block_memory = heap.allocate(block_bytes_of(start.layout), SharedHeap::Contents::any, "a test");
    heap.leave_to_nodes(block_memory);
    start.layout.memory = heap.allocate(start.layout.memory_bytes(), SharedHeap::Contents::any, "a test");
    heap.leave_to_nodes(start.layout.memory);
    start.block = block_offset_in(block_memory);
    memory = start.layout.memory;
    return queues.open(start);
  }
  void run_all() {
    for (int producer = 0; producer < kProducers; ++producer) there.producer(producer).state = ProducerState::running;
  }
  void push(int producer, int batch, std::int64_t rows) {
    there.batch(batch).rows[0] = rows;
    there.note_pushed(producer, batch);
  }
  /// Lets all messages arrive.
  void deliver() {
    bool has_come = true;
    while (has_come) {
      has_come = false;
      while (const auto next = mailboxes.at(1).receive()) {
        MessageReader message(next->message, "the master");
        agent.take(message, SharedHeap::Pages::returned);
        has_come = true;
      }
      has_come = agent.report() || has_come;
      while (const auto next = mailboxes.at(0).receive()) {
        MessageReader message(next->message, "node 1");
        queues.take(1, message);
        has_come = true;
      }
    }
  }

  FakePool pool{4};
  FakePool other{4};
  SharedHeap heap{pool.segment(), pool.control().header().heap_offset, FakePool::kHeapBytes};
  SharedHeap inbound{pool.segment(), std::uint64_t{512} << 20U, std::uint64_t{1} << 20U};
  FakeMailboxes mailboxes{2};
  RemoteNodes nodes{mailboxes.at(0), pool.control(), {pool.segment(), inbound}, {kHere, kThere}};
  RemoteQueues queues{mailboxes.at(0), nodes, pool.control().header().to_master, {"n1", "n2"}};
  std::uint64_t memory = 0;  // offset of the memory of the queue

  FakeProducers::Life life;
  std::optional<Error> start_fails;
  QueueBlock there;
  NodeQueues agent{mailboxes.at(1), other.segment(), [this](const QueueStart&, QueueBlock block) {
                     if (start_fails) throw Error(*start_fails);
                     there = block;
                     return std::make_unique<FakeProducers>(life, kProducers);
                   }};
};

TEST_F(QueuesOfNodes, FreeBatchesInTheOrderOfTheMaster) {
  const auto queue = open();
  deliver();
  EXPECT_FALSE(queues.look());
  for (const int batch : {1, 3, 0}) queue->add(batch);
  EXPECT_TRUE(queues.look());
  EXPECT_FALSE(queues.look());
  deliver();
  EXPECT_EQ(there.producer(0).freed.load(), 4U);
  EXPECT_EQ(there.freed_as(0, 2), 1);
  EXPECT_EQ(there.freed_as(0, 3), 0);
  EXPECT_EQ(there.freed_as(1, 2), 3);
}

TEST_F(QueuesOfNodes, DoNotLoseTheirMemoryToWhatWasFreedBefore) {
  constexpr std::size_t kOldBytes = 8U << 15U;
  const auto old = heap.allocate(kOldBytes, SharedHeap::Contents::any, "something else");
  heap.free(old, SharedHeap::Giveback::now);
  open();
  EXPECT_TRUE(memory >= old && memory + (4U << 15U) <= old + kOldBytes) << "or this test shows nothing";
  deliver();
  std::memset(other.segment().at(memory), 5, 4U << 15U);  // a producer fills its batches
  const auto later = heap.allocate(64, SharedHeap::Contents::zero, "something else");
  nodes.tell_after_changes(MessageKind::open_queue, {});
  const auto next = mailboxes.at(1).receive();
  ASSERT_TRUE(next);
  MessageReader message(next->message, "the master");
  std::memset(other.segment().at(later), 9, 64);
  apply_heap_changes(message, other.segment(), SharedHeap::Pages::returned);
  EXPECT_EQ(*other.segment().at(memory), std::byte{5});
  EXPECT_EQ(*other.segment().at(later), std::byte{0}) << "what came later does travel";
}

TEST_F(QueuesOfNodes, ReportAStartThatFails) {
  start_fails = Error(ErrorKind::system, "no more processes", EAGAIN);
  const auto queue = open();
  deliver();
  ASSERT_TRUE(queue->has_trouble());
  EXPECT_EQ(queue->failed_start()->node, 1);
  EXPECT_EQ(queue->failed_start()->error.kind(), ErrorKind::system);
  EXPECT_EQ(queue->failed_start()->error.native_code(), EAGAIN);
  EXPECT_THAT(queue->failed_start()->error.what(), HasSubstr("no more processes"));
  queues.end(*queue, QueueEnd::kill);
  deliver();
  EXPECT_TRUE(queue->have_ended()) << "there is nothing to end";
}

TEST_F(QueuesOfNodes, SayIfAKilledProducerIsLeft) {
  life.dies_when_killed = false;
  const auto queue = open();
  deliver();
  queues.end(*queue, QueueEnd::kill);
  deliver();
  EXPECT_FALSE(queue->have_ended()) << "it may take a while";
  life.ends[0] = life.ends[1] = FakePool::killed();
  deliver();
  EXPECT_TRUE(queue->have_ended());
}

TEST_F(QueuesOfNodes, IgnoreWhatComesForAQueueThatIsOver) {
  const auto queue = open();
  deliver();
  queues.forget(*queue);
  queue->add(1);
  EXPECT_FALSE(queues.look());
  run_all();
  deliver();
  EXPECT_TRUE(queue->first_starting());
}

TEST_F(QueuesOfNodes, RefuseBatchesThatDoNotExist) {
  const auto queue = open();
  deliver();
  queue->add(kCapacity);
  queues.look();
  EXPECT_THROW(deliver(), Error);
  push(0, 2, 1);  // a batch of the other producer
  EXPECT_THROW(deliver(), Error);
}

TEST_F(QueuesOfNodes, KillWhatIsLeftAtTheEndOfTheSession) {
  const auto queue = open();
  deliver();
  agent.end();
  EXPECT_THAT(life.log, ElementsAre("expect ends", "kill all", "gone"));
}

}  // namespace
}  // namespace syncrun::test
