// Modules that change between steps: frozen and unfrozen parts, replaced and added layers. The losses are those of the
// same training in one process, by LibTorch's own optimizers, for any number of workers, uneven rows, slices, groups, a
// clipped gradient, and both forms of a step.

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace changes {

using models::lt::parameters;
using models::lt::Replica;
using models::lt::tensor;
namespace nn = torch::nn;

constexpr std::uint64_t kSeed = 7;
constexpr std::int64_t kStepCount = 50;
constexpr std::int64_t kWidth = 7;

struct Growing : nn::Module {
  Growing() : first(models::kInputs, kWidth), last(kWidth, 1) {
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::tanh(first(x));
    if (middle) y = torch::tanh(middle(y)) + offset;
    return last(y).squeeze(1);
  }
  nn::Linear first, last, middle{nullptr};
  torch::Tensor offset;
};

torch::Tensor loss(Growing& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  return models::mean_square(net.forward(tensor(x)), tensor(y));
}

void require_gradient(nn::Module& module, bool on) {
  for (auto& each : module.parameters()) each.requires_grad_(on);
}
void freeze_first(Growing& net) { require_gradient(*net.first, false); }
void freeze_last_instead(Growing& net) {
  require_gradient(*net.first, true);
  require_gradient(*net.last, false);
}
/// The new layer has the names and shapes of the old one.
void replace_last(Growing& net) {
  torch::manual_seed(3);
  net.last = net.replace_module("last", nn::Linear(kWidth, 1));
}
/// With a buffer.
void add_middle(Growing& net, std::int64_t width, double offset) {
  torch::manual_seed(4);
  net.middle = net.register_module("middle", nn::Linear(kWidth, width));
  net.offset = net.register_buffer("offset", torch::full({width}, offset));
}

/// Which change comes before a step: its number, or -1.
int change_before(std::int64_t step) {
  const std::vector<std::int64_t> steps{4, 9, 18, 30};
  const auto at = std::find(steps.begin(), steps.end(), step);
  return at == steps.end() ? -1 : static_cast<int>(at - steps.begin());
}

std::vector<std::int64_t> batch_of(std::int64_t step) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < 9 + step % 5; ++i) rows.push_back((7 * step + 3 * i) % 40);
  return rows;
}

// ---- the same training without workers ----

/// An optimizer of LibTorch. Biases of the construction have no weight decay. New parameters are in the group with decay.
template <class Optimizer, class Options>
std::vector<double> train_serially(const Options& options, double clip_norm, const torch::Tensor& x,
                                   const torch::Tensor& y) {
  torch::manual_seed(kSeed);
  Growing net;
  auto without_decay = options;
  without_decay.weight_decay(0);
  Optimizer optimizer({{{net.first->weight, net.last->weight}, std::make_unique<Options>(options)},
                       {{net.first->bias, net.last->bias}, std::make_unique<Options>(without_decay)}},
                      options);
  std::vector<double> losses;
  for (std::int64_t i = 0; i < kStepCount; ++i) {
    for (auto& each : net.parameters()) each.mutable_grad().reset();  // an optimizer leaves out what has no gradient
    switch (change_before(i)) {
      case 0: freeze_first(net); break;
      case 1: freeze_last_instead(net); break;
      case 2:
        replace_last(net);
        for (auto& each : net.last->parameters()) optimizer.param_groups()[0].params().push_back(each);
        break;
      case 3:
        add_middle(net, kWidth, 0.1);
        for (auto& each : net.middle->parameters()) optimizer.param_groups()[0].params().push_back(each);
        break;
      default: break;
    }
    const auto rows = torch::tensor(batch_of(i));
    const auto value = models::mean_square(net.forward(x.index_select(0, rows)), y.index_select(0, rows));
    value.backward();
    std::vector<torch::Tensor> trained;
    for (const auto& each : net.parameters()) {
      if (each.requires_grad()) trained.push_back(each);
    }
    torch::nn::utils::clip_grad_norm_(trained, clip_norm);
    optimizer.step();
    losses.push_back(value.template item<double>());
  }
  return losses;
}

