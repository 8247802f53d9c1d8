#pragma once

// Weights from measured times, for Session::balance.

#include <span>
#include <vector>

namespace syncrun::detail {

/// The weights that let all ranks take equally long: in inverse proportion to the ranks' times per row, with a sum of 1.
/// `times_by_call` has the times per row of each call, by rank and above 0. Uses the median time of each rank. Ignores
/// the first kBalanceWarmUpCalls calls. At least one more call is required.
std::vector<double> weights_from(std::span<const std::vector<double>> times_by_call);

}  // namespace syncrun::detail
