// Models that change between steps on CUDA devices, and losses that are computed in float16. The losses are those of one
// process on the CPU.

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tests/libtorch/gpu_samples.hpp"
#include "tests/libtorch/growing.hpp"

namespace {

namespace gpu_changes {

using growing::Growing;
using models::lt::Autocast;
using models::lt::change;
using models::lt::parameters;
using models::lt::Replica;
using models::lt::tensor;

constexpr std::uint64_t kSeed = growing::kSeed;

/// How often the host code of counted_loss ran in this worker.
int runs_of_loss = 0;
sr::Max<int> count_runs_of_loss() { return runs_of_loss; }
torch::Tensor counted_loss(Growing& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  ++runs_of_loss;
  return growing::loss(net, x, y);
}

class LibtorchChangesOnGpus : public models::SamplesOnGpus {
 protected:
  /// `make(net, params, options)` makes the step.
  template <class Rule, class Make>
  void expect_same(const Rule& rule, const std::vector<double>& serial, sr::StepForm form, double clip_norm,
                   const Make& make) {
    const auto net = session().replicate<Replica<Growing>>(kSeed);
    auto params = parameters(session(), net);
    const auto groups = growing::undecayed(session(), net);
    auto step = make(net, params, sr::TrainStepOptions{.form = form, .groups = groups, .clip_norm = clip_norm});
    const auto evaluate = models::lt::evaluation<growing::loss>(session(), net, params);
    for (std::int64_t i = 0; i < growing::kStepCount; ++i) {
      const double before = evaluate(x(), y());
      switch (growing::change_before(i)) {
        case 0: change<growing::freeze_first>(session(), net, params, std::tie(step)); break;
        case 1: change<growing::freeze_last_instead>(session(), net, params, std::tie(step)); break;
        case 2: change<growing::replace_last>(session(), net, params, std::tie(step)); break;
        case 3: change<growing::add_middle>(session(), net, params, std::tie(step), growing::kWidth, 0.1); break;
        default: break;
      }
      // A change to the same function must not be noticed, and one to another function must be.
      if (growing::change_before(i) >= 2) EXPECT_NE(double(evaluate(x(), y())), before) << "step " << i;
      else EXPECT_NEAR(evaluate(x(), y()), before, 1e-6) << "step " << i;
      const auto batch = growing::batch_of(i);
      const double loss = step(x(), y(), rule, {.batch = batch, .slices = 1 + i % 3});
      EXPECT_NEAR(loss / serial[static_cast<std::size_t>(i)], 1, i < 10 ? 1e-5 : 1e-2) << "step " << i;
    }
    EXPECT_TRUE(models::lt::verify_replicas(session(), net).is_same());
  }
};
INSTANTIATE_ON_GPUS(LibtorchChangesOnGpus);

TEST_P(LibtorchChangesOnGpus, KeepTheStateOfWhatStays) {
  const auto train = [&]<class Rule>(const Rule& rule, const std::vector<double>& serial, double clip_norm) {
    const auto plain = [&](const auto& net, const auto& params, const auto& options) {
      return models::lt::train_step<Rule, growing::loss>(session(), net, params, options);
    };
    const auto scaled = [&](const auto& net, const auto& params, const auto& options) {
      return models::lt::scaled_step<Rule, growing::loss>(session(), net, params, options, {.scale = 1024});
    };
    expect_same(rule, serial, sr::StepForm::replicated, clip_norm, plain);
    expect_same(rule, serial, sr::StepForm::sharded, clip_norm, plain);
    expect_same(rule, serial, sr::StepForm::replicated, clip_norm, scaled);
  };
  // Adam counts the steps of each parameter, and AdamW has no decay for biases.
  train(sr::Adam{.learning_rate = 0.02, .decoupled_weight_decay = 0.1},
        growing::train_serially<torch::optim::AdamW>(torch::optim::AdamWOptions(0.02).weight_decay(0.1), 0.3, inputs(),
                                                     labels()),
        0.3);
  train(sr::SgdMomentum{.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.01},
        growing::train_serially<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01), 1e9,
                                                   inputs(), labels()),
        0);
}

