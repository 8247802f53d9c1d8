// A session on two nodes, in one process and without workers: the master's call table, and an agent with a segment of
// its own. The test does in the agent's control block what the workers there would do.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "common/os/heap_log.hpp"
#include "launcher/calls/call_table.hpp"
#include "launcher/nodes/agent.hpp"
#include "launcher/nodes/remote_nodes.hpp"
#include "tests/launcher/nodes/fake_mailboxes.hpp"
#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;

/// Ranks 0 and 1 are on the master's node, ranks 2 and 3 on the other one.
class TwoNodes : public testing::Test {
 protected:
  static constexpr int kWorldSize = 4;
  static constexpr NodePlace kHere{0, 2, 0, 2};
  static constexpr NodePlace kThere{1, 2, 2, 2};
  static constexpr std::uint64_t kInbound = std::uint64_t{512} << 20U;

  TwoNodes() {
    pool.control().header().place = kHere;
    other.control().header().place = kThere;
    heap.note_changes(nodes.changes());
    calls.attach(pool.control());
    agent.emplace(mailboxes.at(1), other.control(), other.segment());
  }

  /// Publishes a call with one output, an array of doubles or a number.
  std::uint64_t publish(const RankSet& ranks, std::uint8_t dimensions = 0) {
    CallPayload& call = calls.next(ranks, Milliseconds(0)).begin<CallPayload>();
    call.outputs_count = 1;
    calls.next_slot().outputs[0] = {.dtype = DType::float64, .reduction = Reduction::sum, .dimensions = dimensions};
    return send(calls.publish());
  }
  std::uint64_t send(std::uint64_t id) {
    nodes.publish(id, calls.slot_of(id));
    return id;
  }
  /// The command that a rank of the other node finds in its inbox next, or null.
  const Command* next_command(int rank) {
    const std::uint64_t received = received_[static_cast<std::size_t>(rank)];
    const InboxEntry entry(other.control().inbox(rank, received % kInboxSize).load());
    const Command& command = other.control().command_in(entry.slot());
    if (entry.command() == 0 || entry.command() <= other.control().worker(rank).done.load()) return nullptr;
    EXPECT_EQ(command.id, entry.command());
    return &command;
  }
  /// The rank runs its next command.
  void run(int rank, Vote vote = Vote::ok) {
    const Command* const command = next_command(rank);
    ASSERT_NE(command, nullptr);
    Outbox& outbox = other.control().outbox(*command, rank);
    outbox.vote = vote;
    outbox.is_empty = outbox.is_fatal = false;
    outbox.rows = 1;
    outbox.failed_ns = 5;
    outbox.error_kind = ErrorKind::function;
    outbox.failed_phase = Phase::function;
    put_text(outbox.message, "it failed");
    finish(rank, *command);
  }
  void finish(int rank, const Command& command) {
    ++received_[static_cast<std::size_t>(rank)];
    other.finish(rank, command.id);
  }
  /// Lets all messages arrive.
  void deliver() {
    for (bool has_come = true; has_come;) {
      has_come = false;
      while (const auto next = mailboxes.at(1).receive()) {
        has_come = true;
        MessageReader message(next->message, "the master");
        agent->take(message);
      }
      has_come = agent->report() || has_come;
      while (const auto next = mailboxes.at(0).receive()) {
        has_come = true;
        MessageReader message(next->message, "node 1");
        nodes.take_done(message);
      }
    }
  }
  void collect(std::uint64_t id) { calls.release(id, nullptr); }

  FakePool pool{kWorldSize};
  FakePool other{kWorldSize};
  FakeMailboxes mailboxes{2};
  SharedHeap heap{pool.segment(), pool.control().header().heap_offset, FakePool::kHeapBytes};
  SharedHeap inbound{pool.segment(), kInbound, std::size_t{16} << 20U};
  CallTable calls;
  RemoteNodes nodes{mailboxes.at(0), pool.control(), {pool.segment(), inbound}, {kHere, kThere}};
  std::optional<Agent> agent;

 private:
  std::array<std::uint64_t, kWorldSize> received_{};
};

TEST_F(TwoNodes, ReportAllRanksOfANodeInOneMessage) {
  const auto id = publish(calls.all_ranks());
  deliver();
  run(2);
  agent->report();
  run(3);
  deliver();
  EXPECT_EQ(mailboxes.at(1).sent, 1);
  EXPECT_EQ(pool.control().worker(2).done.load(), id);
  EXPECT_EQ(pool.control().worker(3).done.load(), id);
}

TEST_F(TwoNodes, ReportARankSoonIfAnotherOneIsLate) {
  const auto id = publish(calls.all_ranks());
  deliver();
  run(2);
  deliver();
  EXPECT_TRUE(agent->has_news());
  const auto begin = Clock::now();
  while (pool.control().worker(2).done.load() != id && Clock::now() - begin < Milliseconds(5000)) deliver();
  EXPECT_EQ(pool.control().worker(2).done.load(), id);
  EXPECT_FALSE(calls.is_complete(id));
}

TEST_F(TwoNodes, ReportAFailureAtOnce) {
  const auto id = publish(calls.all_ranks());
  deliver();
  run(2, Vote::failed);
  deliver();
  EXPECT_EQ(pool.control().worker(2).done.load(), id);
}

