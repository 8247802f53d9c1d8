#include "demos/examples/images.hpp"

#include <turbojpeg.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <numeric>
#include <string_view>
#include <system_error>

namespace examples {
namespace {

namespace fs = std::filesystem;

/// An image with more pixels than this is refused. A damaged header can claim billions of pixels.
constexpr std::int64_t kMostPixels = 100'000'000;

/// TurboJPEG can scale an image down while it decodes it. This takes less time and memory than to decode all pixels.
/// Returns the strongest scale that leaves at least kSide pixels of the shorter side, or 1/1.
tjscalingfactor scale_of(int shorter_side) {
  int count = 0;
  const tjscalingfactor* const factors = tjGetScalingFactors(&count);
  tjscalingfactor best{1, 1};
  for (const tjscalingfactor& factor : std::span(factors, static_cast<std::size_t>(count))) {
    const int side = TJSCALED(shorter_side, factor);
    if (side >= kSide && side < TJSCALED(shorter_side, best)) best = factor;
  }
  return best;
}

/// Every pixel of `square` becomes the mean of its part of the largest square in the middle of the image.
void average(sr::ArrayView<const std::uint8_t, 3> image, sr::ArrayView<std::uint8_t, 3> square) {
  const std::int64_t side = std::min(image.shape(0), image.shape(1));
  const std::int64_t top = (image.shape(0) - side) / 2;
  const std::int64_t left = (image.shape(1) - side) / 2;
  const auto begin = [side](std::int64_t i) { return i * side / kSide; };
  const auto end = [side, begin](std::int64_t i) { return std::max(begin(i) + 1, (i + 1) * side / kSide); };
  for (std::int64_t y = 0; y < kSide; ++y) {
    for (std::int64_t x = 0; x < kSide; ++x) {
      std::int64_t sums[3] = {};
      for (std::int64_t i = begin(y); i < end(y); ++i) {
        for (std::int64_t j = begin(x); j < end(x); ++j) {
          for (std::int64_t c = 0; c < 3; ++c) sums[c] += image(top + i, left + j, c);
        }
      }
      const std::int64_t count = (end(y) - begin(y)) * (end(x) - begin(x));
      for (std::int64_t c = 0; c < 3; ++c) square(y, x, c) = static_cast<std::uint8_t>((sums[c] + count / 2) / count);
    }
  }
}

std::vector<fs::path> sorted_entries(const fs::path& folder, bool (*is_chosen)(const fs::directory_entry&)) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (is_chosen(*at)) found.push_back(at->path());
  }
  if (error) {
    throw DataError(folder.string() + ": cannot read this folder: " + error.message() +
                    ". Pass the folder of the data set");
  }
  std::sort(found.begin(), found.end());
  return found;
}

template <class Number>
Number number_of(std::string_view text, const char* what) {
  Number number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || stop != text.data() + text.size() || number < Number{0}) {
    throw std::runtime_error(std::string(what) + ": expected a whole number, got '" + std::string(text) + "'");
  }
  return number;
}

}  // namespace

void ImageDecoder::Close::operator()(void* decompressor) const noexcept { tjDestroy(decompressor); }

ImageDecoder::ImageDecoder() : decompressor_(tjInitDecompress()) {
  if (!decompressor_) throw std::runtime_error(std::string("cannot start TurboJPEG: ") + tjGetErrorStr2(nullptr));
}

void ImageDecoder::decode(std::span<const std::uint8_t> jpeg, const std::string& name,
                          sr::ArrayView<std::uint8_t, 3> square) {
  const auto refuse = [&](const std::string& why) {
    // After a damaged header, TurboJPEG 2.1 would read the next image from where it stopped in this one.
    decompressor_.reset(tjInitDecompress());
    throw DataError(name + ": cannot decode this image: " + why +
                    ". Expected a whole JPEG image in grey or RGB. Replace the image, or remove it from the data set");
  };
  if (jpeg.empty()) refuse("it is empty");
  int width = 0, height = 0, subsampling = 0, colour_space = 0;
  if (tjDecompressHeader3(decompressor_.get(), jpeg.data(), jpeg.size(), &width, &height, &subsampling,
                          &colour_space) != 0) {
    refuse(tjGetErrorStr2(decompressor_.get()));
  }
  const tjscalingfactor scale = scale_of(std::min(width, height));
  width = TJSCALED(width, scale);
  height = TJSCALED(height, scale);
  if (std::int64_t{width} * height > kMostPixels) refuse("it has more than a hundred million pixels");
  rgb_.resize(static_cast<std::size_t>(3) * static_cast<std::size_t>(width) * static_cast<std::size_t>(height));
  // A truncated image is only a warning to TurboJPEG, which would fill the rest with grey.
  if (tjDecompress2(decompressor_.get(), jpeg.data(), jpeg.size(), rgb_.data(), width, 0, height, TJPF_RGB,
                    TJFLAG_STOPONWARNING) != 0) {
    refuse(tjGetErrorStr2(decompressor_.get()));
  }
  average({rgb_.data(), {height, width, 3}}, square);
}

std::vector<std::uint8_t> read_file(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  std::vector<std::uint8_t> bytes(stream ? static_cast<std::size_t>(stream.tellg()) : 0);
  stream.seekg(0);
  stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!stream) throw DataError(file.string() + ": cannot read this file. Check that it exists and may be read");
  return bytes;
}

bool is_jpeg(std::string extension) {
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return extension == ".jpg" || extension == ".jpeg";
}

std::vector<fs::path> sorted_files(const fs::path& folder) {
  return sorted_entries(folder, [](const fs::directory_entry& entry) { return !entry.is_directory(); });
}

std::vector<fs::path> sorted_folders(const fs::path& folder) {
  return sorted_entries(folder, [](const fs::directory_entry& entry) { return entry.is_directory(); });
}

std::mt19937_64 random_numbers(std::uint64_t seed, std::int64_t epoch, int stream) {
  std::seed_seq words{seed & 0xffffffffU, seed >> 32U, static_cast<std::uint64_t>(epoch),
                      static_cast<std::uint64_t>(stream)};
  return std::mt19937_64(words);
}

std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t seed, std::int64_t epoch) {
  std::mt19937_64 random = random_numbers(seed, epoch);
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

Arguments parse_arguments(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "--write") return {.folder = words[1], .writes = true};
  if (words.empty() || words.size() > 3 || words[0].starts_with('-')) {
    throw std::runtime_error(std::string("usage: ") + argv[0] + " FOLDER [PRODUCERS [SEED]]\n       " + argv[0] +
                             " --write FOLDER   writes a small data set to try this with");
  }
  Arguments arguments{.folder = words[0]};
  if (words.size() > 1) arguments.producers = number_of<int>(words[1], "PRODUCERS");
  if (words.size() > 2) arguments.seed = number_of<std::uint64_t>(words[2], "SEED");
  return arguments;
}

}  // namespace examples
