#include "tests/gpu/gradient_bodies.hpp"

#include <cuda_runtime.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

namespace gpu_test {

namespace {

void check_launch() {
  const cudaError_t code = cudaGetLastError();
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

/// Runs in one thread. The mean of no rows is 0.
template <class T>
__global__ void find_mean(const T* x, std::int64_t rows, double* mean) {
  double sum = 0;
  for (std::int64_t row = 0; row < rows; ++row) sum += static_cast<double>(x[row]);
  *mean = rows == 0 ? 0 : sum / static_cast<double>(rows);
}

template <class T>
__global__ void find_piece(const double* mean, const float* added, const T* params, std::int64_t begin,
                           std::int64_t end, T* gradient) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = begin + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += stride) {
    const double sum = added == nullptr ? 0 : static_cast<double>(*added);
    gradient[i] = static_cast<T>(*mean * static_cast<double>(i % 7 + 1) + static_cast<double>(params[i]) + sum);
  }
}

__global__ void set_all(float* values, std::size_t count, float value) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) values[i] = value;
}

/// Does not change the value.
__global__ void launched_late(double* value) { *value += 0; }

__global__ void crash_where(const int* rank, int own) {
  if (*rank == own) *reinterpret_cast<volatile float*>(16) = 1;
}

/// A body that runs: the mean of its rows, and the pieces of its gradient.
template <class T>
class Pieces {
 public:
  static constexpr std::int64_t kSummed = 600'000;

  Pieces(sr::CudaWorker& worker, const sr::Scattered<const T, 1>& x, const sr::Local<T, 1>& params,
         const sr::Local<T, 1>& gradient)
      : worker_(worker),
        params_(params.data()),
        gradient_(gradient.data()),
        elements_(params.size()),
        mean_(worker.scratch<double>(1 + kSummed / 2).data()) {
    find_mean<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), mean_);
    check_launch();
  }
  double* mean() const { return mean_; }
  /// Memory for a collective.
  std::span<float> summed() const { return {reinterpret_cast<float*>(mean_ + 1), kSummed}; }
  std::int64_t elements() const { return elements_; }

  void find(std::int64_t k, const float* added = nullptr) const {
    find_piece<<<64, 128, 0, worker_.stream()>>>(mean_, added, params_, begin_of_piece(k, elements_),
                                                 begin_of_piece(k + 1, elements_), gradient_);
    check_launch();
  }

 private:
  sr::CudaWorker& worker_;
  const T* params_;
  T* gradient_;
  std::int64_t elements_;
  double* mean_;
};

}  // namespace

template <class T, Says kSays>
sr::Avg<double> gradient_in_pieces(sr::CudaWorker& worker, sr::GradientReady& ready, sr::Scattered<const T, 1> x,
                                   sr::Local<T, 1> params, sr::Local<T, 1> gradient) {
  const Pieces<T> pieces(worker, x, params, gradient);
  for (std::int64_t k = kPieces; k-- > 0;) {
    pieces.find(k);
    const bool says = kSays == Says::each_piece || (kSays == Says::half && k == kPieces / 2) ||
                      (kSays == Says::all_at_the_end && k == 0);
    if (says) ready.from(begin_of_piece(k, params.size()));
  }
  return sr::Avg<double>::in_device_memory(pieces.mean());
}

#define INSTANTIATE(T, says)                                                                                           \
  template sr::Avg<double> gradient_in_pieces<T, says>(sr::CudaWorker&, sr::GradientReady&, sr::Scattered<const T, 1>, \
                                                       sr::Local<T, 1>, sr::Local<T, 1>);
INSTANTIATE(float, Says::nothing)
INSTANTIATE(float, Says::each_piece)
INSTANTIATE(float, Says::half)
INSTANTIATE(float, Says::all_at_the_end)
INSTANTIATE(double, Says::each_piece)
#undef INSTANTIATE

void gradient_with_sums(sr::CudaWorker& worker, sr::Comm& comm, sr::GradientReady& ready,
                        sr::Scattered<const float, 1> x, sr::Local<float, 1> params, sr::Local<float, 1> gradient) {
  const Pieces<float> pieces(worker, x, params, gradient);
  for (std::int64_t k = kPieces; k-- > 0;) {
    const float own = static_cast<float>((worker.rank() + 1) * (k + 1));
    // 64 elements go by lines, and kSummed elements by shares.
    const auto summed = pieces.summed().first(k % 2 == 0 ? 64 : Pieces<float>::kSummed);
    set_all<<<64, 128, 0, worker.stream()>>>(summed.data(), summed.size(), own);
    comm.all_reduce(summed, sr::Reduction::sum);
    pieces.find(k, &summed.back());
    ready.from(begin_of_piece(k, params.size()));
  }
}

void gradient_with_fault(sr::CudaWorker& worker, sr::Comm& comm, sr::GradientReady& ready,
                         sr::Scattered<const float, 1> x, int rank, Fault fault, sr::Local<float, 1> params,
                         sr::Local<float, 1> gradient) {
  const Pieces<float> pieces(worker, x, params, gradient);
  const bool strays = worker.rank() == rank && fault == Fault::other_length;
  for (std::int64_t k = kPieces; k-- > 0;) {
    pieces.find(k);
    ready.from(begin_of_piece(k, params.size()));
    if (k != kPieces - 2 || worker.rank() != rank) continue;
    if (fault == Fault::exception) throw std::runtime_error("misbehaved on purpose");
    if (fault == Fault::kill) ::kill(::getpid(), SIGKILL);
    if (strays) comm.all_reduce(pieces.summed(), sr::Reduction::sum);
  }
  if (!strays) comm.all_reduce(pieces.summed(), sr::Reduction::sum);
}

void gradient_with_late_kernel(sr::CudaWorker& worker, sr::GradientReady& ready, sr::Scattered<const float, 1> x,
                               int rank, sr::Local<float, 1> params, sr::Local<float, 1> gradient) {
  const Pieces<float> pieces(worker, x, params, gradient);
  for (std::int64_t k = kPieces; k-- > 0;) {
    if (k == kPieces - 3) {
      if (worker.rank() == rank) throw std::runtime_error("misbehaved on purpose");
      launched_late<<<1, 1, 0, worker.stream()>>>(pieces.mean());
      check_launch();
    }
    pieces.find(k);
    ready.from(begin_of_piece(k, params.size()));
  }
}

void gradient_with_crash(sr::CudaWorker& worker, sr::GradientReady& ready, sr::Scattered<const float, 1> x,
                         sr::DeviceScalar<int> rank, sr::Local<float, 1> params, sr::Local<float, 1> gradient) {
  const Pieces<float> pieces(worker, x, params, gradient);
  for (std::int64_t k = kPieces; k-- > 0;) {
    pieces.find(k);
    ready.from(begin_of_piece(k, params.size()));
    if (k == kPieces - 2) crash_where<<<1, 1, 0, worker.stream()>>>(rank.data(), worker.rank());
  }
  check_launch();
}

}  // namespace gpu_test
