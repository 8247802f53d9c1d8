#pragma once

// What bench_gpu_values and gpu_one_process both run: the sizes of moves, the names of measurements, and the matrix
// product.

#include <cublas_v2.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "bench/comparators/gpu_ranks.hpp"
#include "bench/comparators/gpu_report.hpp"

namespace comparators {

inline constexpr std::array kMoveBytes{std::size_t{64} << 20U, std::size_t{256} << 20U, std::size_t{1} << 30U};
inline constexpr int kMovesInARow = 10;

inline std::string one_move_of(std::size_t bytes) { return "one move of " + size_text(bytes); }
inline std::string moves_of(std::size_t bytes) {
  return std::to_string(kMovesInARow) + " moves of " + size_text(bytes) + " in a row";
}
/// Calls that alternate between the GPUs. Each reads the last result, of 8 bytes.
inline constexpr int kChainCalls = 1000;
inline constexpr const char* kChain = "chain of 1,000 calls, per call";
/// to = from + 1, as a kernel of one thread.
void add_one(const double* from, double* to, cudaStream_t stream);

inline constexpr const char* kTwoProducts = "two products, one on each GPU";

/// The times of once() in microseconds, after a warm-up.
template <class Once>
std::vector<double> samples_of(double seconds, Once&& once) {
  constexpr int kWarm = 3;
  double warm_us = 0;
  for (int i = 0; i < kWarm; ++i) warm_us = once();
  std::vector<double> samples(static_cast<std::size_t>(iterations_for(seconds, warm_us)));
  for (auto& sample : samples) sample = once();
  return samples;
}

/// c = a b of bfloat16 matrices on the current GPU.
class Product {
 public:
  static constexpr int kSide = 8192;

  /// The values are random: products of zeros can be faster.
  Product() {
    std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same values in every run
    std::vector<std::uint16_t> values(kElements);
    for (auto& value : values) value = static_cast<std::uint16_t>(0x3F00U | (random() & 0x80FFU));  // 0.5 to 2, signed
    for (const GpuBuffer* const matrix : {&a_, &b_}) {
      check_cuda(cudaMemcpy(matrix->as<void>(), values.data(), kBytes, cudaMemcpyHostToDevice));
    }
  }

  /// Puts the product on the stream of the handle.
  void run(cublasHandle_t cublas) const {
    const float one = 1;
    const float zero = 0;
    const cublasStatus_t status = cublasGemmEx(
        cublas, CUBLAS_OP_N, CUBLAS_OP_N, kSide, kSide, kSide, &one, a_.as<void>(), CUDA_R_16BF, kSide, b_.as<void>(),
        CUDA_R_16BF, kSide, &zero, c_.as<void>(), CUDA_R_16BF, kSide, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error("cublasGemmEx failed");
  }

 private:
  static constexpr std::size_t kElements = std::size_t{kSide} * kSide;
  static constexpr std::size_t kBytes = kElements * sizeof(std::uint16_t);
  GpuBuffer a_{Place::device, kBytes};
  GpuBuffer b_{Place::device, kBytes};
  GpuBuffer c_{Place::device, kBytes};
};

}  // namespace comparators
