// Modules and losses that cannot be trained, and errors of LibTorch. Each is an error that says what was expected and
// what was found, and the session goes on.

#include <torch/torch.h>

#include <cmath>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

using models::lt::parameters;
using models::lt::Replica;
using models::lt::tensor;
namespace nn = torch::nn;

using Rows = sr::Scattered<const float, 2>;
using Targets = sr::Scattered<const float, 1>;

class LibtorchBadModel : public models::OnSamples<20> {
 protected:
  /// Expects that a step with this loss fails with these words, and that the parameters stay as they were.
  template <auto kLoss, class Net = models::Mlp>
  void expect_refused(const char* words) {
    const auto net = session().replicate<Replica<Net>>(7);
    auto params = parameters(session(), net);
    const auto before = params.get(0).to_vector();
    auto step = models::lt::train_step<sr::Sgd, kLoss>(session(), net, params);
    EXPECT_ERROR(step(x(), y(), {.learning_rate = 0.1}), sr::ErrorKind::function, words);
    EXPECT_EQ(params.get(0).to_vector(), before);
    EXPECT_EQ(step.steps(), 0);
    // The module works afterwards.
    if constexpr (std::is_same_v<Net, models::Mlp>) {
      auto good = models::lt::train_step<sr::Sgd, models::mlp_loss>(session(), net, params);
      EXPECT_TRUE(std::isfinite(good(x(), y(), {.learning_rate = 0.1})));
    }
  }
  template <class Net>
  void expect_not_constructed(const char* words) {
    const auto net = session().replicate<Replica<Net>>(7);
    EXPECT_ERROR(static_cast<void>(parameters(session(), net)), sr::ErrorKind::function, words);
  }
};
INSTANTIATE_ON_WORKERS(LibtorchBadModel, 1, 3);

// ---- losses ----

torch::Tensor loss_per_row(models::Mlp& net, Rows x, Targets y) { return (net.forward(tensor(x)) - tensor(y)).pow(2); }
torch::Tensor undefined_loss(models::Mlp&, Rows, Targets) { return {}; }
torch::Tensor detached_loss(models::Mlp& net, Rows x, Targets y) { return models::mlp_loss(net, x, y).detach(); }
torch::Tensor infinite_loss(models::Mlp& net, Rows x, Targets y) { return models::mlp_loss(net, x, y) / 0; }

/// A mean over rows that count, of which there are none.
torch::Tensor masked_loss(models::Mlp& net, Rows x, Targets y) {
  const auto mask = torch::zeros({y.rows()});
  return ((net.forward(tensor(x)) - tensor(y)).pow(2) * mask).sum() / mask.sum();
}

torch::Tensor loss_that_resets(models::Mlp& net, Rows x, Targets y) {
  net.first->weight.mutable_grad() = torch::Tensor();
  return models::mlp_loss(net, x, y);
}

TEST_P(LibtorchBadModel, ALossIsOneFiniteNumberThatDependsOnTheParameters) {
  expect_refused<loss_per_row>("], expected one number: the mean over the rows");
  expect_refused<undefined_loss>("the loss is an undefined tensor, expected one number");
  expect_refused<detached_loss>("the loss does not depend on a parameter, so it has no gradient");
  expect_refused<infinite_loss>(
      "the loss is inf in training run 1 of this module, expected a finite number; all "
      "parameters are finite before this step. Look at the inputs, and for a division by 0");
  expect_refused<masked_loss>(
      "before this step. Look at the inputs, and for a division by 0 or a logarithm of 0. A mean over nothing is "
      "0 / 0, for example if all targets of a rank are padding: return libtorch::cross_entropy(scores, targets, "
      "ignore_index), or another WeightedLoss");
  expect_refused<loss_that_resets>("the gradient of parameter 'first.weight' was replaced during the backward pass");
}
TEST_P(LibtorchBadModel, TheFirstParameterThatIsNotFiniteIsNamed) {
  const auto net = session().replicate<Replica<models::Mlp>>(7);
  auto params = parameters(session(), net);
  auto values = params.get(0).to_vector();
  values[60] = std::nanf("");  // first.weight has 54 elements, first.bias 9
  params.broadcast(values);
  auto step = models::lt::train_step<sr::Sgd, models::mlp_loss>(session(), net, params);
  EXPECT_ERROR(step(x(), y(), {}), sr::ErrorKind::function,
               "parameter 'first.bias' already has values that are not finite. Look at where its values come from");
  EXPECT_ERROR(step(x(), y(), {}), sr::ErrorKind::function,
               "parameter 'first.bias' already has values that are not finite. Try a smaller learning rate");
}

// ---- gradients ----

torch::Tensor loss_of_the_first_layer(models::Mlp& net, Rows x, Targets) { return net.first(tensor(x)).pow(2).mean(); }
TEST_P(LibtorchBadModel, AnUnusedParameterHasTheGradientZero) {
  const auto net = session().replicate<Replica<models::Mlp>>(7);
  auto params = parameters(session(), net);
  const auto before = params.get(0).to_vector();
  auto step = models::lt::train_step<sr::Sgd, loss_of_the_first_layer>(session(), net, params);
  step(x(), y(), {.learning_rate = 0.1});
  const auto gradient = step.gradient().get(0).to_vector();
  const auto after = params.get(0).to_vector();
  ASSERT_EQ(gradient.size(), 73U);  // 6 * 9 + 9 + 9 + 1
  for (std::size_t i = 63; i < 73; ++i) {
    EXPECT_EQ(gradient[i], 0);
    EXPECT_EQ(after[i], before[i]);
  }
  EXPECT_NE(after, before);
}

