#pragma once

// Reads the totals of all ranks.

#include <vector>

#include "common/protocol/rank_totals.hpp"
#include "master/settings/settings.hpp"
#include "syncrun/metrics.hpp"

namespace syncrun::detail::master::metrics {

/// `totals` has one element per rank.
std::vector<RankMetrics> read_metrics(const settings::Settings& settings, const protocol::RankTotals* totals);

}  // namespace syncrun::detail::master::metrics
