// Data that are mapped files, on GPUs. Their rows arrive through blocks of pinned memory.

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>
#include <vector>

#include "tests/gpu/bodies.hpp"
#include "tests/gpu/on_gpus.hpp"
#include "tests/support/temporary_folder.hpp"

namespace gpu_test {
namespace {

namespace fs = std::filesystem;

// On few GPUs, a share of the rows has several blocks of 4 MiB. On 8, it is smaller than a block. It does not end at
// the end of a block.
constexpr std::int64_t kRows = 3001;
constexpr std::int64_t kWidth = 1027;

class GpuMappedData : public OnGpus {
 protected:
  void SetUp() override {
    OnGpus::SetUp();
    if (IsSkipped()) return;
    std::vector<float> values(kRows * kWidth);
    for (std::int64_t row = 0; row < kRows; ++row) {
      std::fill_n(values.begin() + row * kWidth, kWidth, static_cast<float>(3 * row));
    }
    sr::save(file(), session().data(values, sr::Shape{kRows, kWidth}));
  }
  fs::path file() const { return folder_ / "x.npy"; }
  auto map() { return session().map_npy<float, 2>(file()); }

  /// Row i of `got` is row rows[i] of the file, plus i.
  static void expect_rows(const sr::Gather<float, 2>& got, const std::vector<std::int64_t>& rows) {
    ASSERT_EQ(got.rows(), std::ssize(rows));
    for (std::int64_t i = 0; i < got.rows(); ++i) {
      const auto wanted = static_cast<float>(3 * rows[static_cast<std::size_t>(i)] + i);
      for (const std::int64_t column : {std::int64_t{0}, kWidth / 2, kWidth - 1}) {
        ASSERT_EQ(got(i, column), wanted) << "row " << i << ", column " << column;
      }
    }
  }
  static std::vector<std::int64_t> draw_rows(std::int64_t count, unsigned seed) {
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<std::int64_t> row(0, kRows - 1);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
    std::generate(rows.begin(), rows.end(), [&] { return row(random); });
    return rows;
  }

  TemporaryFolder folder_;
};
INSTANTIATE_ON_GPUS(GpuMappedData);

TEST_P(GpuMappedData, ArrivesWholeInSlicesAndByIndex) {
  const auto x = map();
  const auto f = session().function(copy_rows);
  std::vector<std::int64_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  expect_rows(f(x), all);
  const auto shuffled = draw_rows(2000, 1);
  expect_rows(f(x, {.batch = shuffled}), shuffled);
  expect_rows(f(x, {.batch = shuffled, .slices = 3}), shuffled);
  expect_rows(f(x, {.batch = std::vector<std::int64_t>{5}}), {5});
}

TEST_P(GpuMappedData, IsBroughtAheadForCallsInFlight) {
  const auto x = map();
  const auto f = session().function(copy_rows);
  std::vector<std::vector<std::int64_t>> batches;
  std::vector<sr::Future<sr::Gather<float, 2>>> futures;
  for (unsigned i = 0; i < 8; ++i) batches.push_back(draw_rows(1000 + i, i));
  for (const auto& batch : batches) futures.push_back(f.async(x, {.batch = batch}));
  for (std::size_t i = 0; i < futures.size(); ++i) expect_rows(futures[i].get(), batches[i]);
}

TEST_P(GpuMappedData, ThatIsTruncatedFailsTheCallsByNameAndTheSessionGoesOn) {
  const auto x = map();
  const auto f = session().function(copy_rows);
  const auto rows = draw_rows(1000, 1);
  std::vector<sr::Future<sr::Gather<float, 2>>> futures;
  for (int i = 0; i < 6; ++i) futures.push_back(f.async(x, {.batch = rows}));
  fs::resize_file(file(), 5000);
  int failed = 0;  // the first calls may have read the file before it became shorter
  for (auto& future : futures) {
    try {
      expect_rows(future.get(), rows);
      EXPECT_EQ(failed, 0);
    } catch (const sr::Error& error) {
      ++failed;
      EXPECT_EQ(error.kind(), sr::ErrorKind::system);
      EXPECT_NE(std::string(error.what()).find(file().string()), std::string::npos) << error.what();
    }
  }
  EXPECT_GE(failed, 1);
  EXPECT_EQ(error_of([&] { f(x); }).kind(), sr::ErrorKind::system);
  const auto y = session().data(std::vector<float>(300, 1.0F), sr::Shape{100, 3});
  EXPECT_EQ(f(y)(99, 2), 100.0F);
}

}  // namespace
}  // namespace gpu_test
