// Checks and allocation for arrays in the memory of one process. The master uses them for the values that it passes,
// and workers for the results that bodies return.

#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <new>
#include <string>

#include "common/arrays/extents.hpp"
#include "common/os/memory_limit.hpp"
#include "common/text/errors.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/worker_interface.hpp"

namespace syncrun::detail {

namespace {
// The memory limit is checked for results of this size or more. To read the limit costs little compared with the copy.
constexpr std::size_t kCheckedHeapFrom = std::size_t{64} << 20U;
}  // namespace

void check_count(std::size_t count, std::span<const std::int64_t> extents) {
  const std::size_t wanted = arrays::checked_bytes(DType::uint8, extents);
  if (count != wanted) {
    text::throw_usage("shape " + syncrun::to_string(extents) + " requires " + std::to_string(wanted) + " values, got " +
                      std::to_string(count));
  }
}

std::size_t checked_size(DType dtype, std::span<const std::int64_t> extents) {
  return arrays::checked_bytes(dtype, extents);
}

void refuse_value(DType to, std::size_t position, long double value) {
  constexpr int kDigits = 17;
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, kDigits);
  text::throw_usage("value " + std::string(text.data(), end.ptr) + " at position " + std::to_string(position) +
                    " is out of the range of " + std::string(syncrun::to_string(to)));
}

OutputBuffer allocate_on_heap(std::size_t bytes) {
  if (bytes == 0) return {};
  if (bytes >= kCheckedHeapFrom) os::check_memory_available(bytes, "a result", "this process's own memory");
  void* memory = ::operator new(bytes, std::align_val_t(64), std::nothrow);
  if (memory == nullptr) {
    text::throw_errno("a result requires " + std::to_string(bytes) + " bytes of this process's own memory (" +
                          text::limit_text(RLIMIT_AS) + ", " + text::limit_text(RLIMIT_DATA) + ")",
                      ENOMEM);
  }
  return {memory, bytes, [](void* data, void*) noexcept { ::operator delete(data, std::align_val_t(64)); }, nullptr};
}

}  // namespace syncrun::detail