/// The new layer has the shape of the old one, so the graph's addresses and shapes are those of the new module too.
TEST_P(LibtorchChangesOnGpus, AreCapturedAnew) {
  constexpr int kSteps = 8;
  const auto net = session().replicate<Replica<Growing>>(kSeed);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Adam, counted_loss>(session(), net, params);
  const auto train = [&] {
    const int before = session().function(count_runs_of_loss)();
    for (int i = 0; i < kSteps; ++i) step(x(), y(), {.learning_rate = 0.02});
    return session().function(count_runs_of_loss)() - before;
  };
  EXPECT_EQ(train(), 4) << "two sets of input buffers, each with a first run and a capture";
  change<growing::replace_last>(session(), net, params, std::tie(step));
  EXPECT_EQ(train(), 4) << "old graphs are not replayed";
  change<growing::freeze_first>(session(), net, params, std::tie(step));
  EXPECT_EQ(train(), 4);
}

void replace_and_throw(Growing& net) {
  growing::replace_last(net);
  throw std::runtime_error("no such layer");
}

/// A graph that was captured before would run without the check of the module.
TEST_P(LibtorchChangesOnGpus, ThatFailAreErrorsOfCapturedStepsToo) {
  const auto net = session().replicate<Replica<Growing>>(kSeed);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Adam, counted_loss>(session(), net, params);
  const auto evaluate = models::lt::evaluation<growing::loss>(session(), net, params);
  for (int i = 0; i < 8; ++i) {
    step(x(), y(), {.learning_rate = 0.02});
    evaluate(x(), y());
  }
  EXPECT_ERROR(change<replace_and_throw>(session(), net, params, std::tie(step)), sr::ErrorKind::function,
               "no such layer");
  EXPECT_ERROR(step(x(), y(), {}), sr::ErrorKind::function, "the last change() of the module has failed");
  EXPECT_ERROR(evaluate(x(), y()), sr::ErrorKind::function, "the last change() of the module has failed");
  change<growing::replace_last>(session(), net, params, std::tie(step));
  step(x(), y(), {.learning_rate = 0.02});
}

// ---- float16 ----

torch::Tensor float16_loss(models::Mlp& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  const Autocast autocast(torch::kFloat16);
  const auto output = net.forward(tensor(x));
  if (output.scalar_type() != torch::kFloat16) throw std::logic_error("not in float16");  // nobody reads EXPECT here
  return models::mean_square(output.to(torch::kFloat32), tensor(y));
}
/// With Syncrun's functions, and gradients that vanish in float16 without a scale.
torch::Tensor tiny_float16_loss(models::Mlp& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  constexpr double kTiny = 1e-6;
  const Autocast autocast(torch::kFloat16);
  const auto hidden = torch::tanh(models::lt::linear(tensor(x), net.first->weight, net.first->bias));
  const auto output = models::lt::linear(hidden, net.last->weight, net.last->bias).squeeze(1);
  return models::mean_square(output.to(torch::kFloat32), tensor(y)) * kTiny;
}

TEST_P(LibtorchChangesOnGpus, LossesInFloat16NeedAScale) {
  const auto net = session().replicate<Replica<models::Mlp>>(kSeed);
  const auto params = parameters(session(), net);
  auto plain = models::lt::train_step<sr::Adam, float16_loss>(session(), net, params);
  const auto error = gpu_test::error_of([&] { plain(x(), y(), {}); });
  EXPECT_NE(std::string(error.what()).find("the loss of this step is not scaled"), std::string::npos) << error.what();

  constexpr int kSteps = 40;
  torch::manual_seed(kSeed);
  models::Mlp alone;
  torch::optim::Adam adam(alone.parameters(), torch::optim::AdamOptions(0.02));
  std::vector<double> serial;
  for (int i = 0; i < kSteps; ++i) serial.push_back(take_serial_step(alone, adam));
  EXPECT_LT(serial.back(), 0.7 * serial.front()) << "the model learns, so the losses say something";

  auto scaled = models::lt::scaled_step<sr::Adam, float16_loss>(session(), net, params, {}, {.scale = 1024});
  for (int i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(scaled(x(), y(), {.learning_rate = 0.02}) / serial[static_cast<std::size_t>(i)], 1, 0.03) << i;
    EXPECT_FALSE(scaled.was_skipped()) << "step " << i;
  }
  EXPECT_NEAR((models::lt::evaluation<float16_loss>(session(), net, params)(x(), y())) / serial.back(), 1, 0.1);

  const auto again = session().replicate<Replica<models::Mlp>>(kSeed);
  const auto others = parameters(session(), again);
  auto tiny = models::lt::scaled_step<sr::Adam, tiny_float16_loss>(session(), again, others, {}, {.scale = 0x1p24});
  for (int i = 0; i < kSteps; ++i) {
    const double loss = tiny(x(), y(), {.learning_rate = 0.02, .epsilon = 1e-14});
    EXPECT_NEAR(loss * 1e6 / serial[static_cast<std::size_t>(i)], 1, 0.03) << i;
  }
}

