// Keeps all its GPUs busy until it is stopped, or for two minutes. Prints a line when it has begun. command_test.py looks
// at it.

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace {

namespace sr = syncrun;

constexpr std::size_t kElements = 64 << 20;
constexpr int kFillsPerCall = 100;  // some milliseconds

void fill(sr::CudaWorker& worker, sr::Local<float, 1> values) {
  for (int i = 0; i < kFillsPerCall; ++i) {
    const cudaError_t code = cudaMemsetAsync(values.data(), 0, kElements * sizeof(float), worker.stream());
    if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
  }
}

void program(sr::Session& session) {
  const auto busy = session.function(fill);
  auto values = session.shared<float, 1>("values");
  values.broadcast(std::vector<float>(kElements));
  busy(values);
  std::puts("busy");
  std::fflush(stdout);
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (std::chrono::steady_clock::now() < end) busy(values);
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, program); }
