#pragma once

// What the examples compute: z = x y, and the mean, the sum and the maximum of each column of z. The rows of x are divided
// among the workers, y is the same everywhere. In three forms: x from shared memory, x from shared memory with a weight for
// each row, x in device memory; and once more in plain C++ without Syncrun, to check against.

#include <cstdint>
#include <span>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace examples {

namespace sr = syncrun;

inline constexpr std::int64_t kRows = 1000;
inline constexpr std::int64_t kInner = 10;
inline constexpr std::int64_t kColumns = 5;

/// Each output with a reduction of its own. The mean is one over all rows, however they are divided.
struct Columns {
  sr::Avg<double, 1> mean;
  sr::Sum<double, 1> sum;
  sr::Max<double, 1> max;
};

Columns columns(sr::CpuWorker& worker, sr::Scattered<const double, 2> x, sr::Broadcast<const double, 2> y);
/// z = w x y, with a weight for each row.
Columns weighted_columns(sr::CpuWorker& worker, sr::Scattered<const double, 2> x,
                         sr::Scattered<const double, 1> weights, sr::Broadcast<const double, 2> y);
Columns columns_of_shards(sr::CpuWorker& worker, sr::Sliced<const double, 2> x, sr::Local<double, 2> y);

#ifdef EXAMPLES_HAVE_CUDA
Columns columns_cuda(sr::CudaWorker& worker, sr::Scattered<const double, 2> x, sr::Broadcast<const double, 2> y);
Columns weighted_columns_cuda(sr::CudaWorker& worker, sr::Scattered<const double, 2> x,
                              sr::Scattered<const double, 1> weights, sr::Broadcast<const double, 2> y);
Columns columns_of_shards_cuda(sr::CudaWorker& worker, sr::Sliced<const double, 2> x, sr::Local<double, 2> y);
#endif

/// The functions, with bodies for CPU devices and, where the build has CUDA, for CUDA devices.
inline auto columns_function(sr::Session& session) {
#ifdef EXAMPLES_HAVE_CUDA
  return session.function(columns, columns_cuda, "columns");
#else
  return session.function(columns);
#endif
}
inline auto weighted_columns_function(sr::Session& session) {
#ifdef EXAMPLES_HAVE_CUDA
  return session.function(weighted_columns, weighted_columns_cuda, "weighted_columns");
#else
  return session.function(weighted_columns);
#endif
}
inline auto columns_of_shards_function(sr::Session& session) {
#ifdef EXAMPLES_HAVE_CUDA
  return session.function(columns_of_shards, columns_of_shards_cuda, "columns_of_shards");
#else
  return session.function(columns_of_shards);
#endif
}

/// Mean, sum and maximum one after the other, as computed by the workers.
std::vector<double> values_of(const Columns& columns);
/// The same, computed here, over the rows of x that are listed; with a weight for each of those, or none.
std::vector<double> serially(std::span<const double> x, std::span<const double> y, std::span<const std::int64_t> rows,
                             std::span<const double> weights = {});

/// `count` numbers of a normal distribution.
std::vector<double> random_numbers(std::int64_t count, unsigned seed);
/// first, first + 1, ..., end - 1.
std::vector<std::int64_t> rows_from(std::int64_t first, std::int64_t end);

}  // namespace examples
