#pragma once

// ForkGuard tells whether this process constructed it, or is a child that was forked afterwards. The check needs no
// system call: the kernel clears the guard's page of memory in a forked child. It does not recognise a child of vfork,
// which shares the memory of its parent. Only the process id of such a child differs.

#include <sys/mman.h>
#include <unistd.h>

#include "common/text/errors.hpp"

namespace syncrun::detail::os {

class ForkGuard {
 public:
  /// Throws Error (system) if no page can be mapped.
  ForkGuard() : page_(::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (page_ == MAP_FAILED || ::madvise(page_, page_bytes(), MADV_WIPEONFORK) != 0)
      text::throw_errno("cannot map a page");
    *static_cast<volatile char*>(page_) = 1;
  }
  ~ForkGuard() { ::munmap(page_, page_bytes()); }
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  /// False in a child that was forked after this object was constructed. Costs one load.
  bool is_here() const noexcept { return *static_cast<const volatile char*>(page_) != 0; }

 private:
  static std::size_t page_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }
  void* page_;
};

}  // namespace syncrun::detail::os
