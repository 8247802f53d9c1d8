#pragma once

// The images and labels to learn from. They come from a folder that demos/resnet/tools/pack_images.py has written, or
// are random. The program checks them before it starts a worker. Every worker then maps the memory in which they lie.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/resnet/network/images.hpp"

namespace resnet {

namespace sr = syncrun;

/// The data set cannot be used. The message names the file, what was expected and what was found.
class DatasetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The source of the images of a data set in files.
struct DatasetOptions {
  std::filesystem::path folder{};  // has images.npy and labels.npy; images_test.npy and labels_test.npy for evaluation
  std::optional<double> evaluate_fraction{};  // hold back this part of the former for evaluation instead, in (0, 1)
  std::optional<std::int64_t> classes{};      // labels are below this; if left out, the largest label + 1
  std::uint64_t seed = 1;                     // determines which rows are held back
};

/// A data set of `rows` random images with random labels.
struct SyntheticOptions {
  std::int64_t rows;
  std::size_t size;  // height and width
  std::optional<double> evaluate_fraction{};
  std::int64_t classes = 1000;
  std::uint64_t seed = 1;
};

/// One pair of arrays: images and their labels.
struct Pair {
  std::filesystem::path images{};  // uint8 [labels.size(), height, width, 3]; empty: random
  std::vector<std::int64_t> labels{};
};

/// A data set whose images are not loaded yet. The rows to train on and the rows to evaluate on are lists of row ids.
/// Both lists refer to the same pair, unless evaluation has a pair of its own.
class Dataset {
 public:
  /// Reads the labels and the headers of the images. Throws DatasetError if anything is wrong: a file is missing or
  /// truncated, an element type or shape is not the expected one, a label is out of range (the message names the first
  /// such row), the numbers of labels and images differ, or there are no rows to evaluate on.
  explicit Dataset(const DatasetOptions& options);
  /// Throws DatasetError if no rows are left to train on.
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

/// The handles of both data sets. They are the same if evaluation has no images of its own.
struct SharedDataset {
  SharedImages training;
  SharedImages evaluation;
};

/// How the workers access images in files: they map the files, or the master copies them into shared memory.
enum class FileAccess { kMapped, kCopied };

/// Loads or maps the images. Images of a random data set are bytes from a generator with the seed of the data set.
/// Throws sr::Error (system) if they do not fit into memory. The message says how much was needed and how much was
/// available.
SharedDataset load(sr::Session& session, const Dataset& dataset, FileAccess access);

/// Rows in the memory of the devices. Each device has its own.
struct DeviceImages {
  sr::Shared<std::uint8_t, 4> images;
  sr::Shared<std::int64_t, 1> labels;
  sr::Shared<std::int64_t, 1> ids;
};

/// Splits the first `rows` rows of a random data set among the devices. Throws sr::Error (system) if they do not fit
/// into memory.
DeviceImages place_on_devices(sr::Session& session, const Dataset& dataset, std::int64_t rows);

}  // namespace resnet
