// syncrun-mnist is resumed. Its losses must be those of a run without interruption. The test nodes.Restarts kills a worker.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/demos/mnist_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const Words kModel{"--model", "custom_mlp:2,64,0.2,0.5", "--dtype", "float64"};

TEST(MnistCheckpoint, GoesOnWhereItWasStopped) {
  const TemporaryFolder folder;
  const Words saving = with(kModel, {"--checkpoint", (folder / "run").string()});
  const auto whole = losses_on(2, with(kModel, {"--epochs", "4"}));
  losses_on(2, with(saving, {"--epochs", "2"}));
  const CommandResult resumed = run_mnist_on(2, with(saving, {"--epochs", "3", "--resume"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
  EXPECT_THAT(resumed.output, HasSubstr("going on after epoch 2, from " + (folder / "run").string() + "\nepoch  3/3"));
  EXPECT_EQ(losses_on(2, with(saving, {"--epochs", "4", "--resume"})), whole);
  EXPECT_EQ(losses_on(2, with(saving, {"--epochs", "4", "--resume"})), whole) << "nothing is left to do";
}

TEST(MnistCheckpoint, GoesOnWithAnotherNumberOfWorkers) {
  const TemporaryFolder folder;
  const Words saving = with(kModel, {"--checkpoint", (folder / "run").string()});
  const auto whole = losses_on(1, with(kModel, {"--epochs", "3"}));
  losses_on(3, with(saving, {"--epochs", "2"}));
  expect_equal(whole, losses_on(2, with(saving, {"--epochs", "3", "--resume", "--input", "device"})), 1e-9);
}

TEST(MnistCheckpoint, IsSavedAfterEveryNthEpochAndTheLast) {
  const TemporaryFolder folder;
  const Words saving = with(kModel, {"--checkpoint", (folder / "run").string(), "--checkpoint-every", "2"});
  const auto whole = losses_on(1, with(saving, {"--epochs", "3"}));
  EXPECT_THAT(text_of(folder / "run/latest/manifest.txt"), HasSubstr("value epoch 3\n"));
  EXPECT_EQ(losses_on(1, with(kModel, {"--epochs", "3"})), whole) << "saving changes nothing";
}

TEST(MnistCheckpoint, OfSomethingElseIsRefusedWithWhatDiffers) {
  const TemporaryFolder folder;
  const std::string run = (folder / "run").string();
  const Words saving{"--checkpoint", run, "--epochs", "1"};
  losses_on(1, with(kModel, saving));
  const auto refused = [&](const Words& options) {
    const CommandResult result = run_mnist_on(1, with(saving, options));
    EXPECT_EQ(result.exit_code, 2);
    return result.errors;
  };
  const std::string expected = "syncrun-mnist: --checkpoint: expected a checkpoint with ";
  EXPECT_THAT(refused({"--resume"}), HasSubstr(expected + "model 'mlp', got 'custom_mlp:2,64,0.2,0.5' in " + run));
  EXPECT_THAT(refused(with({"--resume", "--seed", "2"}, kModel)), HasSubstr(expected + "seed '2', got '1' in " + run));
  EXPECT_THAT(refused(with({"--resume"}, {"--model", kModel[1]})),
              HasSubstr(expected + "dtype 'float32', got 'float64' in " + run));
  EXPECT_THAT(refused(kModel), HasSubstr("syncrun-mnist: --checkpoint: expected a folder without a checkpoint, got " +
                                         run + " (--resume goes on from what is there)"));
  std::string manifest = text_of(folder / "run/latest/manifest.txt");
  manifest.replace(manifest.find("syncrun-mnist 1"), 15, "syncrun-mnist 2");
  std::ofstream(folder / "run/latest/manifest.txt") << manifest;
  EXPECT_THAT(refused(with({"--resume"}, kModel)),
              HasSubstr(expected + "format 'syncrun-mnist 1', got 'syncrun-mnist 2' in " + run));
}

TEST(MnistCheckpoint, WantsOptionsThatMakeSense) {
  const TemporaryFolder folder;
  EXPECT_THAT(run_mnist({"--resume"}).errors, HasSubstr("--resume: expected --checkpoint DIR beside it, got none"));
  EXPECT_THAT(run_mnist({"--checkpoint", (folder / "none").string(), "--resume"}).errors,
              HasSubstr("--resume: expected a checkpoint in " + (folder / "none").string() + ", got none"));
  EXPECT_THAT(run_mnist({"--checkpoint-every", "0"}).errors, HasSubstr("--checkpoint-every: expected a whole number"));
  EXPECT_THAT(run_mnist({"--help"}).output, HasSubstr("--checkpoint DIR"));
  const CommandResult twin = syncrun::test::run_command({MNIST_SERIAL_PROGRAM, "--checkpoint", "x"});
  EXPECT_EQ(twin.exit_code, 2) << "the twins have none";
}

}  // namespace
