#include "master/calls/row_weights.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>

#include "common/arrays/row_range.hpp"
#include "common/text/errors.hpp"
#include "common/text/numbers.hpp"

namespace syncrun::detail::master::calls {

namespace {

// The product of two numbers of units must fit into an int64, also if one is the sum over the largest set of ranks.
constexpr int kUnitBits = 26;
static_assert(std::int64_t{protocol::kMaxWorldSize} < std::int64_t{1} << (63 - 2 * kUnitBits));

void check(std::span<const double> weights, int world_size) {
  if (weights.size() != static_cast<std::size_t>(world_size)) {
    text::throw_usage("set_weights requires one weight per rank, " + std::to_string(world_size) + " in all, got " +
                      std::to_string(weights.size()) + " (an empty list restores equal shares)");
  }
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    if (std::isfinite(weights[rank]) && weights[rank] >= 0) continue;
    text::throw_usage("set_weights: a weight is a finite number of at least 0, got " + number_text(weights[rank]) +
                      " for rank " + std::to_string(rank));
  }
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 0; })) {
    text::throw_usage("set_weights: at least one rank requires a weight above 0, got 0 for every rank");
  }
}

/// The weights of the ranks of a set in units, in the order of the ranks. The largest has 2^25 to 2^26 units.
std::vector<std::int64_t> units_of(const std::vector<double>& by_rank, const protocol::RankSet& ranks) {
  double largest = 0;
  for (const int rank : ranks) largest = std::max(largest, by_rank[static_cast<std::size_t>(rank)]);
  int exponent = 0;
  std::frexp(largest, &exponent);
  std::vector<std::int64_t> units;
  for (const int rank : ranks) {
    const double weight = by_rank[static_cast<std::size_t>(rank)];
    const auto rounded = static_cast<std::int64_t>(std::llround(std::ldexp(weight, kUnitBits - exponent)));
    units.push_back(weight == 0 ? 0 : std::max<std::int64_t>(rounded, 1));
  }
  return units;
}

}  // namespace

RowWeights::RowWeights(std::span<const double> weights, int world_size) : by_rank_(weights.begin(), weights.end()) {
  if (weights.empty()) return;
  check(weights, world_size);
  are_equal_ = std::all_of(weights.begin(), weights.end(), [&](double weight) { return weight == weights.front(); });
}

bool RowWeights::has_weight(const protocol::RankSet& ranks) const noexcept {
  return are_equal_ || std::any_of(ranks.begin(), ranks.end(),
                                   [this](int rank) { return by_rank_[static_cast<std::size_t>(rank)] > 0; });
}

void RowWeights::divide(std::int64_t rows, const protocol::RankSet& ranks, std::span<std::int64_t> begins) const {
  const auto count = static_cast<std::size_t>(ranks.count());
  begins[count] = rows;
  if (are_equal_) {
    for (std::size_t i = 0; i < count; ++i) {
      begins[i] = arrays::share_of(rows, ranks.count(), static_cast<std::int64_t>(i)).begin;
    }
    return;
  }
  const std::vector<std::int64_t> units = units_of(by_rank_, ranks);
  const std::int64_t all = std::accumulate(units.begin(), units.end(), std::int64_t{0});
  std::vector<std::int64_t> shares;
  std::vector<std::int64_t> lost;  // by rounding, in parts of `all`
  for (const std::int64_t own : units) {
    // rows * own / all, without a product that is too large
    const std::int64_t rest = rows % all * own;
    shares.push_back(rows / all * own + rest / all);
    lost.push_back(rest % all);
  }
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lost[a] > lost[b]; });
  const std::int64_t left = rows - std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  for (std::int64_t i = 0; i < left; ++i) ++shares[order[static_cast<std::size_t>(i)]];
  std::exclusive_scan(shares.begin(), shares.end(), begins.begin(), std::int64_t{0});
}

}  // namespace syncrun::detail::master::calls
