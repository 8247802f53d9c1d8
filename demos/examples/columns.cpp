#include "demos/examples/columns.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>

namespace examples {
namespace {

/// Reduces the worker's own rows of z, one row at a time. `weight(row)` is the weight of a row.
template <class Weight>
Columns accumulate(sr::CpuWorker& worker, const sr::ArrayView<const double, 2>& x,
                   const sr::ArrayView<const double, 2>& y, Weight&& weight) {
  const sr::Shape columns{y.shape(1)};
  Columns own{.mean = {worker, columns}, .sum = {worker, columns}, .max = {worker, columns}};
  std::fill(own.max.begin(), own.max.end(), -std::numeric_limits<double>::infinity());
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    for (std::int64_t column = 0; column < y.shape(1); ++column) {
      double z = 0;
      for (std::int64_t i = 0; i < x.shape(1); ++i) z += x(row, i) * y(i, column);
      z *= weight(row);
      own.sum[column] += z;
      own.max[column] = std::max(own.max[column], z);
    }
  }
  for (std::int64_t column = 0; column < y.shape(1); ++column) {
    own.mean[column] = own.sum[column] / static_cast<double>(x.rows());
  }
  return own;
}

}  // namespace

Columns columns(sr::CpuWorker& worker, sr::Scattered<const double, 2> x, sr::Broadcast<const double, 2> y) {
  return accumulate(worker, x, y, [](std::int64_t) { return 1; });
}

Columns weighted_columns(sr::CpuWorker& worker, sr::Scattered<const double, 2> x,
                         sr::Scattered<const double, 1> weights, sr::Broadcast<const double, 2> y) {
  return accumulate(worker, x, y, [&](std::int64_t row) { return weights[row]; });
}

Columns columns_of_shards(sr::CpuWorker& worker, sr::Sliced<const double, 2> x, sr::Local<double, 2> y) {
  return accumulate(worker, x, {y.data(), y.shape()}, [](std::int64_t) { return 1; });
}

std::vector<double> values_of(const Columns& columns) {
  std::vector<double> values = columns.mean.to_vector();
  values.insert(values.end(), columns.sum.begin(), columns.sum.end());
  values.insert(values.end(), columns.max.begin(), columns.max.end());
  return values;
}

std::vector<double> serially(std::span<const double> x, std::span<const double> y, std::span<const std::int64_t> rows,
                             std::span<const double> weights) {
  std::vector<double> means, sums, maxima;
  for (std::size_t column = 0; column < kColumns; ++column) {
    std::vector<double> z;
    for (const std::int64_t row : rows) {
      const double weight = weights.empty() ? 1 : weights[z.size()];
      double product = 0;
      for (std::size_t i = 0; i < kInner; ++i) {
        product += x[static_cast<std::size_t>(row) * kInner + i] * y[i * kColumns + column];
      }
      z.push_back(weight * product);
    }
    sums.push_back(std::accumulate(z.begin(), z.end(), 0.0));
    means.push_back(sums.back() / static_cast<double>(z.size()));
    maxima.push_back(*std::max_element(z.begin(), z.end()));
  }
  means.insert(means.end(), sums.begin(), sums.end());
  means.insert(means.end(), maxima.begin(), maxima.end());
  return means;
}

std::vector<double> random_numbers(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> numbers;
  std::generate_n(std::back_inserter(numbers), count, [&] { return normal(random); });
  return numbers;
}

std::vector<std::int64_t> rows_from(std::int64_t first, std::int64_t end) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(end - first));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

}  // namespace examples
