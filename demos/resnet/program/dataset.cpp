#include "demos/resnet/program/dataset.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "demos/resnet/network/architecture.hpp"

namespace resnet {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kFewestClasses = 2;

[[noreturn]] void fail(const fs::path& file, const std::string& expected, const std::string& got) {
  throw DatasetError(file.string() + ": expected " + expected + ", got " + got);
}

std::string size_of(const ImageShape& shape) {
  return std::to_string(shape.height) + " x " + std::to_string(shape.width) + " pixels";
}

/// Returns the header of a file. Throws DatasetError if the file is not as long as its header requires.
sr::NpyInfo info_of(const fs::path& file) {
  if (!fs::exists(file)) fail(file, "a .npy file as demos/resnet/tools/pack_images.py makes it", "none");
  try {
    return sr::npy_info(file);
  } catch (const sr::Error& error) {
    throw DatasetError(std::string(error.what()) + ": demos/resnet/tools/pack_images.py makes such files");
  }
}

ImageShape check_images(const fs::path& file, std::size_t labels) {
  const auto [dtype, shape] = info_of(file);
  if (dtype != sr::DType::uint8) fail(file, "elements of type uint8", std::string(to_string(dtype)));
  if (shape.size() != 4 || shape[3] != 3 || shape[1] == 0 || shape[2] == 0) {
    fail(file, "images of shape [rows, height, width, 3]", "shape " + sr::to_string(shape));
  }
  if (shape[0] == 0) fail(file, "one image or more", "none");
  if (shape[0] != static_cast<std::int64_t>(labels)) {
    fail(file, std::to_string(labels) + " images, as there are labels", std::to_string(shape[0]));
  }
  const ImageShape size{static_cast<std::size_t>(shape[1]), static_cast<std::size_t>(shape[2])};
  if (std::min(size.height, size.width) < kSmallestImage) {
    fail(file, "images of " + std::to_string(kSmallestImage) + " pixels a side or more (pack_images.py --size)",
         size_of(size));
  }
  return size;
}

template <class T>
std::vector<std::int64_t> labels_of(const fs::path& file) {
  const auto labels = sr::read_npy<T, 1>(file);
  return {labels.begin(), labels.end()};
}

std::vector<std::int64_t> read_labels(const fs::path& file) {
  const auto [dtype, shape] = info_of(file);
  if (shape.size() != 1) fail(file, "labels of shape [rows]", "shape " + sr::to_string(shape));
  switch (dtype) {
    case sr::DType::uint8: return labels_of<std::uint8_t>(file);
    case sr::DType::uint16: return labels_of<std::uint16_t>(file);
    case sr::DType::uint32: return labels_of<std::uint32_t>(file);
    case sr::DType::uint64: return labels_of<std::uint64_t>(file);
    case sr::DType::int8: return labels_of<std::int8_t>(file);
    case sr::DType::int16: return labels_of<std::int16_t>(file);
    case sr::DType::int32: return labels_of<std::int32_t>(file);
    case sr::DType::int64: return labels_of<std::int64_t>(file);
    default: fail(file, "labels of an integer type", std::string(to_string(dtype)));
  }
}

void check_labels(const fs::path& file, const std::vector<std::int64_t>& labels, std::optional<std::int64_t> classes) {
  const std::int64_t end = classes.value_or(static_cast<std::int64_t>(kMostClasses));
  const auto is_bad = [&](std::int64_t label) { return label < 0 || label >= end; };
  const auto bad = std::find_if(labels.begin(), labels.end(), is_bad);
  if (bad == labels.end()) return;
  fail(file, "labels from 0 to " + std::to_string(end - 1),
       std::to_string(*bad) + " in row " + std::to_string(bad - labels.begin()));
}

/// A pair whose files fit together, and the size of its images.
struct CheckedPair {
  Pair pair;
  ImageShape shape;
};

CheckedPair read_pair(const fs::path& images, const fs::path& labels_file, std::optional<std::int64_t> classes) {
  std::vector<std::int64_t> labels = read_labels(labels_file);
  const ImageShape shape = check_images(images, labels.size());
  check_labels(labels_file, labels, classes);
  return {{images, std::move(labels)}, shape};
}

std::vector<std::int64_t> ids_of(std::size_t rows) {
  std::vector<std::int64_t> ids(rows);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

void fill_with_random_bytes(std::span<std::uint8_t> bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(&bytes[at], &word, std::min(sizeof word, bytes.size() - at));
  }
}

sr::Data<std::uint8_t, 4> random_images(sr::Session& session, const Dataset& dataset, std::size_t rows,
                                        const std::string& name) {
  const ImageShape& shape = dataset.shape();
  auto images = session.data<std::uint8_t, 4>(sr::Shape<4>{rows, shape.height, shape.width, 3}, name);
  fill_with_random_bytes(images.write().span(), dataset.seed());
  return images;
}

SharedImages load(sr::Session& session, const Dataset& dataset, const Pair& pair, FileAccess access,
                  const std::string& name) {
  const std::size_t rows = pair.labels.size();
  const auto images = [&] {
    if (pair.images.empty()) return random_images(session, dataset, rows, name);
    if (access == FileAccess::kMapped) return session.map_npy<std::uint8_t, 4>(pair.images, name);
    return session.load<std::uint8_t, 4>(pair.images, name);
  };
  return {images(), session.data(pair.labels, name + "_labels"), session.data(ids_of(rows), name + "_ids")};
}

}  // namespace

