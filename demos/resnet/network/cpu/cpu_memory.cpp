#include "demos/resnet/network/cpu/cpu_memory.hpp"

#include <algorithm>
#include <new>

#include "demos/resnet/network/memory_need.hpp"

namespace resnet {
namespace {

std::size_t pooled_elements(const Architecture& architecture) {
  return architecture.pooled_size() * architecture.pooled_size() * architecture.stem().channels_out;
}

}  // namespace

/// Divides a block of memory into consecutive parts. Without a block, it only counts how much memory is needed.
class CpuMemory::Parts {
 public:
  explicit Parts(float* base) : base_(base) {}

  float* take(std::size_t elements) {
    constexpr std::size_t kAlignment = 16;
    float* const part = base_ == nullptr ? nullptr : base_ + taken_;
    taken_ += (elements + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }
  std::size_t taken() const { return taken_; }

 private:
  float* base_;
  std::size_t taken_ = 0;
};

CpuMemory::CpuMemory(const Architecture& architecture)
    : units(architecture.units.size()), architecture_(architecture), is_shortcut_(units.size()) {
  const auto is_smaller = [](const ConvUnit& a, const ConvUnit& b) { return a.elements_out() < b.elements_out(); };
  const auto& all = architecture_.units;
  largest_elements_ = std::max_element(all.begin(), all.end(), is_smaller)->elements_out();
  for (const Block& block : architecture_.blocks) {
    if (block.shortcut) is_shortcut_[*block.shortcut] = true;
  }
}

void CpuMemory::reserve(Purpose purpose, std::size_t rows) {
  Parts counted(nullptr);
  lay_out(purpose, rows, counted);
  const std::size_t taps_count = purpose == Purpose::kTraining ? rows * pooled_elements(architecture_) : 0;
  try {
    values_.reserve(counted.taken());
    taps_.reserve(taps_count);
  } catch (const std::bad_alloc& failure) {
    throw too_many_rows(rows, counted.taken() * sizeof(float) + taps_count * sizeof(std::int32_t), failure.what());
  }
  taps = taps_.data();
  Parts parts(values_.data());
  lay_out(purpose, rows, parts);
}

void CpuMemory::lay_out(Purpose purpose, std::size_t rows, Parts& parts) {
  features = parts.take(rows * architecture_.features);
  if (purpose == Purpose::kTraining) return lay_out_training(rows, parts);
  lay_out_inference(rows, parts);
}

void CpuMemory::lay_out_training(std::size_t rows, Parts& parts) {
  for (float*& delta : deltas) delta = parts.take(rows * largest_elements_);
  // The output of a shortcut is needed only until it is added. There are no gradients before that, so it can use the
  // memory of deltas[0].
  for (std::size_t i = 0; i < units.size(); ++i) {
    const std::size_t elements = rows * architecture_.units[i].elements_out();
    units[i].convolved = parts.take(elements);
    units[i].output = is_shortcut_[i] ? deltas[0] : parts.take(elements);
  }
  pooled = parts.take(rows * pooled_elements(architecture_));
  dlogits = parts.take(rows * architecture_.spec.classes);
  dfeatures = parts.take(rows * architecture_.features);
}

void CpuMemory::lay_out_inference(std::size_t rows, Parts& parts) {
  std::array<float*, 4> four{};  // the input of a block, the outputs of its units in turn, the output of its shortcut
  for (float*& one : four) one = parts.take(rows * largest_elements_);
  units[0] = {four[1], four[1]};
  pooled = four[0];
  for (const Block& block : architecture_.blocks) {
    for (std::size_t i = 0; i < block.unit_count; ++i) {
      float* const values = four[1 + i % 2];
      units[block.first_unit + i] = {values, values};
    }
    if (block.shortcut) units[*block.shortcut] = {four[3], four[3]};
    std::swap(four[0], four[1 + (block.unit_count - 1) % 2]);
  }
}

}  // namespace resnet
