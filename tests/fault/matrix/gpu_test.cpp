// The matrix on GPUs: phases and memory that CPU devices do not have. The program has no kernels, so no CUDA compiler
// is needed. Skipped if there are fewer than two GPUs, or if the library has no CUDA devices.

#include "tests/fault/matrix/matrix.hpp"
#include "tests/support/gpus.hpp"

namespace syncrun::test {
namespace {

constexpr int kWorldSize = 2;
// The memory that the driver itself uses varies by some MiB.
constexpr int kToleranceMib = 64;

class GpuMatrix : public testing::TestWithParam<Cell> {
 protected:
  void SetUp() override {
#ifndef SYNCRUN_HAVE_CUDA
    GTEST_SKIP() << "the library is built without CUDA devices";
#endif
    if (gpus_present() < kWorldSize) GTEST_SKIP() << kWorldSize << " GPUs wanted, " << gpus_present() << " present";
  }
};

TEST_P(GpuMatrix, NamesWhoWhereAndWhyAndGivesMemoryBack) {
  const int before = used_gpu_memory_mib();
  expect_cell(GetParam(), "cuda", kWorldSize);
  if (before < 0) return;
  EXPECT_TRUE(eventually([&] { return used_gpu_memory_mib() <= before + kToleranceMib; }))
      << "memory of the GPUs is not back: " << used_gpu_memory_mib() << " MiB in use, " << before << " before";
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuMatrix,
                         testing::ValuesIn(cells_of({"device", "communicator", "inputs", "function", "collective",
                                                     "reduction", "idle", "close"},
                                                    {"kill", "segv", "exit3", "exception", "loop"},
                                                    {0, kWorldSize - 1})),
                         name_of);

}  // namespace
}  // namespace syncrun::test
