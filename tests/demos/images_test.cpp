// The examples image_folder and tar_shards, as users run them, and the code that they share.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/examples/images.hpp"
#include "demos/examples/synthetic_images.hpp"
#include "tests/support/command_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using syncrun::test::CommandResult;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

CommandResult run_on(int workers, const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> command{SYNCRUN_COMMAND, "--quiet", "--devices", workers == 1 ? "cpu0" : "cpu0,cpu1",
                                   program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return syncrun::test::run_command(command);
}

/// Each test has a data set of its own, which the program under test wrote.
class DataSet : public ::testing::Test {
 protected:
  explicit DataSet(const char* program) : program_(program) {
    const CommandResult result = run_on(1, program_, {"--write", folder()});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
  }

  std::string folder() const { return temporary_.at("data"); }
  fs::path file(const std::string& name) const { return fs::path(folder()) / name; }

  std::string output(int workers, int producers, int seed = 1) const {
    const CommandResult result = run_on(workers, program_, {folder(), std::to_string(producers), std::to_string(seed)});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return result.output;
  }

  /// Expects an error of a producer, which names `file` and contains the other texts.
  void expect_refused(const fs::path& file, const std::string& what, const std::string& what_to_do) const {
    const CommandResult result = run_on(1, program_, {folder(), "2"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.errors,
                AllOf(HasSubstr(" failed: " + file.string() + ": "), HasSubstr(what), HasSubstr(what_to_do)));
  }

 private:
  TemporaryFolder temporary_;
  std::string program_;
};

class ImageFolder : public DataSet {
 protected:
  ImageFolder() : DataSet(IMAGE_FOLDER_PROGRAM) {}
};

TEST_F(ImageFolder, HasTheSameLossesOnAnyNumberOfWorkersAndProducers) {
  const std::string expected = output(1, 1);
  EXPECT_THAT(expected, AllOf(HasSubstr("60 images of 3 classes\nepoch 1: loss "), EndsWith(", 60 right\n")));
  EXPECT_EQ(output(1, 2), expected);
  EXPECT_EQ(output(2, 2), expected);
  EXPECT_EQ(output(2, 3), expected);
}

TEST_F(ImageFolder, OrdersTheImagesByTheSeed) { EXPECT_NE(output(1, 2, 1), output(1, 2, 2)); }

TEST_F(ImageFolder, NamesAnImageThatCannotBeRead) {
  const fs::path image = file("red/0007.jpg");
  const std::string half = text_of(image).substr(0, fs::file_size(image) / 2);
  for (const auto& [bytes, what] :
       {std::pair(half, "cannot decode this image: Premature end of JPEG file"),
        std::pair(std::string("no image"), "Not a JPEG file"), std::pair(std::string(), "it is empty")}) {
    write_text(image, bytes);
    expect_refused(image, what, "Replace the image, or remove it");
  }
}

class TarShards : public DataSet {
 protected:
  TarShards() : DataSet(TAR_SHARDS_PROGRAM) {}
  const fs::path shard_ = file("shard-0002.tar");
};

TEST_F(TarShards, HaveTheSameColoursOnAnyNumberOfWorkersAndProducers) {
  const std::string expected = output(1, 1);
  EXPECT_THAT(expected, AllOf(HasSubstr("class 2: 20 images, mean colour "),
                              EndsWith("60 of 60 images are nearest to the mean colour of their class\n")));
  EXPECT_EQ(output(1, 2), expected);
  EXPECT_EQ(output(2, 2), expected);
  EXPECT_EQ(output(2, 3), expected);
}

TEST_F(TarShards, AreOrderedByTheSeed) { EXPECT_NE(output(1, 2, 1), output(1, 2, 2)); }

TEST_F(TarShards, AreNamedIfDamaged) {
  const std::string whole = text_of(shard_);
  const auto with = [&](const std::string& mark, const std::string& old, const std::string& now) {
    return std::string(whole).replace(whole.find(old, whole.find(mark)), old.size(), now);
  };
  const auto expect_refused = [&](const std::string& bytes, const std::string& what, const std::string& what_to_do) {
    write_text(shard_, bytes);
    DataSet::expect_refused(shard_, what, what_to_do);
  };
  const std::string again = "Copy or write the shard again, or remove it";
  expect_refused(whole.substr(0, 20'000), "000034.jpg: Truncated tar archive", again);
  expect_refused(whole.substr(0, whole.find("000031.jpg")), "it is truncated after 000030.cls", again);
  expect_refused("", "cannot read this tar file", again);
  expect_refused(with("000033.cls", "000033.cls", "000033.cat"), "Damaged tar archive", again);
  expect_refused(with("000032.jpg", "\xff\xd8\xff", std::string("\0\0\0", 3)),
                 "000032.jpg: cannot decode this image: Not a JPEG file", "Replace the image, or remove it");
  // The checksum in the header stays the same.
  expect_refused(with("000033.cls", "000033.cls", "000033.csl"), "000033.cls is missing", "Write the shard again");
  std::string bytes = whole;
  bytes[bytes.find("000033.cls") + 512] = '7';
  expect_refused(bytes, "000033.cls: expected a class from 0 to 2, got '7'", "Correct the label");
}

TEST(ImageDecoder, DecodesAnImageAfterOneWithADamagedHeader) {
  const TemporaryFolder folder;
  examples::write_image_folder(folder / "images");
  const std::vector<std::uint8_t> image = examples::read_file(folder / "images/red/0000.jpg");
  std::vector<std::uint8_t> damaged = image;
  const std::array<std::uint8_t, 2> huffman_table{0xff, 0xc4};
  const auto at = std::search(damaged.begin(), damaged.end(), huffman_table.begin(), huffman_table.end());
  ASSERT_GT(damaged.end() - at, 40);
  std::fill(at + 5, at + 21, 0xff);  // the numbers of codes

  syncrun::Array<std::uint8_t, 3> first({examples::kSide, examples::kSide, 3}), second(first.shape());
  examples::ImageDecoder decoder;
  decoder.decode(image, "image", first.view());
  EXPECT_THROW(decoder.decode(damaged, "damaged", second.view()), examples::DataError);
  decoder.decode(image, "image", second.view());
  EXPECT_EQ(second.to_vector(), first.to_vector());
}

}  // namespace
