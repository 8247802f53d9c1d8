// Errors in the input of syncrun-resnet. The tests check the messages, and that nothing was started or lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/demos/resnet/npy_files.hpp"
#include "tests/demos/resnet/resnet_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

const std::string kWhoMakesThem = ": demos/resnet/tools/pack_images.py makes such files";

class ResnetGiven : public ::testing::Test {
 protected:
  ResnetGiven() {
    write_pair(folder_.path(), "", 40, 36, 4);
    write_pair(folder_.path(), "_test", 8, 36, 4);
  }

  Words options(const Words& more = {}) const {
    return with({"--data", folder_.path().string(), "--depth", "18", "--width", "8", "--batch", "20"}, more);
  }
  /// `message` begins with the name of the file that is wrong.
  void expect_refused(const std::string& message) const {
    const CommandResult result = run_resnet_on(2, options());
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr("syncrun-resnet: " + file(message.c_str()).string() + "\n"));
    EXPECT_EQ(result.output, "") << "nothing is done before data are checked";
  }

  fs::path file(const char* name) const { return folder_ / name; }

  TemporaryFolder folder_;
};

TEST_F(ResnetGiven, AnEmptyFolderSaysWhatIsMissingAndWhatMakesIt) {
  const std::string expected = ": expected a .npy file as demos/resnet/tools/pack_images.py makes it, got none";
  fs::remove(file("images.npy"));
  expect_refused("images.npy" + expected);
  fs::remove(file("labels.npy"));
  expect_refused("labels.npy" + expected);
  fs::remove_all(folder_.path());
  expect_refused("labels.npy" + expected);
}

