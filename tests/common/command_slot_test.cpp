// A slot of the ring is used for one command after the other, of any kind: nothing of the last one is left in the next.

#include "common/command.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <variant>

namespace {

using namespace syncrun;
using namespace syncrun::detail;

/// As a slot that held other commands before.
class CommandSlot : public testing::Test {
 protected:
  CommandSlot() { std::memset(memory_.data(), 0xa5, memory_.size()); }
  Command& command() { return *reinterpret_cast<Command*>(memory_.data()); }

 private:
  alignas(Command) std::array<std::byte, sizeof(Command)> memory_;
};

TEST_F(CommandSlot, HasAFreshHeaderForEachCommand) {
  static_cast<CommandHeader&>(command()) = {.id = 7};
  EXPECT_EQ(command().id, 7U);
  EXPECT_FALSE(command().has_comm);
  EXPECT_FALSE(command().wants_vote);
  EXPECT_EQ(command().timeout_ms, 0);
}

TEST_F(CommandSlot, HasAFreshPayloadForEachCall) {
  CallPayload& first = command().begin<CallPayload>(CommandKind::call);
  first.function = 1;
  first.object = 2;
  first.is_first = true;
  first.rows_are_local = true;
  first.arguments_count = 3;
  first.outputs_count = 4;
  first.wanted_outputs = 5;
  first.rows = 6;
  first.slices = 7;
  first.batch = first.batch_s = {.kind = Rows::Kind::list, .begin = 8, .end = 9, .offset = 10};
  first.batch_s_by_rank = 11;
  const CallPayload& next = command().begin<CallPayload>(CommandKind::construct);
  EXPECT_EQ(command().kind, CommandKind::construct);
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

TEST_F(CommandSlot, HasAFreshPayloadForEachTransferAndCollective) {
  command().begin<TransferPayload>(CommandKind::transfer) = {TransferDirection::from_variable, 1, 2};
  command().begin<CollectivePayload>(CommandKind::collective) = {
      CollectiveKind::reduce, Route::host, Reduction::avg, 1, 2, 3};
  const auto& transfer = command().begin<TransferPayload>(CommandKind::transfer);
  EXPECT_EQ(transfer.direction, TransferDirection::to_variable);
  EXPECT_EQ(transfer.variables_count, 0U);
  EXPECT_EQ(transfer.parts, 0U);
  const auto& collective = command().begin<CollectivePayload>(CommandKind::collective);
  EXPECT_EQ(collective.collective, CollectiveKind::barrier);
  EXPECT_EQ(collective.route, Route{});
  EXPECT_EQ(collective.reduction, Reduction{});
  EXPECT_EQ(collective.root, 0);
  EXPECT_EQ(collective.variables_count, 0U);
  EXPECT_EQ(collective.variables, 0U);
}

TEST_F(CommandSlot, RefusesToBeReadAsAnotherKind) {
  command().begin<DestroyPayload>(CommandKind::destroy).object = 3;
  EXPECT_EQ(command().as<DestroyPayload>().object, 3U);
  EXPECT_THROW(static_cast<void>(command().call()), std::bad_variant_access);
}

}  // namespace
