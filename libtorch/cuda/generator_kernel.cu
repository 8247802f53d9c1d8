#include "libtorch/cuda/generator_kernel.hpp"

namespace syncrun::libtorch::detail::kernels {

namespace {

__global__ void write_state_kernel(std::int64_t* places, std::int64_t seed, std::int64_t offset) {
  places[0] = seed;
  places[1] = offset;
}

}  // namespace

cudaError_t load_generator_kernel() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, write_state_kernel);
}

cudaError_t write_generator_state(std::int64_t* places, std::uint64_t seed, std::uint64_t offset, cudaStream_t stream) {
  write_state_kernel<<<1, 1, 0, stream>>>(places, static_cast<std::int64_t>(seed), static_cast<std::int64_t>(offset));
  return cudaGetLastError();
}

}  // namespace syncrun::libtorch::detail::kernels