TEST_F(ResnetGiven, PlansForCpuDevicesSaysThatThereAreNone) {
  if (!has_cpu_network()) GTEST_SKIP() << "built without oneDNN";
  const CommandResult result = run_resnet_on(2, options({"--plans", file("plans.txt").string()}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors,
              HasSubstr("--plans: expected CUDA devices, whose convolutions have plans to choose from, got "
                        "cpu0, where equal runs give the same bits without"));
  EXPECT_FALSE(fs::exists(file("plans.txt")));
}

TEST_F(ResnetGiven, DamagedPlansSayInWhichLineBeforeAnythingIsStarted) {
  std::ofstream(file("plans.txt")) << "syncrun-resnet plans 1\ngpu NVIDIA H200\n";
  const CommandResult result = run_resnet_on(2, options({"--plans", file("plans.txt").string()}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("syncrun-resnet: --plans: " + file("plans.txt").string() +
                                       ", line 3: expected a whole line, since the last one is 'end', found ''"));
  EXPECT_EQ(result.output, "");
}

TEST_F(ResnetGiven, NothingToEvaluateOnSaysSo) {
  fs::remove(file("images_test.npy"));
  expect_refused("images_test.npy: expected images to evaluate on, or --evaluate-fraction, got neither");
}

TEST_F(ResnetGiven, ATruncatedFileSaysHowLongItIsToBe) {
  fs::resize_file(file("images.npy"), 1000);
  expect_refused(
      "images.npy: expected 155520 bytes of elements (shape [40, 36, 36, 3] of uint8) after a header of 128, found a "
      "file "
      "of 1000 bytes" +
      kWhoMakesThem);
  fs::resize_file(file("labels.npy"), 20);
  expect_refused("labels.npy: expected a header of 128 bytes, found the end after 20" + kWhoMakesThem);
}

TEST_F(ResnetGiven, AnotherElementTypeSaysBoth) {
  write_npy(file("images.npy"), "<f4", "(40, 36, 36, 3)", std::vector<float>(40 * 36 * 36 * 3));
  expect_refused("images.npy: expected elements of type uint8, got float32");
  write_npy(file("labels.npy"), "<f8", "(40,)", std::vector<double>(40));
  expect_refused("labels.npy: expected labels of an integer type, got float64");
  write_npy(file("labels.npy"), ">i8", "(40,)", std::vector<std::int64_t>(40));
  expect_refused(
      "labels.npy: expected little-endian floats of 2, 4 or 8 bytes, integers of 1 to 8 bytes, bool or bfloat16 "
      "('|V2'); found "
      "element type '>i8', big-endian" +
      kWhoMakesThem);
}

TEST_F(ResnetGiven, AnotherShapeSaysBoth) {
  write_npy(file("images.npy"), "|u1", "(40, 36, 36, 1)", std::vector<std::uint8_t>(40 * 36 * 36));
  expect_refused("images.npy: expected images of shape [rows, height, width, 3], got shape [40, 36, 36, 1]");
  write_npy(file("images.npy"), "|u1", "(40, 28, 28, 3)", std::vector<std::uint8_t>(40 * 28 * 28 * 3));
  expect_refused("images.npy: expected images of 32 pixels a side or more (pack_images.py --size), got 28 x 28 pixels");
  write_npy(file("images.npy"), "|u1", "(39, 36, 36, 3)", std::vector<std::uint8_t>(39 * 36 * 36 * 3));
  expect_refused("images.npy: expected 40 images, as there are labels, got 39");
  write_npy(file("labels.npy"), "<i8", "(40, 1)", std::vector<std::int64_t>(40));
  expect_refused("labels.npy: expected labels of shape [rows], got shape [40, 1]");
}

TEST_F(ResnetGiven, ALabelOutOfRangeSaysWhichRow) {
  std::vector<std::int64_t> labels(40, 1);
  labels[9] = -3;
  write_npy(file("labels.npy"), "<i8", "(40,)", labels);
  expect_refused("labels.npy: expected labels from 0 to 1048575, got -3 in row 9");
  labels[9] = std::int64_t{1} << 20;
  write_npy(file("labels.npy"), "<i8", "(40,)", labels);
  expect_refused("labels.npy: expected labels from 0 to 1048575, got 1048576 in row 9");
  write_npy(file("labels.npy"), "|u1", "(40,)", std::vector<std::uint8_t>(40, 1));
  expect_refused("labels_test.npy: expected labels from 0 to 1, got 3 in row 1");
}

/// Tests that compute. They require a network for CPU devices.
class ResnetTraining : public ResnetGiven {
 protected:
  void SetUp() override {
    if (!has_cpu_network()) GTEST_SKIP() << "built without oneDNN";
  }
};

TEST_F(ResnetTraining, FromFilesAndFromMemoryIsTheSame) {
  const auto last = [&](const char* feed) {
    return epochs_on(2, options({"--epochs", "2", "--feed", feed, "--seed", "5"})).back().evaluation_loss;
  };
  EXPECT_EQ(last("mapped"), last("memory")) << "to the last digit";
}

TEST_F(ResnetTraining, FromFilesThatAreTruncatedMeanwhileEndsWithTheFileAndKeepsTheCheckpoint) {
  const std::string run = file("run").string();
  std::jthread saboteur([&](const std::stop_token& stop) {
    while (!stop.stop_requested() && !fs::exists(file("run") / "latest/manifest.txt")) std::this_thread::sleep_for(1ms);
    fs::resize_file(file("images.npy"), 1000);
  });
  const CommandResult result = run_resnet_on(2, options({"--epochs", "100000", "--checkpoint", run}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors,
              HasSubstr(file("images.npy").string() + ": expected the 155648 bytes that are mapped, found 1000"));
  EXPECT_THAT(result.errors, Not(HasSubstr("--slices")));
  saboteur.request_stop();
  saboteur.join();
  write_pair(folder_.path(), "", 40, 36, 4);
  const CommandResult again = run_resnet_on(2, options({"--epochs", "1", "--checkpoint", run, "--resume"}));
  EXPECT_EQ(again.exit_code, 0) << again.errors;
}

TEST_F(ResnetTraining, OnRowsOnTheDevicesIsTheSameWhateverTheirNumber) {
  const auto losses = [&](int workers, const Words& more) {
    const Words words{"--synthetic", "12", "--batch", "6", "--crop",   "32", "--classes",  "4",
                      "--depth",     "18", "--width", "8", "--epochs", "3",  "--sync-norm"};
    std::vector<double> all;
    for (const EpochLine& epoch : epochs_on(workers, with(words, more))) all.push_back(epoch.loss);
    return all;
  };
  const auto alone = losses(1, {});
  ASSERT_THAT(alone, SizeIs(3));
  EXPECT_LT(alone[2], alone[0]) << "six images are soon learnt";
  const auto together = losses(3, {});
  ASSERT_THAT(together, SizeIs(3));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(together[i], alone[i], 1e-3 * alone[i]) << "epoch " << i;
  EXPECT_THAT(losses(2, {"--slices", "2"}), SizeIs(3));
}

}  // namespace
