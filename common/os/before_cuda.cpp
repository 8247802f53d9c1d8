#include "common/os/before_cuda.hpp"

#include <atomic>

namespace syncrun::detail::os {

namespace {

/// Has its value before any global variable is initialized.
constinit std::atomic<LoadLibraries> load_first = nullptr;

}  // namespace

void load_before_cuda(LoadLibraries load) noexcept { load_first.store(load); }

void load_what_comes_before_cuda() {
  if (const LoadLibraries load = load_first.load()) load();
}

}  // namespace syncrun::detail::os
