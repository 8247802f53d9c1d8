#include "worker/devices/cuda/gpu_support.hpp"

#include <gmock/gmock.h>

#include "tests/common/error_text.hpp"

namespace syncrun::detail {
namespace {

using testing::HasSubstr;

TEST(GpuSupport, IsOfGpusThatHaveCodeOrCanTranslateIt) {
  EXPECT_TRUE(worker::devices::cuda::runs_on("80,90", {8, 0}));
  EXPECT_TRUE(worker::devices::cuda::runs_on("80,90", {8, 9})) << "code for 8.0 runs on 8.9";
  EXPECT_TRUE(worker::devices::cuda::runs_on("80,90", {12, 0})) << "the driver translates";
  EXPECT_FALSE(worker::devices::cuda::runs_on("80,90", {7, 0}));
  EXPECT_FALSE(worker::devices::cuda::runs_on("80;90", {7, 5}));
  EXPECT_TRUE(worker::devices::cuda::runs_on("75", {7, 5}));
  EXPECT_FALSE(worker::devices::cuda::runs_on("80-real", {9, 0}));
  EXPECT_TRUE(worker::devices::cuda::runs_on("80-real", {8, 6}));
  EXPECT_FALSE(worker::devices::cuda::runs_on("86-real", {8, 0}));
  EXPECT_TRUE(worker::devices::cuda::runs_on("80-virtual", {9, 0}));
  EXPECT_TRUE(worker::devices::cuda::runs_on("90a-real", {9, 0}));
  EXPECT_FALSE(worker::devices::cuda::runs_on("90a", {10, 0}));
  EXPECT_TRUE(worker::devices::cuda::runs_on("100f", {10, 3}));
  EXPECT_FALSE(worker::devices::cuda::runs_on("100f", {12, 0}));
  EXPECT_TRUE(worker::devices::cuda::runs_on("native", {7, 0}));
  EXPECT_TRUE(worker::devices::cuda::runs_on("all-major", {7, 5}));
}

std::string text_of(const auto& check) { return test::error_text(check, ErrorKind::usage); }

TEST(GpuSupport, SaysWhatToBuildForOtherGpus) {
  EXPECT_NO_THROW(worker::devices::cuda::require_code("cuda0", {9, 0}, "80,90"));
  EXPECT_EQ(
      text_of([] {
        worker::devices::cuda::require_code("cuda1", {7, 5}, "80,90");
      }),
      "cuda1 has compute capability 7.5, and this Syncrun has code for the architectures 80,90. Build Syncrun with "
      "-DCMAKE_CUDA_ARCHITECTURES=75, or choose other devices");
  EXPECT_THAT(text_of([] {
                worker::devices::cuda::require_code("cuda0", {7, 0}, "80");
              }),
              HasSubstr("ARCHITECTURES=70 (CUDA 12 is the last version that compiles for it), or choose"));
  EXPECT_THAT(text_of([] {
                worker::devices::cuda::require_code("cuda0", {6, 1}, "80");
              }),
              HasSubstr("supports GPUs from compute capability 7.0 on"));
}

TEST(GpuSupport, SaysWhichGpusCudaShows) {
  EXPECT_NO_THROW(worker::devices::cuda::require_shown("cuda1", 2, nullptr));
  const std::string mig = text_of([] { worker::devices::cuda::require_shown("cuda1", 1, "MIG-7f1c,MIG-8f2a"); });
  EXPECT_THAT(mig, HasSubstr("CUDA shows 1 GPU to this process, expected at least 2 for cuda1; CUDA_VISIBLE_DEVICES is "
                             "'MIG-7f1c,MIG-8f2a'"));
  EXPECT_THAT(mig, HasSubstr("only one instance"));
  EXPECT_THAT(text_of([] { worker::devices::cuda::require_shown("cuda3", 0, nullptr); }), HasSubstr("shows 0 GPUs"));
}

TEST(GpuSupport, AdvisesWhereCudaRefusesAGpu) {
  EXPECT_THAT(std::string(worker::devices::cuda::advice_at_start(46)), HasSubstr("exclusive mode"));
  EXPECT_THAT(std::string(worker::devices::cuda::advice_at_start(35)), HasSubstr("Update the driver"));
  EXPECT_EQ(worker::devices::cuda::advice_at_start(0), "");
}

TEST(GpuSupport, ClosesGpusWhoseMemoryOthersCannotRead) {
  EXPECT_TRUE(
      worker::devices::cuda::is_open_to_peers({.can_export = true, .is_exclusive = false, .others_reach_it = false}));
  EXPECT_TRUE(
      worker::devices::cuda::is_open_to_peers({.can_export = true, .is_exclusive = true, .others_reach_it = true}));
  EXPECT_FALSE(
      worker::devices::cuda::is_open_to_peers({.can_export = true, .is_exclusive = true, .others_reach_it = false}));
  EXPECT_FALSE(
      worker::devices::cuda::is_open_to_peers({.can_export = false, .is_exclusive = false, .others_reach_it = true}));
}

}  // namespace
}  // namespace syncrun::detail
