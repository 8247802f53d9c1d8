// Checks of data sets, which the program makes before it starts a worker.

#include "demos/resnet/program/dataset.hpp"

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

TEST_F(DatasetOnDisk, IsRefusedWithoutAFileOrWithADamagedOne) {
  fs::remove(file("labels_test.npy"));
  EXPECT_EQ(complaint(),
            "labels_test.npy: expected a .npy file as demos/resnet/tools/pack_images.py makes it, got none");
  fs::remove(file("images_test.npy"));
  EXPECT_EQ(complaint(), "images_test.npy: expected images to evaluate on, or --evaluate-fraction, got neither");
  const DatasetOptions of_one_pair{.evaluate_fraction = 0.5};
  EXPECT_EQ(complaint(of_one_pair), "nothing");

  const std::string advice = ": demos/resnet/tools/pack_images.py makes such files";
  fs::resize_file(file("images.npy"), fs::file_size(file("images.npy")) - 100);
  EXPECT_EQ(complaint(of_one_pair),
            "images.npy: expected 61440 bytes of elements (shape [20, 32, 32, 3] of uint8) after a header of 128, "
            "found a file of 61468 bytes" +
                advice);
  fs::resize_file(file("images.npy"), 60);
  EXPECT_EQ(complaint(of_one_pair), "images.npy: expected a header of 128 bytes, found the end after 60" + advice);
  fs::remove(file("images.npy"));
  EXPECT_EQ(complaint(of_one_pair),
            "images.npy: expected a .npy file as demos/resnet/tools/pack_images.py makes it, got none");
  std::ofstream(file("labels.npy")) << "not a file of NumPy";
  EXPECT_EQ(complaint(of_one_pair),
            "labels.npy: expected a .npy file ('\\x93NUMPY' in front), found 'not a '" + advice);
}

TEST_F(DatasetOnDisk, IsRefusedForOtherTypesShapesAndNumbers) {
  write_pair(folder_.path(), "_test", 8, 40, 4);
  EXPECT_EQ(complaint(), "images_test.npy: expected images of 32 x 32 pixels as in images.npy, got 40 x 40 pixels");
  EXPECT_EQ(complaint({.evaluate_fraction = 0.999}),
            "--evaluate-fraction: expected to leave a row or more to train on, got none of 20");
  write_npy(file("labels.npy"), "|u1", "(19,)", std::vector<std::uint8_t>(19));
  EXPECT_EQ(complaint(), "images.npy: expected 19 images, as there are labels, got 20");
  write_npy(file("images.npy"), "<f4", "(20, 1, 1, 3)", std::vector<float>(60));
  EXPECT_EQ(complaint(), "images.npy: expected elements of type uint8, got float32");
  write_npy(file("images.npy"), "|u1", "(20, 32, 32)", std::vector<std::uint8_t>(20 * 32 * 32));
  EXPECT_EQ(complaint(), "images.npy: expected images of shape [rows, height, width, 3], got shape [20, 32, 32]");
  write_npy(file("labels.npy"), "<f4", "(20,)", std::vector<float>(20));
  EXPECT_EQ(complaint(), "labels.npy: expected labels of an integer type, got float32");
  write_npy(file("labels.npy"), "<i4", "(10, 2)", std::vector<std::int32_t>(20));
  EXPECT_EQ(complaint(), "labels.npy: expected labels of shape [rows], got shape [10, 2]");
  write_npy(file("labels.npy"), "|u1", "(0,)", std::vector<std::uint8_t>());
  write_npy(file("images.npy"), "|u1", "(0, 32, 32, 3)", std::vector<std::uint8_t>());
  EXPECT_EQ(complaint(), "images.npy: expected one image or more, got none");
}

TEST_F(DatasetOnDisk, IsRefusedForLabelsOutOfRange) {
  const auto with_label = [&](std::int64_t label) {
    std::vector<std::int64_t> labels(20);
    labels[7] = label;
    write_npy(file("labels.npy"), "<i8", "(20,)", labels);
  };
  with_label(-1);
  EXPECT_EQ(complaint(), "labels.npy: expected labels from 0 to 1048575, got -1 in row 7");
  with_label(4);
  EXPECT_EQ(complaint({.classes = 4}), "labels.npy: expected labels from 0 to 3, got 4 in row 7");
  EXPECT_EQ(open().classes(), 5);
  with_label(2);
  EXPECT_EQ(complaint(), "labels_test.npy: expected labels from 0 to 2, got 3 in row 1")
      << "evaluation has a class that training has not";
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
