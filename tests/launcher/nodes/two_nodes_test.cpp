// A session on two nodes, in one process and without workers: the master's call table, and an agent with a segment of
// its own. The test does in the agent's control block what the workers there would do.

#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "common/os/heap_log.hpp"
#include "common/protocol/variable_entry.hpp"
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
  /// The rank runs its next command, which gives this number.
  void run(int rank, double number, Vote vote = Vote::ok) {
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
    std::memcpy(outbox.outputs[0].scalar.data(), &number, sizeof number);
    finish(rank, *command);
  }
  void finish(int rank, const Command& command) {
    ++received_[static_cast<std::size_t>(rank)];
    other.finish(rank, command.id);
  }
  /// Lets all messages arrive.
  void deliver() {
    while (deliver_to_agent() || deliver_to_master()) {
    }
  }
  bool deliver_to_agent() {
    bool received = false;
    while (const auto next = mailboxes.at(1).receive()) {
      received = true;
      MessageReader message(next->message, "the master");
      agent->take(message);
    }
    return agent->report() || received;
  }
  bool deliver_to_master() {
    bool received = false;
    while (const auto next = mailboxes.at(0).receive()) {
      received = true;
      MessageReader message(next->message, "node 1");
      nodes.take_done(message);
    }
    return received;
  }
  double number_of(std::uint64_t id, int rank) {
    double number = 0;
    std::memcpy(&number, calls.outbox(id, rank).outputs[0].scalar.data(), sizeof number);
    return number;
  }
  void collect(std::uint64_t id) { calls.release(id, nullptr); }
  std::uint64_t make_variable() {
    const auto offset = heap.allocate(VariableEntry::bytes(kWorldSize), SharedHeap::Contents::zero, "a test");
    auto& entry = *pool.segment().at<VariableEntry>(offset);
    entry.dtype = DType::float64;
    entry.dimensions = 1;
    return offset;
  }
  /// A transfer of so many elements on rank 2, which is not sent yet. Also returns where the values are.
  std::pair<std::uint64_t, std::uint64_t> publish_transfer(TransferDirection direction, std::uint64_t variable,
                                                           std::size_t count) {
    const auto values = heap.allocate(count * sizeof(double), SharedHeap::Contents::any, "a test");
    heap.send_by_rows(values);
    const auto parts = heap.allocate(kWorldSize * sizeof(TransferSlot), SharedHeap::Contents::zero, "a test");
    pool.segment().at<TransferSlot>(parts)[2] = {variable, values, {static_cast<std::int64_t>(count)}, true, false};
    auto& transfer = calls.next(RankSet::only(2), Milliseconds(0)).begin<TransferPayload>();
    transfer.direction = direction;
    transfer.variables_count = 1;
    transfer.parts = parts;
    return {calls.publish(), values};
  }

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

TEST_F(TwoNodes, RunACommandAndReportItsOutcome) {
  const auto id = publish(calls.all_ranks());
  EXPECT_EQ(next_command(2), nullptr);
  deliver();
  run(2, 2.5);
  deliver();
  pool.finish(0, id);
  pool.finish(1, id);
  EXPECT_FALSE(calls.is_complete(id)) << "rank 3 is still busy";
  EXPECT_TRUE(agent->is_busy());
  run(3, 3.5);
  deliver();
  EXPECT_TRUE(calls.is_complete(id));
  EXPECT_FALSE(agent->is_busy());
  EXPECT_FALSE(calls.has_failed(id));
  EXPECT_EQ(number_of(id, 2), 2.5);
  EXPECT_EQ(number_of(id, 3), 3.5);
}

TEST_F(TwoNodes, ReportAllRanksOfANodeInOneMessage) {
  const auto id = publish(calls.all_ranks());
  deliver();
  run(2, 2.5);
  agent->report();
  run(3, 3.5);
  deliver();
  EXPECT_EQ(mailboxes.at(1).sent, 1);
  EXPECT_EQ(pool.control().worker(2).done.load(), id);
  EXPECT_EQ(pool.control().worker(3).done.load(), id);
}

TEST_F(TwoNodes, ReportARankSoonIfAnotherOneIsLate) {
  const auto id = publish(calls.all_ranks());
  deliver();
  run(2, 2.5);
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
  run(2, 0, Vote::failed);
  deliver();
  EXPECT_EQ(pool.control().worker(2).done.load(), id);
}

TEST_F(TwoNodes, ReportEverythingIfAsked) {
  const auto id = publish(calls.all_ranks());
  deliver();
  run(2, 2.5);
  EXPECT_TRUE(agent->report_all());
  deliver();
  EXPECT_EQ(pool.control().worker(2).done.load(), id);
}

