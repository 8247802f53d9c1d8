#pragma once

// The ranks that run a call: all, one, or a set of them.

#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "syncrun/detail/master_interface.hpp"
#include "syncrun/device.hpp"

namespace syncrun::detail {

class Target {
 public:
  /// All ranks of the session.
  Target() = default;
  static Target only(int rank) noexcept {
    Target target;
    target.rank_ = rank;
    return target;
  }
  /// The ranks of these devices. Several names of one device count once. Throws Error (usage) if there is no device, or
  /// if the same name occurs twice.
  static Target of(std::span<const Device> devices) {
    Target target;
    target.ranks_ = std::make_shared<const std::vector<int>>(ranks_of(devices));
    return target;
  }

  /// Empty: all ranks.
  std::span<const int> ranks() const noexcept {
    if (ranks_) return *ranks_;
    return {&rank_, rank_ < 0 ? std::size_t{0} : std::size_t{1}};
  }

 private:
  int rank_ = -1;
  std::shared_ptr<const std::vector<int>> ranks_;  // of a set
};

}  // namespace syncrun::detail
