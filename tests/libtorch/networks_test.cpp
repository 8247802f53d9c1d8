// Steps that train several networks, or a part of the parameters. The losses are those of the same training in one
// process, by LibTorch's own optimizers, for any number of workers, uneven rows, slices, and both forms of a step.

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace networks {

using models::lt::parameters;
using models::lt::Replica;
using models::lt::tensor;
namespace nn = torch::nn;

constexpr std::uint64_t kSeed = 7;
constexpr std::int64_t kStepCount = 50;
constexpr std::int64_t kRows = 40;
constexpr std::int64_t kNoise = 3;

/// A small GAN. It counts the forward passes of its generator.
struct Gan : nn::Module {
  Gan()
      : discriminator(nn::Linear(models::kInputs, 8), nn::LayerNorm(nn::LayerNormOptions({8})),
                      nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)), nn::Linear(8, 1)),
        generator(nn::Linear(kNoise, 8), nn::Tanh(), nn::Linear(8, models::kInputs)) {
    register_module("discriminator", discriminator);
    register_module("generator", generator);
  }
  torch::Tensor generate(const torch::Tensor& noise) {
    ++passes;
    return generator->forward(noise);
  }
  torch::Tensor score(const torch::Tensor& x, double wanted) {
    const auto scores = discriminator->forward(x);
    return torch::binary_cross_entropy_with_logits(scores, torch::full_like(scores, wanted), {}, {},
                                                   at::Reduction::Mean);
  }
  nn::Sequential discriminator, generator;
  std::int64_t passes = 0;
};

using Rows = sr::Scattered<const float, 2>;
models::lt::StagedLoss<2> gan_loss(Gan& net, Rows x, Rows noise) {
  const auto fake = net.generate(tensor(noise));
  return {net.score(tensor(x), 0.9) + net.score(fake.detach(), 0), {[&net, fake] { return net.score(fake, 1); }}};
}
/// With a generator that needs the statistics of all rows, so all ranks compute together.
models::lt::StagedLoss<2> gan_loss_together(Gan& net, sr::Comm&, Rows x, Rows noise) { return gan_loss(net, x, noise); }
/// Does not detach the generator's output: the first stage trains the discriminator only.
models::lt::StagedLoss<2> attached_loss(Gan& net, Rows x, Rows noise) {
  const auto fake = net.generate(tensor(noise));
  return {net.score(tensor(x), 0.9) + net.score(fake, 0), {[&net, fake] { return net.score(fake, 1); }}};
}

sr::Max<std::int64_t> passes(Gan& net, sr::Broadcast<const float, 1>) { return net.passes; }

std::vector<std::int64_t> batch_of(std::int64_t step) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < 9 + step % 5; ++i) rows.push_back((7 * step + 3 * i) % kRows);
  return rows;
}

struct Losses {
  std::vector<double> discriminator;
  std::vector<double> generator;
};

