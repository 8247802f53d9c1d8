// The rows that a call uses, tested without a session: what the master writes for the workers, and what it refuses.

#include "launcher/calls/rows_check.hpp"

#include <gmock/gmock.h>

#include <array>
#include <limits>

#include "tests/launcher/calls/played_commands.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::EndsWith;
using testing::HasSubstr;
using testing::SizeIs;

class RowsOfACall : public testing::Test {
 protected:
  static constexpr std::array<ArgumentType, 2> kArguments{
      {{ArgumentKind::scattered, DType::float32, {}, 1, 0}, {ArgumentKind::sliced, DType::float32, {}, 1, 0}}};

  RowsOfACall() {
    function.name = "step";
    function.signature.arguments = kArguments;
    data.name = "inputs";
    data.dimensions = 1;
    variable.name = "state";
    variable.copies.change() = CopyFacts(2);
  }
  void finish(const CallOptions& options) {
    check.finish(session.commands.settled(), function, session.calls.all_ranks(), weights, options,
                 session.commands.memory(), call, temporaries);
  }
  std::string refusal(const CallOptions& options) {
    try {
      finish(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "nothing was thrown";
  }

  PlayedSession session{{{}, {}}};
  FunctionRecord function;
  DataRecord data;
  VariableRecord variable;
  RowsCheck check;
  CallPayload call;
  std::vector<std::uint64_t> temporaries;
  RowWeights weights;
};

TEST_F(RowsOfACall, AreAllRowsUnlessSomeAreChosen) {
  data.extents[0] = 7;
  check.add_scattered(function, data, 0, DataRows{});
  finish({});
  EXPECT_EQ(call.rows, 7);
  EXPECT_EQ(call.batch.kind, Rows::Kind::all);
  EXPECT_THAT(temporaries, SizeIs(0)) << "nothing travels";
}

TEST_F(RowsOfACall, TravelAsAListInTheHeapThatIsNotedToBeFreed) {
  data.extents[0] = 7;
  check.add_scattered(function, data, 0, DataRows{});
  const std::vector<int> chosen{6, 0, 3};
  finish({.batch = chosen});
  EXPECT_EQ(call.rows, 3);
  ASSERT_THAT(temporaries, SizeIs(1));
  EXPECT_EQ(call.batch.offset, temporaries.front());
  const auto* indices = session.pool.segment().at<const std::int64_t>(call.batch.offset);
  EXPECT_THAT(std::vector<std::int64_t>(indices, indices + 3), ElementsAreArray(chosen));
}

TEST_F(RowsOfACall, AreDividedInTheHeapIfRanksHaveWeights) {
  weights = RowWeights(std::vector<double>{1, 3}, 2);
  finish({.rows = 8});
  ASSERT_THAT(temporaries, ElementsAre(call.share_begins));
  const auto* begins = session.pool.segment().at<const std::int64_t>(call.share_begins);
  EXPECT_THAT(std::vector<std::int64_t>(begins, begins + 3), ElementsAre(0, 2, 8));
}

TEST_F(RowsOfACall, CarryNothingIfTheWeightsAreEqualOrTheTimesAreMeasured) {
  weights = RowWeights(std::vector<double>{2, 2}, 2);
  finish({.rows = 8});
  weights = RowWeights(std::vector<double>{1, 3}, 2);
  call.is_measured = true;
  finish({.rows = 8});
  EXPECT_EQ(call.share_begins, 0U);
  EXPECT_THAT(temporaries, SizeIs(0));
}

TEST_F(RowsOfACall, OfTheCopiesThemselvesHaveNoWeights) {
  weights = RowWeights(std::vector<double>{1, 3}, 2);
  variable.copies.change().extents[0][0] = 2;
  variable.copies.change().extents[1][0] = 5;
  check.add_sliced(variable, 1);
  finish({});
  EXPECT_EQ(call.rows, 7);
  EXPECT_EQ(call.share_begins, 0U);
}

TEST_F(RowsOfACall, AreRefusedWhereTheDataHaveNoSuchRow) {
  data.extents[0] = 7;
  check.add_scattered(function, data, 0, DataRows{});
  const std::vector<int> chosen{6, 7};
  EXPECT_THAT(refusal({.batch = chosen}), HasSubstr("batch has index 7 at position 1, but argument 0 "
                                                    "(Scattered 'inputs') of 'step' has rows 0 to 6"));
  EXPECT_THAT(temporaries, SizeIs(1)) << "the caller frees what was written down by then";
}

TEST_F(RowsOfACall, AreEachRanksOwnWhereItsCopyIsSliced) {
  variable.copies.change().extents[0][0] = 2;
  variable.copies.change().extents[1][0] = 5;
  check.add_sliced(variable, 1);
  const std::vector<Slice> chosen{{0, 2}, {1, 4}};
  finish({.batch_s = chosen});
  EXPECT_EQ(call.rows, 5);
  EXPECT_TRUE(call.rows_are_local);
  const auto* slots = session.pool.segment().at<const RowsSlot>(call.batch_s_by_rank);
  EXPECT_EQ(slots[0].count(), 2);
  EXPECT_EQ(slots[1].begin, 1);
  EXPECT_EQ(slots[1].end, 4);
}

class RowsOfChangingShapes : public RowsOfACall {
 protected:
  RowsOfChangingShapes() {
    variable.copies.change().extents[0][0] = 2;
    variable.copies.change().extents[1][0] = 5;
    check.add_sliced(variable, 1);
  }
  /// The numbers of rows that the ranks are told, or nothing if each rank looks at the copies of its peers.
  std::vector<std::int64_t> counts() const {
    if (call.batch_s_by_rank == 0) return {};
    const auto* slots = session.pool.segment().at<const RowsSlot>(call.batch_s_by_rank);
    return {slots[0].count(), slots[1].count()};
  }
};

TEST_F(RowsOfChangingShapes, AreTheCopiesOwnIfNothingChangesThem) {
  finish({});
  EXPECT_THAT(counts(), SizeIs(0));
  EXPECT_THAT(temporaries, SizeIs(0));
}

TEST_F(RowsOfChangingShapes, AreWrittenDownForAValueWhoseCopiesMayBeOnTheirWay) {
  variable.value = std::make_unique<ValueState>(2);
  variable.value->extents[0] = 5;  // of all copies
  finish({});
  EXPECT_THAT(counts(), ElementsAre(5, 5));
}

TEST_F(RowsOfChangingShapes, AreWrittenDownForAVariableThatIsCopiedBetweenRanks) {
  variable.writes.copies.push_back({.command = 1, .rank = 1, .source = 0});
  finish({});
  EXPECT_THAT(counts(), ElementsAre(2, 5));
}

TEST_F(RowsOfChangingShapes, AreNotWrittenDownForOneRank) {
  variable.value = std::make_unique<ValueState>(2);
  variable.value->extents[0] = 5;
  check.finish(session.commands.settled(), function, RankSet::only(1), weights, {}, session.commands.memory(), call,
               temporaries);
  EXPECT_THAT(counts(), SizeIs(0));
}

TEST_F(RowsOfACall, AreRefusedWhereARankHasNoSelection) {
  check.add_sliced(variable, 1);
  const std::vector<Slice> chosen{{0, 0}};
  EXPECT_THAT(refusal({.batch_s = chosen}), HasSubstr("batch_s requires one selection per rank, 2 in all, got 1"));
}

TEST_F(RowsOfACall, AreANumberWhereNoArgumentHasRows) {
  finish({.rows = 9, .slices = 2});
  EXPECT_EQ(call.rows, 9);
  EXPECT_EQ(call.slices, 2);
  EXPECT_FALSE(call.rows_are_local);
  EXPECT_THAT(temporaries, SizeIs(0));
}

TEST_F(RowsOfACall, AreNotANumberBesideAnArgumentThatHasRows) {
  data.extents[0] = 9;
  check.add_scattered(function, data, 0, DataRows::of_the_batch);
  EXPECT_THAT(refusal({.rows = 9}), EndsWith("rows is 9, but the call has the rows of argument 0 (Scattered 'inputs') "
                                             "of 'step': leave rows out"));
  check.add_sliced(variable, 1);
  check.add_scattered(function, data, 0, DataRows{});
  EXPECT_THAT(refusal({.rows = 9}), EndsWith("rows is 9, but the call has the rows of argument 0 (Scattered 'inputs') "
                                             "of 'step': leave rows out, and select rows with batch"));
}

TEST_F(RowsOfACall, AreCutIntoNoMoreSlicesThanAnIntCounts) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  EXPECT_THAT(refusal({.rows = kMost + 2, .slices = kMost + 1}),
              EndsWith("slices is at most 2147483647, got 2147483648"));
  finish({.rows = kMost + 2, .slices = kMost});
  EXPECT_EQ(call.slices, kMost);
}

}  // namespace
}  // namespace syncrun::test