TEST_F(TwoNodes, LearnEachChangeOfTheHeapOnce) {
  const auto offset = heap.allocate(std::size_t{1} << 20U, SharedHeap::Contents::any, "a test");
  publish(RankSet::only(2));
  EXPECT_GT(mailboxes.at(0).bytes_sent, std::size_t{1} << 20U);
  const std::size_t before = mailboxes.at(0).bytes_sent;
  publish(RankSet::only(2));
  EXPECT_LT(mailboxes.at(0).bytes_sent - before, 4096U);
  heap.note_written(offset + 100, 1);
  pool.segment().at(offset)[100] = std::byte{5};
  publish(RankSet::only(2));
  deliver();
  EXPECT_EQ(other.segment().at(offset)[100], std::byte{5});
}

TEST_F(TwoNodes, NeitherBeginNorReportWhatWasForgotten) {
  const auto given = publish(RankSet::only(2));
  deliver();
  ASSERT_NE(next_command(2), nullptr);
  const auto rows = heap.allocate(std::size_t{1} << 20U, SharedHeap::Contents::any, "a test");
  heap.send_by_rows(rows);
  CallPayload& call = calls.next(RankSet::only(2), Milliseconds(0)).begin<CallPayload>();
  call.arguments_count = 1;
  calls.next_slot().arguments[0] = {
      .kind = ArgumentKind::broadcast, .dtype = DType::uint8, .dimensions = 1, .offset = rows, .extents = {1 << 20}};
  const auto waiting = calls.publish();
  nodes.publish(waiting, calls.slot_of(waiting));
  const auto next = mailboxes.at(1).receive();
  ASSERT_TRUE(next);
  mailboxes.at(1).is_held_back = true;  // the rows are still under way
  MessageReader message(next->message, "the master");
  agent->take(message);
  EXPECT_TRUE(agent->awaits_rows());
  agent->forget_unfinished();  // rank 2 was lost
  EXPECT_FALSE(agent->is_busy());
  other.finish(2, waiting);  // as its successor finds it
  EXPECT_FALSE(agent->report());
  EXPECT_TRUE(agent->awaits_rows()) << "they go to memory that may be used for something else later";
  mailboxes.at(1).is_held_back = false;
  agent->report();
  EXPECT_FALSE(agent->awaits_rows());
  EXPECT_EQ(mailboxes.at(1).sent, 0) << "nothing was reported";
  EXPECT_EQ(pool.control().worker(2).done.load(), 0U);
  EXPECT_LT(given, waiting);
}

TEST_F(TwoNodes, RefuseToPublishWhatOnlyTheMastersNodeCouldDecide) {
  const auto list = heap.allocate(sizeof(Dependency), SharedHeap::Contents::any, "a test");
  *pool.segment().at<Dependency>(list) = {1, 0, 0};
  calls.next(RankSet::only(2), Milliseconds(0)).begin<TransferPayload>();
  calls.set_dependencies(list, 1);
  EXPECT_THROW(send(calls.publish()), Error);
}

TEST_F(TwoNodes, KeepAnArrayUntilItsPlaceIsUsedAgain) {
  std::vector<std::uint64_t> offsets;
  for (std::size_t i = 0; i < 3 * kInboxSize; ++i) {
    const auto id = publish(RankSet::only(2), 1);
    deliver();
    const Command* const command = next_command(2);
    Outbox& outbox = other.control().outbox(*command, 2);
    outbox.vote = Vote::ok;
    outbox.outputs[0].extents = {1000};
    outbox.outputs[0].offset = std::uint64_t{700} << 20U;
    finish(2, *command);
    deliver();
    offsets.push_back(calls.outbox(id, 2).outputs[0].offset);
    collect(id);
  }
  std::sort(offsets.begin(), offsets.end());
  offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
  EXPECT_LE(offsets.size(), kInboxSize + 1) << "memory was not freed";
}

TEST_F(TwoNodes, ReportNoFailureOfAnEarlierCommand) {
  const auto failed = publish(RankSet::only(3));
  deliver();
  run(3, Vote::failed);
  deliver();
  EXPECT_TRUE(calls.has_failed(failed));
  collect(failed);
  for (std::size_t i = 0; i < kInboxSize; ++i) {  // the last one has the outbox of the one that failed
    const auto id = publish(RankSet::only(3));
    deliver();
    finish(3, *next_command(3));  // as the unmapping of a file, it leaves its outbox as it is
    deliver();
    EXPECT_FALSE(calls.has_failed(id));
    collect(id);
  }
}

TEST_F(TwoNodes, LearnWhichOutputsWereConsumed) {
  const auto first = publish(RankSet::only(2));
  deliver();
  run(2);
  deliver();
  collect(first);
  publish(RankSet::only(2));
  deliver();
  EXPECT_EQ(other.control().worker(2).consumed.load(), first);
}

TEST(Messages, ThatAreTooShortAreRefused) {
  MessageWriter message(MessageKind::done);
  message.put(std::uint32_t{7});
  const auto bytes = message.take();
  MessageReader reader(bytes, "node 3");
  EXPECT_EQ(reader.kind(), MessageKind::done);
  try {
    static_cast<void>(reader.get<std::uint64_t>());
    FAIL() << "it was read";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("a message from node 3 is too short: 8 more bytes expected, 4 are there"));
  }
}

}  // namespace
}  // namespace syncrun::test
