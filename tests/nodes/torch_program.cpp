// Models of LibTorch that train on several hosts: `train FOLDER FORM`, `resume FOLDER FORM` and `together`. A job
// does several of these, with a `+` between them, because each process that loads LibTorch computes for a second
// first. The program prints its losses. torch_test.py compares them, and the saved files, with those of one host. `wrong`
// and `lost` fail in the backward pass of the last rank.

#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>
#include <vector>

#include "tests/nodes/actions.hpp"

namespace sr = syncrun;
namespace lt = syncrun::libtorch;
namespace nn = torch::nn;

namespace {

constexpr std::int64_t kInputs = 12;
constexpr std::int64_t kWidth = 160;  // the gradient is longer than the largest array that travels in one message
constexpr std::int64_t kRows = 90;
constexpr int kSteps = 10;
constexpr int kSavedAt = 5;
constexpr std::uint64_t kSeed = 7;

/// With buffers and a frozen parameter. On one host and on several, a rank has the same rows and the same seed.
struct Net : nn::Module {
  Net() : norm(kInputs), first(kInputs, kWidth), frozen(kWidth, kWidth), middle(kWidth, kWidth), last(kWidth, 1) {
    register_module("norm", norm);
    register_module("first", first);
    register_module("frozen", frozen);
    register_module("middle", middle);
    register_module("last", last);
    for (auto& each : frozen->parameters()) each.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::tanh(first(norm(x)));
    h = h + torch::tanh(middle(frozen(h)));
    return last(h).squeeze(1);
  }

  nn::BatchNorm1d norm;
  nn::Linear first, frozen, middle, last;
};

torch::Tensor loss(Net& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  return torch::mse_loss(net.forward(lt::tensor(x)), lt::tensor(y));
}

/// The mean and the variance of all ranks.
struct Together : nn::Module {
  Together() : first(kInputs, kWidth), norm(nn::BatchNormOptions(kWidth)), last(kWidth, 1) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
  }

  nn::Linear first;
  lt::SyncBatchNorm norm;
  nn::Linear last;
};
torch::Tensor loss_together(Together& net, sr::Comm&, sr::Scattered<const float, 2> x,
                            sr::Scattered<const float, 1> y) {
  return torch::mse_loss(net.last(torch::tanh(net.norm(net.first(lt::tensor(x))))).squeeze(1), lt::tensor(y));
}
struct Spread {
  sr::Min<double> least;
  sr::Max<double> most;
};
Spread running_sum(Together& net) {
  const double sum = net.norm->running_mean.sum().item<double>() + net.norm->running_var.sum().item<double>();
  return {sum, sum};
}

/// The last rank, whose rows are the last, fails.
torch::Tensor product_of(const torch::Tensor& gradient) { return torch::mm(gradient, gradient); }
torch::Tensor wrong_loss(Net& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  auto output = net.forward(lt::tensor(x));
  if (x.first_row() + x.rows() == kRows)
    output.register_hook([](const torch::Tensor& gradient) { return product_of(gradient); });
  return torch::mse_loss(output, lt::tensor(y));
}
torch::Tensor lost_loss(Net& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  auto output = net.forward(lt::tensor(x));
  if (x.first_row() + x.rows() == kRows) output.register_hook([](const torch::Tensor&) { std::raise(SIGKILL); });
  return torch::mse_loss(output, lt::tensor(y));
}

struct Samples {
  explicit Samples(sr::Session& session)
      : x(session.data<float, 2>({kRows, kInputs})), y(session.data<float, 1>({kRows})) {
    std::mt19937 random(3);
    for (std::int64_t row = 0; row < kRows; ++row) {
      float sum = 0;
      for (std::int64_t i = 0; i < kInputs; ++i) {
        const float value = static_cast<float>(random() % 2001) / 1000 - 1;
        x.write()(row, i) = value;
        sum += value * static_cast<float>(i - 4);
      }
      y.write()[row] = std::sin(sum / 4);
    }
  }
  sr::Data<float, 2> x;
  sr::Data<float, 1> y;
};

/// The rows of a step: another number in each step, and rarely a multiple of the number of ranks.
std::vector<std::int64_t> batch_of(int step) {
  std::mt19937 random(static_cast<unsigned>(step));
  std::vector<std::int64_t> batch(40 + random() % 9);
  for (auto& row : batch) row = static_cast<std::int64_t>(random()) % kRows;
  return batch;
}

/// Runs the steps [begin, end), and prints their losses.
template <class Step>
void train(Step& step, const Samples& samples, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    const std::vector<std::int64_t> batch = batch_of(i);
    const double value = step(samples.x, samples.y, {.learning_rate = 0.002}, {.batch = batch, .slices = 1 + i % 2});
    std::printf("loss %d %.9g\n", i, value);
  }
}

sr::StepForm form_of(std::string_view text) {
  sr::test::require(text == "replicated" || text == "sharded", "the form is replicated or sharded");
  return text == "sharded" ? sr::StepForm::sharded : sr::StepForm::replicated;
}

sr::Placement placement_of(sr::StepForm form) {
  return form == sr::StepForm::sharded ? sr::Placement::scattered : sr::Placement::replicated;
}