/// The official example, DCGAN.
Losses train_serially(const torch::Tensor& x, const torch::Tensor& noise) {
  torch::manual_seed(kSeed);
  Gan net;
  torch::optim::Adam of_discriminator(net.discriminator->parameters(),
                                      torch::optim::AdamOptions(0.01).betas({0.5, 0.9}));
  torch::optim::SGD of_generator(net.generator->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Losses losses;
  for (std::int64_t i = 0; i < kStepCount; ++i) {
    const auto rows = torch::tensor(batch_of(i));
    of_discriminator.zero_grad();
    const auto fake = net.generate(noise.index_select(0, rows));
    const auto d = net.score(x.index_select(0, rows), 0.9) + net.score(fake.detach(), 0);
    d.backward();
    torch::nn::utils::clip_grad_norm_(net.discriminator->parameters(), 0.5);
    of_discriminator.step();
    of_generator.zero_grad();
    const auto g = net.score(fake, 1);
    g.backward();
    of_generator.step();
    losses.discriminator.push_back(d.item<double>());
    losses.generator.push_back(g.item<double>());
  }
  return losses;
}

class LibtorchNetworks : public models::OnSamples<kRows> {
 protected:
  static torch::Tensor all_noise() {
    torch::manual_seed(5);
    return torch::randn({kRows, kNoise});
  }
  static sr::Data<float, 2> noise() {
    const auto values = all_noise();
    return session().data(std::vector(values.data_ptr<float>(), values.data_ptr<float>() + values.numel()),
                          sr::Shape{kRows, kNoise});
  }

  template <auto kLoss>
  void expect_same(const Losses& serial, sr::StepForm form) {
    const auto net = session().replicate<Replica<Gan>>(kSeed);
    const auto params = parameters(session(), net);
    auto step = models::lt::staged_step<kLoss, sr::Adam, sr::SgdMomentum>(
        session(), net, params, {{"discriminator", {.form = form, .clip_norm = 0.5}}, {"generator", {.form = form}}});
    const auto range = models::lt::range_of(session(), net, "generator");
    EXPECT_EQ(step.template part<1>().gradient().shape(0)[0], range.end - range.begin);
    EXPECT_EQ(range.end, params.shape(0)[0]);
    double worst = 0;
    for (std::int64_t i = 0; i < kStepCount; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const auto batch = batch_of(i);
      const auto [d, g] = step(x(), noise(),
                               {sr::Adam{.learning_rate = 0.01, .beta1 = 0.5, .beta2 = 0.9},
                                sr::SgdMomentum{.learning_rate = 0.1, .momentum = 0.9}},
                               {.batch = batch, .slices = 1 + i % 3});
      for (const double difference :
           {std::abs(d / serial.discriminator[at] - 1), std::abs(g / serial.generator[at] - 1)}) {
        EXPECT_LT(difference, i < 10 ? 1e-6 : 1e-4) << "step " << i;
        worst = std::max(worst, difference);
      }
    }
    EXPECT_EQ(step.template part<0>().steps(), kStepCount);
    RecordProperty("largest_difference_of_a_loss", std::to_string(worst));
  }
};
INSTANTIATE_ON_WORKERS(LibtorchNetworks, 1, 2, 3, 4);

TEST_P(LibtorchNetworks, OfAGanShareAForwardPass) {
  const Losses serial = train_serially(all_x(), all_noise());
  EXPECT_GT(std::abs(serial.generator.back() / serial.generator.front() - 1), 0.1) << "the networks learn";
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) expect_same<gan_loss>(serial, form);
  expect_same<gan_loss_together>(serial, sr::StepForm::replicated);
  expect_same<attached_loss>(serial, sr::StepForm::replicated);
}

TEST_P(LibtorchNetworks, RunOnceInAStep) {
  const auto net = session().replicate<Replica<Gan>>(kSeed);
  const auto params = parameters(session(), net);
  auto step =
      models::lt::staged_step<gan_loss, sr::Sgd, sr::Sgd>(session(), net, params, {{"discriminator"}, {"generator"}});
  const auto one = session().data(std::vector<float>{1});
  for (int i = 0; i < 3; ++i) step(x(), noise(), {sr::Sgd{}, sr::Sgd{}}, {.slices = 2});
  EXPECT_EQ((models::lt::evaluation<passes>(session(), net, params)(one)).value(), 6);  // 3 steps of 2 slices
}

// ---- what is wrong ----

/// The second loss uses scores that were computed before the discriminator changed.
models::lt::StagedLoss<2> stale_loss(Gan& net, Rows x, Rows noise) {
  const auto fake = net.generate(tensor(noise));
  const auto of_generator = net.score(fake, 1);
  return {net.score(tensor(x), 1) + net.score(fake.detach(), 0), {[of_generator] { return of_generator; }}};
}
models::lt::StagedLoss<2> failing_loss(Gan& net, Rows x, Rows) {
  return {net.score(tensor(x), 1), {[]() -> torch::Tensor { throw std::runtime_error("no generator"); }}};
}

TEST_P(LibtorchNetworks, ThatUseOldValuesAreAnError) {
  const auto net = session().replicate<Replica<Gan>>(kSeed);
  const auto params = parameters(session(), net);
  const auto run = [&](auto step) { step(x(), noise(), {sr::Sgd{}, sr::Sgd{}}, {.slices = 2}); };
  const std::initializer_list<models::lt::Stage> stages{{"discriminator"}, {"generator"}};
  EXPECT_ERROR(run(models::lt::staged_step<stale_loss, sr::Sgd, sr::Sgd>(session(), net, params, stages)),
               sr::ErrorKind::function, "modified by an inplace operation");
  const auto range = models::lt::range_of(session(), net, "generator");
  const auto generator = [&] {
    const auto all = params.get(0).to_vector();
    return std::vector(all.begin() + range.begin, all.begin() + range.end);
  };
  const auto before = generator();
  EXPECT_ERROR(run(models::lt::staged_step<failing_loss, sr::Sgd, sr::Sgd>(session(), net, params, stages)),
               sr::ErrorKind::function, "no generator");
  EXPECT_EQ(generator(), before);
  run(models::lt::staged_step<gan_loss, sr::Sgd, sr::Sgd>(session(), net, params, stages));
  EXPECT_NE(generator(), before);

  EXPECT_ERROR((models::lt::staged_step<gan_loss, sr::Sgd, sr::Sgd>(session(), net, params, {{"generator"}})),
               sr::ErrorKind::usage, "staged_step: 1 networks, expected 2, one for each stage of the loss");
  EXPECT_ERROR(
      (models::lt::staged_step<gan_loss, sr::Sgd, sr::Sgd>(session(), net, params, {{"critic"}, {"generator"}})),
      sr::ErrorKind::usage, "range_of: the module has no parameters 'critic' or 'critic.*'");
}

