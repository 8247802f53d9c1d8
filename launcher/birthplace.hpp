#pragma once

// Whether this is the process that made an object, or a copy of it that came of a fork: told without a system call, by a
// page that the kernel clears in the copy.

#include <sys/mman.h>
#include <unistd.h>

#include "common/errors.hpp"

namespace syncrun::detail {

class Birthplace {
 public:
  Birthplace() : page_(::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (page_ == MAP_FAILED || ::madvise(page_, page_bytes(), MADV_WIPEONFORK) != 0) throw_errno("cannot map a page");
    *static_cast<volatile char*>(page_) = 1;
  }
  ~Birthplace() { ::munmap(page_, page_bytes()); }
  Birthplace(const Birthplace&) = delete;
  Birthplace& operator=(const Birthplace&) = delete;

  bool is_here() const noexcept { return *static_cast<const volatile char*>(page_) != 0; }

 private:
  static std::size_t page_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }
  void* page_;
};

}  // namespace syncrun::detail
