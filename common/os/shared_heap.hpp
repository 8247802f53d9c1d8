#pragma once

// Allocation in a part of the segment. One process owns the part, and only this process knows which extents are free.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string_view>

#include "common/export_for_cuda.hpp"

namespace syncrun::detail::os {

class HeapLog;
class Segment;

/// Allocates extents of the range [begin, begin + bytes) of a segment. For extents of 64 KiB or more, it reserves the
/// memory at once. So if memory runs out, the allocation throws, and there is no SIGBUS later. Not thread-safe: one
/// thread of the owner uses it.
class SharedHeap {
 public:
  enum class Contents : std::uint8_t { zero, any };
  enum class Giveback : std::uint8_t {
    now,    ///< Return the pages to the system.
    later,  ///< Keep the pages for the next allocation.
  };

  /// Whether free() may return pages to the system. It must not while a GPU may have pinned them: the GPU would
  /// continue to use pages that no longer belong to the segment. Kept pages are huge pages if the system allows it.
  enum class Pages : std::uint8_t { returned, kept };

  SharedHeap() = default;
  SharedHeap(const Segment& segment, std::uint64_t begin, std::uint64_t bytes, Pages pages = Pages::returned);

  /// Returns the offset of an extent of at least `bytes`, aligned to 64 bytes, or to a page if it has 64 KiB or more.
  /// Throws Error (system; ENOMEM if the segment or the memory is too small). The message contains `what`, which says
  /// what the memory is for, and how many bytes were requested.
  SYNCRUN_EXPORT_FOR_CUDA std::uint64_t allocate(std::size_t bytes, Contents contents, std::string_view what);
  /// Frees the extent at `offset`. With Pages::kept, Giveback::now is treated as Giveback::later.
  SYNCRUN_EXPORT_FOR_CUDA void free(std::uint64_t offset, Giveback giveback) noexcept;
  /// From now on, free() keeps extents, because another process may still write to them. Only release_kept() frees them.
  void keep_freed() noexcept { keeps_freed_ = true; }
  /// Frees the extents that were kept, and ends keep_freed().
  void release_kept() noexcept;
  /// Returns the pages of free extents to the system, even with Pages::kept. The caller must know that no GPU has
  /// pinned them. Returns false if it returned no pages.
  bool trim() noexcept;
  /// Records that another process used this memory before, so that no part of it is assumed to be zero. The owner calls
  /// it before the first allocation.
  void note_used_before() noexcept;

  /// From now on, notes all changes there. The contents of a new extent count as written. `log` outlives the heap. The log
  /// says nothing about earlier extents, so they stay until the heap ends.
  void note_changes(HeapLog& log) noexcept { log_ = &log; }
  /// The new extent contains rows. A row travels to a node with the first command that reads it there, and all contents
  /// do not travel with the next command. Called directly after the allocation.
  void send_by_rows(std::uint64_t offset);
  /// Each node makes the new extent itself, and writes its contents. Nothing about it travels, except that it is freed,
  /// and rows that the owner changes later. Called directly after the allocation.
  void leave_to_nodes(std::uint64_t offset);
  /// Each node has written these bytes of such an extent, or this node has.
  void note_rows_there(std::uint64_t offset, std::size_t bytes);
  void note_rows_there(std::uint64_t offset, std::size_t bytes, int node);
  /// The owner has changed these bytes of an extent with rows.
  void note_rows_written(std::uint64_t offset, std::size_t bytes);
  /// The owner has changed these bytes of an extent after a command was published that may refer to them.
  void note_written(std::uint64_t offset, std::size_t bytes);

  /// Called with the bytes in use each time that they have grown by another 8 MiB or more, before the new memory is
  /// written.
  using Growth = std::function<void(std::size_t used_bytes)>;
  void watch_growth(Growth growth);

  std::size_t used_bytes() const noexcept { return used_bytes_; }
  std::size_t size_of(std::uint64_t offset) const { return used_.at(offset).bytes; }

 private:
  struct Free {
    std::size_t bytes;
    bool dirty;  // it may have pages with old contents
  };
  struct Used {
    std::size_t bytes;
    bool is_kept = false;  // it was freed after keep_freed()
  };
  void insert_free(std::uint64_t offset, Free extent);
  void note_freed(std::uint64_t offset, std::size_t bytes) noexcept;
  void ask_for_huge_pages(std::uint64_t offset, std::size_t bytes) noexcept;
  void reserve(std::uint64_t offset, std::size_t bytes, std::string_view what);
  void report_growth(std::size_t used_bytes);

  const Segment* segment_ = nullptr;
  HeapLog* log_ = nullptr;  // null unless the session has several nodes
  std::size_t capacity_bytes_ = 0;
  Pages pages_ = Pages::returned;
  std::map<std::uint64_t, Free> free_;
  std::map<std::uint64_t, Used> used_;
  std::size_t used_bytes_ = 0;
  bool keeps_freed_ = false;
  Growth growth_;
  std::size_t next_growth_bytes_ = std::numeric_limits<std::size_t>::max();
};

}  // namespace syncrun::detail::os
