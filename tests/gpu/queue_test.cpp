// Batches of a queue on GPUs. The workers copy from the memory to which the producers wrote. A producer must not fill a
// slot again before its rows have arrived.

#include <vector>

#include "tests/gpu/bodies.hpp"
#include "tests/gpu/on_gpus.hpp"

namespace gpu_test {
namespace {

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kWidth = 64;

struct Images {
  sr::Data<float, 2> pixels;
};

/// Pushes batch after batch. Row i contains producer * 1e6 + batch * 1e4 + i.
void build(sr::Producer<Images>& out, int batches) {
  for (int batch = 0; batch < batches; ++batch) {
    auto draft = out.next();
    if (!draft) return;
    const auto pixels = draft.array();
    const std::int64_t rows = batch == batches - 1 ? kRows - 1 : kRows;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (auto& value : pixels[row]) value = static_cast<float>(out.index() * 1'000'000 + batch * 10'000 + row);
    }
    draft.push(rows);
  }
}

class GpuQueue : public OnGpus {};
INSTANTIATE_ON_GPUS(GpuQueue);

TEST_P(GpuQueue, GivesWorkersWhatProducersWrote) {
  constexpr int kBatches = 6;
  constexpr int kProducers = 2;
  const auto f = session().function(copy_rows);  // adds the number of the row
  auto queue = session().producers(kProducers, build, {{kRows, kWidth}}, {.capacity = kProducers}, kBatches);
  // The calls are in flight, and the handles of their batches are gone. The slots return to the producers when the
  // calls end.
  std::vector<sr::Future<sr::Gather<float, 2>>> futures;
  while (const auto batch = queue.next()) futures.push_back(f.async(batch->pixels));
  ASSERT_EQ(futures.size(), static_cast<std::size_t>(kBatches * kProducers));
  for (std::size_t i = 0; i < futures.size(); ++i) {
    const auto got = futures[i].get();
    const auto producer = static_cast<std::int64_t>(i) % kProducers;
    const auto batch = static_cast<std::int64_t>(i) / kProducers;
    ASSERT_EQ(got.rows(), batch == kBatches - 1 ? kRows - 1 : kRows);
    for (std::int64_t row = 0; row < got.rows(); ++row) {
      const auto wanted = static_cast<float>(producer * 1'000'000 + batch * 10'000 + 2 * row);
      ASSERT_EQ(got(row, 0), wanted) << "batch " << i << ", row " << row;
      ASSERT_EQ(got(row, kWidth - 1), wanted);
    }
  }
}

TEST_P(GpuQueue, GivesItsMemoryBackToTheSession) {
  const auto f = session().function(copy_rows);
  for (int round = 0; round < 5; ++round) {
    {
      auto queue = session().producers(2, build, {{kRows, kWidth}}, {}, 2);
      for (const Images& batch : queue) static_cast<void>(f(batch.pixels));
    }
    // The pinned memory of a batch is now the memory of a Data.
    const auto x =
        session().data(std::vector<float>(kRows * kWidth, static_cast<float>(round)), sr::Shape{kRows, kWidth});
    const auto got = f(x);
    for (std::int64_t row = 0; row < kRows; ++row) ASSERT_EQ(got(row, 5), static_cast<float>(round + row));
  }
}

}  // namespace
}  // namespace gpu_test
