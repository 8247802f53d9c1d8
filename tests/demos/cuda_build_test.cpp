// The two programs of a demo in packages (demos/common/cuda_build.hpp). A script is in the place of the one with CUDA.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/demos/demo_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using demos::testing::CommandResult;
using demos::testing::with;
using demos::testing::Words;
using ::testing::HasSubstr;

struct Demo {
  fs::path program;
  Words libraries;  // which the program with CUDA requires
};

class CudaBuild : public testing::TestWithParam<Demo> {
 protected:
  CudaBuild() {
    fs::create_directories(cuda_program_.parent_path());
    fs::create_directory(folder_ / "bin");
    fs::copy_file(GetParam().program, program_);
    for (const auto& library : GetParam().libraries) write_library(library);
  }

  void write_library(const std::string& library) const {
    fs::copy_file(SYNCRUN_LIBRARY, folder_ / library, fs::copy_options::overwrite_existing);
  }
  void write_cuda_program(const std::string& script) const {
    write_text(cuda_program_, script);
    fs::permissions(cuda_program_, fs::perms::owner_all);
  }
  /// `words` are options of env, and variables.
  CommandResult run(const Words& words = {}, const std::string& argument = "--help") const {
    const Words env = with({"/usr/bin/env"}, words);
    return syncrun::test::run_command(
        with(env, {"LD_LIBRARY_PATH=" + folder_.path().string(), program_.string(), argument}));
  }

  TemporaryFolder folder_;
  fs::path program_ = folder_ / "bin" / GetParam().program.filename();
  fs::path cuda_program_ = folder_ / DEMOS_CUDA_PROGRAMS / GetParam().program.filename();
};

TEST_P(CudaBuild, RunsIfItIsInstalledAndItsLibrariesCanBeLoaded) {
  EXPECT_THAT(run().output, HasSubstr("usage: "));
  write_cuda_program("#!/bin/sh\necho with CUDA: \"$@\"\n");
  EXPECT_EQ(run().output, "with CUDA: --help\n");
  for (const std::string& library : GetParam().libraries) {
    write_text(folder_ / library, "no library");
    EXPECT_THAT(run().output, HasSubstr("usage: "));
    EXPECT_EQ(run().errors, "");
    EXPECT_THAT(run({"SYNCRUN_DEVICES=cuda0"}).errors, HasSubstr(library)) << "devices that it cannot use";
    write_library(library);
  }
}

TEST_P(CudaBuild, BeginsWithStopSignalsBlockedInAgents) {
  write_cuda_program("#!/bin/grep ^SigBlk:\n");  // a shell may unblock them
  const auto blocked = [this](const Words& words) { return run(words, "/proc/self/status").output; };
  EXPECT_THAT(blocked({"SYNCRUN_NODE=0"}), HasSubstr("SigBlk:\t0000000000000000"));
  EXPECT_THAT(blocked({"--block-signal=TERM,INT,USR1,USR2", "SYNCRUN_NODE=1"}), HasSubstr("SigBlk:\t0000000000004a02"));
}

INSTANTIATE_TEST_SUITE_P(Demos, CudaBuild,
                         testing::Values(Demo{MNIST_PROGRAM, {DEMOS_CUDA_PART}},
                                         Demo{RESNET_PROGRAM, {DEMOS_CUDA_PART, RESNET_NVRTC}}),
                         [](const auto& info) { return info.index == 0 ? "mnist" : "resnet"; });

}  // namespace
