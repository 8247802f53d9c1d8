#pragma once

// The serial twin of rows.hpp: rows of the data set in ordinary memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

  /// Copies the rows of a batch, one after the other, to where there is room for them.
  void pick(std::span<const std::int64_t> batch, T* to_images, std::uint8_t* to_labels) const {
    for (const std::int64_t index : batch) {
      const auto row = static_cast<std::size_t>(index);
      to_images = std::copy_n(images.data() + row * pixels(), pixels(), to_images);
      *to_labels++ = labels[row];
    }
  }
};

}  // namespace mnist
