#include "demos/common/idx.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.hpp"

#ifdef DEMOS_HAVE_ZLIB
#include <zlib.h>
#endif

namespace demos {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

/// An IDX file: magic number and sizes big-endian, then the payload.
Bytes idx(std::initializer_list<std::uint32_t> header, const Bytes& payload) {
  Bytes bytes;
  for (const std::uint32_t word : header) {
    for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<std::uint8_t>(word >> shift & 0xFF));
  }
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

const Bytes kTwoImages = idx({0x803, 2, 1, 3}, {1, 2, 3, 4, 5, 16});
const Bytes kTwoLabels = idx({0x801, 2}, {9, 0});

class Idx : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const Bytes& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return folder_ / name;
  }

  TemporaryFolder folder_;
};

/// The message of the error that `read` throws.
template <typename Read>
std::string complaint(Read read) {
  try {
    read();
  } catch (const IdxError& error) {
    return error.what();
  }
  return "nothing";
}

TEST_F(Idx, IsReadByTheNamesOfMnistOrOfTheDigits) {
  for (const auto& [train, test] : {std::pair{"train", "t10k"}, std::pair{"digits-train", "digits-test"}}) {
    const TemporaryFolder folder;
    const auto save = [&](const std::string& name, const Bytes& bytes) {
      fs::rename(write("one", bytes), folder / name);
    };
    save(train + std::string("-images-idx3-ubyte"), kTwoImages);
    save(train + std::string("-labels-idx1-ubyte"), kTwoLabels);
    save(test + std::string("-images-idx3-ubyte"), idx({0x803, 1, 1, 1}, {7}));
    save(test + std::string("-labels-idx1-ubyte"), idx({0x801, 1}, {3}));
    const LabeledImages data = load_split(folder.path(), Split::kTrain);
    EXPECT_EQ(data.labels, (Bytes{9, 0}));
    EXPECT_EQ(data.images.rows, 2U);
    EXPECT_EQ(data.images.height, 1U);
    EXPECT_EQ(data.images.width, 3U);
    EXPECT_EQ(data.images.pixels, (Bytes{1, 2, 3, 4, 5, 16}));
    EXPECT_EQ(load_split(folder.path(), Split::kTest).images.pixels, (Bytes{7}));
  }
}

TEST_F(Idx, NamesAMissingFile) {
  const fs::path file = folder_ / "nothing";
  EXPECT_EQ(complaint([&] { read_idx_labels(file); }), file.string() + ": expected this file or its .gz, got neither");
  EXPECT_EQ(complaint([&] { load_split(folder_.path(), Split::kTest); }),
            folder_.path().string() +
                ": expected t10k-images-idx3-ubyte or digits-test-images-idx3-ubyte (or either as .gz), got "
                "neither");
}

TEST_F(Idx, SaysWhatIsWrongInAFile) {
  const auto expect_refused = [&](auto read, const Bytes& bytes, const std::string& message) {
    const fs::path file = write("file", bytes);
    EXPECT_EQ(complaint([&] { read(file); }), file.string() + ": " + message);
  };
  Bytes short_images = kTwoImages, long_labels = kTwoLabels;
  short_images.pop_back();
  long_labels.push_back(0);
  constexpr std::uint32_t kHuge = std::numeric_limits<std::uint32_t>::max();
  expect_refused(read_idx_images, short_images, "expected 6 bytes after the header, got 5 (truncated)");
  expect_refused(read_idx_images, {0, 0, 8, 3, 0},
                 "expected a whole IDX header, got a file that ends inside it (truncated)");
  expect_refused(read_idx_labels, long_labels, "expected 2 bytes after the header, got more (oversized)");
  expect_refused(read_idx_labels, kTwoImages, "expected IDX magic number 0x00000801, got 0x00000803");
  expect_refused(
      read_idx_images, idx({0x803, kHuge, kHuge, kHuge}, {}),
      "expected a size that fits in memory, got 4294967295 x 4294967295 x 4294967295 pixels (size overflow)");
  expect_refused(read_idx_images, idx({0x803, 2, 0, 3}, {}),
                 "expected at least one image of at least one pixel, got 2 x 0 x 3 pixels");
  expect_refused(read_idx_labels, idx({0x801, 3}, {1, 2, 10}),
                 "expected labels from 0 to 9, got 10 in row 2 (out of range)");
  // The file is read piece by piece, so no memory is allocated for bytes that are not there.
  const fs::path file = write("images", idx({0x803, 0x7fffffff, 0x10000, 0x1000}, {1, 2, 3}));
  EXPECT_NE(complaint([&] { read_idx_images(file); }).find("got 3 (truncated)"), std::string::npos);
  EXPECT_NE(complaint([&] { read_idx_labels(folder_.path()); }).find("expected a readable file"), std::string::npos);
  const fs::path train = write("train-images-idx3-ubyte", kTwoImages);
  const fs::path labels = write("train-labels-idx1-ubyte", idx({0x801, 1}, {4}));
  EXPECT_EQ(complaint([&] { load_split(folder_.path(), Split::kTrain); }),
            labels.string() + ": expected 2 labels as there are images in " + train.string() + ", got 1");
}

#ifdef DEMOS_HAVE_ZLIB

void write_gzip(const fs::path& file, const Bytes& bytes) {
  gzFile stream = gzopen(file.c_str(), "wb");
  ASSERT_NE(stream, nullptr);
  EXPECT_EQ(gzwrite(stream, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
  EXPECT_EQ(gzclose(stream), Z_OK);
}

TEST_F(Idx, FallsBackToTheGzippedFileAndRefusesADamagedOne) {
  const fs::path file = folder_ / "labels.gz";
  write_gzip(file, kTwoLabels);
  EXPECT_EQ(read_idx_labels(folder_ / "labels"), (Bytes{9, 0}));
  const auto whole = fs::file_size(file);
  fs::resize_file(file, whole - 6);
  EXPECT_EQ(complaint([&] { read_idx_labels(file); }),
            file.string() + ": expected a whole gzip file, got a truncated one");
  fs::resize_file(file, whole);  // the checksum now consists of zeros
  EXPECT_NE(complaint([&] { read_idx_labels(file); }).find("incorrect data check"), std::string::npos);
}

#else

TEST_F(Idx, SaysThatGzipNeedsZlib) {
  const fs::path file = write("labels.gz", kTwoLabels);
  EXPECT_EQ(complaint([&] { read_idx_labels(folder_ / "labels"); }),
            file.string() + ": expected a file that is not gzipped, got a build without zlib");
}

#endif

TEST(Pixels, AreScaledByTheMaximum) {
  const Bytes pixels{0, 8, 16};
  std::vector<float> scaled(3);
  EXPECT_EQ(maximum_pixel(pixels), 16);
  scale_pixels<float>(pixels, maximum_pixel(pixels), scaled);
  EXPECT_EQ(scaled, (std::vector<float>{0, 0.5F, 1}));
  EXPECT_EQ(maximum_pixel(Bytes{0, 0}), 1) << "black images stay black";
  EXPECT_THROW(scale_pixels<float>(pixels, 0, scaled), std::invalid_argument);
}

}  // namespace
}  // namespace demos
