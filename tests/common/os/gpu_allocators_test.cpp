// The limit that Syncrun and a library share for the memory of a GPU.

#include "common/os/gpu_allocators.hpp"

#include <gtest/gtest.h>

#include "tests/common/error_text.hpp"

namespace syncrun::detail {
namespace {

TEST(GpuAllocators, TheLimitIsAFractionOfTheDevice) {
  EXPECT_EQ(os::gpu_limit_bytes(nullptr, 1000), 0u);
  EXPECT_EQ(os::gpu_limit_bytes("0.25", 1000), 250u);
  EXPECT_EQ(os::gpu_limit_bytes("1", 1000), 1000u);
  EXPECT_EQ(os::gpu_limit_bytes("1e-12", 1000), 1u) << "0 would be no limit";
  for (const char* wrong : {"", "0", "-0.5", "1.5", "half", "0.5x", "nan"}) {
    const std::string text = test::error_text([&] { os::gpu_limit_bytes(wrong, 1000); }, ErrorKind::usage);
    EXPECT_NE(text.find("SYNCRUN_GPU_MEMORY_FRACTION: expected a number above 0"), std::string::npos) << wrong << text;
  }
}

TEST(GpuAllocators, TheLimitIsForBothTogether) {
  os::GpuAllocators allocators;
  EXPECT_TRUE(allocators.allow(1'000'000)) << "no limit";
  allocators.limit_bytes = 100;
  EXPECT_TRUE(allocators.allow(100));
  allocators.syncrun.held_bytes = [] { return std::size_t{30}; };
  EXPECT_TRUE(allocators.allow(70));
  EXPECT_FALSE(allocators.allow(71));
  allocators.library.held_bytes = [] { return std::size_t{60}; };
  EXPECT_EQ(allocators.held_bytes(), 90u);
  EXPECT_TRUE(allocators.allow(10));
  EXPECT_FALSE(allocators.allow(11));
}

}  // namespace
}  // namespace syncrun::detail
