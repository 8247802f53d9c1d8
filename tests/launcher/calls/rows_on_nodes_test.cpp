// Batches of which each node has only the rows of its own ranks: which calls may read them.

#include "launcher/data/rows_on_nodes.hpp"

#include <gmock/gmock.h>

#include <array>
#include <memory>
#include <string>

#include "common/protocol/call_shares.hpp"
#include "syncrun/error.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::HasSubstr;

TEST(RowsOfANode, AreThoseOfItsRanksInAnEvenDivision) {
  constexpr NodePlace kFirst{0, 3, 0, 2}, kSecond{1, 3, 2, 1}, kThird{2, 3, 3, 2};
  EXPECT_EQ(rows_of_node(12, 5, kFirst).begin, 0);
  EXPECT_EQ(rows_of_node(12, 5, kFirst).end, 6);
  EXPECT_EQ(rows_of_node(12, 5, kSecond).begin, 6);
  EXPECT_EQ(rows_of_node(12, 5, kSecond).end, 8);
  EXPECT_EQ(rows_of_node(12, 5, kThird).end, 12);
  EXPECT_EQ(rows_of_node(1, 5, kThird).count(), 0);
  EXPECT_EQ(rows_of_node(7, 4, NodePlace::alone(4)).count(), 7);
}

/// An array of 10 rows. Node 0 has ranks 0 and 1, node 1 has ranks 2 and 3.
class RowsOnNodes : public testing::Test {
 protected:
  static constexpr std::array<NodePlace, 2> kNodes{NodePlace{0, 2, 0, 2}, NodePlace{1, 2, 2, 2}};

  RowsOnNodes() {
    data.name = "x";
    data.dimensions = 1;
    data.extents = {10};
    for (const NodePlace& node : kNodes) data.rows_on_nodes.push_back(rows_of_node(10, 4, node));
    call.rows = 10;
    call.batch = {.kind = Rows::Kind::all, .begin = 0, .end = 10};
  }
  /// Empty if the call may run.
  std::string refusal(const RankSet& ranks = RankSet::all(4)) {
    try {
      check_rows_on_nodes(data, "argument 0 of 'f'", slot, segment, call, ranks, kNodes);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
  }

  Segment segment = Segment::create(Segment::kSmallestReservation);
  DataRecord data;
  CallPayload call{};
  ArgumentSlot slot{.kind = ArgumentKind::scattered, .dtype = DType::float64, .dimensions = 1, .extents = {10}};
};

TEST_F(RowsOnNodes, AreReadByACallThatDividesThemEvenly) {
  EXPECT_EQ(refusal(), "");
  slot.is_minibatch = true;
  call.batch = {.kind = Rows::Kind::list, .begin = 0, .end = 10};  // of another argument
  EXPECT_EQ(refusal(), "");
}

TEST_F(RowsOnNodes, AreNotReadByOtherRanks) {
  EXPECT_THAT(
      refusal(RankSet::only(3)),
      HasSubstr("argument 0 of 'f' is part of a batch that was pushed with push_here(): rank 3 reads rows [0, 10), "
                "and node 1 has rows [6, 10)"));
  call.batch = {.kind = Rows::Kind::slice, .begin = 6, .end = 10};
  call.rows = 4;
  EXPECT_EQ(refusal(RankSet::only(3)), "") << "these are on its node";
  EXPECT_THAT(refusal(), HasSubstr("rank 0 reads rows [6, 7), and node 0 has rows [0, 6)"));
}

TEST_F(RowsOnNodes, AreNotReadInSharesByWeight) {
  constexpr std::uint64_t kShares = 4096;
  call.share_begins = kShares;
  auto* const begins = segment.at<std::int64_t>(kShares);
  std::copy_n(std::array<std::int64_t, 5>{0, 2, 4, 7, 10}.begin(), 5, begins);
  EXPECT_THAT(refusal(), HasSubstr("rank 2 reads rows [4, 7), and node 1 has rows [6, 10)"));
  std::copy_n(std::array<std::int64_t, 5>{0, 2, 6, 10, 10}.begin(), 5, begins);
  EXPECT_EQ(refusal(), "") << "each node still has its own";
}

TEST_F(RowsOnNodes, AreNotReadByIndexOrOnEachNode) {
  slot.kind = ArgumentKind::broadcast;
  EXPECT_THAT(refusal(), HasSubstr("requires all rows on each node"));
  slot.kind = ArgumentKind::scattered;
  call.batch = {.kind = Rows::Kind::list, .begin = 0, .end = 10};
  EXPECT_THAT(refusal(), HasSubstr("an index list"));
  data.rows_on_nodes.clear();
  EXPECT_EQ(refusal(), "") << "all nodes have all rows";
}

TEST_F(RowsOnNodes, AreNotReadByTheProgram) {
  try {
    check_has_all_rows(data);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("requires all 10 rows, and its node has rows [0, 6)"));
    EXPECT_THAT(error.what(), HasSubstr("call push()"));
  }
  data.rows_on_nodes.clear();
  EXPECT_NO_THROW(check_has_all_rows(data));
}

}  // namespace
}  // namespace syncrun::test
