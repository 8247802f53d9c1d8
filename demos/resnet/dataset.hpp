#pragma once

// What there is to learn from: images and labels as scripts/pack_images.py leaves them in a folder, or random ones. They
// are checked before a worker starts, and then lie in memory that every worker has mapped.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/resnet/images.hpp"

namespace resnet {

namespace sr = syncrun;

/// A data set that cannot be used: which file, what was expected and what was got.
class DatasetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Where images come from.
struct DatasetOptions {
  std::filesystem::path folder{};  // of images.npy and labels.npy; images_test.npy and labels_test.npy for evaluation
  std::optional<double> evaluate_fraction{};  // held back from the former instead, in (0, 1)
  std::optional<std::int64_t> classes{};      // labels are below; left out: the largest label + 1
  std::uint64_t seed = 1;                     // of what is held back
};

/// As many random images instead, with random labels.
struct SyntheticOptions {
  std::int64_t rows;
  std::size_t size;  // height and width
  std::optional<double> evaluate_fraction{};
  std::int64_t classes = 1000;
  std::uint64_t seed = 1;
};

/// Rows of one pair of arrays.
struct Pair {
  std::filesystem::path images{};  // uint8 [labels.size(), height, width, 3]; empty: random
  std::vector<std::int64_t> labels{};
};

/// A data set, known but for its images. Rows to train on and rows to evaluate on are lists of row ids: of one pair, or of
/// two where evaluation has its own.
class Dataset {
 public:
  /// Reads the labels and the headers of the images. Throws DatasetError for whatever is wrong: a file that is missing or
  /// truncated, another element type or shape, labels out of range (the first such row), labels and images of different
  /// numbers, nothing to evaluate on.
  explicit Dataset(const DatasetOptions& options);
  /// Throws DatasetError where nothing is left to train on.
  explicit Dataset(const SyntheticOptions& options);

  const ImageShape& shape() const { return shape_; }
  std::int64_t classes() const { return classes_; }
  const Pair& training() const { return training_; }
  const Pair& evaluation() const { return evaluation_ ? *evaluation_ : training_; }
  bool has_evaluation_pair() const { return evaluation_.has_value(); }
  const std::vector<std::int64_t>& training_rows() const { return training_rows_; }
  const std::vector<std::int64_t>& evaluation_rows() const { return evaluation_rows_; }
  std::uint64_t seed() const { return seed_; }

 private:
  void hold_back(double fraction);

  ImageShape shape_{};
  std::int64_t classes_ = 0;
  std::uint64_t seed_;
  Pair training_;
  std::optional<Pair> evaluation_;
  std::vector<std::int64_t> training_rows_;
  std::vector<std::int64_t> evaluation_rows_;
};

/// One pair in shared memory, and the ids 0, 1, 2, ... of its rows.
struct SharedImages {
  sr::Data<std::uint8_t, 4> images;  // [rows, height, width, 3]
  sr::Data<std::int64_t, 1> labels;
  sr::Data<std::int64_t, 1> ids;
};

/// Handles: where evaluation has no images of its own, both are the same.
struct SharedDataset {
  SharedImages training;
  SharedImages evaluation;
};

/// How images that are in files come to the workers.
enum class FileAccess { kMapped, kCopied };

/// Loads or maps the images, or makes them: bytes from a generator with the data set's seed. Throws sr::Error: system if
/// they do not fit into memory, with how much was wanted and there was.
SharedDataset load(sr::Session& session, const Dataset& dataset, FileAccess access);

/// Rows that are on the devices already, each device's own.
struct DeviceImages {
  sr::Shared<std::uint8_t, 4> images;
  sr::Shared<std::int64_t, 1> labels;
  sr::Shared<std::int64_t, 1> ids;
};

/// The first rows of a random data set, split among the devices. Throws sr::Error (system) where they do not fit.
DeviceImages place_on_devices(sr::Session& session, const Dataset& dataset, std::int64_t rows);

}  // namespace resnet
