#pragma once

// The parts of training that are the same with and without Syncrun: the initial parameters, and one pass over the
// training rows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "demos/common/model.hpp"
#include "demos/common/progress_bar.hpp"

namespace mnist {

/// The number of slices of an evaluation. With four, the images of a slice need a quarter of the memory.
inline constexpr std::int64_t kEvaluationSlices = 4;

/// The parameters that training starts from. They depend only on the model, the sizes and the seed. T is float or
/// double. The master calls this.
template <class T>
std::vector<T> initial_parameters(const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width,
                                  std::uint64_t seed);

/// One pass over the rows in this order, batch by batch. The last batch may be smaller. `step` trains on a batch and
/// returns its loss. Returns the mean loss over all rows.
template <class Step>
double train_epoch(std::span<const std::int64_t> order, std::size_t batch_size, const std::string& label, Step&& step) {
  demos::ProgressBar bar(stdout, label, (order.size() + batch_size - 1) / batch_size);
  double loss_sum = 0;
  for (std::size_t first = 0; first < order.size(); first += batch_size) {
    const auto batch = order.subspan(first, std::min(batch_size, order.size() - first));
    const double loss = step(batch);
    loss_sum += loss * static_cast<double>(batch.size());
    bar.update(first / batch_size + 1, loss);
  }
  return loss_sum / static_cast<double>(order.size());
}

inline double fraction(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace mnist
