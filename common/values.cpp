// What every process of a session asks of arrays in its own memory: the master that passes values, and the bodies that
// return some.

#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <new>
#include <string>

#include "common/errors.hpp"
#include "common/extents.hpp"
#include "common/memory_limit.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/worker_seam.hpp"

namespace syncrun::detail {

namespace {
// Results from this size on are held against the memory limit: looking it up is nothing beside copying them.
constexpr std::size_t kCheckedHeapFrom = std::size_t{64} << 20U;
}  // namespace

void check_count(std::size_t count, std::span<const std::int64_t> extents) {
  const std::size_t wanted = checked_bytes(DType::uint8, extents);
  if (count != wanted) {
    throw_usage("shape " + syncrun::to_string(extents) + " wants " + std::to_string(wanted) + " values, got " +
                std::to_string(count));
  }
}

std::size_t checked_size(DType dtype, std::span<const std::int64_t> extents) { return checked_bytes(dtype, extents); }

void refuse_value(DType to, std::size_t position, long double value) {
  std::array<char, 64> number{};
  std::snprintf(number.data(), number.size(), "%.17Lg", value);
  throw_usage(std::string("value ") + number.data() + " at position " + std::to_string(position) +
              " is out of the range of " + std::string(syncrun::to_string(to)));
}

OutputBuffer allocate_on_heap(std::size_t bytes) {
  if (bytes == 0) return {};
  if (bytes >= kCheckedHeapFrom) check_memory_available(bytes, "a result", "this process's own memory");
  void* memory = ::operator new(bytes, std::align_val_t(64), std::nothrow);
  if (memory == nullptr) {
    throw_errno("a result wants " + std::to_string(bytes) + " bytes of this process's own memory (" +
                    limit_text(RLIMIT_AS) + ", " + limit_text(RLIMIT_DATA) + ")",
                ENOMEM);
  }
  return {memory, bytes, [](void* data, void*) noexcept { ::operator delete(data, std::align_val_t(64)); }, nullptr};
}

}  // namespace syncrun::detail
