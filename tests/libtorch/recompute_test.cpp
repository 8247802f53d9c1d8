// checkpoint(): the same gradients with less memory, in a program and in every form of a step.

#include <torch/torch.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace recompute {

namespace nn = torch::nn;
namespace lt = models::lt;
using torch::Tensor;

constexpr std::uint64_t kSeed = 3;
constexpr std::int64_t kInputs = models::kInputs;
constexpr std::int64_t kRows = 12;

struct Layer : nn::Module {
  Layer(std::int64_t in, std::int64_t out) : wide(in, 30), narrow(30, out) {
    register_module("wide", wide);
    register_module("narrow", narrow);
  }
  Tensor forward(const Tensor& x) {
    ++calls;
    return narrow(torch::dropout(torch::tanh(wide(x)), 0.25, is_training()));
  }

  nn::Linear wide, narrow;
  int calls = 0;
};

struct Net : nn::Module {
  explicit Net(bool repeats) : repeats(repeats) {
    first = register_module("first", std::make_shared<Layer>(kInputs, 8));
    last = register_module("last", std::make_shared<Layer>(8, 1));
  }
  Tensor forward(const Tensor& x) {
    if (!repeats) return last->forward(first->forward(x)).squeeze(1);
    const auto hidden = lt::checkpoint([this](const Tensor& x) { return first->forward(x); }, x);
    return lt::checkpoint([this](const Tensor& x) { return last->forward(x); }, hidden).squeeze(1);
  }

  bool repeats;
  std::shared_ptr<Layer> first, last;
};

std::vector<Tensor> gradients_of(const nn::Module& module) {
  std::vector<Tensor> gradients;
  for (const auto& each : module.parameters()) gradients.push_back(each.grad().clone());
  return gradients;
}

TEST(LibtorchCheckpoint, GivesTheSameGradientsAndRunsItsFunctionTwice) {
  std::vector<std::vector<Tensor>> gradients;
  std::vector<Tensor> draws;
  for (const bool repeats : {false, true}) {
    torch::manual_seed(kSeed);
    Net net(repeats);
    const auto x = torch::rand({kRows, kInputs});  // needs no gradient
    net.forward(x).square().sum().backward();
    gradients.push_back(gradients_of(net));
    draws.push_back(torch::rand({4}));  // the generator goes on as before
    EXPECT_EQ(net.first->calls, repeats ? 2 : 1);
  }
  for (std::size_t i = 0; i < gradients[0].size(); ++i) EXPECT_TRUE(gradients[0][i].equal(gradients[1][i]));
  EXPECT_TRUE(draws[0].equal(draws[1]));
}

TEST(LibtorchCheckpoint, TakesSeveralInputsAndReturnsSeveralTensors) {
  const auto weight = torch::rand({3, 3}, torch::requires_grad());
  const auto a = torch::rand({4, 3}, torch::requires_grad());
  const auto b = torch::rand({4, 3}, torch::requires_grad());
  const auto rows = torch::tensor({std::int64_t{2}, std::int64_t{0}});
  // The third output has no gradient, and the fourth is used by nobody.
  const auto function = [&](const Tensor& x, double scale, const Tensor& y, const Tensor& chosen) {
    const auto product = torch::matmul(x, weight) * scale + y;
    return std::tuple{product.index_select(0, chosen), y.square(), chosen + 1, product.exp()};
  };
  const auto loss_of = [](const std::tuple<Tensor, Tensor, Tensor, Tensor>& outputs) {
    const auto& [chosen, squares, numbers, unused] = outputs;
    EXPECT_FALSE(numbers.requires_grad());
    return chosen.sum() + (squares * squares).sum();
  };
  const auto wanted = torch::autograd::grad({loss_of(function(a, 2.0, b, rows))}, {a, b, weight});
  loss_of(lt::checkpoint(function, a, 2.0, b, rows)).backward();
  EXPECT_TRUE(a.grad().equal(wanted[0]));
  EXPECT_TRUE(b.grad().equal(wanted[1]));
  EXPECT_TRUE(weight.grad().equal(wanted[2]));
}

TEST(LibtorchCheckpoint, ComputesInTheTypeOfItsScope) {
  torch::manual_seed(kSeed);
  const nn::Linear layer(8, 8);
  const auto x = torch::rand({4, 8});
  std::vector<Tensor> gradients;
  for (const bool repeats : {false, true}) {
    layer->weight.mutable_grad().reset();
    Tensor y;
    {
      const lt::Autocast autocast(torch::kBFloat16);
      const auto function = [&](const Tensor& x) { return torch::matmul(x, layer->weight); };
      y = repeats ? lt::checkpoint(function, x) : function(x);
    }
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    y.square().sum().backward();
    gradients.push_back(layer->weight.grad().clone());
  }
  EXPECT_TRUE(gradients[0].equal(gradients[1]));
}