/// Saves the model, and reads it in every way that the page on LibTorch describes.
void save_and_load(sr::Session& session, const sr::Replicated<lt::Replica<Net>>& net, sr::Shared<float, 1>& params,
                   const Samples& samples, const std::filesystem::path& folder) {
  lt::sync_buffers(session, net);
  const double wanted = lt::evaluation<loss>(session, net, params)(samples.x, samples.y);
  std::printf("evaluation %.9g\n", wanted);
  for (const char* name : {"model.safetensors", "model.pt"}) {
    lt::save(session, net, params, folder / name);
    const auto other = session.replicate<lt::Replica<Net>>(kSeed + 1);
    auto loaded = lt::parameters(session, other);
    lt::load(session, other, loaded, folder / name);
    for (int rank = 0; rank < session.world_size(); ++rank)
      sr::test::require(loaded.get(rank).to_vector() == params.get(0).to_vector(), "every rank has what was saved");
    const double found = lt::evaluation<loss>(session, other, loaded)(samples.x, samples.y);
    sr::test::require(found == wanted, std::string("the loss of ") + name);
  }
  auto alone = std::make_shared<Net>();
  torch::load(alone, (folder / "model.pt").string());
  alone->eval();
  const torch::NoGradGuard no_gradients;
  const auto output = alone->forward(lt::tensor(samples.x.view()));
  const double found = torch::mse_loss(output, lt::tensor(samples.y.view())).item<double>();
  sr::test::require(std::abs(found / wanted - 1) < 1e-5, "the loss in the master");
}

void train_and_save(sr::Session& session, const std::filesystem::path& folder, sr::StepForm form) {
  const Samples samples(session);
  const auto net = session.replicate<lt::Replica<Net>>(kSeed);
  auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Adam, loss>(session, net, params, {.form = form, .clip_norm = 1});
  train(step, samples, 0, kSavedAt);
  lt::sync_buffers(session, net);
  const auto [m, v] = step.state();
  const sr::Placement placement = placement_of(form);
  sr::save_checkpoint(folder / "run", {{"params", params}, {"m", m, placement}, {"v", v, placement}},
                      {{"steps", step.steps()}});
  lt::save(session, net, params, folder / "buffers.pt");
  train(step, samples, kSavedAt, kSteps);
  save_and_load(session, net, params, samples, folder);
}

void resume(sr::Session& session, const std::filesystem::path& folder, sr::StepForm form) {
  const Samples samples(session);
  const auto net = session.replicate<lt::Replica<Net>>(kSeed + 2);
  auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Adam, loss>(session, net, params, {.form = form, .clip_norm = 1});
  lt::load(session, net, params, folder / "buffers.pt");
  const auto [m, v] = step.state();
  const sr::Placement placement = placement_of(form);
  const sr::Checkpoint checkpoint(folder / "run");
  checkpoint.load({{"params", params}, {"m", m, placement}, {"v", v, placement}});
  step.set_steps(checkpoint.value<std::int64_t>("steps"));
  train(step, samples, kSavedAt, kSteps);
}

void train_together(sr::Session& session) {
  const Samples samples(session);
  const auto net = session.replicate<lt::Replica<Together>>(kSeed);
  const auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Momentum, loss_together>(session, net, params);
  train(step, samples, 0, kSteps);
  std::printf("evaluation %.9g\n",
              static_cast<double>(lt::evaluation<loss_together>(session, net, params)(samples.x, samples.y)));
  const Spread found = lt::evaluation<running_sum>(session, net, params)();
  sr::test::require(found.least == found.most, "all ranks have the same running statistics");
}

template <auto kLoss>
void fail(sr::Session& session) {
  const Samples samples(session);
  const auto net = session.replicate<lt::Replica<Net>>(kSeed);
  const auto params = lt::parameters(session, net);
  constexpr lt::BackwardOptions kReports{.average = lt::GradientAverage::during_backward};
  auto step = lt::train_step<sr::Sgd, kLoss, kReports>(session, net, params);
  step(samples.x, samples.y, {});
}

void do_action(sr::Session& session, const std::vector<std::string>& words) {
  const std::string action = words.empty() ? "" : words[0];
  const std::size_t count = words.size();
  if (action == "train" && count == 3) train_and_save(session, words[1], form_of(words[2]));
  else if (action == "resume" && count == 3) resume(session, words[1], form_of(words[2]));
  else if (action == "together" && count == 1) train_together(session);
  else if (action == "wrong" && count == 1) fail<wrong_loss>(session);
  else if (action == "lost" && count == 1) fail<lost_loss>(session);
  else throw std::invalid_argument("expected train FOLDER FORM, resume FOLDER FORM, together, wrong or lost");
  std::printf("as expected: %s\n", action.c_str());
}

void program(sr::Session& session, int argc, char** argv) {
  std::vector<std::vector<std::string>> actions(1);
  for (const std::string_view word : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    if (word == "+") actions.emplace_back();
    else actions.back().emplace_back(word);
  }
  for (const auto& words : actions) do_action(session, words);
}

}  // namespace

int main(int argc, char** argv) {
  return sr::run(argc, argv, program, {.grace = std::chrono::seconds(60)});  // LibTorch ends slowly on a busy machine
}
