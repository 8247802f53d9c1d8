#pragma once

// The weights of ranks: how the master divides the rows of a call among its ranks (Session::set_weights).

#include <cstdint>
#include <span>
#include <vector>

#include "common/protocol/rank_set.hpp"

namespace syncrun::detail::master::calls {

class RowWeights {
 public:
  /// Equal shares for all ranks.
  RowWeights() = default;
  /// One weight per rank. None means equal shares. Throws Error (usage) if the number of weights is not `world_size`, if
  /// a weight is not finite or is negative, or if all weights are 0.
  RowWeights(std::span<const double> weights, int world_size);

  /// True if all ranks count the same, so that share_of divides the rows.
  bool are_equal() const noexcept { return are_equal_; }
  /// The weights as the program gave them, by rank. Empty if it gave none.
  const std::vector<double>& by_rank() const noexcept { return by_rank_; }
  /// True if a rank of this set has a weight above 0.
  bool has_weight(const protocol::RankSet& ranks) const noexcept;

  /// Divides the rows [0, rows) among the ranks of a set, in rank order and in proportion to their weights. A rank of
  /// the set must have a weight above 0. Writes where the share of each rank begins, by its position in the set, and
  /// then `rows`. So `begins` has one number more than the set has ranks.
  ///
  /// Each rank first gets its exact proportion, rounded down. The rows that are left go to the ranks that lost the most
  /// by the rounding, one row each. If two ranks lost the same, the lower one comes first. So equal weights give the
  /// shares of share_of. The division uses integers, so it is the same on every machine. For this, each weight is rounded to
  /// a multiple of a unit. The unit is a power of two, and at most 2^-25 of the largest weight in the set. So weights
  /// that are integers up to 2^26 are exact. A weight above 0 is rounded to at least one unit.
  void divide(std::int64_t rows, const protocol::RankSet& ranks, std::span<std::int64_t> begins) const;

 private:
  bool are_equal_ = true;
  std::vector<double> by_rank_;
};

}  // namespace syncrun::detail::master::calls
