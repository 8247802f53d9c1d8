#pragma once

// Muon and Adafactor in a body of one's own, on any kind of device, against Python's (tests/support/torch_optim.py).

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>
#include <syncrun/torch.hpp>
#include <vector>

#include "tests/support/torch_optim_cases.hpp"

namespace matrices {

namespace sr = syncrun;
namespace lt = syncrun::libtorch;

/// The model of train_matrices() in torch_optim.py.
struct Net : torch::nn::Module {
  explicit Net(torch::Device device) {
    std::vector<double> starts;
    for (int i = 0; i < 2 * torch_optim::kColumns; ++i) starts.push_back(torch_optim::start(i % torch_optim::kColumns));
    const auto start = torch::tensor(starts, torch::kFloat64).to(device);
    constexpr int kOutputs = torch_optim::kOutputs;
    first = register_parameter("first", start.view({torch_optim::kColumns / 2, 4}).clone());
    second = register_parameter("second", start.slice(0, 0, 4 * kOutputs).view({4, kOutputs}).flip(1).clone());
    bias = register_parameter("bias", start.slice(0, 0, kOutputs).clone());
  }
  torch::Tensor first, second, bias;
};

enum class Kind : std::int64_t { adafactor, muon, muon_matched, divided };

/// Halfway, a new optimizer goes on from a file of the old one. `divided` is muon, divided among the ranks.
class Trainer {
 public:
  Trainer(sr::CpuWorker& worker, Kind kind) : Trainer(worker, torch::kCPU, kind) {}
  Trainer(sr::CudaWorker& worker, Kind kind) : Trainer(worker, torch::kCUDA, kind) {}

  template <class Worker>
  void step(Worker& worker, sr::Comm& comm, sr::Scattered<const double, 2> x, sr::Scattered<const double, 2> y,
            double rate, std::int64_t step) {
    lt::Guard(worker).run([&] {
      if (step == torch_optim::kSteps / 2) replace_optimizer(worker);
      optimizer().param_groups()[0].options().set_lr(rate);
      net_->zero_grad();
      const auto output = lt::tensor(x).mm(net_->first).mm(net_->second) + net_->bias;
      (output - lt::tensor(y)).square().mean().backward();
      lt::average(comm, *net_);
      if (divided_) divided_->step(comm);
      else optimizer_->step();
    });
  }
  template <class Worker>
  sr::Gather<double, 2> parameters(Worker& worker) {
    return lt::Guard(worker).run([&]() -> sr::Gather<double, 2> {
      all_ = torch::cat({net_->first.flatten(), net_->second.flatten(), net_->bias}).detach().cpu();
      const auto count = static_cast<std::size_t>(all_.numel());
      return {std::span(all_.data_ptr<double>(), count), sr::Shape<2>(1, count)};
    });
  }

 private:
  template <class Worker>
  Trainer(Worker& worker, torch::Device device, Kind kind) : kind_(kind) {
    lt::Guard(worker).run([&] {
      net_ = std::make_shared<Net>(device);
      make_optimizer(worker);
    });
  }
  void make_optimizer(const sr::AnyWorker& worker) {
    auto options = lt::MuonOptions().ns_type(torch::kFloat64);
    if (kind_ == Kind::muon_matched) options.nesterov(false).rate(lt::MuonOptions::Rate::match_rms_adamw);
    const std::vector<torch::Tensor> matrices{net_->first, net_->second};
    if (kind_ == Kind::divided) divided_.emplace(worker, matrices, options);
    else if (kind_ == Kind::adafactor)
      optimizer_ = std::make_unique<lt::Adafactor>(net_->parameters(), lt::AdafactorOptions().weight_decay(0.1));
    else optimizer_ = std::make_unique<lt::Muon>(matrices, options);
  }
  torch::optim::Optimizer& optimizer() { return divided_ ? divided_->own() : *optimizer_; }
  void replace_optimizer(const sr::AnyWorker& worker) {
    std::stringstream file;
    torch::save(optimizer(), file);
    make_optimizer(worker);
    torch::load(optimizer(), file);
  }

  Kind kind_;
  std::shared_ptr<Net> net_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<lt::DividedOptimizer<lt::Muon>> divided_;  // in place of optimizer_
  torch::Tensor all_;
};

inline void expect_as_python(sr::Session& session, Kind kind, std::span<const double> expected, double tolerance) {
  constexpr int kInputs = torch_optim::kColumns / 2;
  constexpr int kRows = torch_optim::kRows;
  auto x = session.data<double, 2>({kRows, kInputs});
  auto y = session.data<double, 2>({kRows, torch_optim::kOutputs});
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kInputs; ++j) x.write()(i, j) = torch_optim::x(i, j);
    for (int j = 0; j < torch_optim::kOutputs; ++j) y.write()(i, j) = torch_optim::y((i - j + kRows) % kRows);
  }
  const auto trainer = session.replicate<Trainer>(kind);
  const auto step = session.function(&Trainer::step<sr::CpuWorker>, &Trainer::step<sr::CudaWorker>, trainer,
                                     "a step of an optimizer");
  for (int i = 0; i < torch_optim::kSteps; ++i)
    step(x, y, 0.02 * sr::cosine_restarts(i, {.first = 15, .growth = 2}), i);
  const auto after = session.function(&Trainer::parameters<sr::CpuWorker>, &Trainer::parameters<sr::CudaWorker>,
                                      trainer, "its parameters")();
  for (int rank = 0; rank < session.world_size(); ++rank) {
    const std::vector<double> own(after[rank].begin(), after[rank].end());
    EXPECT_LE(torch_optim::difference(own, expected), tolerance) << "on rank " << rank;
  }
}

inline void expect_as_python(sr::Session& session, double tolerance) {
  expect_as_python(session, Kind::adafactor, torch_optim::kAdafactor, tolerance);
  expect_as_python(session, Kind::muon, torch_optim::kMuon, tolerance);
  expect_as_python(session, Kind::muon_matched, torch_optim::kMuonMatched, tolerance);
  expect_as_python(session, Kind::divided, torch_optim::kMuon, tolerance);
}

}  // namespace matrices
