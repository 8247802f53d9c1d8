#pragma once

// Allocation in a part of the segment: which extents are free is known to the one process that owns the part.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "common/export_for_cuda.hpp"

namespace syncrun::detail {

class Segment;

/// Hands out extents of [begin, begin + bytes) of a segment. Memory is reserved when it is asked for, so that running
/// out is an exception here and not a SIGBUS later. Not thread-safe: one owner, one thread.
class SharedHeap {
 public:
  enum class Contents : std::uint8_t { zero, any };
  enum class Giveback : std::uint8_t {
    now,    ///< Pages go back to the system.
    later,  ///< Pages are kept for the next allocation.
  };

  /// Whether the pages of free extents may be given back: not while a GPU may have them pinned, since it would go on
  /// using pages that are no longer the segment's. Kept pages are huge ones where the system allows it.
  enum class Pages : std::uint8_t { returned, kept };

  SharedHeap() = default;
  SharedHeap(const Segment& segment, std::uint64_t begin, std::uint64_t bytes, Pages pages = Pages::returned);

  /// An extent of at least `bytes`, aligned to 64 bytes (to a page from 64 KiB on). Throws Error (system, ENOMEM) that
  /// says how much was wanted and there was. `what` it is for stands in that message.
  SYNCRUN_EXPORT_FOR_CUDA std::uint64_t allocate(std::size_t bytes, Contents contents, std::string_view what);
  /// Pages::kept makes every giveback a later one.
  SYNCRUN_EXPORT_FOR_CUDA void free(std::uint64_t offset, Giveback giveback) noexcept;
  /// Gives the pages of free extents back, also where they are kept: the caller knows that nobody has pinned them.
  bool trim() noexcept;
  /// Another process has had this memory before: nothing of it is known to be zero. Before the first allocation.
  void note_used_before() noexcept;

  std::size_t used_bytes() const noexcept { return used_bytes_; }
  std::size_t size_of(std::uint64_t offset) const { return used_.at(offset); }

 private:
  struct Free {
    std::size_t bytes;
    bool dirty;  // pages may be there and hold old contents
  };
  void insert_free(std::uint64_t offset, Free extent);
  void ask_for_huge_pages(std::uint64_t offset, std::size_t bytes) noexcept;
  void reserve(std::uint64_t offset, std::size_t bytes, std::string_view what);

  const Segment* segment_ = nullptr;
  std::size_t capacity_bytes_ = 0;
  Pages pages_ = Pages::returned;
  std::map<std::uint64_t, Free> free_;
  std::map<std::uint64_t, std::size_t> used_;
  std::size_t used_bytes_ = 0;
};

}  // namespace syncrun::detail
