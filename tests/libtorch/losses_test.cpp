// Training of modules of LibTorch. The losses are those of the same training in one process, by LibTorch's own
// optimizers, for any number of workers, uneven rows, slices, and both forms of a step.

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

using models::lt::evaluation;
using models::lt::parameters;
using models::lt::Replica;
using models::lt::tensor;

constexpr std::uint64_t kSeed = 7;
constexpr int kSteps = 50;

/// The rows of each step. The number of rows changes, and is often not a multiple of the number of workers.
std::vector<std::vector<std::int64_t>> make_batches(std::int64_t rows) {
  std::mt19937 random(11);
  std::vector<std::vector<std::int64_t>> batches(kSteps);
  for (auto& batch : batches) {
    batch.resize(9 + random() % 8);
    for (auto& row : batch) row = static_cast<std::int64_t>(random()) % rows;
  }
  return batches;
}
/// Slices of a step: from 1 to 3.
std::int64_t slices_of(int step) { return 1 + step % 3; }

void expect_same_losses(const std::vector<double>& losses, const std::vector<double>& serial) {
  ASSERT_EQ(losses.size(), serial.size());
  for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(losses[i] / serial[i], 1, 1e-5) << "step " << i;
  EXPECT_NEAR(losses.back() / serial.back(), 1, 0.01);
  EXPECT_LT(serial.back(), 0.9 * serial.front()) << "the model learns, so the losses say something";
}

/// The parameters of a module, each once. In C++, parameters() has tied tensors twice, and an optimizer would update them
/// twice in each step.
std::vector<torch::Tensor> parameters_once(const torch::nn::Module& net) {
  std::vector<torch::Tensor> once;
  for (const auto& each : net.parameters()) {
    if (std::none_of(once.begin(), once.end(), [&](const auto& other) { return other.is_same(each); }))
      once.push_back(each);
  }
  return once;
}

/// Trains a module in this process. `loss` computes the loss of some rows.
template <class Net>
std::vector<double> train_serially(Net& net, torch::optim::Optimizer& optimizer,
                                   const std::vector<std::vector<std::int64_t>>& batches,
                                   const std::function<torch::Tensor(Net&, const torch::Tensor&)>& loss) {
  std::vector<double> losses;
  for (const auto& batch : batches) {
    optimizer.zero_grad();
    const auto value = loss(net, torch::tensor(batch));
    value.backward();
    optimizer.step();
    losses.push_back(value.template item<double>());
  }
  return losses;
}

class LibtorchLosses : public models::OnSamples<40> {
 protected:
  template <class Step, class Rule, class... Data>
  static std::vector<double> train(Step& step, const Rule& rule, const std::vector<std::vector<std::int64_t>>& batches,
                                   const Data&... data) {
    std::vector<double> losses;
    for (int i = 0; i < kSteps; ++i) {
      const auto& batch = batches[static_cast<std::size_t>(i)];
      losses.push_back(step(data..., rule, {.batch = batch, .slices = slices_of(i)}));
    }
    return losses;
  }
};
INSTANTIATE_ON_WORKERS(LibtorchLosses, 1, 3);

TEST_P(LibtorchLosses, OfATransformerAreThoseOfOneProcess) {
  constexpr std::int64_t kRows = 60;
  constexpr std::int64_t kWidth = 16;
  const auto tokens = models::make_tokens(kRows);
  const auto batches = make_batches(kRows);

  torch::manual_seed(kSeed);
  models::Transformer alone(kWidth, 2);
  torch::optim::AdamW adamw(parameters_once(alone), torch::optim::AdamWOptions(0.01).weight_decay(0.05));
  const auto all =
      torch::from_blob(const_cast<std::uint8_t*>(tokens.data()), {kRows, models::kContext + 1}, torch::kUInt8);
  const auto serial = train_serially<models::Transformer>(
      alone, adamw, batches, [&](models::Transformer& net, const torch::Tensor& rows) {
        return models::next_token_loss(net, all.index_select(0, rows));
      });

  const auto data = session().data(tokens, sr::Shape{kRows, models::kContext + 1});
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    const auto net = session().replicate<Replica<models::Transformer>>(kSeed, kWidth, std::int64_t{2});
    const auto params = parameters(session(), net);
    auto step = models::lt::train_step<sr::Adam, models::transformer_loss>(session(), net, params, {.form = form});
    const sr::Adam rule{.learning_rate = 0.01, .decoupled_weight_decay = 0.05};
    expect_same_losses(train(step, rule, batches, data), serial);

    const auto evaluate = evaluation<models::transformer_loss>(session(), net, params);
    const double after = models::next_token_loss(alone, all).item<double>();
    EXPECT_NEAR(evaluate(data, {.slices = 3}) / after, 1, 0.01);
  }
}