class LibtorchChanges : public models::OnSamples<40> {
 protected:
  template <class Rule>
  std::vector<double> train(const Rule& rule, double clip_norm, sr::StepForm form) {
    const auto net = session().replicate<Replica<Growing>>(kSeed);
    auto params = parameters(session(), net);
    std::vector<sr::ParameterGroup> groups;
    for (const auto& part : models::lt::parts(session(), net)) {
      if (part.dimensions < 2) groups.push_back({.begin = part.begin, .end = part.end, .weight_decay = 0});
    }
    auto step = models::lt::train_step<Rule, loss>(session(), net, params,
                                                   {.form = form, .groups = groups, .clip_norm = clip_norm});
    const auto evaluate = models::lt::evaluation<loss>(session(), net, params);
    std::vector<double> losses;
    for (std::int64_t i = 0; i < kStepCount; ++i) {
      const double before = evaluate(x(), y());
      switch (change_before(i)) {
        case 0: models::lt::change<freeze_first>(session(), net, params, std::tie(step)); break;
        case 1: models::lt::change<freeze_last_instead>(session(), net, params, std::tie(step)); break;
        case 2: models::lt::change<replace_last>(session(), net, params, std::tie(step)); break;
        case 3: models::lt::change<add_middle>(session(), net, params, std::tie(step), kWidth, 0.1); break;
        default: break;
      }
      const bool is_other_function = change_before(i) >= 2;
      EXPECT_EQ(evaluate(x(), y()) == before, !is_other_function) << "step " << i;
      const auto batch = batch_of(i);
      losses.push_back(step(x(), y(), rule, {.batch = batch, .slices = 1 + i % 3}));
    }
    EXPECT_EQ(step.steps(), kStepCount);
    EXPECT_TRUE(models::lt::verify_replicas(session(), net).is_same());
    EXPECT_EQ(params.shape(0)[0], (models::kInputs + 1) * kWidth + (kWidth + 1) * kWidth + kWidth + 1);
    return losses;
  }
  template <class Rule>
  void expect_same(const Rule& rule, double clip_norm, const std::vector<double>& serial) {
    EXPECT_LT(serial.back(), 0.7 * serial.front()) << "the model learns, so the losses say something";
    for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
      const auto losses = train(rule, clip_norm, form);
      double worst = 0;
      for (std::size_t i = 0; i < losses.size(); ++i) {
        const double difference = std::abs(losses[i] / serial[i] - 1);
        EXPECT_LT(difference, i < 10 ? 1e-6 : 1e-4) << "step " << i;
        worst = std::max(worst, difference);
      }
      RecordProperty("largest_difference_of_a_loss", std::to_string(worst));
    }
  }
};
INSTANTIATE_ON_WORKERS(LibtorchChanges, 1, 2, 3, 4);

TEST_P(LibtorchChanges, KeepTheStateOfWhatStays) {
  const auto adam = torch::optim::AdamWOptions(0.02).weight_decay(0.1);
  expect_same(sr::Adam{.learning_rate = 0.02, .decoupled_weight_decay = 0.1}, 0.3,
              train_serially<torch::optim::AdamW>(adam, 0.3, all_x(), all_y()));
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01);
  expect_same(sr::SgdMomentum{.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.01}, 0,
              train_serially<torch::optim::SGD>(sgd, 1e9, all_x(), all_y()));
}

void freeze_all(Growing& net) { require_gradient(net, false); }
void unfreeze_all(Growing& net) { require_gradient(net, true); }
void freeze_and_throw(Growing& net) {
  freeze_first(net);
  throw std::runtime_error("no such layer");
}
void widen_on_rank_1(Growing& net) {
  const bool is_rank_1 = std::string(std::getenv("RANK")) == "1";
  net.last = net.replace_module("last", nn::Linear(nn::LinearOptions(kWidth, 1).bias(!is_rank_1)));
}