// ---- several networks ----

struct Pair : torch::nn::Module {
  Pair() : first(models::kInputs, 8), last(8, 1) {
    register_module("first", first);
    register_module("last", last);
  }
  torch::nn::Linear first, last;
};
models::lt::StagedLoss<2> pair_loss(Pair& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  const auto hidden = torch::tanh(net.first(tensor(x)));
  const auto wanted = tensor(y);
  return {models::mean_square(net.last(hidden.detach()).squeeze(1), wanted),
          {[&net, hidden, wanted] { return models::mean_square(net.last(hidden).squeeze(1), wanted); }}};
}
void freeze_bias(Pair& net) { net.first->bias.requires_grad_(false); }
void replace_last_of_pair(Pair& net) {
  torch::manual_seed(3);
  net.last = net.replace_module("last", torch::nn::Linear(8, 1));
}

TEST_P(LibtorchChangesOnGpus, MoveTheStagesOfAStep) {
  constexpr int kSteps = 24;
  torch::manual_seed(kSeed);
  Pair alone;
  torch::optim::Adam of_last(alone.last->parameters(), 0.02);
  torch::optim::SGD of_first(alone.first->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto net = session().replicate<Replica<Pair>>(kSeed);
  auto params = parameters(session(), net);
  auto step =
      models::lt::staged_step<pair_loss, sr::Adam, sr::SgdMomentum>(session(), net, params, {{"last"}, {"first"}});
  double first_loss = 0;
  double loss = 0;
  for (int i = 0; i < kSteps; ++i) {
    if (i == 6) {
      freeze_bias(alone);
      change<freeze_bias>(session(), net, params, std::tie(step));
    }
    if (i == 12) {
      replace_last_of_pair(alone);
      for (auto& each : alone.last->parameters()) of_last.param_groups()[0].params().push_back(each);
      change<replace_last_of_pair>(session(), net, params, std::tie(step));
    }
    const auto reset = [&] {
      for (auto& each : alone.parameters()) each.mutable_grad().reset();
    };
    reset();
    const auto hidden = torch::tanh(alone.first(inputs()));
    const auto of_stage_0 = models::mean_square(alone.last(hidden.detach()).squeeze(1), labels());
    of_stage_0.backward();
    of_last.step();
    reset();
    const auto of_stage_1 = models::mean_square(alone.last(hidden).squeeze(1), labels());
    of_stage_1.backward();
    of_first.step();
    const auto [a, b] =
        step(x(), y(), {sr::Adam{.learning_rate = 0.02}, sr::SgdMomentum{.learning_rate = 0.05, .momentum = 0.9}});
    EXPECT_NEAR(a / of_stage_0.item<double>(), 1, i < 10 ? 1e-5 : 1e-2) << "step " << i;
    EXPECT_NEAR(b / of_stage_1.item<double>(), 1, i < 10 ? 1e-5 : 1e-2) << "step " << i;
    loss = b;
    if (i == 0) first_loss = loss;
  }
  EXPECT_LT(loss, 0.8 * first_loss) << "the model learns, so the losses say something";
}

}  // namespace gpu_changes
}  // namespace
