#pragma once

// A reader for labelled images in MNIST's IDX format (http://yann.lecun.com/exdb/mnist, "file formats"), plain or
// gzipped. If anything is wrong with a file, it throws an IdxError. The error names the file, what was expected and
// what was found.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <vector>

namespace demos {

class IdxError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Gray images, uint8 [rows, height, width], row-major.
struct IdxImages {
  std::size_t rows = 0;
  std::size_t height = 0;
  std::size_t width = 0;
  std::vector<std::uint8_t> pixels;
};

/// Images and as many labels, each 0 to 9.
struct LabeledImages {
  IdxImages images;
  std::vector<std::uint8_t> labels;
};

enum class Split { kTrain, kTest };

/// Reads an image file (magic 0x00000803, big-endian counts, uint8 pixels) of at least one row. If `file` does not
/// exist, it reads `file`.gz instead. Throws IdxError.
IdxImages read_idx_images(const std::filesystem::path& file);

/// Reads a label file (magic 0x00000801), as read_idx_images does. Throws IdxError, also for a label above 9.
std::vector<std::uint8_t> read_idx_labels(const std::filesystem::path& file);

/// Reads one split of the data set in `directory`. Its files have the names that MNIST uses (train-images-idx3-ubyte,
/// t10k-...) or those of data/digits (digits-train-images-idx3-ubyte, digits-test-...). Throws IdxError, also if the
/// numbers of labels and images differ.
LabeledImages load_split(const std::filesystem::path& directory, Split split);

/// The largest pixel of a data set, at least 1. Pixels divided by it are between 0 and 1.
std::uint8_t maximum_pixel(std::span<const std::uint8_t> pixels);

/// scaled[i] = pixels[i] / maximum. Throws std::invalid_argument if the lengths differ or `maximum` is 0.
template <typename T>
void scale_pixels(std::span<const std::uint8_t> pixels, std::uint8_t maximum, std::span<T> scaled);

}  // namespace demos
