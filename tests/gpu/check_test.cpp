// Which errors of CUDA end the context of a GPU. Requires no GPU.

#include "worker/devices/cuda/check.hpp"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "syncrun/error.hpp"

namespace syncrun::detail {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::Not;

// As numbers, because older toolkits do not have all names.
const std::vector<int> kOfALostContext = {
    214,                                     // an uncorrectable ECC error
    220,                                     // an uncorrectable NVLink error
    226,                                     // contained
    700, 702,                                // illegal address, launch timeout
    709,                                     // the context is destroyed
    710, 714, 715, 716, 717, 718, 719, 721,  // errors of a kernel
    806, 810,                                // MPS: the server does not answer, has terminated this process
    911,                                     // an external device
    999,                                     // unknown
};

TEST(CudaErrors, ThatEndTheContextAreKnown) {
  std::vector<int> sticky;
  for (int code = 0; code < 1'000; ++code) {
    if (worker::devices::cuda::is_sticky(static_cast<cudaError_t>(code))) sticky.push_back(code);
  }
  EXPECT_THAT(sticky, ElementsAreArray(kOfALostContext));
}

TEST(CudaErrors, OfAQueryShowALostContextUnlessTheStreamIsBusyOrCaptured) {
  for (const int code : kOfALostContext)
    EXPECT_TRUE(worker::devices::cuda::shows_a_lost_context(static_cast<cudaError_t>(code))) << code;
  EXPECT_TRUE(worker::devices::cuda::shows_a_lost_context(static_cast<cudaError_t>(998))) << "a code of a later CUDA";
  for (const cudaError_t code :
       {cudaSuccess, cudaErrorNotReady, cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated}) {
    EXPECT_FALSE(worker::devices::cuda::shows_a_lost_context(code)) << code;
  }
}

TEST(CudaErrors, SayWhetherTheContextIsLost) {
  const auto message_of = [](cudaError_t code) -> std::string {
    try {
      worker::devices::cuda::check_cuda(code, "a launch");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message_of(cudaErrorIllegalAddress), HasSubstr("compute-sanitizer finds it"));
  EXPECT_THAT(message_of(cudaErrorNvlinkUncorrectable),
              HasSubstr("context is lost, so the worker can no longer use it. The kernel's log"));
  EXPECT_THAT(message_of(cudaErrorMemoryAllocation), Not(HasSubstr("no longer")));
  EXPECT_EQ(message_of(cudaSuccess), "");
}

}  // namespace
}  // namespace syncrun::detail
