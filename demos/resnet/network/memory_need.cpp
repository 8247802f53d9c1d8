#include "demos/resnet/network/memory_need.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace resnet {
namespace {

constexpr std::string_view kRowsWant = " rows at once require ";

}  // namespace

std::string gibibytes(std::size_t bytes) {
  const long long tenths = std::llround(static_cast<double>(bytes) / (1 << 30) * 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " GiB";
}

std::runtime_error too_many_rows(std::size_t rows, std::size_t bytes, const std::string& cause) {
  if (!tells_of_short_memory(cause)) return std::runtime_error(cause);
  return std::runtime_error(std::to_string(rows) + std::string(kRowsWant) + gibibytes(bytes) +
                            " of this device's memory (" + cause + "): use a smaller batch or more slices");
}

bool tells_of_short_memory(std::string_view error) {
  constexpr std::array kTexts{kRowsWant,
                              std::string_view("bad_alloc"),
                              std::string_view("out of memory"),
                              std::string_view("out-of-memory killer"),
                              std::string_view("resource allocation failed"),
                              std::string_view(" bytes of shared memory")};
  return std::any_of(kTexts.begin(), kTexts.end(), [&](auto text) { return error.find(text) != error.npos; });
}

}  // namespace resnet
