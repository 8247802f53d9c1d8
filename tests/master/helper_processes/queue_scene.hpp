#pragma once

// Batches in which each value identifies its producer, batch and row, and functions for addresses in the shared memory.

#include <atomic>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace syncrun::test {

/// Each value of a row is number_of(producer, batch, row). The label is the parity of the row's number in the batch.
struct Numbered {
  Data<std::int64_t, 2> rows;
  Data<std::uint8_t, 1> labels;
};

constexpr std::int64_t kColumns = 3;
constexpr std::int64_t number_of(int producer, int batch, std::int64_t row) {
  return producer * 1'000'000 + batch * 1'000 + row;
}

/// Producer i pushes counts[i] batches. Its last batch has only `last_rows` rows.
inline void build_numbered(Producer<Numbered>& out, const std::vector<int>& counts, std::int64_t last_rows) {
  const int mine = counts[static_cast<std::size_t>(out.index())];
  for (int batch = 0; batch < mine; ++batch) {
    auto draft = out.next();
    if (!draft) return;
    auto [rows, labels] = draft.arrays();
    for (std::int64_t row = 0; row < rows.rows(); ++row) {
      for (auto& value : rows[row]) value = number_of(out.index(), batch, row);
      labels[row] = row % 2 == 0 ? 0 : 1;
    }
    if (batch == mine - 1) draft.push(last_rows);
    else draft.push();
  }
}

/// The address range at which this process has mapped the shared memory.
struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};
inline Mapping shared_mapping() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:syncrun") == std::string::npos) continue;
    Mapping mapping;
    char dash = 0;
    std::istringstream(line) >> std::hex >> mapping.begin >> dash >> mapping.end;
    return mapping;
  }
  throw std::runtime_error("this process has no shared memory");
}

/// The offset of an address in the shared memory. It is the same in every process that has mapped the memory.
inline std::int64_t place_in_segment(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  const Mapping mapping = shared_mapping();
  if (wanted < mapping.begin || wanted >= mapping.end) throw std::runtime_error("not in shared memory");
  return static_cast<std::int64_t>(wanted - mapping.begin);
}

/// The number at this offset in the shared memory. It is atomic, because another process may read it at the same time
/// (for example, a number of a Board).
inline std::atomic_ref<std::int64_t> number_at(std::int64_t place) {
  return std::atomic_ref(*reinterpret_cast<std::int64_t*>(shared_mapping().begin + static_cast<std::uintptr_t>(place)));
}

}  // namespace syncrun::test
