#pragma once

// What the examples image_folder and tar_shards share: a batch of images, the decoder, the order of an epoch, and the
// command line.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace examples {

namespace sr = syncrun;

/// The width and the height of an image after decoding.
inline constexpr std::int64_t kSide = 16;
inline constexpr std::int64_t kBatchRows = 16;

struct Images {
  sr::Data<std::uint8_t, 4> pixels;  // images x kSide x kSide x {red, green, blue}
  sr::Data<std::int64_t, 1> labels;  // the number of the class, from 0
};

/// A file of the data set is missing, damaged or of the wrong form. The message names the file, and the entry if the
/// file is a tar file. It says what was expected and what to do.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Decodes JPEG images with TurboJPEG. An object keeps its memory from image to image.
class ImageDecoder {
 public:
  /// Throws std::runtime_error if TurboJPEG cannot start.
  ImageDecoder();

  /// Decodes an image to RGB, cuts the largest square out of its middle, and scales this square to kSide x kSide pixels.
  /// `square` has the shape {kSide, kSide, 3}. Errors call the image `name`. Throws DataError if the image is damaged. The
  /// decoder can decode other images after that.
  void decode(std::span<const std::uint8_t> jpeg, const std::string& name, sr::ArrayView<std::uint8_t, 3> square);

 private:
  struct Close {
    void operator()(void* decompressor) const noexcept;
  };
  std::unique_ptr<void, Close> decompressor_;
  std::vector<std::uint8_t> rgb_;  // the last image as TurboJPEG decoded it
};

/// The whole file. Throws DataError if it cannot be read.
std::vector<std::uint8_t> read_file(const std::filesystem::path& file);

/// Whether a file with this extension, such as ".jpg" or ".JPEG", is a JPEG image.
bool is_jpeg(std::string extension);

/// The files and the folders in a folder, each sorted by name. The order in which the system lists them may differ from
/// machine to machine. Throws DataError if the folder cannot be read.
std::vector<std::filesystem::path> sorted_files(const std::filesystem::path& folder);
std::vector<std::filesystem::path> sorted_folders(const std::filesystem::path& folder);

/// A source of random numbers that depends only on the arguments. `stream` tells several sources of one epoch apart.
std::mt19937_64 random_numbers(std::uint64_t seed, std::int64_t epoch, int stream = 0);
/// The numbers from 0 to count - 1 in the order of an epoch. The order depends only on the arguments.
std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t seed, std::int64_t epoch);

/// The arguments of both programs: `FOLDER [PRODUCERS [SEED]]`, or `--write FOLDER`, which writes a small data set.
struct Arguments {
  std::string folder;
  bool writes = false;
  int producers = 2;
  std::uint64_t seed = 1;
};
/// Throws std::runtime_error, with a message that shows the usage.
Arguments parse_arguments(int argc, char** argv);

}  // namespace examples
