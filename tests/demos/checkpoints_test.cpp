// syncrun-mnist is interrupted and resumed. Its losses must be those of a run without interruption.

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "tests/demos/mnist_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const Words kModel{"--model", "custom_mlp:2,64,0.2,0.5", "--dtype", "float64"};

/// A process whose initial environment contains all these variables, or 0 if there is none.
pid_t process_with(const std::vector<std::string>& variables) {
  pid_t found = 0;
  DIR* processes = ::opendir("/proc");
  while (const dirent* entry = ::readdir(processes)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    const std::string environment = '\0' + text_of(fs::path("/proc") / entry->d_name / "environ");
    bool has_all = true;
    for (const auto& variable : variables) {
      has_all = has_all && environment.find('\0' + variable + '\0') != std::string::npos;
    }
    if (has_all) found = pid;
  }
  ::closedir(processes);
  return found;
}

/// Kills rank 1 of a run some milliseconds after the run has saved its second epoch.
class Killer {
 public:
  Killer(const fs::path& checkpoint, std::chrono::milliseconds delay)
      : mark_("run" + std::to_string(::getpid()) + "_" + std::to_string(delay.count())) {
    ::setenv("MNIST_TEST_MARK", mark_.c_str(), 1);
    thread_ = std::thread([this, checkpoint, delay] { work(checkpoint, delay); });
  }
  ~Killer() {
    is_over_ = true;
    thread_.join();
    ::unsetenv("MNIST_TEST_MARK");
  }
  bool has_killed() const { return has_killed_; }

 private:
  void work(const fs::path& checkpoint, std::chrono::milliseconds delay) {
    while (text_of(checkpoint / "latest/manifest.txt").find("value epoch 2\n") == std::string::npos) {
      if (is_over_) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(delay);
    const pid_t worker = process_with({"MNIST_TEST_MARK=" + mark_, "RANK=1"});
    if (worker > 0) has_killed_ = ::kill(worker, SIGKILL) == 0;
  }

  std::string mark_;
  std::atomic<bool> is_over_ = false;
  std::atomic<bool> has_killed_ = false;
  std::thread thread_;
};

TEST(MnistCheckpoint, AfterAWorkerWasKilledTheLossesAreThoseOfAnUninterruptedRun) {
  const Words options{"--model", "custom_mlp:2,256,0.2,0.5", "--epochs", "4"};
  const std::vector<Losses> whole = losses_on(2, options);
  ASSERT_EQ(whole.size(), 4U);
  std::mt19937 random(static_cast<unsigned>(::getpid()));
  bool has_killed = false;
  for (int attempt = 0; attempt < 10 && !has_killed; ++attempt) {  // a run may end before it is killed
    const TemporaryFolder folder;
    const Killer killer(folder / "run", std::chrono::milliseconds(random() % 100));
    const auto losses = losses_under(with({"--max-restarts", "1"}, devices(2)),
                                     with(options, {"--checkpoint", (folder / "run").string()}));
    EXPECT_EQ(losses, whole) << "to the last bit";
    has_killed = killer.has_killed();
  }
  EXPECT_TRUE(has_killed);
}

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
