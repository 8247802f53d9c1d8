// Measures a launch with the same work as comparators/torch_launch.py, up to the first result. The work is the forward
// and backward pass of a linear layer with cuBLAS on every GPU, and an all_reduce of the gradient. The program links
// cuBLAS, as any program with such a layer does.
//
//   syncrun -n 8 bench_gpu_launch_step

#include <cublas_v2.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/gpu/first_result.hpp"
#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

namespace {

constexpr int kWidth = 64;

/// c = a b, or c = a b'. The matrices are square and row-major, so cuBLAS gets them transposed.
void multiply(cublasHandle_t cublas, cublasOperation_t of_b, const float* a, const float* b, float* c) {
  const float one = 1;
  const float zero = 0;
  const cublasStatus_t code =
      cublasSgemm(cublas, of_b, CUBLAS_OP_N, kWidth, kWidth, kWidth, &one, b, kWidth, a, kWidth, &zero, c, kWidth);
  if (code != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cublasSgemm: ") + cublasGetStatusString(code));
}

/// outputs = inputs weights, and gradient = outputs weights'. The gradient is summed over the ranks.
void step(sr::CudaWorker& worker, sr::Comm& comm, sr::Broadcast<const float, 2> inputs, sr::Local<float, 2> weights,
          sr::Local<float, 2> gradient) {
  const auto outputs = worker.scratch<float>(kWidth * kWidth);
  multiply(worker.cublas(), CUBLAS_OP_N, inputs.data(), weights.data(), outputs.data());
  multiply(worker.cublas(), CUBLAS_OP_T, outputs.data(), weights.data(), gradient.data());
  comm.all_reduce(gradient, sr::Reduction::sum);
}

void program(sr::Session& session) {
  constexpr float kInput = 0.5F;
  constexpr float kWeight = 0.25F;
  const sr::Shape<2> shape{kWidth, kWidth};
  const auto inputs = session.data(std::vector<float>(kWidth * kWidth, kInput), shape);
  auto weights = session.shared<float, 2>("weights");
  auto gradient = session.shared<float, 2>("gradient");
  weights.broadcast(std::vector<float>(kWidth * kWidth, kWeight), shape);
  gradient.broadcast(std::vector<float>(kWidth * kWidth), shape);
  session.function(step, "step")(inputs, weights, gradient);
  const float sum = gradient.get(0)(0, 0);
  const float expected = kInput * kWeight * kWidth * kWeight * kWidth * static_cast<float>(session.world_size());
  if (std::abs(sum - expected) > 1e-2F * expected) throw std::runtime_error("the first step gave a wrong gradient");
  bench::print_first_result(session.world_size(), "first step");
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, program); }