/// Groups without weight decay, a frozen part, and a clipped gradient: those of LibTorch's optimizer, whose parameter
/// groups and clip_grad_norm_ do the same.
TEST_P(LibtorchLosses, WithGroupsAndAClippedGradient) {
  constexpr std::int64_t kRows = 60;
  constexpr double kClip = 0.5;
  const auto tokens = models::make_tokens(kRows);
  const auto batches = make_batches(kRows);

  torch::manual_seed(kSeed);
  models::Transformer alone(16, 2);
  alone.place->weight.requires_grad_(false);
  std::vector<torch::Tensor> matrices;
  std::vector<torch::Tensor> vectors;
  for (const auto& each : parameters_once(alone)) {
    if (each.requires_grad()) (each.dim() < 2 ? vectors : matrices).push_back(each);
  }
  const auto options = [](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.01).weight_decay(decay));
  };
  torch::optim::AdamW adamw({{matrices, options(0.3)}, {vectors, options(0)}}, torch::optim::AdamWOptions(0.01));
  const auto all = torch::tensor(std::vector<std::int64_t>(tokens.begin(), tokens.end())).reshape({kRows, -1});
  std::vector<double> serial;
  std::vector<double> norms;
  for (const auto& batch : batches) {
    adamw.zero_grad();
    const auto loss = models::next_token_loss(alone, all.index_select(0, torch::tensor(batch)));
    loss.backward();
    auto trained = matrices;
    trained.insert(trained.end(), vectors.begin(), vectors.end());
    norms.push_back(torch::nn::utils::clip_grad_norm_(trained, kClip));
    adamw.step();
    serial.push_back(loss.item<double>());
  }
  EXPECT_GT(norms.front(), kClip) << "the gradient is clipped at least once";

  const auto data = session().data(tokens, sr::Shape{kRows, models::kContext + 1});
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    const auto net = session().replicate<Replica<models::Transformer>>(kSeed, 16, 2);
    const auto params = parameters(session(), net);
    std::vector<sr::ParameterGroup> groups;
    for (const auto& part : models::lt::parts(session(), net)) {
      if (part.name == "place.weight") groups.push_back({.begin = part.begin, .end = part.end, .learning_rate = 0});
      else if (part.dimensions < 2) groups.push_back({.begin = part.begin, .end = part.end, .weight_decay = 0});
    }
    auto step = models::lt::train_step<sr::Adam, models::transformer_loss>(
        session(), net, params, {.form = form, .groups = groups, .clip_norm = kClip});
    const sr::Adam rule{.learning_rate = 0.01, .decoupled_weight_decay = 0.3};
    std::vector<double> losses;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      losses.push_back(step(data, rule, {.batch = batches[i]}));
      if (i < 10) {
        EXPECT_NEAR(step.gradient_norm() / norms[i], 1, 1e-4) << "step " << i;
      }
    }
    expect_same_losses(losses, serial);
  }
}

struct Numbers {
  sr::Avg<double> loss;
  sr::Sum<std::int64_t> positive;
};
models::lt::Loss<Numbers> loss_with_numbers(models::Mlp& net, sr::Scattered<const float, 2> x,
                                            sr::Scattered<const float, 1> y) {
  const auto output = net.forward(tensor(x));
  const auto loss = models::mean_square(output, tensor(y));
  return {loss, {loss.item<double>(), output.gt(0).sum().item<std::int64_t>()}};
}
/// Outputs without a loss, for evaluations only.
Numbers numbers(models::Mlp& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  EXPECT_FALSE(net.is_training());
  EXPECT_FALSE(torch::GradMode::is_enabled());
  return loss_with_numbers(net, x, y).numbers;
}

TEST_P(LibtorchLosses, ComeWithOtherNumbers) {
  const auto net = session().replicate<Replica<models::Mlp>>(kSeed);
  const auto params = parameters(session(), net);

  torch::manual_seed(kSeed);
  models::Mlp alone;
  const auto output = alone.forward(all_x());
  const double loss = models::mean_square(output, all_y()).item<double>();
  const auto positive = output.gt(0).sum().item<std::int64_t>();

  for (const auto& found : {evaluation<numbers>(session(), net, params)(x(), y(), {.slices = 2}),
                            evaluation<loss_with_numbers>(session(), net, params)(x(), y()),
                            models::lt::train_step<sr::Sgd, loss_with_numbers>(session(), net, params)(x(), y(), {})}) {
    EXPECT_NEAR(found.loss, loss, 1e-5 * loss);
    EXPECT_EQ(found.positive.value(), positive);
  }
}

