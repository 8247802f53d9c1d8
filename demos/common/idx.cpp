#include "demos/common/idx.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#ifdef DEMOS_HAVE_ZLIB
#include <zlib.h>
#endif

namespace demos {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kImagesMagic = 0x00000803;
constexpr std::uint32_t kLabelsMagic = 0x00000801;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::uint8_t kLargestLabel = 9;

[[noreturn]] void fail(const fs::path& file, const std::string& expected, const std::string& got) {
  throw IdxError(file.string() + ": expected " + expected + ", got " + got);
}

std::string hex(std::uint32_t value) {
  std::array<char, 11> text{};
  std::snprintf(text.data(), text.size(), "0x%08x", value);
  return text.data();
}

#ifdef DEMOS_HAVE_ZLIB

struct CloseStream {
  void operator()(gzFile_s* stream) const { gzclose_r(stream); }
};
using Stream = std::unique_ptr<gzFile_s, CloseStream>;

/// Opens a file with zlib's reader, which reads plain files as well as gzipped ones.
Stream open_stream(const fs::path& file) { return Stream(gzopen(file.c_str(), "rb")); }

std::size_t read_some(gzFile_s& stream, const fs::path& file, std::span<std::uint8_t> into) {
  const int got = gzread(&stream, into.data(), static_cast<unsigned>(into.size()));
  int code = Z_OK;
  const std::string message = gzerror(&stream, &code);
  if (code == Z_BUF_ERROR) fail(file, "a whole gzip file", "a truncated one");
  if (got < 0) fail(file, "a readable file", message);
  return static_cast<std::size_t>(got);
}

#else

struct CloseStream {
  void operator()(std::FILE* stream) const { std::fclose(stream); }
};
using Stream = std::unique_ptr<std::FILE, CloseStream>;

Stream open_stream(const fs::path& file) {
  if (file.extension() == ".gz") fail(file, "a file that is not gzipped", "a build without zlib");
  return Stream(std::fopen(file.c_str(), "rb"));
}

std::size_t read_some(std::FILE& stream, const fs::path& file, std::span<std::uint8_t> into) {
  const std::size_t got = std::fread(into.data(), 1, into.size(), &stream);
  if (std::ferror(&stream) != 0) fail(file, "a readable file", std::generic_category().message(errno));
  return got;
}

#endif

/// The file itself if it exists, otherwise its gzipped form if that exists.
std::optional<fs::path> existing(const fs::path& file) {
  if (fs::exists(file)) return file;
  fs::path gzipped = file;
  gzipped += ".gz";
  if (fs::exists(gzipped)) return gzipped;
  return std::nullopt;
}

/// Reads one IDX file from front to back.
class IdxFile {
 public:
  explicit IdxFile(const fs::path& file) : file_(existing(file).value_or(file)), stream_(open_stream(file_)) {
    if (!fs::exists(file_)) fail(file_, "this file or its .gz", "neither");
    if (stream_ == nullptr) fail(file_, "a readable file", std::generic_category().message(errno));
  }

  const fs::path& path() const { return file_; }

  void expect_magic(std::uint32_t expected) {
    const std::uint32_t magic = read_uint32();
    if (magic != expected) fail(file_, "IDX magic number " + hex(expected), hex(magic));
  }

  std::uint32_t read_uint32() {
    std::array<std::uint8_t, 4> bytes{};
    const std::size_t got = read_fully(bytes);
    if (got < bytes.size()) fail(file_, "a whole IDX header", "a file that ends inside it (truncated)");
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
  }

  /// Returns the rest of the file, which must be `expected_bytes` long. The memory grows with the bytes that are read.
  /// So a header with a wrong, large size does not allocate much memory.
  std::vector<std::uint8_t> read_payload(std::size_t expected_bytes) {
    std::vector<std::uint8_t> payload;
    while (payload.size() < expected_bytes) {
      const std::size_t before = payload.size();
      payload.resize(before + std::min(kChunkBytes, expected_bytes - before));
      const std::size_t got = read_fully(std::span(payload).subspan(before));
      if (before + got < payload.size()) fail_size(expected_bytes, std::to_string(before + got) + " (truncated)");
    }
    std::array<std::uint8_t, 1> beyond{};
    if (read_fully(beyond) != 0) fail_size(expected_bytes, "more (oversized)");
    return payload;
  }

 private:
  std::size_t read_fully(std::span<std::uint8_t> into) {
    std::size_t filled = 0;
    while (filled < into.size()) {
      const std::size_t got = read_some(*stream_, file_, into.subspan(filled));
      if (got == 0) break;
      filled += got;
    }
    return filled;
  }

