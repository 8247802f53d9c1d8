#pragma once

// The shared segment: one anonymous file (memfd), mapped once by every process, at most once grown past: the mapping is
// reserved far beyond what is used, so allocation is an offset and nothing is ever mapped again. Nothing has a name, so
// nothing is left behind whatever dies.

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>

#include "common/file_descriptor.hpp"

namespace syncrun::detail {

class Segment {
 public:
  Segment() = default;
  /// Makes a segment; reserves `bytes` of address space, or half as much as often as it takes, down to `least`, where the
  /// system does not give it. Throws Error (system).
  static Segment create(std::size_t bytes, std::size_t least = kSmallestReservation);
  static constexpr std::size_t kSmallestReservation = std::size_t{1} << 30U;
  /// Maps the segment behind an inherited descriptor.
  static Segment attach(FileDescriptor fd, std::size_t bytes);

  std::byte* base() const noexcept { return static_cast<std::byte*>(region_.get_address()); }
  std::size_t bytes() const noexcept { return region_.get_size(); }
  int fd() const noexcept { return fd_.get(); }
  /// False once the program has closed the descriptor: the memory stays mapped, but its pages can be neither reserved
  /// nor given back, and nobody can attach to it any more.
  bool is_intact() const noexcept { return fd_.is_intact(); }

  template <class T = std::byte>
  T* at(std::uint64_t offset) const noexcept {
    return reinterpret_cast<T*>(base() + offset);
  }
  bool contains(const void* address) const noexcept {
    const auto* byte = static_cast<const std::byte*>(address);
    return byte >= base() && byte < base() + bytes();
  }
  std::uint64_t offset_of(const void* address) const noexcept {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - base());
  }

 private:
  KeptDescriptor fd_;
  boost::interprocess::mapped_region region_;
};

/// Address space to reserve unless told otherwise (SYNCRUN_RESERVE_BYTES). Sanitizers leave less.
std::size_t default_reservation_bytes();

}  // namespace syncrun::detail