/// Autocast keeps the copy of a parameter that it makes first, also if it has no graph.
TEST(LibtorchCheckpoint, LeavesOtherUsesOfItsParametersTheirGradient) {
  torch::manual_seed(kSeed);
  const auto weight = torch::rand({8, 8}, torch::requires_grad());
  const auto x = torch::rand({4, 8});
  std::vector<Tensor> gradients;
  for (const bool repeats : {false, true}) {
    weight.mutable_grad().reset();
    Tensor y;
    {
      const lt::Autocast autocast(torch::kBFloat16);
      const auto function = [&](const Tensor& x) { return torch::matmul(x, weight); };
      y = torch::matmul(repeats ? lt::checkpoint(function, x) : function(x), weight);
    }
    y.sum().backward();
    gradients.push_back(weight.grad().clone());
  }
  EXPECT_TRUE(gradients[1].allclose(gradients[0], 1e-2)) << gradients[1] << gradients[0];
}

TEST(LibtorchCheckpoint, RefusesAGradientOfGivenTensors) {
  const auto weight = torch::rand({3}, torch::requires_grad());
  const auto x = torch::rand({3}, torch::requires_grad());
  const auto y = lt::checkpoint([&](const Tensor& x) { return x * weight; }, x).sum();
  EXPECT_ERROR(torch::autograd::grad({y}, {x}), sr::ErrorKind::usage, "expected one to all parameters");
  EXPECT_FALSE(weight.grad().defined());
}

TEST(LibtorchCheckpoint, KeepsOnlyItsInputs) {
  // What the graph keeps is freed with it.
  const auto held = [](bool repeats) {
    const auto weight = torch::rand({64, 64}, torch::requires_grad());
    const auto x = torch::rand({64, 64});
    std::weak_ptr<int> inside;
    const auto function = [&](const Tensor& x) {
      const auto token = std::make_shared<int>(0);
      inside = token;
      const auto product = torch::matmul(x, weight);
      const auto counted = torch::from_blob(product.data_ptr(), product.sizes(), [token, product](void*) {});
      return torch::exp(product * counted);  // the graph needs `counted`
    };
    const auto y = repeats ? lt::checkpoint(function, x) : function(x);
    return !inside.expired();
  };
  EXPECT_TRUE(held(false));
  EXPECT_FALSE(held(true));
}

TEST(LibtorchCheckpoint, RefusesSecondDerivatives) {
  const auto x = torch::rand({3}, torch::requires_grad());
  const auto y = lt::checkpoint([](const Tensor& x) { return x.square(); }, x).sum();
  EXPECT_ERROR(torch::autograd::grad({y}, {x}, {}, true, true), sr::ErrorKind::usage, "second derivatives");
}

Tensor loss(Net& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  return torch::mse_loss(net.forward(lt::tensor(x)), lt::tensor(y));
}

class LibtorchCheckpoints : public OnSharedWorkers {
 protected:
  static std::vector<double> train(bool repeats, sr::StepForm form, bool is_part) {
    const auto samples = models::make_samples(kRows);
    const auto x = session().data(samples.x, sr::Shape{kRows, kInputs});
    const auto y = session().data(samples.y, sr::Shape{kRows});
    const auto net = session().replicate<lt::Replica<Net>>(kSeed, repeats);
    const auto params = lt::parameters(session(), net);
    sr::TrainStepOptions options{.form = form};
    if (is_part) options.range = lt::range_of(session(), net, "first");
    auto step = lt::train_step<sr::Adam, loss>(session(), net, params, options);
    std::vector<double> losses;
    for (int i = 0; i < 5; ++i) losses.push_back(step(x, y, {.learning_rate = 0.01}, {.slices = 2}));
    return losses;
  }
};
INSTANTIATE_ON_WORKERS(LibtorchCheckpoints, 1, 3);

TEST_P(LibtorchCheckpoints, TrainTheSameInEveryFormOfAStep) {
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    for (const bool is_part : {false, true}) {
      const auto plain = train(false, form, is_part);
      EXPECT_NE(plain.front(), plain.back());
      EXPECT_EQ(train(true, form, is_part), plain);
    }
  }
}

}  // namespace recompute

}  // namespace