TEST_P(LibtorchChanges, ThatFailLeaveTheParametersAsTheyWere) {
  const auto net = session().replicate<Replica<Growing>>(kSeed);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Adam, loss>(session(), net, params);
  auto other_params = parameters(session(), session().replicate<Replica<Growing>>(kSeed));
  step(x(), y(), {});
  const auto before = params.get(0).to_vector();
  const auto steps = std::tie(step);
  EXPECT_ERROR(models::lt::change<freeze_first>(session(), net, other_params, steps), sr::ErrorKind::usage,
               "change: the step 'loss' trains 'params', expected a step of 'params#2'");
  EXPECT_ERROR(models::lt::change<freeze_all>(session(), net, params, steps), sr::ErrorKind::usage,
               "change: the module has no parameter that requires a gradient");
  EXPECT_ERROR(models::lt::change<freeze_and_throw>(session(), net, params, steps), sr::ErrorKind::function,
               "no such layer");
  EXPECT_ERROR(step(x(), y(), {}), sr::ErrorKind::function, "the last change() of the module has failed");
  EXPECT_EQ(params.get(0).to_vector(), before);
  models::lt::change<unfreeze_all>(session(), net, params, steps);
  EXPECT_EQ(params.get(0).to_vector(), before);
  step(x(), y(), {});
  if (world_size() == 1) return;
  EXPECT_ERROR(models::lt::change<widen_on_rank_1>(session(), net, params, steps), sr::ErrorKind::usage,
               "change: the modules differ: rank 0 has parameter 'last.bias' Float [1], rank 1 has no more parameters");
}

void resize_last(Growing& net) {
  const torch::NoGradGuard no_gradients;
  for (auto* const layer : {&net.first, &net.last}) {
    auto& weight = (*layer)->weight;
    if (layer == &net.last) weight.set_data(torch::full({2, kWidth}, 0.1));
    else weight.set_data(weight.clone());
  }
  net.last->bias.set_data(torch::zeros({2}));
}

/// Steps that did not move with the parameters would train others.
TEST_P(LibtorchChanges, MakeOldStepsErrors) {
  const auto net = session().replicate<Replica<Growing>>(kSeed);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Adam, loss>(session(), net, params);
  auto other = models::lt::train_step<sr::Adam, loss>(session(), net, params);
  auto part = models::lt::train_step<sr::Adam, loss>(session(), net, params,
                                                     {.range = models::lt::range_of(session(), net, "last")});
  EXPECT_ERROR(models::lt::change<freeze_first>(session(), net, params, std::tie(step, part)), sr::ErrorKind::usage,
               "change: the step 'loss' has a range, expected one without");
  step(x(), y(), {});
  models::lt::change<replace_last>(session(), net, params, std::tie(step));  // the same length
  const auto before = params.get(0).to_vector();
  const char* const words = "'params' was laid out anew by change() without the step 'loss'";
  EXPECT_ERROR(other(x(), y(), {}), sr::ErrorKind::usage, words);
  EXPECT_ERROR(part(x(), y(), {}), sr::ErrorKind::usage, words);
  EXPECT_ERROR(models::lt::change<freeze_first>(session(), net, params, std::tie(other)), sr::ErrorKind::usage, words);
  EXPECT_EQ(params.get(0).to_vector(), before);
  // A tensor with another shape is a new parameter, and does not get the old state.
  models::lt::change<resize_last>(session(), net, params, std::tie(step, step));
  EXPECT_EQ(params.shape(0)[0], (models::kInputs + 1) * kWidth + 2 * kWidth + 2);
  const auto state = step.state()[0].get(0).to_vector();
  EXPECT_NE(state[0], 0);
  for (std::size_t i = (models::kInputs + 1) * kWidth; i < state.size(); ++i) EXPECT_EQ(state[i], 0);
}

struct Halved : Growing {
  Halved() { to(torch::kBFloat16); }
};
torch::Tensor halved_loss(Halved& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  return models::mean_square(net.forward(tensor(x).to(torch::kBFloat16)).to(torch::kFloat32), tensor(y));
}
void freeze_last_of_halved(Halved& net) { require_gradient(*net.last, false); }

TEST_P(LibtorchChanges, KeepTheMasterWeightsOfParametersIn16Bits) {
  const auto net = session().replicate<Replica<Halved>>(kSeed);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Adam, halved_loss>(session(), net, params);
  for (int i = 0; i < 5; ++i) step(x(), y(), {});
  auto before = params.get(0).to_vector();
  models::lt::change<freeze_last_of_halved>(session(), net, params, std::tie(step));
  before.resize((models::kInputs + 1) * kWidth);
  EXPECT_EQ(params.get(0).to_vector(), before);
  step(x(), y(), {});
}

}  // namespace changes
}  // namespace
