#include "tests/demos/resnet/resnet_run.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <regex>
#include <thread>

#include "demos/common/idx.hpp"
#include "tests/demos/resnet/npy_files.hpp"
#include "tests/demos/resnet/reference.hpp"
#include "tests/support/temporary_folder.hpp"

extern char** environ;

namespace fs = std::filesystem;

Words resnet_on(const std::string& devices, const Words& options) {
  return with({SYNCRUN_COMMAND, "--devices", devices, RESNET_PROGRAM}, options);
}

Words resnet_on(int workers, const Words& options) {
  return with(with(with({SYNCRUN_COMMAND}, demos::testing::devices(workers)), {RESNET_PROGRAM}), options);
}

CommandResult run_resnet_on(int workers, const Words& options) {
  return syncrun::test::run_command(resnet_on(workers, options));
}

std::vector<EpochLine> epochs_of(const CommandResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  static const std::regex line(
      R"(epoch +\d+/\d+  loss (\S+)  training accuracy (\S+) %(?:  evaluation loss (\S+)  evaluation accuracy (\S+) %)?)");
  std::vector<EpochLine> epochs;
  for (std::sregex_iterator found(result.output.begin(), result.output.end(), line), end; found != end; ++found) {
    const auto number = [&](std::size_t group) { return (*found)[group].matched ? std::stod((*found)[group]) : 0; };
    epochs.push_back({number(1), number(2), number(3), number(4)});
  }
  return epochs;
}

double distance_of_trained_params(const std::string& devices, const std::string& others,
                                  const TrainedNetwork& network) {
  const auto params_on = [&](const std::string& chosen, Normalised normalised, const std::string& bucket_mib) {
    const TemporaryFolder folder;
    const std::string checkpoint = (folder / "run").string();
    const std::string rate = std::to_string(network.learning_rate);
    const Words options{"--synthetic", "320", "--feed",       "memory",   "--crop",       "32",
                        "--classes",   "10",  "--depth",      "18",       "--width",      "16",
                        "--epochs",    "1",   "--batch",      "32",       "--dtype",      "float32",
                        "--lr",        rate,  "--checkpoint", checkpoint, "--bucket-mib", bucket_mib};
    const Words more = normalised == Normalised::together ? Words{"--sync-norm"} : Words{};
    const CommandResult result = syncrun::test::run_command(resnet_on(chosen, with(options, more)));
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return resnet::testing::load_npy<float>(checkpoint + "/latest/params.npy");
  };
  return resnet::testing::relative_error(params_on(devices, network.devices, network.bucket_mib),
                                         params_on(others, network.others, "0"));
}

std::vector<EpochLine> epochs_on(int workers, const Words& options) {
  return epochs_of(run_resnet_on(workers, options));
}

bool run_and_kill(const Words& command, const std::function<bool()>& is_time) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    ::posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_WRONLY, 0);
  }
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return false;
  int status = 0;
  pid_t ended = 0;
  while (!is_time() && (ended = ::waitpid(pid, &status, WNOHANG)) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (ended != 0) return false;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, &status, 0);
  return WIFSIGNALED(status);
}

bool is_after_epoch(const fs::path& checkpoint, int epoch) {
  return text_of(checkpoint / "latest/manifest.txt").find("value epoch " + std::to_string(epoch) + "\n") !=
         std::string::npos;
}

std::vector<std::string> saved_arrays(const fs::path& checkpoint, const std::vector<const char*>& arrays) {
  std::vector<std::string> bytes;
  for (const char* array : arrays) {
    bytes.push_back(text_of(checkpoint / "latest" / (std::string(array) + ".npy")));
    EXPECT_GT(bytes.back().size(), 128U) << array;
  }
  return bytes;
}

bool has_cpu_network() {
#ifdef DEMOS_HAVE_DNNL
  return true;
#else
  return false;
#endif
}

namespace {

constexpr std::size_t kEnlargement = 4;

void write_split(const fs::path& folder, const std::string& suffix, demos::Split split, double brightest) {
  const demos::LabeledImages digits = demos::load_split(DEMOS_DIGITS_DIRECTORY, split);
  const std::size_t size = digits.images.height * kEnlargement;
  std::vector<std::uint8_t> pixels;
  for (std::size_t row = 0; row < digits.images.rows; ++row) {
    for (std::size_t y = 0; y < size; ++y) {
      for (std::size_t x = 0; x < 3 * size; ++x) {
        const std::size_t line = row * digits.images.height + y / kEnlargement;
        const double pixel = digits.images.pixels[line * digits.images.width + x / 3 / kEnlargement];
        pixels.push_back(static_cast<std::uint8_t>(255 * pixel / brightest));
      }
    }
  }
  const std::string rows = std::to_string(digits.images.rows);
  const std::string side = std::to_string(size);
  write_npy(folder / ("images" + suffix + ".npy"), "|u1", "(" + rows + ", " + side + ", " + side + ", 3)", pixels);
  write_npy(folder / ("labels" + suffix + ".npy"), "|u1", "(" + rows + ",)", digits.labels);
}

}  // namespace

void write_digits(const fs::path& folder) {
  constexpr double kBrightest = 16;
  write_split(folder, "", demos::Split::kTrain, kBrightest);
  write_split(folder, "_test", demos::Split::kTest, kBrightest);
}
