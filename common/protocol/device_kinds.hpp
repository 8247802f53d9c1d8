#pragma once

// A set of kinds of devices: those that the ranks have, or those for which a function has bodies.

#include <cstdint>
#include <initializer_list>

#include "syncrun/detail/call.hpp"

namespace syncrun::detail::protocol {

class DeviceKinds {
 public:
  DeviceKinds() = default;
  DeviceKinds(std::initializer_list<DeviceKind> kinds) noexcept {
    for (const DeviceKind kind : kinds) add(kind);
  }
  void add(DeviceKind kind) noexcept { bits_ = static_cast<std::uint8_t>(bits_ | bit_of(kind)); }
  bool has(DeviceKind kind) const noexcept { return (bits_ & bit_of(kind)) != 0; }
  /// The kinds in this set that are not in `others`.
  DeviceKinds without(DeviceKinds others) const noexcept {
    DeviceKinds rest;
    rest.bits_ = static_cast<std::uint8_t>(bits_ & ~others.bits_);
    return rest;
  }
  bool is_empty() const noexcept { return bits_ == 0; }
  /// Whether there is more than one kind.
  bool is_mixed() const noexcept { return (bits_ & (bits_ - 1U)) != 0; }

 private:
  static std::uint8_t bit_of(DeviceKind kind) noexcept {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(kind));
  }
  std::uint8_t bits_ = 0;
};

}  // namespace syncrun::detail::protocol
