#include "master/api/measured_weights.hpp"

#include <algorithm>
#include <numeric>

#include "master/session/session_core.hpp"
#include "syncrun/detail/master_interface.hpp"

namespace syncrun::detail {

namespace {

double median_of(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

std::vector<double> weights_from(std::span<const std::vector<double>> times_by_call) {
  const auto measured = times_by_call.subspan(kBalanceWarmUpCalls);
  std::vector<double> weights;
  for (std::size_t rank = 0; rank < measured.front().size(); ++rank) {
    std::vector<double> times;
    for (const auto& call : measured) times.push_back(call[rank]);
    weights.push_back(1 / median_of(std::move(times)));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::vector<double> set_measured_weights(master::session::SessionCore& session,
                                         std::span<const std::vector<double>> times_by_call) {
  std::vector<double> weights = weights_from(times_by_call);
  set_weights(session, weights);
  return weights;
}

}  // namespace syncrun::detail
