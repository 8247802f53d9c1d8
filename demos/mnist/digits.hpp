#pragma once

// The data set as the demo uses it: a training set, a validation set held out from it, and a test set.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>

#include "demos/common/idx.hpp"

namespace mnist {

inline constexpr std::size_t kClasses = 10;

/// A view of the images and labels of some rows. The data set owns both.
struct LabeledRows {
  std::span<const std::uint8_t> pixels;  // [rows, height, width]
  std::span<const std::uint8_t> labels;  // [rows]

  std::size_t rows() const { return labels.size(); }
};

/// All files of a data set, in memory. The last twentieth of the training rows, but at least one row, is the validation
/// set: 71 of the 1,437 digits, 3,000 of MNIST's 60,000.
class Digits {
 public:
  /// Reads `directory` (see demos::load_split). Throws demos::IdxError if anything is wrong with the files, if training
  /// and test images differ in size, or if there are fewer than two training rows.
  explicit Digits(const std::filesystem::path& directory);

  std::size_t height() const { return training_.images.height; }
  std::size_t width() const { return training_.images.width; }
  std::size_t pixels() const { return height() * width(); }
  /// The largest training pixel. Pixels divided by it are between 0 and 1.
  std::uint8_t brightest() const { return brightest_; }

  LabeledRows training() const { return rows_of(training_, 0, training_rows_); }
  LabeledRows validation() const { return rows_of(training_, training_rows_, training_.images.rows); }
  LabeledRows test() const { return rows_of(test_, 0, test_.images.rows); }

 private:
  LabeledRows rows_of(const demos::LabeledImages& data, std::size_t begin, std::size_t end) const;

  demos::LabeledImages training_;  // the validation rows are at its end
  demos::LabeledImages test_;
  std::size_t training_rows_;
  std::uint8_t brightest_;
};

}  // namespace mnist