// ---- what the stages keep ----

/// Lives as long as the graph of the first stage.
std::weak_ptr<int> graph_of_first;
sr::Sum<int> graphs_alive() { return graph_of_first.expired() ? 0 : 1; }

enum class Failing : std::int32_t { no_stage, first_stage_of_last_rank, later_stage };

models::lt::StagedLoss<2> holding_loss(Gan& net, Rows x, Rows noise, Failing failing) {
  const auto fake = net.generate(tensor(noise));
  const auto kept = std::make_shared<int>();
  graph_of_first = kept;
  fake.register_hook([kept](const torch::Tensor& gradient) { return gradient; });
  const bool is_last = std::atoi(std::getenv("RANK")) + 1 == std::atoi(std::getenv("WORLD_SIZE"));
  if (failing == Failing::first_stage_of_last_rank && is_last) throw std::runtime_error("fails");
  return {net.score(tensor(x), 0.9) + net.score(fake.detach(), 0), {[&net, fake, failing] {
            if (failing == Failing::later_stage) throw std::runtime_error("fails");
            return net.score(fake, 1);
          }}};
}

TEST_P(LibtorchNetworks, KeepNoGraphAfterAStepThatThrew) {
  const auto net = session().replicate<Replica<Gan>>(kSeed);
  const auto params = parameters(session(), net);
  auto step = models::lt::staged_step<holding_loss, sr::Sgd, sr::Sgd>(session(), net, params,
                                                                      {{"discriminator"}, {"generator"}});
  const auto alive = session().function(graphs_alive);
  const auto run = [&](Failing failing) { step(x(), noise(), failing, {sr::Sgd{}, sr::Sgd{}}, {.slices = 2}); };
  run(Failing::no_stage);
  EXPECT_EQ(alive().value(), 0);
  for (const auto failing : {Failing::later_stage, Failing::first_stage_of_last_rank}) {
    EXPECT_ERROR(run(failing), sr::ErrorKind::function, "fails");
    EXPECT_EQ(alive().value(), 0);
  }
  run(Failing::no_stage);
}

// ---- networks that change ----

void freeze_first_layer(Gan& net) {
  for (auto& each : net.generator->ptr(0)->parameters()) each.requires_grad_(false);
}
/// A network of another size, in front of the other one.
void replace_discriminator(Gan& net) {
  torch::manual_seed(4);
  net.discriminator =
      net.replace_module("discriminator", nn::Sequential(nn::Linear(models::kInputs, 5), nn::Tanh(), nn::Linear(5, 1)));
}
void unfreeze_last_layer(Gan& net) {
  for (auto& each : net.generator->ptr(2)->parameters()) each.requires_grad_(true);
}
void freeze_generator(Gan& net) {
  for (auto& each : net.generator->parameters()) each.requires_grad_(false);
}

