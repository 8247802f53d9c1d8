#pragma once

// The shared segment: one anonymous file (memfd) that every process maps once. Each process reserves far more address
// space than the session uses, and only used pages take memory. So the mapping never changes, and an offset identifies
// a place in every process. The file has no name, so it cannot stay behind when processes die.

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/os/file_descriptor.hpp"

namespace syncrun::detail::os {

class Segment {
 public:
  Segment() = default;
  /// Creates a segment and reserves `bytes` of address space for it. If the system refuses, tries half as many bytes
  /// again and again, but not fewer than `least`. Throws Error (system).
  static Segment create(std::size_t bytes, std::size_t least = kSmallestReservation);
  static constexpr std::size_t kSmallestReservation = std::size_t{1} << 30U;
  /// Maps the segment of an inherited descriptor. `bytes` is the size of the segment. Throws Error (system).
  static Segment attach(FileDescriptor fd, std::size_t bytes);

  std::byte* base() const noexcept { return static_cast<std::byte*>(region_.get_address()); }
  std::size_t bytes() const noexcept { return region_.get_size(); }
  int fd() const noexcept { return fd_.get(); }
  /// False once the program has closed the descriptor. The memory then stays mapped, but its pages can no longer be
  /// reserved or returned to the system, and no further process can attach.
  bool is_intact() const noexcept { return fd_.is_intact(); }

  /// Takes memory for a part of the segment, so that no process gets SIGBUS there later. `what` is for the message, such as
  /// "a queue". Throws Error (system).
  void reserve(std::uint64_t offset, std::uint64_t bytes, std::string_view what) const;

  /// Maps whole pages of the segment to `address`, in place of what is mapped there. The process sees them as they are until
  /// it writes to one: then it gets a page of its own. Throws Error (system).
  void map_privately(void* address, std::uint64_t offset, std::size_t bytes) const;
  static std::size_t page_bytes() noexcept;

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

/// The bytes of address space to reserve: the value of SYNCRUN_RESERVE_BYTES if it is set, otherwise 1 TiB. A build
/// with the thread sanitizer has less address space and reserves 64 GiB. Throws Error (usage) for a bad value.
std::size_t default_reservation_bytes();

}  // namespace syncrun::detail::os
