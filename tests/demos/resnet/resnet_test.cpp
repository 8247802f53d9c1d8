// syncrun-resnet as its users see it: what it refuses before a worker starts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/demos/command.hpp"
#include "tests/demos/resnet/npy_files.hpp"
#include "tests/demos/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

/// The options of `syncrun` that choose so many CPU devices, also on a machine with GPUs.
Words cpu_devices(int workers) {
  std::string devices = "cpu0";
  for (int i = 1; i < workers; ++i) devices += ",cpu" + std::to_string(i);
  return {"--devices", devices};
}

CommandResult run_resnet_on(int workers, const Words& options) {
  Words command{SYNCRUN_COMMAND};
  for (const Words& words : {cpu_devices(workers), Words{RESNET_PROGRAM}, options}) {
    command.insert(command.end(), words.begin(), words.end());
  }
  return run_command(command);
}

class Resnet : public ::testing::Test {
 protected:
  Resnet() {
    write_pair(folder_.path(), "", 20, 36, 4);
    write_pair(folder_.path(), "_test", 8, 36, 4);
  }

  /// On two workers, with a small network.
  CommandResult run(const Words& more) const {
    Words options{"--data", folder_.path().string(), "--depth", "18", "--width", "8"};
    options.insert(options.end(), more.begin(), more.end());
    return run_resnet_on(2, options);
  }

  void expect_refused(const std::string& message, const Words& options) const {
    const CommandResult result = run(options);
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr("syncrun-resnet: " + message));
    EXPECT_EQ(result.output, "") << "nothing is done before options and data are checked";
  }

  fs::path file(const char* name) const { return folder_ / name; }

  TemporaryFolder folder_;
};

TEST_F(Resnet, PrintsItsHelp) {
  const CommandResult result = run_resnet_on(1, {"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("usage: syncrun-resnet --data DIR"));
  EXPECT_EQ(result.errors, "");
}

TEST_F(Resnet, RefusesBadOptionsAndBadDataBeforeAWorkerStarts) {
  expect_refused("--depth: expected '18', '34', '50', '101' or '152', got '19'", {"--depth", "19"});
  expect_refused("--crop: expected at most 36, the smaller side of the images, got '40'", {"--crop", "40"});
  expect_refused(file("labels.npy").string() + ": expected labels from 0 to 1, got 3 in row 1", {"--classes", "2"});
  fs::resize_file(file("images.npy"), 1000);
  expect_refused(file("images.npy").string() + ": expected 20 x 36 x 36 x 3 elements of type |u1", {});
}

TEST_F(Resnet, RefusesACheckpointThatIsNotThere) {
  const std::string run = (folder_ / "run").string();
  expect_refused("--resume: expected a checkpoint in " + run + ", got none", {"--checkpoint", run, "--resume"});
}

TEST_F(Resnet, RefusesOnCpuDevicesWhatOnlyCudaDevicesHave) {
  for (const char* dtype : {"tf32", "bfloat16"}) {
    const CommandResult result = run({"--dtype", dtype});
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.errors, HasSubstr("--dtype " + std::string(dtype) +
                                         ": expected CUDA devices, which have it, got cpu0, which has float32 only"));
  }
}

}  // namespace
