// Checks of data sets, which the program makes before it starts a worker.

#include "demos/resnet/program/dataset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/demos/resnet/npy_files.hpp"
#include "tests/support/temporary_folder.hpp"

namespace resnet {
namespace {

namespace fs = std::filesystem;

class DatasetOnDisk : public ::testing::Test {
 protected:
  DatasetOnDisk() {
    write_pair(folder_.path(), "", 20, 32, 4);
    write_pair(folder_.path(), "_test", 8, 32, 4);
  }

  Dataset open(const DatasetOptions& options = {}) const {
    DatasetOptions of_folder = options;
    of_folder.folder = folder_.path();
    return Dataset(of_folder);
  }

  /// The message about the data set, without the name of the folder.
  std::string complaint(const DatasetOptions& options = {}) const {
    try {
      open(options);
    } catch (const DatasetError& error) {
      std::string what = error.what();
      const std::string folder = folder_.path().string() + "/";
      if (what.starts_with(folder)) what.erase(0, folder.size());
      return what;
    }
    return "nothing";
  }

  fs::path file(const char* name) const { return folder_ / name; }

  TemporaryFolder folder_;
};

TEST_F(DatasetOnDisk, IsTheTwoPairs) {
  const Dataset dataset = open();
  EXPECT_EQ(dataset.shape().height, 32U);
  EXPECT_EQ(dataset.shape().width, 32U);
  EXPECT_EQ(dataset.classes(), 4);
  EXPECT_EQ(dataset.training_rows().size(), 20U);
  EXPECT_EQ(dataset.evaluation_rows().size(), 8U);
  EXPECT_TRUE(dataset.has_evaluation_pair());
  EXPECT_EQ(dataset.training().labels[1], 3);
}

TEST_F(DatasetOnDisk, HoldsRowsBackByTheSeed) {
  const Dataset dataset = open({.evaluate_fraction = 0.3, .seed = 5});
  EXPECT_FALSE(dataset.has_evaluation_pair());
  EXPECT_EQ(dataset.evaluation_rows().size(), 6U);
  std::vector<std::int64_t> all = dataset.training_rows();
  all.insert(all.end(), dataset.evaluation_rows().begin(), dataset.evaluation_rows().end());
  std::sort(all.begin(), all.end());
  std::vector<std::int64_t> expected(20);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected) << "each row is in one of them";
  EXPECT_EQ(open({.evaluate_fraction = 0.3, .seed = 5}).evaluation_rows(), dataset.evaluation_rows());
  EXPECT_NE(open({.evaluate_fraction = 0.3, .seed = 6}).evaluation_rows(), dataset.evaluation_rows());
}

TEST_F(DatasetOnDisk, TakesLabelsOfAnyIntegerType) {
  const std::vector<std::int64_t> labels = open().training().labels;
  const auto expect_same = [&]<class T>(const char* dtype, T) {
    write_npy(file("labels.npy"), dtype, "(20,)", std::vector<T>(labels.begin(), labels.end()));
    EXPECT_EQ(open().training().labels, labels) << dtype;
  };
  expect_same("|u1", std::uint8_t{});
  expect_same("<u2", std::uint16_t{});
  expect_same("<u4", std::uint32_t{});
  expect_same("<u8", std::uint64_t{});
  expect_same("|i1", std::int8_t{});
  expect_same("<i2", std::int16_t{});
  expect_same("<i4", std::int32_t{});
}

TEST_F(DatasetOnDisk, IsRefusedWithoutAFile) {
  fs::remove(file("labels_test.npy"));
  EXPECT_EQ(complaint(),
            "labels_test.npy: expected a .npy file as demos/resnet/tools/pack_images.py makes it, got none");
  fs::remove(file("images_test.npy"));
  EXPECT_EQ(complaint(), "images_test.npy: expected images to evaluate on, or --evaluate-fraction, got neither");
  EXPECT_EQ(complaint({.evaluate_fraction = 0.5}), "nothing");
  fs::remove(file("images.npy"));
  EXPECT_EQ(complaint(), "images.npy: expected a .npy file as demos/resnet/tools/pack_images.py makes it, got none");
}

TEST_F(DatasetOnDisk, IsRefusedWhereTruncated) {
  const std::string advice = ": demos/resnet/tools/pack_images.py makes such files";
  fs::resize_file(file("images.npy"), fs::file_size(file("images.npy")) - 100);
  EXPECT_EQ(
      complaint(),
      "images.npy: expected 61440 bytes of elements (shape [20, 32, 32, 3] of uint8) after a header of 128, found "
      "a file of 61468 bytes" +
          advice);
  fs::resize_file(file("images.npy"), 60);
  EXPECT_EQ(complaint(), "images.npy: expected a header of 128 bytes, found the end after 60" + advice);
  fs::resize_file(file("images.npy"), 0);
  EXPECT_EQ(complaint(), "images.npy: expected a .npy file ('\\x93NUMPY' in front), found ''" + advice);
  fs::resize_file(file("labels.npy"), fs::file_size(file("labels.npy")) + 8);
  EXPECT_EQ(
      complaint(),
      "labels.npy: expected 160 bytes of elements (shape [20] of int64) after a header of 128, found a file of 296 "
      "bytes" +
          advice);
}

TEST_F(DatasetOnDisk, IsRefusedForAnotherElementType) {
  write_npy(file("images.npy"), "<f4", "(20, 1, 1, 3)", std::vector<float>(60));
  EXPECT_EQ(complaint(), "images.npy: expected elements of type uint8, got float32");
  write_npy(file("labels.npy"), "<f4", "(20,)", std::vector<float>(20));
  EXPECT_EQ(complaint(), "labels.npy: expected labels of an integer type, got float32");
}

TEST_F(DatasetOnDisk, IsRefusedForAnotherShape) {
  write_npy(file("images.npy"), "|u1", "(20, 32, 32)", std::vector<std::uint8_t>(20 * 32 * 32));
  EXPECT_EQ(complaint(), "images.npy: expected images of shape [rows, height, width, 3], got shape [20, 32, 32]");
  write_npy(file("labels.npy"), "<i4", "(10, 2)", std::vector<std::int32_t>(20));
  EXPECT_EQ(complaint(), "labels.npy: expected labels of shape [rows], got shape [10, 2]");
}

TEST_F(DatasetOnDisk, IsRefusedForLabelsOutOfRange) {
  std::vector<std::int64_t> labels(20);
  labels[7] = -1;
  write_npy(file("labels.npy"), "<i8", "(20,)", labels);
  EXPECT_EQ(complaint(), "labels.npy: expected labels from 0 to 1048575, got -1 in row 7");
  labels[7] = 4;
  write_npy(file("labels.npy"), "<i8", "(20,)", labels);
  EXPECT_EQ(complaint({.classes = 4}), "labels.npy: expected labels from 0 to 3, got 4 in row 7");
  EXPECT_EQ(complaint(), "nothing");
  EXPECT_EQ(open().classes(), 5);
  labels[7] = 2;
  write_npy(file("labels.npy"), "<i8", "(20,)", labels);
  EXPECT_EQ(complaint(), "labels_test.npy: expected labels from 0 to 2, got 3 in row 1")
      << "evaluation has a class that training has not";
}

TEST_F(DatasetOnDisk, IsRefusedWhereImagesAndLabelsDifferInNumberOrSize) {
  write_pair(folder_.path(), "_test", 8, 40, 4);
  EXPECT_EQ(complaint(), "images_test.npy: expected images of 32 x 32 pixels as in images.npy, got 40 x 40 pixels");
  write_npy(file("labels.npy"), "|u1", "(19,)", std::vector<std::uint8_t>(19));
  EXPECT_EQ(complaint(), "images.npy: expected 19 images, as there are labels, got 20");
}

TEST_F(DatasetOnDisk, IsRefusedWhereNothingIsLeftToTrainOn) {
  EXPECT_EQ(complaint({.evaluate_fraction = 0.999}),
            "--evaluate-fraction: expected to leave a row or more to train on, got none of 20");
  write_npy(file("labels.npy"), "|u1", "(0,)", std::vector<std::uint8_t>());
  write_npy(file("images.npy"), "|u1", "(0, 32, 32, 3)", std::vector<std::uint8_t>());
  EXPECT_EQ(complaint(), "images.npy: expected one image or more, got none");
}

TEST_F(DatasetOnDisk, IsRefusedForWhatIsNoNpyFileOfOurs) {
  const auto with_header = [&](const std::string& header) {
    write_npy_bytes(file("labels.npy"), header, std::string(160, '\0'));
    return complaint();
  };
  EXPECT_EQ(
      with_header("{'descr': '<i8', 'fortran_order': True, 'shape': (20,), }"),
      "labels.npy: expected C order, found fortran_order: True: demos/resnet/tools/pack_images.py makes such files");
  EXPECT_THAT(with_header("{'descr': '>i8', 'fortran_order': False, 'shape': (20,), }"),
              ::testing::HasSubstr("found element type '>i8', big-endian"));
  std::ofstream(file("labels.npy")) << "not a file of NumPy";
  EXPECT_EQ(complaint(),
            "labels.npy: expected a .npy file ('\\x93NUMPY' in front), found 'not a ': "
            "demos/resnet/tools/pack_images.py makes "
            "such files");
}

TEST(SyntheticDataset, HasLabelsOfEveryClassAndNoEvaluationUnlessAsked) {
  const Dataset dataset(SyntheticOptions{.rows = 1000, .size = 64, .classes = 10});
  EXPECT_EQ(dataset.shape().height, 64U);
  EXPECT_EQ(dataset.training_rows().size(), 1000U);
  EXPECT_TRUE(dataset.evaluation_rows().empty());
  for (std::int64_t label = 0; label < 10; ++label) {
    EXPECT_NEAR(std::count(dataset.training().labels.begin(), dataset.training().labels.end(), label), 100, 50);
  }
  EXPECT_EQ(Dataset(SyntheticOptions{.rows = 10, .size = 64, .evaluate_fraction = 0.2}).evaluation_rows().size(), 2U);
}

}  // namespace
}  // namespace resnet
