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

/// How far a pass over the rows has come.
struct Pass {
  std::size_t rows = 0;
  double loss_sum = 0;  // of these rows
};

/// Trains on the rows in this order that `pass` has not reached yet, batch by batch. The last batch may be smaller. `step`
/// trains on a batch and returns its loss. If `stops()` is true after a step, the rest is left out.
template <class Step, class Stops>
void train_rows(std::span<const std::int64_t> order, std::size_t batch_size, const std::string& label, Pass& pass,
                Step&& step, Stops&& stops) {
  demos::ProgressBar bar(stdout, label, (order.size() + batch_size - 1) / batch_size);
  while (pass.rows < order.size()) {
    const auto batch = order.subspan(pass.rows, std::min(batch_size, order.size() - pass.rows));
    const double loss = step(batch);
    pass.loss_sum += loss * static_cast<double>(batch.size());
    pass.rows += batch.size();
    bar.update((pass.rows + batch_size - 1) / batch_size, loss);
    if (stops()) return;
  }
}

/// One whole pass. Returns the mean loss over all rows.
template <class Step>
double train_epoch(std::span<const std::int64_t> order, std::size_t batch_size, const std::string& label, Step&& step) {
  Pass pass;
  train_rows(order, batch_size, label, pass, step, [] { return false; });
  return pass.loss_sum / static_cast<double>(order.size());
}

inline double fraction(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace mnist
