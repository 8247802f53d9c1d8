// A slot of the ring holds one command after another, of any kind. Nothing of a command is left in the next one.

#include "common/protocol/command.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <variant>

namespace {

using namespace syncrun;
using namespace syncrun::detail;

/// A slot whose bytes are those of earlier commands.
class CommandSlot : public testing::Test {
 protected:
  CommandSlot() { std::memset(memory_.data(), 0xa5, memory_.size()); }
  Command& command() { return *reinterpret_cast<Command*>(memory_.data()); }

 private:
  alignas(Command) std::array<std::byte, sizeof(Command)> memory_;
};

TEST_F(CommandSlot, HasAFreshHeaderForEachCommand) {
  static_cast<CommandHeader&>(command()) = {};
  EXPECT_FALSE(command().has_comm);
  EXPECT_FALSE(command().wants_vote);
  EXPECT_EQ(command().timeout_ms, 0);
}

TEST_F(CommandSlot, HasAFreshPayloadForEachCall) {
  CallPayload& first = command().begin<CallPayload>();
  first.function = 1;
  first.object = 2;
  first.is_first = true;
  first.constructs = true;
  first.rows_are_local = true;
  first.arguments_count = 3;
  first.outputs_count = 4;
  first.wanted_outputs = 5;
  first.rows = 6;
  first.slices = 7;
  first.batch = first.batch_s = {.kind = Rows::Kind::list, .begin = 8, .end = 9, .offset = 10};
  first.batch_s_by_rank = 11;
  const CallPayload& next = command().begin<CallPayload>();
  EXPECT_FALSE(next.constructs);
  EXPECT_EQ(next.function, 0U);
  EXPECT_EQ(next.object, 0U);
  EXPECT_FALSE(next.is_first);
  EXPECT_FALSE(next.rows_are_local);
  EXPECT_EQ(next.arguments_count, 0);
  EXPECT_EQ(next.outputs_count, 0);
  EXPECT_EQ(next.wanted_outputs, kAllOutputs);
  EXPECT_EQ(next.rows, -1);
  EXPECT_EQ(next.slices, 1);
  for (const RowsSlot& rows : {next.batch, next.batch_s}) {
    EXPECT_EQ(rows.kind, Rows::Kind::all);
    EXPECT_EQ(rows.begin, 0);
    EXPECT_EQ(rows.end, 0);
    EXPECT_EQ(rows.offset, 0U);
  }
  EXPECT_EQ(next.batch_s_by_rank, 0U);
}

TEST_F(CommandSlot, HasTheKindOfItsPayload) {
  command().begin<CallPayload>();
  EXPECT_EQ(command().kind, CommandKind::call);
  command().begin<ClosePayload>();
  EXPECT_EQ(command().kind, CommandKind::close);
}

TEST_F(CommandSlot, HasAFreshPayloadForEachTransferAndCollective) {
  command().begin<TransferPayload>() = {TransferDirection::from_variable, 1, 2};
  command().begin<CollectivePayload>() = {CollectiveKind::reduce, Route::host, Reduction::avg, 1, 2, 3};
  const auto& transfer = command().begin<TransferPayload>();
  EXPECT_EQ(transfer.direction, TransferDirection::to_variable);
  EXPECT_EQ(transfer.variables_count, 0U);
  EXPECT_EQ(transfer.parts, 0U);
  const auto& collective = command().begin<CollectivePayload>();
  EXPECT_EQ(collective.collective, CollectiveKind::barrier);
  EXPECT_EQ(collective.route, Route{});
  EXPECT_EQ(collective.reduction, Reduction{});
  EXPECT_EQ(collective.root, 0);
  EXPECT_EQ(collective.variables_count, 0U);
  EXPECT_EQ(collective.variables, 0U);
}

TEST_F(CommandSlot, RefusesToBeReadAsAnotherKind) {
  command().begin<DestroyPayload>().object = 3;
  EXPECT_EQ(command().as<DestroyPayload>().object, 3U);
  EXPECT_THROW(static_cast<void>(command().call()), std::bad_variant_access);
}

/// After guard(), the slot cannot be written. A write to it ends the test.
class GuardedSlot : public testing::Test {
 protected:
  GuardedSlot() {
    page_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    size_ = (sizeof(Command) / page_ + 2) * page_;
    memory_ = static_cast<std::byte*>(
        ::mmap(nullptr, page_ + size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    slot_ = new (memory_ + page_) Command();
  }
  ~GuardedSlot() override { ::munmap(memory_, page_ + size_); }
  GuardedSlot(const GuardedSlot&) = delete;
  GuardedSlot& operator=(const GuardedSlot&) = delete;

  Command& slot() { return *slot_; }
  void guard() { ASSERT_EQ(::mprotect(memory_ + page_, size_, PROT_READ), 0); }

 private:
  std::size_t page_ = 0;
  std::size_t size_ = 0;
  std::byte* memory_ = nullptr;
  Command* slot_ = nullptr;
};

CommandHead call_of(std::uint64_t function) {
  CommandHead head;
  static_cast<CommandHeader&>(head) = {.timeout_ms = 60'000};
  head.ranks = RankSet::all(5);
  head.begin<CallPayload>().function = function;
  return head;
}

TEST_F(GuardedSlot, HasNothingOfItsHeadWrittenWhereACallIsRepeated) {
  const CommandHead head = call_of(4096);
  put_head(slot(), head);
  EXPECT_EQ(slot().call().function, 4096U);
  EXPECT_EQ(slot().ranks, RankSet::all(5));
  guard();
  put_head(slot(), head);
  EXPECT_EQ(slot().call().function, 4096U);
  EXPECT_EQ(slot().ranks, RankSet::all(5));
}

TEST_F(GuardedSlot, IsWrittenWholeWhereAnotherCallFollows) {
  put_head(slot(), call_of(4096));
  CommandHead next = call_of(8192);
  next.ranks = RankSet::only(700);
  put_head(slot(), next);
  EXPECT_EQ(slot().call().function, 8192U);
  EXPECT_EQ(slot().ranks, RankSet::only(700));
}

TEST_F(GuardedSlot, KeepsItsOutputsWhenTheHeadIsWritten) {
  std::memset(static_cast<void*>(&slot().outputs), 0xa5, sizeof(slot().outputs));
  put_head(slot(), call_of(4096));
  const auto* bytes = reinterpret_cast<const unsigned char*>(&slot().outputs);
  EXPECT_TRUE(std::all_of(bytes, bytes + sizeof(slot().outputs), [](unsigned char byte) { return byte == 0xa5; }));
}

}  // namespace
