#pragma once

// Tells the process that made an object from a copy of it that a fork made, without a system call: the kernel clears a page
// in the copy. A child that shares its parent's memory (vfork) looks like the parent here: only its process id differs.

#include <sys/mman.h>
#include <unistd.h>

#include "common/errors.hpp"

namespace syncrun::detail {

class ForkGuard {
 public:
  /// Throws Error (system) if no page can be mapped.
  ForkGuard() : page_(::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (page_ == MAP_FAILED || ::madvise(page_, page_bytes(), MADV_WIPEONFORK) != 0) throw_errno("cannot map a page");
    *static_cast<volatile char*>(page_) = 1;
  }
  ~ForkGuard() { ::munmap(page_, page_bytes()); }
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  /// False in a child that was forked after this object was made. One load.
  bool is_here() const noexcept { return *static_cast<const volatile char*>(page_) != 0; }

 private:
  static std::size_t page_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }
  void* page_;
};

}  // namespace syncrun::detail
