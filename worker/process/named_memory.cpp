#include "worker/process/named_memory.hpp"

#include <array>
#include <atomic>
#include <memory>

#include "common/text/fixed_text.hpp"
#include "syncrun/detail/worker_interface.hpp"

namespace syncrun::detail {

/// A range stays in the list for ever, and is used again. So a signal handler can go through the list at any time.
struct NamedRange {
  std::atomic<std::uint64_t> begin{0};  // 0: nobody uses it
  std::uint64_t end = 0;
  std::array<char, 120> name{};
  NamedRange* next = nullptr;
};

namespace {

// A signal handler gets no arguments from Syncrun, so it reads a global variable.
constinit std::atomic<NamedRange*> first_range{nullptr};
constexpr std::uint64_t kTaken = ~std::uint64_t{0};  // while somebody writes it

NamedRange* free_range() {
  for (NamedRange* range = first_range.load(); range != nullptr; range = range->next) {
    std::uint64_t nobody = 0;
    if (range->begin.compare_exchange_strong(nobody, kTaken)) return range;
  }
  auto* const added = std::make_unique<NamedRange>().release();
  added->begin.store(kTaken);
  added->next = first_range.load();
  while (!first_range.compare_exchange_weak(added->next, added)) {
  }
  return added;
}

}  // namespace

NamedMemory::NamedMemory(const void* begin, std::size_t bytes, std::string_view name) : range_(free_range()) {
  const auto address = reinterpret_cast<std::uint64_t>(begin);
  range_->end = address + bytes;
  text::put_text(range_->name, name);
  range_->begin.store(address);
}
NamedMemory::~NamedMemory() { range_->begin.store(0); }

std::string_view worker::process::name_of_memory(std::uint64_t address) noexcept {
  for (const NamedRange* range = first_range.load(); range != nullptr; range = range->next) {
    const std::uint64_t begin = range->begin.load();
    if (begin != 0 && begin != kTaken && begin <= address && address < range->end) return text::get_text(range->name);
  }
  return {};
}

}  // namespace syncrun::detail
