#include "launcher/devices/comm_table.hpp"

#include <algorithm>

namespace syncrun::detail {

bool CommTable::are_whole_session_of_gpus(const RankSet& ranks) const noexcept {
  return !devices_.kinds().is_mixed() && ranks.count() == devices_.world_size();
}

CommChoice CommTable::choose_for_peers(const RankSet& ranks) {
  const bool spans_nodes = devices_.span_nodes(ranks);
  const CommChoice on_host = spans_nodes ? CommChoice::nodes() : CommChoice::host();
  const CommChoice on_cpus = spans_nodes ? CommChoice::nodes() : CommChoice::devices(CommChoice::kOfSession);
  const auto on_gpus = [&](int index) {
    return spans_nodes ? CommChoice::devices_of_nodes(index) : CommChoice::devices(index);
  };
  if (!devices_.kinds().has(DeviceKind::cuda)) return on_cpus;
  if (are_whole_session_of_gpus(ranks)) return on_gpus(CommChoice::kOfSession);
  const DeviceKinds kinds = devices_.kinds_of(ranks);
  if (!kinds.has(DeviceKind::cuda)) return on_cpus;
  if (kinds.is_mixed()) return on_host;
  const auto found = std::find(gpu_sets_.begin(), gpu_sets_.end(), ranks);
  const auto index = static_cast<int>(found - gpu_sets_.begin()) + 1;
  if (index >= CommChoice::kMostComms) return on_host;
  if (found == gpu_sets_.end()) gpu_sets_.push_back(ranks);
  return on_gpus(index);
}

bool CommTable::is_nccl(CommChoice comm, const RankSet& ranks) const noexcept {
  return comm.path() == CommPath::devices && devices_.kinds_of(ranks).has(DeviceKind::cuda);
}

}  // namespace syncrun::detail