struct KeptNumbers {
  sr::Avg<double> loss;
  sr::Keep<float, 1> outputs;
};
/// Keeps its outputs on the worker. The body for GPUs, which is not replayed, compiles too.
models::lt::Loss<KeptNumbers> loss_with_kept_outputs(models::Mlp& net, sr::Scattered<const float, 2> x,
                                                     sr::Scattered<const float, 1> y) {
  const auto output = net.forward(tensor(x));
  const auto loss = models::mean_square(output, tensor(y));
  const auto values = output.detach().contiguous();
  return {loss,
          {loss.item<double>(), {std::span(values.data_ptr<float>(), values.numel()), sr::Shape{values.numel()}}}};
}

TEST_P(LibtorchLosses, ComeWithOutputsThatStayOnTheWorker) {
  const auto net = session().replicate<Replica<models::Mlp>>(kSeed);
  const auto params = parameters(session(), net);
  const auto evaluate = evaluation<loss_with_kept_outputs>(session(), net, params);
  const double loss = evaluation<loss_with_numbers>(session(), net, params)(x(), y()).loss;
  if (world_size() != 1) {
    EXPECT_THROW(evaluate(x(), y()), sr::Error);  // a Keep is for calls on one rank
    return;
  }
  auto step = models::lt::train_step<sr::Sgd, loss_with_kept_outputs>(session(), net, params);
  const KeptNumbers found = evaluate(x(), y());
  EXPECT_EQ(found.loss, loss);
  EXPECT_EQ(found.outputs.value().get().to_vector().size(), static_cast<std::size_t>(x().rows()));
  EXPECT_EQ(step(x(), y(), {.learning_rate = 0}).loss, loss);
}

/// A holder instead of a class: Replica<torch::nn::Linear>.
torch::Tensor linear_loss(torch::nn::Linear& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  return models::mean_square(net(tensor(x)).squeeze(1), tensor(y));
}

TEST_P(LibtorchLosses, OfAModuleHolder) {
  const auto net = session().replicate<Replica<torch::nn::Linear>>(kSeed, models::kInputs, 1);
  const auto params = parameters(session(), net, "weights");
  EXPECT_EQ(params.name(), "weights");
  EXPECT_EQ(params.shape(0)[0], models::kInputs + 1);
  auto step = models::lt::train_step<sr::Sgd, linear_loss>(session(), net, params);
  EXPECT_EQ(step.name(), "linear_loss");
  const double first = step(x(), y(), {.learning_rate = 0.05});
  double last = first;
  for (int i = 0; i < 20; ++i) last = step(x(), y(), {.learning_rate = 0.05});
  EXPECT_LT(last, first);
}

/// A module with a parameter that has no elements.
struct WithAnEmptyPart : models::Mlp {
  WithAnEmptyPart() : none(register_parameter("none", torch::zeros({0, 3}))) {}
  torch::Tensor none;
};
torch::Tensor loss_with_an_empty_part(WithAnEmptyPart& net, sr::Scattered<const float, 2> x,
                                      sr::Scattered<const float, 1> y) {
  return models::mlp_loss(net, x, y) + net.none.sum();
}

TEST_P(LibtorchLosses, OfAModuleWithAParameterWithoutElements) {
  const auto net = session().replicate<Replica<WithAnEmptyPart>>(kSeed);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Sgd, loss_with_an_empty_part>(session(), net, params);
  const double first = step(x(), y(), {.learning_rate = 0.05});
  EXPECT_LT(step(x(), y(), {.learning_rate = 0.05}), first);
}

/// Moves the parameters to memory of their own, as Module::to() does.
torch::Tensor loss_that_moves_the_parameters(models::Mlp& net, sr::Scattered<const float, 2> x,
                                             sr::Scattered<const float, 1> y) {
  const auto loss = models::mlp_loss(net, x, y);
  for (auto& each : net.parameters()) each.set_data(each.detach().clone());
  return loss;
}

TEST_P(LibtorchLosses, OfAModuleWhoseParametersWereMovedAreThoseOfTheVariable) {
  const auto train = [&](auto make) {
    const auto net = session().replicate<Replica<models::Mlp>>(kSeed);
    auto params = parameters(session(), net);
    auto step = make(net, params);
    std::vector<double> losses;
    for (int i = 0; i < 5; ++i) losses.push_back(step(x(), y(), {.learning_rate = 0.05}));
    return losses;
  };
  const auto moved = train([&](const auto& net, auto& params) {
    return models::lt::train_step<sr::Sgd, loss_that_moves_the_parameters>(session(), net, params);
  });
  const auto left = train([&](const auto& net, auto& params) {
    return models::lt::train_step<sr::Sgd, models::mlp_loss>(session(), net, params);
  });
  EXPECT_EQ(moved, left);
}

}  // namespace
