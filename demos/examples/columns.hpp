#pragma once

// The functions that the examples call. They compute z = x y, and the mean, the sum and the maximum of each column of
// z. The rows of x are divided among the workers, and y is the same on all of them. There are three forms: x in shared
// memory, x in shared memory with a weight for each row, and x in device memory. `serially` computes the same in plain
// C++ without Syncrun, so that the examples can check their results.

#include <cstdint>
#include <span>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace examples {

namespace sr = syncrun;

inline constexpr std::int64_t kRows = 1000;
inline constexpr std::int64_t kInner = 10;
inline constexpr std::int64_t kColumns = 5;

/// Each output has a reduction of its own. The mean is over all rows, however the rows are divided among the workers.
struct Columns {
  sr::Avg<double, 1> mean;
  sr::Sum<double, 1> sum;
  sr::Max<double, 1> max;
};

Columns columns(sr::CpuWorker& worker, sr::Scattered<const double, 2> x, sr::Broadcast<const double, 2> y);
/// As columns, with each row of z multiplied by the weight of that row.
Columns weighted_columns(sr::CpuWorker& worker, sr::Scattered<const double, 2> x,
                         sr::Scattered<const double, 1> weights, sr::Broadcast<const double, 2> y);
Columns columns_of_shards(sr::CpuWorker& worker, sr::Sliced<const double, 2> x, sr::Local<double, 2> y);

#ifdef EXAMPLES_HAVE_CUDA
Columns columns_cuda(sr::CudaWorker& worker, sr::Scattered<const double, 2> x, sr::Broadcast<const double, 2> y);
Columns weighted_columns_cuda(sr::CudaWorker& worker, sr::Scattered<const double, 2> x,
                              sr::Scattered<const double, 1> weights, sr::Broadcast<const double, 2> y);
Columns columns_of_shards_cuda(sr::CudaWorker& worker, sr::Sliced<const double, 2> x, sr::Local<double, 2> y);
#endif

/// The functions to call. They have bodies for CPU devices and, if the build has CUDA, for CUDA devices.
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

/// The result of a call as one vector: first all means, then all sums, then all maxima.
std::vector<double> values_of(const Columns& columns);
/// The same values, computed by the calling process over the rows of x that `rows` lists. `weights` has one weight for
/// each listed row, or is empty.
std::vector<double> serially(std::span<const double> x, std::span<const double> y, std::span<const std::int64_t> rows,
                             std::span<const double> weights = {});

/// `count` numbers drawn from the standard normal distribution.
std::vector<double> random_numbers(std::int64_t count, unsigned seed);
/// first, first + 1, ..., end - 1.
std::vector<std::int64_t> rows_from(std::int64_t first, std::int64_t end);

}  // namespace examples
