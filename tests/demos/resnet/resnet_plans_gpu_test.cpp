// syncrun-resnet on GPUs with stored plans. Its results must be the same to the last bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/demos/cuda_support.hpp"
#include "tests/demos/resnet/resnet_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<const char*> kArrays{"params", "statistics", "optimizer.v"};
constexpr const char* kOwnChoice = "chosen by timing on this rank alone";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The lines of epochs, without the times.
std::vector<std::string> figures_of(const CommandResult& result) {
  std::vector<std::string> figures;
  for (const std::string& line : lines_of(result.output)) {
    if (line.starts_with("epoch ")) figures.push_back(line.substr(0, line.rfind(" %")));
  }
  return figures;
}

template <int kGpus>
class ResnetOnPlanned : public demos::testing::OnGpus<kGpus> {
 protected:
  ResnetOnPlanned() { write_digits(folder_.path()); }

  /// With 65 rows, the last batch has another number of rows than the others. On two devices, their numbers of rows
  /// differ too.
  Words command(const std::string& devices, const char* dtype, const Words& more) const {
    return resnet_on(devices, with({"--data", folder_.path().string(), "--depth", "18", "--width", "32", "--batch",
                                    "65", "--dtype", dtype, "--interval", "1000"},
                                   more));
  }
  fs::path file(const char* name) const { return folder_ / name; }
  std::string name_of(const char* name) const { return file(name).string(); }
  Words plans() const { return {"--plans", name_of("plans.txt")}; }

  CommandResult run(const std::string& devices, const char* dtype, const Words& more) const {
    CommandResult result = syncrun::test::run_command(command(devices, dtype, more));
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output + result.errors, Not(HasSubstr(kOwnChoice)));
    return result;
  }

  void expect_equal_runs_to_end_equally(const std::string& devices, const char* dtype, const Words& more = {}) const {
    const Words two = with({"--epochs", "2"}, more);
    const CommandResult first = run(devices, dtype, with(two, with(plans(), {"--checkpoint", name_of("first")})));
    EXPECT_THAT(first.output, HasSubstr(name_of("plans.txt") + " has all of them now"));
    const std::string chosen = text_of(file("plans.txt"));
    EXPECT_THAT(chosen, HasSubstr("\nconvolution pass=backward-filter "));
    const CommandResult second = run(devices, dtype, with(two, with(plans(), {"--checkpoint", name_of("second")})));
    EXPECT_THAT(second.output, HasSubstr(", 0 chosen by timing\n"));
    EXPECT_EQ(text_of(file("plans.txt")), chosen);
    ASSERT_EQ(figures_of(first).size(), 2U) << first.output;
    EXPECT_EQ(figures_of(second), figures_of(first));
    EXPECT_TRUE(saved_arrays(file("second"), kArrays) == saved_arrays(file("first"), kArrays)) << "to the last bit";
  }

  /// The whole run has its plans from a file. The other run is killed, and resumes with the plans of its checkpoint.
  void expect_a_resumed_run_to_end_as_a_whole_one(const std::string& devices, const char* dtype) const {
    const Words epochs{"--epochs", "8"};
    run(devices, dtype, with(epochs, with(plans(), {"--checkpoint", name_of("whole")})));
    bool was_killed = false;
    for (int attempt = 0; attempt < 5 && !was_killed; ++attempt) {
      fs::remove_all(file("killed"));
      const Words words = with(epochs, with(plans(), {"--checkpoint", name_of("killed")}));
      was_killed = run_and_kill(command(devices, dtype, words), [&] { return is_after_epoch(file("killed"), 1); }) &&
                   !is_after_epoch(file("killed"), 8);
    }
    ASSERT_TRUE(was_killed);
    fs::remove(file("plans.txt"));
    const CommandResult resumed = run(devices, dtype, with(epochs, {"--checkpoint", name_of("killed"), "--resume"}));
    EXPECT_THAT(resumed.output, HasSubstr("going on after epoch "));
    EXPECT_THAT(resumed.output, HasSubstr(" from the checkpoint in " + name_of("killed") + ", 0 chosen by timing\n"));
    EXPECT_TRUE(saved_arrays(file("killed"), kArrays) == saved_arrays(file("whole"), kArrays)) << "to the last bit";
  }

  TemporaryFolder folder_;
};

class ResnetOnPlannedGpus : public ResnetOnPlanned<1> {};

TEST_F(ResnetOnPlannedGpus, EndWithTheSameBitsInTwoEqualRunsInFloat32) {
  expect_equal_runs_to_end_equally("cuda0", "float32");
}

/// On an H100 or H200, some of these convolutions are products of the demo's own.
TEST_F(ResnetOnPlannedGpus, EndWithTheSameBitsInTwoEqualRunsOfResnet50InBfloat16) {
  expect_equal_runs_to_end_equally("cuda0", "bfloat16", {"--depth", "50", "--width", "64"});
}

TEST_F(ResnetOnPlannedGpus, GoOnFromACheckpointToTheBitsOfAWholeRun) {
  expect_a_resumed_run_to_end_as_a_whole_one("cuda0", "bfloat16");
}

TEST_F(ResnetOnPlannedGpus, AgreeOnAllPlansOfSlicesAndEvaluationBeforeTheFirstStep) {
  const Words sliced{"--epochs", "1", "--slices", "4", "--eval-slices", "7"};
  run("cuda0", "bfloat16", with(sliced, plans()));
  EXPECT_THAT(run("cuda0", "bfloat16", with(sliced, plans())).output, HasSubstr(", 0 chosen by timing\n"));
  const Words synthetic{"--synthetic", "50", "--crop",   "32", "--depth",  "18",
                        "--batch",     "50", "--epochs", "1",  "--slices", "3"};
  const CommandResult result =
      syncrun::test::run_command(resnet_on("cuda0", with(synthetic, {"--plans", name_of("others.txt")})));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output + result.errors, Not(HasSubstr(kOwnChoice)));
}

/// The file names a plan that does not exist. The run must fail, which shows that it uses the file.
TEST_F(ResnetOnPlannedGpus, ComputeByTheFilesPlansAndNoOthers) {
  run("cuda0", "bfloat16", with({"--epochs", "1"}, plans()));
  const std::string text = text_of(file("plans.txt"));
  const std::string part = " plan=eng";
  const std::size_t place = text.find(part);
  ASSERT_NE(place, std::string::npos) << text;
  std::ofstream(file("plans.txt")) << std::string(text).replace(place, part.size(), " plan=eng9999");
  const CommandResult result =
      syncrun::test::run_command(command("cuda0", "bfloat16", with({"--epochs", "1"}, plans())));
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.errors, HasSubstr("the stored plan 'eng9999"));
  EXPECT_THAT(result.errors, HasSubstr("cuDNN does not propose it on this device"));
}

class ResnetOnTwoPlannedGpus : public ResnetOnPlanned<2> {};

TEST_F(ResnetOnTwoPlannedGpus, EndWithTheSameBitsInTwoEqualRunsInBfloat16) {
  expect_equal_runs_to_end_equally("cuda0,cuda1", "bfloat16");
}

TEST_F(ResnetOnTwoPlannedGpus, GoOnFromACheckpointToTheBitsOfAWholeRun) {
  expect_a_resumed_run_to_end_as_a_whole_one("cuda0,cuda1", "bfloat16");
}

}  // namespace
