#include "common/os/shared_heap.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "common/os/heap_log.hpp"
#include "common/os/memory_limit.hpp"
#include "common/os/segment.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::os {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHeapLineBytes = 64;
constexpr std::size_t kPagedFrom = std::size_t{64} << 10U;
// If a signal arrives during fallocate on shared memory, the work of the call is lost and it has to start again. So the
// heap reserves memory in steps of this size.
constexpr std::size_t kReserveStep = std::size_t{256} << 20U;
// The heap does not check the memory limit for smaller requests: reading the limit costs more than the request itself.
constexpr std::size_t kCheckedFrom = std::size_t{8} << 20U;

constexpr std::size_t kGrowthStep = std::size_t{8} << 20U;

constexpr std::size_t kHugePage = std::size_t{2} << 20U;

constexpr std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

}  // namespace

SharedHeap::SharedHeap(const Segment& segment, std::uint64_t begin, std::uint64_t bytes, Pages pages)
    : segment_(&segment), capacity_bytes_(bytes), pages_(pages) {
  free_[begin] = {bytes, false};
}

std::uint64_t SharedHeap::allocate(std::size_t bytes, Contents contents, std::string_view what) {
  const std::size_t alignment = bytes >= kPagedFrom ? kPage : kHeapLineBytes;
  if (bytes > capacity_bytes_) {
    throw Error(ErrorKind::system,
                std::string(what) + " requires " + std::to_string(bytes) + " bytes of shared memory; the segment has " +
                    std::to_string(capacity_bytes_),
                ENOMEM);
  }
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), alignment);

  // Best fit among the extents that are large enough. Dirty extents come first, because they already have pages.
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const std::size_t waste = round_up(it->first, alignment) - it->first;
    if (it->second.bytes < size + waste) continue;
    const auto better = [&] {
      if (it->second.dirty != best->second.dirty) return it->second.dirty;
      return it->second.bytes < best->second.bytes;
    };
    if (best == free_.end() || better()) best = it;
  }
  if (best == free_.end()) {
    throw Error(ErrorKind::system,
                std::string(what) + " requires " + std::to_string(bytes) +
                    " bytes of shared memory; of the segment's " + std::to_string(capacity_bytes_) + " bytes, " +
                    std::to_string(used_bytes_) + " are in use",
                ENOMEM);
  }

  const auto [start, extent] = *best;
  const std::uint64_t offset = round_up(start, alignment);
  const std::uint64_t end = start + extent.bytes;
  if (bytes >= kPagedFrom) {
    try {
      reserve(offset, size, what);
    } catch (const Error&) {
      if (pages_ == Pages::kept || !trim()) throw;
      return allocate(bytes, contents, what);  // ends after one round, since no dirty extents are left
    }
  }
  if (used_bytes_ + size >= next_growth_bytes_) [[unlikely]]
    report_growth(used_bytes_ + size);
  free_.erase(best);
  if (offset != start) insert_free(start, {offset - start, extent.dirty});
  if (offset + size != end) insert_free(offset + size, {end - offset - size, extent.dirty});
  used_[offset] = {size};
  used_bytes_ += size;
  if (contents == Contents::zero && extent.dirty) std::memset(segment_->at(offset), 0, size);
  if (log_ != nullptr) [[unlikely]] {
    log_->add({HeapChange::Kind::reserved, offset, size});
    log_->add({HeapChange::Kind::written, offset, bytes});
  }
  return offset;
}

void SharedHeap::watch_growth(Growth growth) {
  growth_ = std::move(growth);
  next_growth_bytes_ = kGrowthStep;
}

void SharedHeap::report_growth(std::size_t used_bytes) {
  next_growth_bytes_ = used_bytes + kGrowthStep;
  growth_(used_bytes);
}

void SharedHeap::send_by_rows(std::uint64_t offset) {
  if (log_ == nullptr) return;
  log_->take_back(HeapChange::Kind::written, offset);
  log_->add({HeapChange::Kind::mirrored, offset, size_of(offset)});
}

void SharedHeap::leave_to_nodes(std::uint64_t offset) {
  if (log_ == nullptr) return;
  log_->take_back(HeapChange::Kind::written, offset);
  log_->take_back(HeapChange::Kind::reserved, offset);
  log_->add({HeapChange::Kind::mirrored, offset, size_of(offset)});
}

void SharedHeap::note_rows_there(std::uint64_t offset, std::size_t bytes) {
  if (log_ != nullptr) log_->add({HeapChange::Kind::rows_there, offset, bytes});
}

void SharedHeap::note_rows_there(std::uint64_t offset, std::size_t bytes, int node) {
  if (log_ != nullptr) log_->add({HeapChange::Kind::rows_there, offset, bytes, node});
}

