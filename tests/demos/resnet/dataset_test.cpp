// Data sets as they are checked before a worker starts.

#include "demos/resnet/dataset.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/demos/resnet/npy_files.hpp"
#include "tests/demos/temporary_folder.hpp"

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

  /// What is said of the data set, without the folder's name.
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
  const std::vector<std::int64_t> labels = read_labels(file("labels.npy"));
  const auto expect_same = [&]<class T>(const char* dtype, T) {
    write_npy(file("labels.npy"), dtype, "(20,)", std::vector<T>(labels.begin(), labels.end()));
    EXPECT_EQ(open().training().labels, labels) << dtype;
  };
  expect_same("|u1", std::uint8_t{});
  expect_same("|i1", std::int8_t{});
  expect_same("<u2", std::uint16_t{});
  expect_same("<i2", std::int16_t{});
  expect_same("<u4", std::uint32_t{});
  expect_same("<i4", std::int32_t{});
  expect_same("<u8", std::uint64_t{});
}

TEST_F(DatasetOnDisk, IsRefusedWithoutAFile) {
  fs::remove(file("labels_test.npy"));
  EXPECT_EQ(complaint(), "labels_test.npy: expected a .npy file, got none");
  fs::remove(file("images_test.npy"));
  EXPECT_EQ(complaint(), "images_test.npy: expected images to evaluate on, or --evaluate-fraction, got neither");
  EXPECT_EQ(complaint({.evaluate_fraction = 0.5}), "nothing");
  fs::remove(file("images.npy"));
  EXPECT_EQ(complaint(), "images.npy: expected a .npy file, got none");
}

TEST_F(DatasetOnDisk, IsRefusedWhereTruncated) {
  fs::resize_file(file("images.npy"), fs::file_size(file("images.npy")) - 100);
  EXPECT_EQ(complaint(),
            "images.npy: expected 20 x 32 x 32 x 3 elements of type |u1 in 61440 bytes, got 61340 (truncated)");
  fs::resize_file(file("images.npy"), 60);
  EXPECT_EQ(complaint(), "images.npy: expected 118 more bytes, got 50 (truncated)");
  fs::resize_file(file("images.npy"), 0);
  EXPECT_EQ(complaint(), "images.npy: expected 8 more bytes, got 0 (truncated)");
  fs::resize_file(file("labels.npy"), fs::file_size(file("labels.npy")) + 8);
  EXPECT_EQ(complaint(), "labels.npy: expected 20 elements of type <i8 in 160 bytes, got 168");
}

TEST_F(DatasetOnDisk, IsRefusedForAnotherElementType) {
  write_npy(file("images.npy"), "<f4", "(20, 1, 1, 3)", std::vector<float>(60));
  EXPECT_EQ(complaint(), "images.npy: expected elements of type uint8 ('|u1'), got '<f4'");
  write_npy(file("labels.npy"), "<f4", "(20,)", std::vector<float>(20));
  EXPECT_EQ(complaint(), "labels.npy: expected labels of an integer type, little-endian, got '<f4'");
}

TEST_F(DatasetOnDisk, IsRefusedForAnotherShape) {
  write_npy(file("images.npy"), "|u1", "(20, 32, 32)", std::vector<std::uint8_t>(20 * 32 * 32));
  EXPECT_EQ(complaint(), "images.npy: expected images of shape rows x height x width x 3, got 20 x 32 x 32");
  write_npy(file("labels.npy"), "<i4", "(10, 2)", std::vector<std::int32_t>(20));
  EXPECT_EQ(complaint(), "labels.npy: expected labels in 1 dimension, got 10 x 2");
}

TEST_F(DatasetOnDisk, IsRefusedForLabelsOutOfRange) {
  std::vector<std::int64_t> labels(20);
  labels[7] = -1;
  write_npy(file("labels.npy"), "<i8", "(20,)", labels);
  EXPECT_EQ(complaint(), "labels.npy: expected labels of at least 0, got -1 in row 7");
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

TEST_F(DatasetOnDisk, IsRefusedForWhatIsNoNpyFile) {
  const auto with_header = [&](const std::string& header) {
    write_npy_bytes(file("labels.npy"), header, std::string(160, '\0'));
    return complaint().substr(0, complaint().find(", got"));
  };
  EXPECT_EQ(with_header("{'descr': '<i8', 'fortran_order': True, 'shape': (20,), }"),
            "labels.npy: expected an array in C order");
  EXPECT_EQ(with_header("{'descr': '<i8', 'fortran_order': False, }"), "labels.npy: expected 'shape' in the header");
  EXPECT_EQ(with_header("{'descr': '<i8', 'fortran_order': False, 'shape': (-20,), }"),
            "labels.npy: expected a shape in the header");
  EXPECT_EQ(with_header("{'descr': '<i8', 'fortran_order': False, 'shape': (20"),
            "labels.npy: expected a shape in the header");
  EXPECT_EQ(with_header("{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (20,), }"),
            "labels.npy: expected elements that are numbers");
  EXPECT_EQ(
      with_header("{'descr': '<i8', 'fortran_order': False, 'shape': (9223372036854775807, 9223372036854775807), }"),
      "labels.npy: expected a shape that a file can have");
  std::ofstream(file("labels.npy")) << "not a file of NumPy";
  EXPECT_EQ(complaint(), "labels.npy: expected a .npy file, got something else");
  std::ofstream(file("labels.npy")) << "\x93NUMPY" << '\7' << '\0';
  EXPECT_EQ(complaint(), "labels.npy: expected a .npy file of version 1 to 3, got version 7");
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
