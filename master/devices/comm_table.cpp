#include "master/devices/comm_table.hpp"

#include <algorithm>

namespace syncrun::detail::master::devices {

bool CommTable::are_whole_session_of_gpus(const protocol::RankSet& ranks) const noexcept {
  return !devices_.kinds().is_mixed() && ranks.count() == devices_.world_size();
}

protocol::CommChoice CommTable::choose_for_peers(const protocol::RankSet& ranks) {
  const bool spans_nodes = devices_.span_nodes(ranks);
  if (spans_nodes && linked_.includes(ranks)) return protocol::CommChoice::linked_nodes();
  const protocol::CommChoice on_host = spans_nodes ? protocol::CommChoice::nodes() : protocol::CommChoice::host();
  const protocol::CommChoice on_cpus =
      spans_nodes ? protocol::CommChoice::nodes() : protocol::CommChoice::devices(protocol::CommChoice::kOfSession);
  const auto on_gpus = [&](int index) {
    return spans_nodes ? protocol::CommChoice::devices_of_nodes(index) : protocol::CommChoice::devices(index);
  };
  if (!devices_.kinds().has(DeviceKind::cuda)) return on_cpus;
  if (are_whole_session_of_gpus(ranks)) return on_gpus(protocol::CommChoice::kOfSession);
  const protocol::DeviceKinds kinds = devices_.kinds_of(ranks);
  if (!kinds.has(DeviceKind::cuda)) return on_cpus;
  if (kinds.is_mixed()) return on_host;
  const auto found = std::find(gpu_sets_.begin(), gpu_sets_.end(), ranks);
  const auto index = static_cast<int>(found - gpu_sets_.begin()) + 1;
  if (index >= protocol::CommChoice::kMostComms) return on_host;
  if (found == gpu_sets_.end()) gpu_sets_.push_back(ranks);
  return on_gpus(index);
}

bool CommTable::is_nccl(protocol::CommChoice comm, const protocol::RankSet& ranks) const noexcept {
  return comm.path() == protocol::CommPath::devices && devices_.kinds_of(ranks).has(DeviceKind::cuda);
}

}  // namespace syncrun::detail::master::devices
