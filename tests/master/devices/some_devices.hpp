#pragma once

// Devices and cores in few words.

#include <numeric>
#include <vector>

#include "master/devices/chosen_devices.hpp"

namespace syncrun::test {

constexpr detail::master::devices::DeviceId cpu(int index) { return {detail::DeviceKind::cpu, index}; }
constexpr detail::master::devices::DeviceId cuda(int index) { return {detail::DeviceKind::cuda, index}; }

/// The numbers from `first` to `last`.
inline std::vector<int> counting(int first, int last) {
  std::vector<int> numbers(static_cast<std::size_t>(last - first + 1));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace syncrun::test
