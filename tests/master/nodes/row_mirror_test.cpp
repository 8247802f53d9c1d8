// Which rows travel to another node, and when.

#include "master/nodes/row_mirror.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "common/arrays/row_range.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;
using testing::ElementsAre;

/// Ranks 0 and 1 are on the master's node, ranks 2 and 3 on the other one. There is one array of 40 rows of two doubles.
class Mirror : public testing::Test {
 protected:
  static constexpr protocol::NodePlace kThere{1, 2, 2, 2};
  static constexpr std::uint64_t kArray = std::uint64_t{1} << 20U;
  static constexpr std::uint64_t kIndices = std::uint64_t{2} << 20U;
  static constexpr std::int64_t kRows = 40;
  static constexpr std::uint64_t kRowBytes = 16;

  Mirror() {
    mirror.note({os::HeapChange::Kind::mirrored, kArray, kRows * kRowBytes});
    command->begin<protocol::CallPayload>();
    command->ranks = protocol::RankSet::all(4);
    call().arguments_count = 1;
    call().rows = kRows;
    call().batch = {.kind = Rows::Kind::all, .begin = 0, .end = kRows};
    argument() = {.kind = ArgumentKind::scattered,
                  .dtype = DType::float64,
                  .dimensions = 2,
                  .offset = kArray,
                  .extents = {kRows, 2}};
  }
  protocol::CallPayload& call() { return std::get<protocol::CallPayload>(command->payload); }
  protocol::ArgumentSlot& argument() { return command->arguments[0]; }
  void use_slice(std::int64_t begin, std::int64_t end) {
    call().rows = end - begin;
    call().batch = {.kind = Rows::Kind::slice, .begin = begin, .end = end};
  }
  void use_list(const std::vector<std::int64_t>& rows) {
    call().rows = static_cast<std::int64_t>(rows.size());
    call().batch = {.kind = Rows::Kind::list, .begin = 0, .end = call().rows, .offset = kIndices};
    std::copy(rows.begin(), rows.end(), segment.at<std::int64_t>(kIndices));
  }
  std::vector<SegmentRange> missing() { return mirror.take_missing(segment, *command, kThere); }
  static SegmentRange rows(std::int64_t begin, std::int64_t end) {
    return {kArray + static_cast<std::uint64_t>(begin) * kRowBytes,
            kArray + static_cast<std::uint64_t>(end) * kRowBytes};
  }
  void write(std::int64_t begin, std::int64_t end) {
    mirror.note({os::HeapChange::Kind::rows_written, rows(begin, end).begin, rows(begin, end).count()});
  }

  os::Segment segment = os::Segment::create(os::Segment::kSmallestReservation);
  std::unique_ptr<protocol::Command> command = std::make_unique<protocol::Command>();
  RowMirror mirror;
};

/// Another node may be the only one that ever reads the other rows.
TEST_F(Mirror, SendsNoRowThatIsNotInTheIndexList) {
  use_slice(0, 20);
  EXPECT_THAT(missing(), ElementsAre(rows(10, 20)));
  use_list({0, 1, 12, 39});
  EXPECT_THAT(missing(), ElementsAre(rows(39, 40)));
  use_list({0, 1, 3, 2});
  EXPECT_THAT(missing(), ElementsAre(rows(2, 4)));
}

TEST_F(Mirror, SendsTheRowsOfAMinibatchFromTheFirstOn) {
  argument().is_minibatch = true;
  use_list({39, 38, 37, 36});
  argument().extents = {4, 2};
  EXPECT_THAT(missing(), ElementsAre(rows(2, 4)));
}

/// Compares with a set of rows.
TEST_F(Mirror, AgreesWithASimpleModel) {
  std::mt19937 random(1);
  std::set<std::int64_t> there;
  const auto number = [&](std::int64_t below) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(below));
  };
  for (int step = 0; step < 5000; ++step) {
    std::int64_t begin = number(kRows);
    const std::int64_t end = begin + 1 + number(kRows - begin);
    if (step % 3 == 0) {
      write(begin, end);
      for (std::int64_t row = begin; row < end; ++row) there.erase(row);
      continue;
    }
    use_slice(begin, end);
    const std::int64_t count = end - begin;
    begin += arrays::share_of(count, 4, 2).begin;
    std::set<std::int64_t> expected;
    for (std::int64_t row = begin; row < end; ++row) {
      if (there.insert(row).second) expected.insert(row);
    }
    std::set<std::int64_t> sent;
    for (const SegmentRange& range : missing()) {
      for (std::uint64_t at = range.begin; at < range.end; at += kRowBytes)
        ASSERT_TRUE(sent.insert(static_cast<std::int64_t>((at - kArray) / kRowBytes)).second) << "a row was sent twice";
    }
    ASSERT_EQ(sent, expected);
  }
}

}  // namespace
}  // namespace syncrun::test
