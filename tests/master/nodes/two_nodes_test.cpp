// A session on two nodes, in one process and without workers: the master's command table, and an agent with a segment of
// its own. The test does in the agent's control block what the workers there would do.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "master/nodes/agent.hpp"
#include "tests/master/nodes/nodes_of_test.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;

/// Ranks 0 and 1 are on the master's node, ranks 2 and 3 on the other one.
class TwoNodes : public testing::Test {
 protected:
  /// The rank runs its next command.
  void run(int rank, protocol::Vote vote = protocol::Vote::ok) {
    const protocol::Command* const command = other.next_command(rank);
    ASSERT_NE(command, nullptr);
    protocol::Outbox& outbox = other.pool.control().outbox(*command, rank);
    outbox.vote = vote;
    outbox.is_empty = outbox.is_fatal = false;
    outbox.may_have_updated = true;
    outbox.rows = 1;
    outbox.weight = 1;
    outbox.failed_ns = 5;
    outbox.error_kind = ErrorKind::function;
    outbox.failed_phase = protocol::Phase::function;
    text::put_text(outbox.message, "it failed");
    other.finish(rank, *command);
  }
  /// Lets all messages arrive.
  void deliver() {
    for (bool has_come = true; has_come;) {
      has_come = receive_all(other.mailbox, [&](int, MessageReader& message) { agent.take(message); });
      has_come = agent.report() || has_come;
      has_come = receive_all(master.mailbox, [&](int, MessageReader& message) { master.remote.take_done(message); }) ||
                 has_come;
    }
  }
  std::uint64_t done_by(int rank) { return master.pool.control().worker(rank).done.load(); }
  void collect(std::uint64_t id) { master.calls.release(id, nullptr); }

  const protocol::RankSet all = protocol::RankSet::all(4);
  const protocol::RankSet rank_2 = protocol::RankSet::only(2);
  FakeNetwork network{2};
  MasterOfTest master{network, 2, 2};
  NodeOfTest other{network, 1, 2, 2};
  Agent agent{other.mailbox, other.pool.control(), other.pool.segment()};
};

TEST_F(TwoNodes, ReportAllRanksOfANodeInOneMessage) {
  const auto id = master.publish(all);
  deliver();
  run(2);
  agent.report();
  run(3);
  deliver();
  EXPECT_EQ(network.messages_sent(1), 1U);
  EXPECT_EQ(done_by(2), id);
  EXPECT_EQ(done_by(3), id);
}

TEST_F(TwoNodes, ReportARankSoonIfAnotherOneIsLate) {
  const auto id = master.publish(all);
  deliver();
  run(2);
  deliver();
  EXPECT_TRUE(agent.has_news());
  const auto begin = Clock::now();
  while (done_by(2) != id && Clock::now() - begin < Milliseconds(5000)) deliver();
  EXPECT_EQ(done_by(2), id);
  EXPECT_FALSE(master.calls.is_complete(id));
}

TEST_F(TwoNodes, ReportAFailureAtOnce) {
  const auto id = master.publish(all);
  deliver();
  run(2, protocol::Vote::failed);
  deliver();
  EXPECT_EQ(done_by(2), id);
  EXPECT_TRUE(master.pool.control().outbox(master.calls.command(id), 2).may_have_updated);
}

TEST_F(TwoNodes, LearnEachChangeOfTheHeapOnce) {
  const auto offset = master.heap.allocate(std::size_t{1} << 20U, os::SharedHeap::Contents::any, "a test");
  master.publish(rank_2);
  EXPECT_GT(network.bytes_sent(0), std::size_t{1} << 20U);
  const std::size_t before = network.bytes_sent(0);
  master.publish(rank_2);
  EXPECT_LT(network.bytes_sent(0) - before, 4096U);
  master.heap.note_written(offset + 100, 1);
  master.pool.segment().at(offset)[100] = std::byte{5};
  master.publish(rank_2);
  deliver();
  EXPECT_EQ(other.pool.segment().at(offset)[100], std::byte{5});
}

