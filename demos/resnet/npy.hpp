#pragma once

// What a .npy file says of itself, and the labels in one: so that files are checked before a worker starts. Images are
// loaded by Syncrun.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace resnet {

/// A data set that cannot be used: which file, what was expected and what was got.
class DatasetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Element type ("<i8", "|u1"), shape, and where the elements begin.
struct NpyHeader {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::size_t data_offset;
  std::size_t element_bytes() const;
};

/// "1000 x 32 x 32 x 3".
std::string to_text(const std::vector<std::int64_t>& shape);

/// Reads the header, and sees that as many elements as it says are there. Throws DatasetError. Source of the format: NumPy,
/// "A Simple File Format for NumPy Arrays" (NEP 1), versions 1 to 3.
NpyHeader read_npy_header(const std::filesystem::path& file);

/// An array of one dimension, of integers of any size. Throws DatasetError.
std::vector<std::int64_t> read_labels(const std::filesystem::path& file);

}  // namespace resnet
