#pragma once

// Batches that say who built them, and where things lie in shared memory.

#include <atomic>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace syncrun::test {

/// Every row: a number that says producer, batch and row; the label is the row's parity.
struct Numbered {
  Data<std::int64_t, 2> rows;
  Data<std::uint8_t, 1> labels;
};

constexpr std::int64_t kColumns = 3;
constexpr std::int64_t number_of(int producer, int batch, std::int64_t row) {
  return producer * 1'000'000 + batch * 1'000 + row;
}

/// Producer i pushes counts[i] batches; the last of them has `last_rows` rows only.
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

/// The shared memory as this process has it mapped.
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

/// Where an address lies in the shared memory: the same in every process that has it.
inline std::int64_t place_in_segment(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  const Mapping mapping = shared_mapping();
  if (wanted < mapping.begin || wanted >= mapping.end) throw std::runtime_error("not in shared memory");
  return static_cast<std::int64_t>(wanted - mapping.begin);
}

/// The other way round, of a number (of a Board's, which somebody else looks at meanwhile).
inline std::atomic_ref<std::int64_t> number_at(std::int64_t place) {
  return std::atomic_ref(*reinterpret_cast<std::int64_t*>(shared_mapping().begin + static_cast<std::uintptr_t>(place)));
}

}  // namespace syncrun::test
