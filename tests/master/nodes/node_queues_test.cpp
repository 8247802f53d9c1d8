// Producers on two nodes, in one process and without producers: the master's part (RemoteQueues), and an agent's
// (NodeQueues) with a segment of its own. The test does in the agent's block what the producers there would do.

#include "master/nodes/node_queues.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "master/nodes/command_message.hpp"
#include "master/nodes/remote_queues.hpp"
#include "master/queues/queue_layout.hpp"
#include "tests/master/nodes/nodes_of_test.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;
using testing::HasSubstr;

/// Producers without processes. The test says what happens to them.
class FakeProducers final : public master::queues::ProducerProcesses {
 public:
  /// It outlives the processes.
  struct Life {
    std::map<int, ChildEnd> ends;
    bool dies_when_killed = true;
  };
  FakeProducers(Life& life, int count) : life_(life), count_(count) {}
  void watch() override {}
  int pid(int producer) const noexcept override { return 500 + producer; }
  int lost() const noexcept override { return -1; }
  void expect_ends() noexcept override {}
  void kill_all() noexcept override {
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

  /// Opens a queue whose producers begin on node 1. Its memory is an extent of the master's heap.
  std::shared_ptr<RemoteQueue> open(Milliseconds grace = Milliseconds(60'000)) {
    QueueStart start;
    start.layout.producers = kProducers;
    start.layout.capacity = kCapacity;
    start.layout.arrays_count = 1;
    start.layout.batch_bytes = 1 << 15;
    start.producers.name = "reader";
    start.producers.grace = grace;
    start.producers.start_timeout = Milliseconds(1000);
    const auto block_memory =
        master.heap.allocate(master::queues::block_bytes_of(start.layout), os::SharedHeap::Contents::any, "a test");
    master.heap.leave_to_nodes(block_memory);
    start.layout.memory = master.heap.allocate(start.layout.memory_bytes(), os::SharedHeap::Contents::any, "a test");
    master.heap.leave_to_nodes(start.layout.memory);
    start.block = master::queues::block_offset_in(block_memory);
    memory = start.layout.memory;
    return queues.open(start);
  }
  /// Lets all messages arrive.
  void deliver() {
    for (bool has_come = true; has_come;) {
      has_come = receive_all(
          other.mailbox, [&](int, MessageReader& message) { agent.take(message, os::SharedHeap::Pages::returned); });
      has_come = agent.report() || has_come;
      has_come = receive_all(master.mailbox, [&](int, MessageReader& message) { queues.take(1, message); }) || has_come;
    }
  }

  FakeNetwork network{2};
  MasterOfTest master{network, 2, 2};
  NodeOfTest other{network, 1, 2, 2};
  RemoteQueues queues{[this](const MessageWriter& message) { master.mailbox.send(1, MessageWriter(message).take()); },
                      master.remote,
                      master.pool.control().header().to_master,
                      {"n1", "n2"}};
  std::uint64_t memory = 0;  // offset of the memory of the queue

  FakeProducers::Life life;
  std::optional<Error> start_fails;
  protocol::QueueBlock there;
  NodeQueues agent{other.mailbox, other.pool.segment(), [this](const QueueStart&, protocol::QueueBlock block) {
                     if (start_fails) throw Error(*start_fails);
                     there = block;
                     return std::make_unique<FakeProducers>(life, kProducers);
                   }};
};

TEST_F(QueuesOfNodes, DoNotLoseTheirMemoryToWhatWasFreedBefore) {
  constexpr std::size_t kOldBytes = 8U << 15U;
  const auto old = master.heap.allocate(kOldBytes, os::SharedHeap::Contents::any, "something else");
  master.heap.free(old, os::SharedHeap::Giveback::now);
  open();
  EXPECT_TRUE(memory >= old && memory + (4U << 15U) <= old + kOldBytes) << "or this test shows nothing";
  deliver();
  std::memset(other.pool.segment().at(memory), 5, 4U << 15U);  // a producer fills its batches
  const auto later = master.heap.allocate(64, os::SharedHeap::Contents::zero, "something else");
  master.remote.tell_after_changes(MessageKind::open_queue, {});
  const auto next = other.mailbox.receive();
  ASSERT_TRUE(next);
  MessageReader message(next->message, "the master");
  std::memset(other.pool.segment().at(later), 9, 64);
  apply_heap_changes(message, other.pool.segment(), os::SharedHeap::Pages::returned);
  EXPECT_EQ(*other.pool.segment().at(memory), std::byte{5});
  EXPECT_EQ(*other.pool.segment().at(later), std::byte{0}) << "what came later does travel";
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

TEST_F(QueuesOfNodes, KillProducersAtOnceWithoutAGrace) {
  const auto queue = open(Milliseconds(0));
  deliver();
  queues.end(*queue, QueueEnd::close);
  deliver();
  EXPECT_TRUE(queue->have_ended());
  EXPECT_EQ(life.ends.size(), std::size_t{kProducers}) << "they were killed";
}

TEST_F(QueuesOfNodes, IgnoreWhatComesForAQueueThatIsOver) {
  const auto queue = open();
  deliver();
  queues.forget(*queue);
  queue->add(1);
  EXPECT_FALSE(queues.look());
  for (int producer = 0; producer < kProducers; ++producer)
    there.producer(producer).state = protocol::ProducerState::running;
  deliver();
  EXPECT_TRUE(queue->first_starting());
}

TEST_F(QueuesOfNodes, RefuseBatchesThatDoNotExist) {
  const auto queue = open();
  deliver();
  queue->add(kCapacity);
  queues.look();
  EXPECT_THROW(deliver(), Error);
  there.batch(2).rows[0] = 1;
  there.note_pushed(0, 2);  // a batch of the other producer
  EXPECT_THROW(deliver(), Error);
}

}  // namespace
}  // namespace syncrun::test
