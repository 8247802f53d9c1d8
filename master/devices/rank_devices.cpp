#include "master/devices/rank_devices.hpp"

#include <algorithm>

namespace syncrun::detail::master::devices {

bool RankDevices::span_nodes(const protocol::RankSet& ranks) const noexcept {
  if (places_.size() <= 1) return false;
  const auto first = std::find_if(places_.begin(), places_.end(),
                                  [rank = ranks.first()](const protocol::NodePlace& node) { return node.has(rank); });
  if (first == places_.end()) return false;
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return !first->has(rank); });
}

protocol::RankSet RankDevices::leaders() const noexcept {
  protocol::RankSet leaders;
  for (const protocol::NodePlace& node : places_) leaders.add(node.first_rank);
  return leaders;
}

bool RankDevices::go_through_host(int from, int to) const noexcept {
  const bool is_from_gpu = kind_of(from) == DeviceKind::cuda;
  const bool is_to_gpu = kind_of(to) == DeviceKind::cuda;
  const auto has_one = [&](const protocol::NodePlace& node) { return node.has(from) != node.has(to); };
  if (std::any_of(places_.begin(), places_.end(), has_one)) return is_from_gpu || is_to_gpu;
  return is_from_gpu && (!is_to_gpu || closed_.has(from));
}

std::string RankDevices::describe(const protocol::RankSet& ranks, DeviceKind kind) const {
  constexpr int kMostListed = 3;
  std::string text;
  int listed = 0;
  int others = 0;
  for (const int rank : ranks) {
    if (kind_of(rank) != kind) continue;
    if (listed == kMostListed) {
      ++others;
      continue;
    }
    ++listed;
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (" +
            to_string(devices_[static_cast<std::size_t>(rank)]) + ")";
  }
  return others == 0 ? text : text + " and " + std::to_string(others) + " more";
}

}  // namespace syncrun::detail::master::devices