/// Calls with index lists on the master's node, while a Value stays there and its rows change.
TEST_F(TwoNodes, LearnOnlyWhatIsInUseAfterAnyNumberOfCallsElsewhere) {
  constexpr std::size_t kListBytes = std::size_t{512} << 10U;
  const auto rows = master.heap.allocate(std::size_t{1} << 20U, os::SharedHeap::Contents::any, "a test");
  master.heap.send_by_rows(rows);
  const auto changes_in_log = [&] {
    std::size_t count = 0;
    master.remote.changes().for_each(0, [&](const os::HeapChange&) { ++count; });
    return count;
  };
  for (int call = 0; call < 10'000; ++call) {
    const auto list = master.heap.allocate(kListBytes - static_cast<std::size_t>(call % 7) * 4096,
                                           os::SharedHeap::Contents::any, "a test");
    master.heap.note_rows_written(rows, 100);
    const auto id = master.publish(protocol::RankSet::only(0));
    master.pool.finish(0, id);
    collect(id);
    master.heap.free(list, os::SharedHeap::Giveback::later);
    ASSERT_LT(changes_in_log(), 128U) << "after call " << call;
  }
  EXPECT_EQ(network.bytes_sent(0), 0U);
  master.publish(rank_2);
  EXPECT_LT(network.bytes_sent(0), 4096U);
  deliver();
  EXPECT_NE(other.next_command(2), nullptr);
  EXPECT_EQ(changes_in_log(), 0U);
}

TEST_F(TwoNodes, NeitherBeginNorReportWhatWasForgotten) {
  const auto given = master.publish(rank_2);
  deliver();
  ASSERT_NE(other.next_command(2), nullptr);
  const auto rows = master.heap.allocate(std::size_t{1} << 20U, os::SharedHeap::Contents::any, "a test");
  master.heap.send_by_rows(rows);
  protocol::CallPayload& call = master.calls.next(rank_2, Milliseconds(0)).begin<protocol::CallPayload>();
  call.arguments_count = 1;
  master.calls.next_slot().arguments[0] = {
      .kind = ArgumentKind::broadcast, .dtype = DType::uint8, .dimensions = 1, .offset = rows, .extents = {1 << 20}};
  const auto waiting = master.publish_next();
  const auto next = other.mailbox.receive();
  ASSERT_TRUE(next);
  network.hold_back(0, 1);  // the rows are still under way
  MessageReader message(next->message, "the master");
  agent.take(message);
  EXPECT_TRUE(agent.awaits_rows());
  agent.forget_unfinished();  // rank 2 was lost
  EXPECT_FALSE(agent.is_busy());
  other.pool.finish(2, waiting);  // as its successor finds it
  EXPECT_FALSE(agent.report());
  EXPECT_TRUE(agent.awaits_rows()) << "they go to memory that may be used for something else later";
  network.release(0, 1);
  agent.report();
  EXPECT_FALSE(agent.awaits_rows());
  EXPECT_EQ(network.messages_sent(1), 0U) << "nothing was reported";
  EXPECT_EQ(done_by(2), 0U);
  EXPECT_LT(given, waiting);
}

TEST_F(TwoNodes, RefuseToPublishWhatOnlyTheMastersNodeCouldDecide) {
  const auto list = master.heap.allocate(sizeof(protocol::Dependency), os::SharedHeap::Contents::any, "a test");
  *master.pool.segment().at<protocol::Dependency>(list) = {1, 0, 0};
  master.calls.next(rank_2, Milliseconds(0)).begin<protocol::TransferPayload>();
  master.calls.set_dependencies(list, 1);
  EXPECT_THROW(master.publish_next(), Error);
}

TEST_F(TwoNodes, KeepAnArrayUntilItsPlaceIsUsedAgain) {
  std::vector<std::uint64_t> offsets;
  for (std::size_t i = 0; i < 3 * protocol::kInboxSize; ++i) {
    const auto id = master.publish(rank_2, 1);
    deliver();
    const protocol::Command* const command = other.next_command(2);
    protocol::Outbox& outbox = other.pool.control().outbox(*command, 2);
    outbox.vote = protocol::Vote::ok;
    outbox.outputs[0].extents = {1000};
    outbox.outputs[0].offset = std::uint64_t{700} << 20U;
    other.finish(2, *command);
    deliver();
    offsets.push_back(master.calls.outbox(id, 2).outputs[0].offset);
    collect(id);
  }
  std::sort(offsets.begin(), offsets.end());
  offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
  EXPECT_LE(offsets.size(), protocol::kInboxSize + 1) << "memory was not freed";
}

