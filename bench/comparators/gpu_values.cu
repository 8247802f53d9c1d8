#include "bench/comparators/gpu_values.hpp"

namespace comparators {

namespace {

__global__ void add_one_to(const double* from, double* to) { *to = *from + 1; }

}  // namespace

void add_one(const double* from, double* to, cudaStream_t stream) {
  add_one_to<<<1, 1, 0, stream>>>(from, to);
  check_cuda(cudaGetLastError());
}

}  // namespace comparators
