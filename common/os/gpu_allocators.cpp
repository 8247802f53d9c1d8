#include "common/os/gpu_allocators.hpp"

#include <algorithm>

#include "common/os/environment.hpp"
#include "common/text/numbers.hpp"

namespace syncrun::detail::os {

GpuAllocators& gpu_allocators() noexcept {
  static GpuAllocators allocators;
  return allocators;
}

std::size_t gpu_limit_bytes(const char* text, std::size_t total) {
  if (text == nullptr) return 0;
  const auto fraction = text::parse_number(text);
  if (!fraction || !(*fraction > 0 && *fraction <= 1))
    environment::throw_bad_value(environment::kGpuMemoryFraction, text, "a number above 0 and at most 1");
  return std::max<std::size_t>(static_cast<std::size_t>(*fraction * static_cast<double>(total)), 1);
}

}  // namespace syncrun::detail::os