TEST_P(LibtorchNetworks, GoOnAfterAChange) {
  constexpr std::int64_t kSteps = 30;
  constexpr std::int64_t kFreeze = 5;
  constexpr std::int64_t kReplace = 12;
  Losses serial;
  {
    torch::manual_seed(kSeed);
    Gan net;
    torch::optim::Adam of_discriminator(net.discriminator->parameters(), 0.01);
    torch::optim::SGD of_generator(net.generator->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (std::int64_t i = 0; i < kSteps; ++i) {
      for (auto& each : net.parameters()) each.mutable_grad().reset();
      if (i == kFreeze) freeze_first_layer(net);
      if (i == kReplace) {
        replace_discriminator(net);
        for (auto& each : net.discriminator->parameters()) of_discriminator.param_groups()[0].params().push_back(each);
      }
      const auto rows = torch::tensor(batch_of(i));
      const auto fake = net.generate(all_noise().index_select(0, rows));
      const auto d = net.score(all_x().index_select(0, rows), 0.9) + net.score(fake.detach(), 0);
      d.backward();
      of_discriminator.step();
      for (auto& each : net.parameters()) each.mutable_grad().reset();
      const auto g = net.score(fake, 1);
      g.backward();
      of_generator.step();
      serial.discriminator.push_back(d.item<double>());
      serial.generator.push_back(g.item<double>());
    }
  }
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    const auto net = session().replicate<Replica<Gan>>(kSeed);
    auto params = parameters(session(), net);
    auto step = models::lt::staged_step<gan_loss, sr::Adam, sr::SgdMomentum>(
        session(), net, params, {{"discriminator", {.form = form}}, {"generator", {.form = form}}});
    for (std::int64_t i = 0; i < kSteps; ++i) {
      if (i == kFreeze) models::lt::change<freeze_first_layer>(session(), net, params, std::tie(step));
      if (i == kReplace) {
        const auto before = params.get(0).to_vector();
        EXPECT_ERROR(models::lt::change<freeze_generator>(session(), net, params, std::tie(step)), sr::ErrorKind::usage,
                     "change: the module has no parameters 'generator' or 'generator.*'");
        EXPECT_EQ(params.get(0).to_vector(), before);
        models::lt::change<unfreeze_last_layer>(session(), net, params, std::tie(step));
        models::lt::change<replace_discriminator>(session(), net, params, std::tie(step));
      }
      const auto at = static_cast<std::size_t>(i);
      const auto batch = batch_of(i);
      const auto [d, g] =
          step(x(), noise(), {sr::Adam{.learning_rate = 0.01}, sr::SgdMomentum{.learning_rate = 0.1, .momentum = 0.9}},
               {.batch = batch, .slices = 1 + i % 3});
      EXPECT_NEAR(d / serial.discriminator[at], 1, i < 10 ? 1e-6 : 1e-4) << "step " << i;
      EXPECT_NEAR(g / serial.generator[at], 1, i < 10 ? 1e-6 : 1e-4) << "step " << i;
    }
    EXPECT_EQ(step.template part<1>().gradient().shape(0)[0], 8 * models::kInputs + models::kInputs);
    EXPECT_TRUE(models::lt::verify_replicas(session(), net).is_same());
  }
}

// ---- one loss, two optimizers ----

/// Each step trains its part, and the loss's gradient for the other part is not computed.
TEST_P(LibtorchNetworks, CanBePartsOfTheParametersWithStepsOfTheirOwn) {
  torch::manual_seed(kSeed);
  models::Mlp alone;
  torch::optim::SGD of_first(alone.first->parameters(), 0.1);
  torch::optim::Adam of_last(alone.last->parameters(), 0.02);
  std::vector<double> serial;
  for (std::int64_t i = 0; i < 20; ++i) {
    for (auto& each : alone.parameters()) each.mutable_grad().reset();
    const auto loss = models::mean_square(alone.forward(all_x()), all_y());
    loss.backward();
    if (i % 2 == 0) of_first.step();
    else of_last.step();
    serial.push_back(loss.item<double>());
  }
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    const auto net = session().replicate<Replica<models::Mlp>>(kSeed);
    const auto params = parameters(session(), net);
    const auto range = [&](const char* name) { return models::lt::range_of(session(), net, name); };
    auto first = models::lt::train_step<sr::Sgd, models::mlp_loss>(session(), net, params,
                                                                   {.form = form, .range = range("first")});
    auto last = models::lt::train_step<sr::Adam, models::mlp_loss>(
        session(), net, params, {.form = form, .groups = {{.begin = 63, .end = 72}}, .range = range("last")});
    for (std::size_t i = 0; i < serial.size(); ++i) {
      const double loss = i % 2 == 0 ? first(x(), y(), {.learning_rate = 0.1}, {.slices = 2})
                                     : last(x(), y(), {.learning_rate = 0.02}, {.slices = 3});
      EXPECT_NEAR(loss / serial[i], 1, 1e-6) << "step " << i;
    }
  }
  const auto net = session().replicate<Replica<models::Mlp>>(kSeed);
  const auto params = parameters(session(), net);
  auto cut =
      models::lt::train_step<sr::Sgd, models::mlp_loss>(session(), net, params, {.range = sr::ParameterRange{0, 40}});
  EXPECT_ERROR(cut(x(), y(), {}), sr::ErrorKind::function,
               "the range of the step, the elements 0 to 40, cuts parameter 'first.weight'");
  EXPECT_ERROR((models::lt::train_step<sr::Sgd, models::mlp_loss>(session(), net, params,
                                                                  {.range = sr::ParameterRange{70, 80}})),
               sr::ErrorKind::usage, "the range of the step, the elements 70 to 80, is not within the parameters");
  EXPECT_ERROR((models::lt::train_step<sr::Sgd, models::mlp_loss>(
                   session(), net, params, {.groups = {{.begin = 0, .end = 9}}, .range = sr::ParameterRange{63, 73}})),
               sr::ErrorKind::usage, "is not within the parameters 63 to 73");
}

}  // namespace networks
}  // namespace