Dataset::Dataset(const DatasetOptions& options) : seed_(options.seed) {
  const fs::path& folder = options.folder;
  CheckedPair training = read_pair(folder / "images.npy", folder / "labels.npy", options.classes);
  shape_ = training.shape;
  const auto& labels = training.pair.labels;
  classes_ = options.classes.value_or(std::max(kFewestClasses, *std::max_element(labels.begin(), labels.end()) + 1));
  training_ = std::move(training.pair);
  if (options.evaluate_fraction) {
    hold_back(*options.evaluate_fraction);
    return;
  }
  const fs::path test = folder / "images_test.npy";
  if (!fs::exists(test)) {
    throw DatasetError(test.string() + ": expected images to evaluate on, or --evaluate-fraction, got neither");
  }
  CheckedPair evaluation = read_pair(test, folder / "labels_test.npy", classes_);
  if (size_of(evaluation.shape) != size_of(shape_)) {
    fail(test, "images of " + size_of(shape_) + " as in images.npy", size_of(evaluation.shape));
  }
  training_rows_ = ids_of(training_.labels.size());
  evaluation_rows_ = ids_of(evaluation.pair.labels.size());
  evaluation_ = std::move(evaluation.pair);
}

Dataset::Dataset(const SyntheticOptions& options)
    : shape_{options.size, options.size}, classes_(options.classes), seed_(options.seed) {
  std::mt19937_64 random(~options.seed);
  training_.labels.resize(static_cast<std::size_t>(options.rows));
  for (std::int64_t& label : training_.labels) {
    label = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(options.classes));
  }
  hold_back(options.evaluate_fraction.value_or(0));
}

/// The seed determines which rows are held back. They are not taken from the end, because rows of one class may be
/// neighbours in the file.
void Dataset::hold_back(double fraction) {
  std::vector<std::int64_t> ids = ids_of(training_.labels.size());
  std::mt19937_64 random(seed_);
  std::shuffle(ids.begin(), ids.end(), random);
  const auto count = static_cast<std::ptrdiff_t>(std::ceil(fraction * static_cast<double>(ids.size())));
  if (count >= std::ssize(ids)) {
    throw DatasetError("--evaluate-fraction: expected to leave a row or more to train on, got none of " +
                       std::to_string(ids.size()));
  }
  evaluation_rows_.assign(ids.begin(), ids.begin() + count);
  training_rows_.assign(ids.begin() + count, ids.end());
  std::sort(evaluation_rows_.begin(), evaluation_rows_.end());
  std::sort(training_rows_.begin(), training_rows_.end());
}

SharedDataset load(sr::Session& session, const Dataset& dataset, FileAccess access) {
  const SharedImages training = load(session, dataset, dataset.training(), access, "images");
  if (!dataset.has_evaluation_pair()) return {training, training};
  return {training, load(session, dataset, dataset.evaluation(), access, "images_test")};
}

DeviceImages place_on_devices(sr::Session& session, const Dataset& dataset, std::int64_t rows) {
  const auto count = static_cast<std::size_t>(rows);
  DeviceImages placed{session.shared<std::uint8_t, 4>("images"), session.shared<std::int64_t, 1>("images_labels"),
                      session.shared<std::int64_t, 1>("images_ids")};
  placed.images.scatter(random_images(session, dataset, count, "what goes to the devices"));
  placed.labels.scatter(std::span(dataset.training().labels).first(count));
  placed.ids.scatter(ids_of(count));
  return placed;
}

}  // namespace resnet