TEST_F(TwoNodes, HearOnlyOfTheirOwnCommands) {
  publish(RankSet::only(1));
  EXPECT_EQ(mailboxes.at(0).sent, 0);
  publish(RankSet::only(3));
  deliver();
  EXPECT_EQ(next_command(2), nullptr);
  EXPECT_NE(next_command(3), nullptr);
}

TEST_F(TwoNodes, FindWhatACommandRefersToAtTheSameOffset) {
  const auto offset = heap.allocate(100, SharedHeap::Contents::any, "a test");
  std::memset(pool.segment().at(offset), 7, 100);
  publish(RankSet::only(0));  // the other node learns of it later
  CommandHead& head = calls.next(RankSet::only(2), Milliseconds(250));
  CallPayload& call = head.begin<CallPayload>();
  call.arguments_count = 2;
  call.function = offset;
  Command& slot = calls.next_slot();
  std::memset(slot.bytes.data(), 9, slot.bytes.size());
  slot.arguments[0] = {.kind = ArgumentKind::value, .offset = offset, .bytes = 100};
  slot.arguments[1] = {.kind = ArgumentKind::value, .offset = pool.segment().offset_of(slot.bytes.data()), .bytes = 8};
  send(calls.publish());
  deliver();
  const Command* const command = next_command(2);
  ASSERT_NE(command, nullptr);
  EXPECT_EQ(command->timeout_ms, 250);
  EXPECT_EQ(command->ranks, RankSet::only(2));
  EXPECT_EQ(command->call().function, offset);
  EXPECT_EQ(other.segment().at(command->arguments[0].offset)[99], std::byte{7});
  EXPECT_EQ(other.segment().at(command->arguments[1].offset)[7], std::byte{9});
  EXPECT_EQ(other.segment().offset_of(command->bytes.data()), command->arguments[1].offset);
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

TEST_F(TwoNodes, GetTheValuesOfATransferAndReportTheShapesOfCopies) {
  const std::uint64_t variable = make_variable();
  const std::vector<double> values(20'000, 2.5);
  const auto [id, from] = publish_transfer(TransferDirection::to_variable, variable, values.size());
  std::memcpy(pool.segment().at(from), values.data(), values.size() * sizeof(double));
  send(id);
  deliver();
  const Command* const command = next_command(2);
  ASSERT_NE(command, nullptr);
  EXPECT_EQ(other.segment().at<double>(from)[values.size() - 1], 2.5);
  VariableCopy& copy = other.segment().at<VariableEntry>(variable)->copies()[2];
  copy.extents[0] = static_cast<std::int64_t>(values.size());
  copy.capacity_bytes = values.size() * sizeof(double);
  finish(2, *command);
  deliver();
  const VariableCopy& known = pool.segment().at<VariableEntry>(variable)->copies()[2];
  EXPECT_EQ(known.extents, copy.extents);
  EXPECT_EQ(known.capacity_bytes, copy.capacity_bytes);
  EXPECT_EQ(pool.segment().at<VariableEntry>(variable)->copies()[3].capacity_bytes, 0U) << "it took no part";
}

TEST_F(TwoNodes, LearnTheShapesOfWhatStaysOnADevice) {
  const std::uint64_t kept = make_variable();
  const std::uint64_t moved = make_variable();
  CallPayload& call = calls.next(RankSet::only(2), Milliseconds(0)).begin<CallPayload>();
  call.outputs_count = 1;
  calls.next_slot().outputs[0] = {
      .dtype = DType::float64, .reduction = Reduction::gather, .dimensions = 1, .is_kept = true};
  calls.next_slot().kept[0] = kept;
  send(calls.publish());
  calls.next(RankSet::only(2), Milliseconds(0)).begin<MovePayload>() = {moved, 3};
  send(calls.publish());
  deliver();
  for (const std::uint64_t variable : {kept, moved}) {
    const Command* const command = next_command(2);
    ASSERT_NE(command, nullptr);
    if (variable == kept) {
      EXPECT_EQ(command->kept[0], kept);
    }
    other.control().outbox(*command, 2).vote = Vote::ok;
    VariableCopy& copy = other.segment().at<VariableEntry>(variable)->copies()[2];
    copy.extents = {7};
    copy.capacity_bytes = 56;
    finish(2, *command);
    deliver();
    EXPECT_EQ(pool.segment().at<VariableEntry>(variable)->copies()[2].extents, copy.extents);
    EXPECT_EQ(pool.segment().at<VariableEntry>(variable)->copies()[2].capacity_bytes, 56U);
  }
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

TEST_F(TwoNodes, MoveRowsToAndFromFilesWithoutAnyRows) {
  const std::uint64_t variable = make_variable();
  constexpr std::int64_t kElements = 1'000'000;
  for (const FilesAction action : {FilesAction::write, FilesAction::read, FilesAction::take}) {
    const std::uint64_t slots = heap.allocate(kWorldSize * sizeof(FilesSlot), SharedHeap::Contents::zero, "a test");
    pool.segment().at<FilesSlot>(slots)[2] = {0, 0, {kElements}};
    auto& files = calls.next(RankSet::only(2), Milliseconds(0)).begin<FilesPayload>();
    files.action = action;
    files.variable = variable;
    files.slots = slots;
    const std::size_t before = mailboxes.at(0).bytes_sent + mailboxes.at(1).bytes_sent;
    send(calls.publish());
    deliver();
    const Command* const command = next_command(2);
    ASSERT_NE(command, nullptr);
    EXPECT_EQ(other.segment().at<const FilesSlot>(command->as<FilesPayload>().slots)[2].extents[0], kElements);
    VariableCopy& copy = other.segment().at<VariableEntry>(variable)->copies()[2];
    copy.extents[0] = kElements;
    copy.capacity_bytes = kElements * sizeof(double);
    other.control().outbox(*command, 2).vote = Vote::ok;
    finish(2, *command);
    deliver();
    EXPECT_LT(mailboxes.at(0).bytes_sent + mailboxes.at(1).bytes_sent - before, 4096U);
    const VariableCopy& known = pool.segment().at<VariableEntry>(variable)->copies()[2];
    EXPECT_EQ(known.capacity_bytes, action == FilesAction::take ? copy.capacity_bytes : 0U)
        << "only take changes copies";
    EXPECT_EQ(known.extents[0], action == FilesAction::take ? kElements : 0);
  }
}

TEST_F(TwoNodes, RefuseToPublishWhatOnlyTheMastersNodeCouldDecide) {
  const auto list = heap.allocate(sizeof(Dependency), SharedHeap::Contents::any, "a test");
  *pool.segment().at<Dependency>(list) = {1, 0, 0};
  calls.next(RankSet::only(2), Milliseconds(0)).begin<TransferPayload>();
  calls.set_dependencies(list, 1);
  EXPECT_THROW(send(calls.publish()), Error);
}

TEST_F(TwoNodes, SendTheValuesThatATransferFetches) {
  const std::uint64_t variable = make_variable();
  const auto [id, to] = publish_transfer(TransferDirection::from_variable, variable, 1000);
  const std::size_t before = mailboxes.at(0).bytes_sent;
  send(id);
  EXPECT_LT(mailboxes.at(0).bytes_sent - before, 8000U) << "the room for the values stays here";
  deliver();
  const Command* const command = next_command(2);
  ASSERT_NE(command, nullptr);
  std::fill_n(other.segment().at<double>(to), 1000, 4.5);
  finish(2, *command);
  deliver();
  EXPECT_TRUE(calls.is_complete(id));
  EXPECT_EQ(pool.segment().at<double>(to)[999], 4.5);
}

TEST_F(TwoNodes, SendNoRowsThatTheOtherNodeHasWrittenItself) {
  constexpr std::size_t kCount = 1000;
  for (const int writer : {kThere.node, kThere.node + 1}) {
    const auto [id, from] = publish_transfer(TransferDirection::to_variable, make_variable(), kCount);
    std::fill_n(pool.segment().at<double>(from), kCount, 1.5);
    std::fill_n(other.segment().at<double>(from), kCount, 2.5);
    heap.note_rows_there(from, kCount * sizeof(double), writer);
    send(id);
    deliver();
    const Command* const command = next_command(2);
    ASSERT_NE(command, nullptr);
    EXPECT_EQ(other.segment().at<double>(from)[kCount - 1], writer == kThere.node ? 2.5 : 1.5);
    finish(2, *command);
    deliver();
  }
}

TEST_F(TwoNodes, ReportArrays) {
  for (int round = 0; round < 3; ++round) {
    const auto id = publish(RankSet::only(3), 1);
    deliver();
    const Command* const command = next_command(3);
    ASSERT_NE(command, nullptr);
    const std::vector<double> values{1, 2.0 + round, 3};
    Outbox& outbox = other.control().outbox(*command, 3);
    outbox.vote = Vote::ok;
    outbox.rows = 3;
    outbox.outputs[0].extents = {3};
    outbox.outputs[0].offset = std::uint64_t{700} << 20U;  // in the worker's arena
    std::memcpy(other.segment().at(outbox.outputs[0].offset), values.data(), 24);
    finish(3, *command);
    deliver();
    const OutputSlot& output = calls.outbox(id, 3).outputs[0];
    ASSERT_GE(output.offset, kInbound);
    EXPECT_EQ(pool.segment().at<double>(output.offset)[1], 2.0 + round);
    collect(id);
  }
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

TEST_F(TwoNodes, ReportFailures) {
  const auto id = publish(calls.all_ranks());
  deliver();
  run(3, 0, Vote::failed);
  deliver();
  EXPECT_TRUE(calls.has_failed(id));
  EXPECT_EQ(calls.first_failed_rank(id), 3);
  EXPECT_EQ(get_text(calls.outbox(id, 3).message), "it failed");
  EXPECT_EQ(calls.outbox(id, 3).failed_phase, Phase::function);
}

TEST_F(TwoNodes, ReportWhatRanksHaveRecordedForAProfileBeforeTheirEnds) {
  const auto offset = pool.control().header().heap_offset + FakePool::kHeapBytes;
  for (const ControlBlock& control : {pool.control(), other.control()}) control.header().timelines_offset = offset;
  const auto id = publish(calls.all_ranks());
  deliver();
  for (const int rank : {2, 3}) {
    auto& timeline = other.segment().at<Timeline>(offset)[rank];
    timeline.add(progress_word(id, Phase::function));
    timeline.add(progress_word(id, Phase::idle));
    run(rank, 0.5 + rank);
  }
  deliver();
  for (const int rank : {2, 3}) {
    EXPECT_EQ(pool.control().worker(rank).done.load(), id);
    EXPECT_EQ(number_of(id, rank), 0.5 + rank) << "the report itself was read";
    const auto& known = pool.segment().at<Timeline>(offset)[rank];
    ASSERT_EQ(known.written(), 3U) << "the end comes twice: when it was, and when the master has heard of it";
    EXPECT_EQ(known.at(0)->progress, progress_word(id, Phase::function));
  }
}

TEST_F(TwoNodes, ReportNoFailureOfAnEarlierCommand) {
  const auto failed = publish(RankSet::only(3));
  deliver();
  run(3, 0, Vote::failed);
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

TEST_F(TwoNodes, LearnThatACommandMustFail) {
  const auto id = publish(RankSet::only(2));
  nodes.spoil(id, calls.slot_of(id));
  deliver();
  EXPECT_EQ(next_command(2)->spoiled.load(), id);
}

TEST_F(TwoNodes, LearnWhichOutputsWereConsumed) {
  const auto first = publish(RankSet::only(2));
  deliver();
  run(2, 1);
  deliver();
  collect(first);
  publish(RankSet::only(2));
  deliver();
  EXPECT_EQ(other.control().worker(2).consumed.load(), first);
}

TEST_F(TwoNodes, TakeManyCommandsInAnyOrderOfArrival) {
  std::mt19937 random(3);
  std::vector<std::uint64_t> open;
  int published = 0;
  int collected = 0;
  while (collected < 500) {
    for (int node = 0; node < 2; ++node) mailboxes.at(node).is_held_back = random() % 2 == 0;
    const RankSet ranks =
        random() % 3 == 0 ? calls.all_ranks() : RankSet::only(static_cast<int>(random() % kWorldSize));
    if (published < 500 && !calls.blocker(ranks)) {
      open.push_back(publish(ranks));
      ++published;
    }
    for (int rank = 2; rank < kWorldSize; ++rank) {
      if (random() % 2 == 0 && next_command(rank) != nullptr)
        run(rank, static_cast<double>(next_command(rank)->id) + rank);
    }
    pool.finish(0, calls.last_published());
    pool.finish(1, calls.last_published());
    deliver_to_agent();
    deliver_to_master();
    for (auto id = open.begin(); id != open.end();) {
      if (!calls.is_complete(*id)) {
        ++id;
        continue;
      }
      for (int rank = 2; rank < kWorldSize; ++rank) {
        if (!calls.command(*id).ranks.has(rank)) continue;
        ASSERT_EQ(number_of(*id, rank), static_cast<double>(*id) + rank);
      }
      collect(*id);
      ++collected;
      id = open.erase(id);
    }
  }
  EXPECT_TRUE(calls.is_idle());
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