void SharedHeap::note_rows_written(std::uint64_t offset, std::size_t bytes) {
  if (log_ != nullptr) log_->add({HeapChange::Kind::rows_written, offset, bytes});
}

void SharedHeap::note_freed(std::uint64_t offset, std::size_t bytes) noexcept {
  try {
    log_->add({HeapChange::Kind::freed, offset, bytes});
  } catch (const std::bad_alloc&) {
    // The other nodes keep the pages.
  }
}

void SharedHeap::note_written(std::uint64_t offset, std::size_t bytes) {
  if (log_ != nullptr) log_->add({HeapChange::Kind::written, offset, bytes});
}

void SharedHeap::free(std::uint64_t offset, Giveback giveback) noexcept {
  const auto it = used_.find(offset);
  if (it == used_.end()) return;
  if (keeps_freed_) [[unlikely]] {
    it->second.is_kept = true;
    return;
  }
  const std::size_t size = it->second.bytes;
  used_.erase(it);
  used_bytes_ -= size;
  if (log_ != nullptr) [[unlikely]]
    note_freed(offset, size);
  const bool returned = giveback == Giveback::now && pages_ == Pages::returned && size >= kPagedFrom &&
                        segment_->is_intact() &&
                        ::fallocate(segment_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                    static_cast<off_t>(offset), static_cast<off_t>(size)) == 0;
  insert_free(offset, {size, !returned});
}

void SharedHeap::release_kept() noexcept {
  keeps_freed_ = false;
  for (auto it = used_.begin(); it != used_.end();) {
    const auto extent = it++;  // free() erases it
    if (extent->second.is_kept) free(extent->first, Giveback::later);
  }
}

/// Merges an extent with its free neighbours, but not a clean one with a dirty one. So memory that is known to be zero
/// is not cleared again.
void SharedHeap::insert_free(std::uint64_t offset, Free extent) {
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + extent.bytes == next->first && next->second.dirty == extent.dirty) {
    extent.bytes += next->second.bytes;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto previous = std::prev(after);
    if (previous->first + previous->second.bytes == offset && previous->second.dirty == extent.dirty) {
      previous->second.bytes += extent.bytes;
      return;
    }
  }
  free_[offset] = extent;
}

void SharedHeap::reserve(std::uint64_t offset, std::size_t bytes, std::string_view what) {
  if (!segment_->is_intact()) throw text::descriptors_closed("the shared memory");
  if (bytes >= kCheckedFrom) check_memory_available(bytes, what);
  if (pages_ == Pages::kept) ask_for_huge_pages(offset, bytes);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t step = std::min(kReserveStep, bytes - done);
    if (::fallocate(segment_->fd(), 0, static_cast<off_t>(offset + done), static_cast<off_t>(step)) == 0) {
      done += step;
    } else if (errno != EINTR) {
      const int code = errno;
      if (pages_ == Pages::returned) {
        ::fallocate(segment_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes));
      }
      text::throw_errno("cannot reserve " + std::to_string(bytes) + " bytes of shared memory for " + std::string(what),
                        code);
    }
  }
}

/// Makes the kernel use huge pages for those that lie within an extent, if the system has any for shared memory
/// (shmem_enabled: advise or always). A GPU then has fewer pages to pin. Ignores errors: the caller then reserves the
/// whole extent with fallocate, which reports them.
void SharedHeap::ask_for_huge_pages(std::uint64_t offset, std::size_t bytes) noexcept {
  const std::uint64_t first = round_up(offset, kHugePage);
  const std::uint64_t last = (offset + bytes) / kHugePage * kHugePage;
  if (last <= first || ::madvise(segment_->at(first), last - first, MADV_HUGEPAGE) != 0) return;
  static_cast<void>(::madvise(segment_->at(first), last - first, MADV_POPULATE_WRITE));
}

void SharedHeap::note_used_before() noexcept {
  for (auto& [offset, extent] : free_) extent.dirty = true;
}

bool SharedHeap::trim() noexcept {
  if (!segment_->is_intact()) return false;
  bool any = false;
  for (auto& [offset, extent] : free_) {
    if (!extent.dirty || extent.bytes < kPage) continue;
    const std::uint64_t first = round_up(offset, kPage);
    const std::uint64_t last = (offset + extent.bytes) / kPage * kPage;
    if (last <= first) continue;
    if (::fallocate(segment_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
                    static_cast<off_t>(last - first)) != 0) {
      continue;
    }
    std::memset(segment_->at(offset), 0, first - offset);
    std::memset(segment_->at(last), 0, offset + extent.bytes - last);
    extent.dirty = false;
    any = true;
  }
  return any;
}

}  // namespace syncrun::detail::os