// ---- errors of LibTorch ----

/// The line of the program that calls LibTorch is in a function that the loss calls.
constexpr int kWrongLine = __LINE__ + 1;
torch::Tensor product_of(const torch::Tensor& x, const torch::Tensor& weight) { return torch::mm(x, weight); }
torch::Tensor loss_of_a_wrong_shape(models::Mlp& net, Rows x, Targets) {
  return product_of(tensor(x), net.first->weight).mean();
}
TEST_P(LibtorchBadModel, AnErrorOfLibtorchHasItsMessageAndTheProgramsLine) {
  const auto net = session().replicate<Replica<models::Mlp>>(7);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Sgd, loss_of_a_wrong_shape>(session(), net, params);
  try {
    step(x(), y(), {});
    FAIL() << "the step did not throw";
  } catch (const sr::Error& error) {
    const std::string cause = error.failure().cause;
    EXPECT_NE(cause.find("mat1 and mat2 shapes cannot be multiplied"), std::string::npos) << cause;
    EXPECT_EQ(cause.find("Exception raised from"), std::string::npos) << cause;
    EXPECT_EQ(cause.find("frame #"), std::string::npos) << cause;
    EXPECT_LE(std::count(cause.begin(), cause.end(), '\n'), 1) << cause;
    if (!models::names_lines()) return;
    // The compiler may have inlined the function, so the message may not name it.
    EXPECT_NE(cause.find("bad_models_test.cpp:" + std::to_string(kWrongLine)), std::string::npos) << cause;
    EXPECT_NE(cause.find("\n  at "), std::string::npos) << cause;
  }
}

// ---- modules ----

struct DoubleModel : nn::Module {
  DoubleModel() : layer(3, 4) {
    register_module("layer", layer);
    to(torch::kFloat64);
  }
  nn::Linear layer;
};
/// Two parameters are views of one tensor.
struct SharedMemoryModel : nn::Module {
  SharedMemoryModel() {
    const auto both = torch::zeros({10});
    first = register_parameter("first", both.narrow(0, 0, 6));
    second = register_parameter("second", both.narrow(0, 4, 6));
  }
  torch::Tensor first, second;
};
struct EmptyModel : nn::Module {};

TEST_P(LibtorchBadModel, AModuleHasParametersOfASmallTypeWithMemoryOfTheirOwn) {
  expect_not_constructed<DoubleModel>(
      "parameter 'layer.weight' is Double [4, 3], expected float32, float16 or bfloat16 in a variable of float");
  expect_not_constructed<SharedMemoryModel>("parameters 'first' and 'second' are two tensors with the same memory");
  const auto net = session().replicate<Replica<EmptyModel>>(7);
  EXPECT_ERROR(parameters(session(), net), sr::ErrorKind::usage,
               "the module has no parameter that requires a gradient");
}

/// Rank 1 has a wider layer, because ranks get seeds of their own after the construction only, so it asks the process.
struct ModelByRank : nn::Module {
  ModelByRank() : layer(3, 4 + std::atoi(std::getenv("RANK"))) { register_module("layer", layer); }
  nn::Linear layer;
};
TEST_P(LibtorchBadModel, ModulesAreEqualOnAllRanks) {
  const auto net = session().replicate<Replica<ModelByRank>>(7);
  if (world_size() == 1) {
    parameters(session(), net);
    return;
  }
  EXPECT_ERROR(parameters(session(), net), sr::ErrorKind::usage,
               "rank 0 has parameter 'layer.weight' Float [4, 3], rank 1 has parameter 'layer.weight' Float [5, 3]");
}

torch::Tensor loss_that_grows_the_module(models::Mlp& net, Rows x, Targets y) {
  if (net.named_parameters().size() == 4) net.register_parameter("late", torch::zeros({2}));
  return models::mlp_loss(net, x, y);
}
TEST_P(LibtorchBadModel, ParametersAreNotAddedLater) {
  const auto net = session().replicate<Replica<models::Mlp>>(7);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Sgd, loss_that_grows_the_module>(session(), net, params);
  step(x(), y(), {});
  EXPECT_ERROR(step(x(), y(), {}), sr::ErrorKind::function,
               "the module has other parameters than before: expected 'first.weight', found 'late'");
}

TEST_P(LibtorchBadModel, TheVariableHasTheModulesLength) {
  const auto net = session().replicate<Replica<models::Mlp>>(7);
  auto wrong = session().shared<float, 1>("wrong");
  wrong.broadcast(std::vector<float>(12));
  auto step = models::lt::train_step<sr::Sgd, models::mlp_loss>(session(), net, wrong);
  EXPECT_ERROR(step(x(), y(), {}), sr::ErrorKind::function, "the variable has 12 elements, expected 73");
}

TEST(LibtorchVersions, OfTheProgramAndTheLibraryFit) {
  EXPECT_NO_THROW(models::lt::detail::check_versions(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR));
  EXPECT_NO_THROW(models::lt::detail::check_versions(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR + 1));
  EXPECT_ERROR(models::lt::detail::check_versions(TORCH_VERSION_MAJOR + 1, 0), sr::ErrorKind::usage,
               "the program was compiled with LibTorch " + std::to_string(TORCH_VERSION_MAJOR + 1) +
                   ".0, and Syncrun with " TORCH_VERSION);
  EXPECT_ERROR(models::lt::detail::check_versions(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR - 1), sr::ErrorKind::usage,
               "expected the same major version and not an older minor one");
}

}  // namespace
