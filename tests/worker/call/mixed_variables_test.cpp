// Collectives of the master on shared variables, whose copies are on devices of different kinds.

#include <gtest/gtest.h>

#include <numeric>

#include "common/protocol/variable_entry.hpp"
#include "tests/worker/comm/mixed_ranks.hpp"
#include "worker/call/shared_variables.hpp"

namespace syncrun::detail {
namespace {

using Values = std::vector<float>;

constexpr std::uint64_t kEntryAt = std::uint64_t{2} << 20U;
constexpr std::uint64_t kSlotAt = kEntryAt + 64 * 1024;
constexpr std::uint64_t kLengthsAt = kSlotAt + 64 * 1024;
constexpr std::uint64_t kResultAt = std::uint64_t{4} << 20U;

/// The parameter is the number of elements of a copy. Small values take another path than large ones.
class MixedVariables : public MixedRanks, public testing::WithParamInterface<std::int64_t> {
 protected:
  MixedVariables() {
    entry_ = segment_.at<VariableEntry>(kEntryAt);
    entry_->dtype = DType::float32;
    entry_->dimensions = 1;
  }
  static std::int64_t elements() { return GetParam(); }
  static Values copy_of(int rank, std::int64_t count = elements()) {
    Values values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 50 + 100 * rank);
    return values;
  }
  static Values sum() {
    Values sum(static_cast<std::size_t>(elements()));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<float>(3 * (i % 50) + 300);
    return sum;
  }
  /// Gives each rank its copy, of `count(rank)` elements.
  template <class Count>
  void set_copies(Count&& count) {
    for (MixedRank& rank : mixed_) {
      const Values values = copy_of(rank.rank(), count(rank.rank()));
      entry_->copies()[rank.rank()] = {.place = rank.device().place_of(rank.put(values)),
                                       .exported = 0,
                                       .capacity_bytes = values.size() * sizeof(float),
                                       .extents = {},
                                       .spare = 0};
      entry_->copies()[rank.rank()].extents[0] = static_cast<std::int64_t>(values.size());
    }
  }
  void set_copies() {
    set_copies([](int) { return elements(); });
  }
  void run(CollectiveKind kind, int root = 0, Route route = Route::device) {
    CommandHead command = command_of(everyone());
    auto& payload = command.begin<CollectivePayload>();
    payload.collective = kind;
    payload.reduction = Reduction::sum;
    payload.route = route;
    payload.root = root;
    payload.variables_count = 1;
    payload.variables = kSlotAt;
    EXPECT_EQ(on_all([&](MixedRank& rank) {
                VariableCopies copies(rank.attachment(), rank.device(), rank.comms(), [] {});
                copies.run_collective(command);
              }),
              all(""));
  }
  CollectiveSlot& slot() { return *segment_.at<CollectiveSlot>(kSlotAt); }
  void describe(std::int64_t extent, const std::vector<std::int64_t>& lengths = {}, std::uint64_t to = 0) {
    slot() = {kEntryAt, lengths.empty() ? 0 : kLengthsAt, to, {}};
    slot().extents[0] = extent;
    std::copy(lengths.begin(), lengths.end(), segment_.at<std::int64_t>(kLengthsAt));
  }
  static std::vector<std::int64_t> shares() {
    std::vector<std::int64_t> shares;
    for (int rank = 0; rank < kWorldSize; ++rank) shares.push_back(share_of(elements(), kWorldSize, rank).count());
    return shares;
  }
  Values now(int rank) {
    const VariableCopy& copy = entry_->copies()[rank];
    return at(rank).get(static_cast<const float*>(at(rank).device().at(copy.place)),
                        static_cast<std::size_t>(copy.extents[0]));
  }

  VariableEntry* entry_;
};
INSTANTIATE_TEST_SUITE_P(OfElements, MixedVariables, testing::Values(3, 1000, 200'001));

TEST_P(MixedVariables, AreReducedOnAllRanksOnEitherRoute) {
  for (const Route route : {Route::device, Route::host}) {
    set_copies();
    describe(elements());
    run(CollectiveKind::all_reduce, 0, route);
    for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(now(rank), sum());
  }
}

TEST_P(MixedVariables, AreReducedToOneRank) {
  for (const int root : {0, 1}) {
    set_copies();
    describe(elements());
    run(CollectiveKind::reduce, root);
    EXPECT_EQ(now(root), sum());
  }
}

TEST_P(MixedVariables, AreBroadcastFromEitherKindAndGrow) {
  for (const int root : {0, 1}) {
    set_copies([&](int rank) { return rank == root ? elements() : 1; });
    describe(elements());
    run(CollectiveKind::broadcast, root);
    for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(now(rank), copy_of(root));
  }
}

TEST_P(MixedVariables, AreReducedAndDivided) {
  set_copies();
  describe(elements(), shares());
  run(CollectiveKind::reduce_scatter);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const RowRange part = share_of(elements(), kWorldSize, rank);
    const Values whole = sum();
    EXPECT_EQ(now(rank), Values(whole.begin() + part.begin, whole.begin() + part.end));
  }
}

TEST_P(MixedVariables, AreReducedToTheMasterAndStayAsTheyAre) {
  set_copies();
  describe(elements(), shares(), kResultAt);
  run(CollectiveKind::reduce_scatter);
  const auto* const result = segment_.at<const float>(kResultAt);
  EXPECT_EQ(Values(result, result + elements()), sum());
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(now(rank), copy_of(rank));
}

TEST_P(MixedVariables, AreJoined) {
  const std::vector<std::int64_t> lengths{elements(), 0, 2 * elements() + 1};
  set_copies([&](int rank) { return lengths[static_cast<std::size_t>(rank)]; });
  describe(3 * elements() + 1, lengths);
  run(CollectiveKind::all_gather);
  Values joined;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    for (const float value : copy_of(rank, lengths[static_cast<std::size_t>(rank)])) joined.push_back(value);
  }
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(now(rank), joined);
}

}  // namespace
}  // namespace syncrun::detail