  [[noreturn]] void fail_size(std::size_t expected_bytes, const std::string& got) const {
    fail(file_, std::to_string(expected_bytes) + " bytes after the header", got);
  }

  fs::path file_;
  Stream stream_;
};

std::size_t checked_size(const IdxFile& file, const IdxImages& images) {
  const std::string shape = std::to_string(images.rows) + " x " + std::to_string(images.height) + " x " +
                            std::to_string(images.width) + " pixels";
  std::size_t plane = 0;
  std::size_t total = 0;
  if (__builtin_mul_overflow(images.height, images.width, &plane) ||
      __builtin_mul_overflow(images.rows, plane, &total) || total > static_cast<std::size_t>(PTRDIFF_MAX)) {
    fail(file.path(), "a size that fits in memory", shape + " (size overflow)");
  }
  if (total == 0) fail(file.path(), "at least one image of at least one pixel", shape);
  return total;
}

/// The beginnings of the names of the four files of a data set. Each is followed by -images-idx3-ubyte or
/// -labels-idx1-ubyte.
struct Naming {
  std::string_view train;
  std::string_view test;
};

constexpr std::array kNamings{Naming{"train", "t10k"}, Naming{"digits-train", "digits-test"}};

fs::path file_in(const fs::path& directory, const Naming& naming, Split split, std::string_view suffix) {
  return directory / (std::string(split == Split::kTrain ? naming.train : naming.test).append(suffix));
}

}  // namespace

IdxImages read_idx_images(const fs::path& path) {
  IdxFile file(path);
  file.expect_magic(kImagesMagic);
  IdxImages images;
  images.rows = file.read_uint32();
  images.height = file.read_uint32();
  images.width = file.read_uint32();
  images.pixels = file.read_payload(checked_size(file, images));
  return images;
}

std::vector<std::uint8_t> read_idx_labels(const fs::path& path) {
  IdxFile file(path);
  file.expect_magic(kLabelsMagic);
  const std::size_t rows = file.read_uint32();
  std::vector<std::uint8_t> labels = file.read_payload(rows);
  const auto bad = std::find_if(labels.begin(), labels.end(), [](std::uint8_t l) { return l > kLargestLabel; });
  if (bad != labels.end()) {
    fail(file.path(), "labels from 0 to " + std::to_string(kLargestLabel),
         std::to_string(*bad) + " in row " + std::to_string(bad - labels.begin()) + " (out of range)");
  }
  return labels;
}

LabeledImages load_split(const fs::path& directory, Split split) {
  for (const Naming& naming : kNamings) {
    const fs::path images_file = file_in(directory, naming, split, "-images-idx3-ubyte");
    if (!existing(images_file)) continue;
    const fs::path labels_file = file_in(directory, naming, split, "-labels-idx1-ubyte");
    LabeledImages data{read_idx_images(images_file), read_idx_labels(labels_file)};
    if (data.labels.size() != data.images.rows) {
      fail(labels_file, std::to_string(data.images.rows) + " labels as there are images in " + images_file.string(),
           std::to_string(data.labels.size()));
    }
    return data;
  }
  fail(directory,
       file_in("", kNamings[0], split, "-images-idx3-ubyte").string() + " or " +
           file_in("", kNamings[1], split, "-images-idx3-ubyte").string() + " (or either as .gz)",
       "neither");
}

std::uint8_t maximum_pixel(std::span<const std::uint8_t> pixels) {
  std::uint8_t maximum = 1;
  for (const std::uint8_t pixel : pixels) maximum = std::max(maximum, pixel);
  return maximum;
}

template <typename T>
void scale_pixels(std::span<const std::uint8_t> pixels, std::uint8_t maximum, std::span<T> scaled) {
  if (maximum == 0 || pixels.size() != scaled.size()) {
    throw std::invalid_argument("scale_pixels: expected a maximum above 0 and room for " +
                                std::to_string(pixels.size()) + " pixels, got " + std::to_string(maximum) + " and " +
                                std::to_string(scaled.size()));
  }
  const T factor = T{1} / static_cast<T>(maximum);
  for (std::size_t i = 0; i < pixels.size(); ++i) scaled[i] = static_cast<T>(pixels[i]) * factor;
}

template void scale_pixels<float>(std::span<const std::uint8_t>, std::uint8_t, std::span<float>);
template void scale_pixels<double>(std::span<const std::uint8_t>, std::uint8_t, std::span<double>);

}  // namespace demos
