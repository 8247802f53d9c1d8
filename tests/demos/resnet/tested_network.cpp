#include "tests/demos/resnet/tested_network.hpp"

#include <stdexcept>

#include "demos/resnet/network/cpu/cpu_network.hpp"
#include "tests/demos/resnet/reference.hpp"
#ifdef RESNET_HAVE_CUDA
#include "demos/resnet/network/cuda/cuda_network.hpp"
#include "demos/resnet/network/cuda/cuda_queue.hpp"
#include "tests/demos/cuda_support.hpp"
#endif

namespace resnet::testing {
namespace {

const SumOverRanks kAlone;
constexpr LossOptions kLoss{.label_smoothing = kReferenceSmoothing};

class OnCpu final : public TestedNetwork {
 public:
  OnCpu(const Architecture& architecture, std::size_t rows)
      : network_(architecture),
        params_(reference_params(architecture)),
        statistics_(reference_statistics(architecture)),
        gradient_(architecture.parameter_count),
        images_(reference_images(architecture, rows)),
        labels_(reference_labels(architecture, rows)) {}

  std::vector<float> logits() override {
    const auto values = network_.logits(params_, statistics_, images_);
    return {values.begin(), values.end()};
  }
  double step() override {
    return network_.loss_and_gradient(params_, statistics_, images_, labels_, kLoss, kAlone, gradient_).mean_loss;
  }
  std::vector<float> gradient() override { return gradient_; }
  std::vector<float> statistics() override { return statistics_; }
  void set_params(const std::vector<float>& params) override { params_ = params; }

 private:
  CpuNetwork network_;
  std::vector<float> params_;
  std::vector<float> statistics_;
  std::vector<float> gradient_;
  std::vector<float> images_;
  std::vector<std::int64_t> labels_;
};

#ifdef RESNET_HAVE_CUDA

using demos::check_cuda;
using demos::testing::OnDevice;
using demos::testing::read_one;

CudaMath math_of(Precision precision) {
  if (precision == Precision::kFloat32) return CudaMath::kFloat32;
  return precision == Precision::kTf32 ? CudaMath::kTf32 : CudaMath::kBfloat16;
}

class OnCuda final : public TestedNetwork {
 public:
  OnCuda(const Architecture& architecture, std::size_t rows, Precision precision)
      : classes_(architecture.spec.classes),
        network_(architecture, math_of(precision)),
        params_(reference_params(architecture)),
        statistics_(reference_statistics(architecture)),
        gradient_(std::vector<float>(architecture.parameter_count)),
        images_(reference_images(architecture, rows)),
        labels_(reference_labels(architecture, rows)),
        batch_{.rows = rows,
               .images = nullptr,
               .labels = labels_.data(),
               .row_ids = nullptr,
               .image_shape = {},
               .preparation = {},
               .key = nullptr,
               .normalised = images_.data()} {}

  std::vector<float> logits() override {
    const float* const place = network_.logits(queue_.handles(), batch_, params_.data(), statistics_.data());
    std::vector<float> values(batch_.rows * classes_);
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check_cuda(cudaMemcpy(values.data(), place, values.size() * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }
  double step() override {
    return read_one(network_
                        .loss_and_gradient(queue_.handles(), batch_, params_.data(), statistics_.data(), kLoss, kAlone,
                                           gradient_.data())
                        .mean_loss);
  }
  std::vector<float> gradient() override { return gradient_.read(); }
  std::vector<float> statistics() override { return statistics_.read(); }
  void set_params(const std::vector<float>& params) override { params_.write(params); }

 private:
  std::size_t classes_;
  CudaQueue queue_;
  CudaNetwork network_;
  OnDevice<float> params_;
  OnDevice<float> statistics_;
  OnDevice<float> gradient_;
  OnDevice<float> images_;
  OnDevice<std::int64_t> labels_;
  CudaBatch batch_;
};

#endif

}  // namespace

std::unique_ptr<TestedNetwork> make_network(Place place, const Architecture& architecture, std::size_t rows,
                                            Precision precision) {
  if (place == Place::kCpu) {
    if (precision != Precision::kFloat32) throw std::runtime_error("CPU devices have float32 only");
    return std::make_unique<OnCpu>(architecture, rows);
  }
#ifdef RESNET_HAVE_CUDA
  return std::make_unique<OnCuda>(architecture, rows, precision);
#else
  throw std::runtime_error("syncrun-resnet was built without CUDA devices");
#endif
}

}  // namespace resnet::testing
