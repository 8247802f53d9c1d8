// Syncrun's pool and LibTorch's allocator in one GPU: each gets the memory that the other keeps without using it, and a
// limit is for both together.

#include <cuda_runtime_api.h>
#include <torch/torch.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "tests/gpu/on_gpus.hpp"
#include "tests/libtorch/models.hpp"

namespace {

using gpu_test::error_of;

std::int64_t part_of_gpu(double fraction) {
  std::size_t available = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&available, &total) != cudaSuccess) throw std::runtime_error("cudaMemGetInfo failed");
  return static_cast<std::int64_t>(fraction * static_cast<double>(total));
}

/// What LibTorch has in use on this worker.
std::optional<torch::Tensor> in_use;

/// LibTorch takes a part of the GPU's memory. Afterwards it is in use if `stays`, and otherwise LibTorch keeps it unused.
sr::Max<int> take_by_libtorch(sr::CudaWorker& worker, double fraction, bool stays) {
  const models::lt::Guard guard(worker);
  return guard.run([&]() -> sr::Max<int> {
    in_use = torch::empty({part_of_gpu(fraction)}, torch::TensorOptions().dtype(torch::kUInt8).device(torch::kCUDA));
    if (!stays) in_use.reset();
    return 1;
  });
}
sr::Keep<std::uint8_t, 1> take_by_syncrun(sr::CudaWorker& worker, double fraction) {
  return sr::Keep<std::uint8_t, 1>(worker, sr::Shape{part_of_gpu(fraction)});
}

class LibtorchMemoryOnGpus : public gpu_test::OnGpus {
 protected:
  void libtorch_takes(double fraction, bool stays = false) {
    EXPECT_EQ(int(session().function(take_by_libtorch)(fraction, stays)), 1);
  }
  /// On each device in turn. Syncrun keeps the memory afterwards.
  void syncrun_takes(double fraction) {
    const auto take = session().function(take_by_syncrun);
    // Waits for each call. A dropped Value gives its memory back only when the call that makes it is over.
    for (int rank = 0; rank < world_size(); ++rank) {
      const sr::Value<std::uint8_t, 1> taken = take.on(session().device(rank))(fraction);
      EXPECT_GT(taken.shape()[0], 0);
    }
  }
};
INSTANTIATE_ON_GPUS(LibtorchMemoryOnGpus);

TEST_P(LibtorchMemoryOnGpus, EachGetsWhatTheOtherKeeps) {
  for (int i = 0; i < 2; ++i) {
    libtorch_takes(0.6);
    syncrun_takes(0.6);
  }
}

class LibtorchLimitOnGpus : public LibtorchMemoryOnGpus {
 protected:
  void SetUp() override {
    ::setenv("SYNCRUN_GPU_MEMORY_FRACTION", "0.3", 1);
    LibtorchMemoryOnGpus::SetUp();
  }
  void TearDown() override {
    LibtorchMemoryOnGpus::TearDown();
    ::unsetenv("SYNCRUN_GPU_MEMORY_FRACTION");
  }
};
INSTANTIATE_ON_GPUS(LibtorchLimitOnGpus);

TEST_P(LibtorchLimitOnGpus, TheLimitIsForBothTogether) {
  libtorch_takes(0.2);
  syncrun_takes(0.2);
  libtorch_takes(0.2);
  libtorch_takes(0.2, true);
  const auto refused = error_of([&] { syncrun_takes(0.2); });
  EXPECT_NE(std::string(refused.what()).find("SYNCRUN_GPU_MEMORY_FRACTION allows"), std::string::npos)
      << refused.what();
  syncrun_takes(0.05);

  libtorch_takes(0.01);
  const auto of_libtorch = error_of([&] { libtorch_takes(0.35); });
  EXPECT_NE(std::string(of_libtorch.what()).find("out of memory"), std::string::npos) << of_libtorch.what();
  syncrun_takes(0.2);
}

}  // namespace
