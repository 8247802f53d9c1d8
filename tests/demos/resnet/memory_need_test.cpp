#include "demos/resnet/network/memory_need.hpp"

#include <gtest/gtest.h>

namespace resnet {
namespace {

TEST(ResnetMemoryNeed, IsToldInGibibytesWithWhatRefusedIt) {
  EXPECT_EQ(gibibytes(0), "0.0 GiB");
  EXPECT_EQ(gibibytes((std::size_t{5} << 30) / 2), "2.5 GiB");
  EXPECT_STREQ(
      too_many_rows(512, std::size_t{3} << 30, "std::bad_alloc").what(),
      "512 rows at once require 3.0 GiB of this device's memory (std::bad_alloc): use a smaller batch or more slices");
}

TEST(ResnetMemoryNeed, IsNotBlamedForAnotherError) {
  const char* const text = "cudaMalloc: an illegal memory access was encountered (cudaErrorIllegalAddress)";
  EXPECT_STREQ(too_many_rows(512, 1, text).what(), text);
}

TEST(ResnetMemoryNeed, IsKnownByTheTextOfAnError) {
  for (const char* text : {"rank 1: function 'step': std::bad_alloc", "cudaMalloc: out of memory (cudaErrorMemory...)",
                           "cublasCreate: the resource allocation failed",
                           "killed by SIGKILL, probably by the out-of-memory killer: the machine's memory was used up",
                           "cannot reserve 4096 bytes of shared memory for images: No space left on device"}) {
    EXPECT_TRUE(tells_of_short_memory(text)) << text;
  }
  EXPECT_TRUE(tells_of_short_memory(too_many_rows(8, 9, "out of memory").what()));
  for (const char* text : {"an illegal memory access was encountered (cudaErrorIllegalAddress)", "",
                           "RUN/latest: No space left on device", "a deadline passed"}) {
    EXPECT_FALSE(tells_of_short_memory(text)) << text;
  }
}

}  // namespace
}  // namespace resnet
