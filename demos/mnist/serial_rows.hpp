#pragma once

// The serial twin of rows.hpp: rows of the data set in ordinary memory. It also has the code that the trainers of both
// serial programs share.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "demos/common/network.hpp"
#include "demos/mnist/digits.hpp"

namespace mnist {

/// Pixels from 0 to 1, and labels. T is float or double.
template <class T>
struct Rows {
  std::vector<T> images;  // [rows, pixels]
  std::vector<std::uint8_t> labels;

  Rows(const Digits& digits, const LabeledRows& rows)
      : images(rows.pixels.size()), labels(rows.labels.begin(), rows.labels.end()) {
    demos::scale_pixels<T>(rows.pixels, digits.brightest(), images);
  }

  std::int64_t rows() const { return static_cast<std::int64_t>(labels.size()); }
  std::size_t pixels() const { return images.size() / labels.size(); }

  /// Copies the rows of a batch, one after the other. The destinations must have room for `batch.size()` rows.
  void pick(std::span<const std::int64_t> batch, T* to_images, std::uint8_t* to_labels) const {
    for (const std::int64_t index : batch) {
      const auto row = static_cast<std::size_t>(index);
      to_images = std::copy_n(images.data() + row * pixels(), pixels(), to_images);
      *to_labels++ = labels[row];
    }
  }
};

/// The arguments of a step that are not arrays.
struct StepOptions {
  double learning_rate;
  double momentum;
  demos::StepKey dropout;  // the masks' seed and step
};

/// How well the parameters fit some rows.
struct Evaluation {
  double loss = 0;
  std::int64_t correct = 0;
};

/// Mean loss and number of correct rows over `rows` rows, computed in `slices` passes. `evaluate` takes the first row
/// of a pass and the number of its rows. If the rows do not divide evenly, the first passes get one row more.
template <class Evaluate>
Evaluation evaluate_in_slices(std::size_t rows, std::size_t slices, Evaluate&& evaluate) {
  Evaluation total;
  for (std::size_t slice = 0, first = 0; slice < slices; ++slice) {
    const std::size_t count = rows / slices + (slice < rows % slices ? 1 : 0);
    const Evaluation part = evaluate(first, count);
    total.loss += part.loss * static_cast<double>(count);
    total.correct += part.correct;
    first += count;
  }
  total.loss /= static_cast<double>(rows);
  return total;
}

}  // namespace mnist
