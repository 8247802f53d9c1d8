#pragma once

// A session on GPUs with the rows that Mlp learns.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tests/gpu/on_gpus.hpp"
#include "tests/libtorch/models.hpp"
#include "tests/libtorch/worker_log.hpp"

namespace models {

constexpr std::uint64_t kSeedOnGpus = 7;
constexpr std::int64_t kRowsOnGpus = 64;

class SamplesOnGpus : public gpu_test::OnGpus {
 protected:
  void SetUp() override {
    OnGpus::SetUp();
    if (IsSkipped()) return;
    x_.emplace(session().data(samples_.x, sr::Shape{kRowsOnGpus, kInputs}));
    y_.emplace(session().data(samples_.y, sr::Shape{kRowsOnGpus}));
  }
  const sr::Data<float, 2>& x() const { return *x_; }
  const sr::Data<float, 1>& y() const { return *y_; }
  /// The same rows in this process, on the CPU.
  torch::Tensor inputs() const { return torch::tensor(samples_.x).reshape({kRowsOnGpus, kInputs}); }
  torch::Tensor labels() const { return torch::tensor(samples_.y); }
  template <class Work>
  std::string log_of(Work&& work) {
    return models::log_of<sr::CudaWorker>(session(), std::forward<Work>(work));
  }
  /// A training step of `net` in this process. Returns the loss.
  template <class Net>
  double take_serial_step(Net& net, torch::optim::Optimizer& optimizer) const {
    optimizer.zero_grad();
    const auto loss = mean_square(net.forward(inputs()), labels());
    loss.backward();
    optimizer.step();
    return loss.template item<double>();
  }

 private:
  const Samples samples_ = make_samples(kRowsOnGpus);
  std::optional<sr::Data<float, 2>> x_;
  std::optional<sr::Data<float, 1>> y_;
};

}  // namespace models