TEST_F(TwoNodes, FailACallForWhoseOutputTheMasterHasNoMemory) {
  const auto report_array = [&](std::int64_t elements) {
    const auto id = master.publish(rank_2, 1);
    deliver();
    const protocol::Command* const command = other.next_command(2);
    protocol::Outbox& outbox = other.pool.control().outbox(*command, 2);
    outbox.vote = protocol::Vote::ok;
    outbox.outputs[0].extents = {elements};
    outbox.outputs[0].offset = std::uint64_t{700} << 20U;
    other.finish(2, *command);
    deliver();
    return id;
  };
  const auto too_large = report_array(std::int64_t{4} << 20U);
  EXPECT_EQ(done_by(2), too_large);
  EXPECT_EQ(master.command(master.calls.slot_of(too_large)).failed.load(), too_large);
  const protocol::Outbox& failed = master.calls.outbox(too_large, 2);
  EXPECT_EQ(failed.vote, protocol::Vote::failed);
  EXPECT_EQ(failed.native_code, ENOMEM);
  EXPECT_NE(std::string(failed.message.data()).find("the output of another node requires 33554432 bytes"),
            std::string::npos)
      << failed.message.data();
  const auto small = report_array(1000);
  EXPECT_EQ(done_by(2), small);
  EXPECT_EQ(master.calls.outbox(small, 2).vote, protocol::Vote::ok);
}

TEST_F(TwoNodes, RefuseReportsThatBelongToNoCommand) {
  const auto id = master.publish(rank_2);
  const std::size_t slot = master.calls.slot_of(id);
  const auto take = [&](int rank, std::uint64_t command, std::size_t in_slot) {
    MessageWriter message(MessageKind::done, std::int32_t{rank}, command, in_slot);
    message.put(std::array<std::byte, 4096>{});
    const auto bytes = message.take();
    MessageReader reader(bytes, "node 1");
    master.remote.take_done(reader);
  };
  for (const int rank : {-1, 0, 3, 4}) EXPECT_THROW(take(rank, id, slot), Error) << rank;
  EXPECT_THROW(take(2, id + 1, slot), Error);
  EXPECT_THROW(take(2, id, master.pool.control().slots()), Error);
  EXPECT_EQ(done_by(2), 0U);
}

TEST_F(TwoNodes, BringWhatTheWorkersOfANodeHaveReducedWithTheLastReport) {
  constexpr std::uint64_t kAt = std::uint64_t{700} << 20U;
  const auto id = master.publish(all, 1);
  deliver();
  for (const int rank : {2, 3}) {
    protocol::Outbox& outbox = other.pool.control().outbox(*other.next_command(rank), rank);
    outbox.reduced_outputs = 1;
    outbox.outputs[0].extents = {2};
    outbox.outputs[0].offset = kAt + static_cast<std::uint64_t>(rank - 2) * 4096;
  }
  double* const result = other.pool.segment().at<double>(kAt);  // in the memory of rank 2
  result[0] = 1;
  run(2);
  agent.report_all();  // a worker was lost, so the report does not wait
  deliver();
  ASSERT_EQ(done_by(2), id);
  EXPECT_EQ(master.calls.outbox(id, 2).outputs[0].offset, 0U);
  result[1] = 5;  // the part of rank 3
  run(3);
  deliver();
  ASSERT_EQ(done_by(3), id);
  const protocol::Outbox& last = master.calls.outbox(id, 3);
  ASSERT_TRUE(last.has_reduced(0));
  ASSERT_NE(last.outputs[0].offset, 0U);
  const double* const come = master.pool.segment().at<double>(last.outputs[0].offset);
  EXPECT_EQ(come[0], 1);
  EXPECT_EQ(come[1], 5);
}

TEST_F(TwoNodes, ReportNoFailureOfAnEarlierCommand) {
  const auto failed = master.publish(protocol::RankSet::only(3));
  deliver();
  run(3, protocol::Vote::failed);
  deliver();
  EXPECT_TRUE(master.calls.has_failed(failed));
  collect(failed);
  for (std::size_t i = 0; i < protocol::kInboxSize; ++i) {  // the last one has the outbox of the one that failed
    const auto id = master.publish(protocol::RankSet::only(3));
    deliver();
    other.finish(3, *other.next_command(3));  // as the unmapping of a file, it leaves its outbox as it is
    deliver();
    EXPECT_FALSE(master.calls.has_failed(id));
    collect(id);
  }
}

TEST_F(TwoNodes, LearnWhichOutputsWereConsumed) {
  const auto first = master.publish(rank_2);
  deliver();
  run(2);
  deliver();
  collect(first);
  master.publish(rank_2);
  deliver();
  EXPECT_EQ(other.pool.control().worker(2).consumed.load(), first);
}

}  // namespace
}  // namespace syncrun::test
