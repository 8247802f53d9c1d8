// Computing in bfloat16 with parameters in float32.

#include <torch/torch.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace mixed {

using models::lt::Autocast;
using models::lt::parameters;
using models::lt::Replica;
using models::lt::tensor;

torch::ScalarType type_of_a_product() {
  const auto matrix = torch::ones({2, 2});
  return torch::mm(matrix, matrix).scalar_type();
}

TEST(LibtorchAutocast, HoldsInItsScopeAndEndsWithAnException) {
  EXPECT_EQ(type_of_a_product(), torch::kFloat32);
  {
    const Autocast autocast(torch::kBFloat16);
    EXPECT_EQ(type_of_a_product(), torch::kBFloat16);
    {
      const Autocast none(torch::kFloat32);
      EXPECT_EQ(type_of_a_product(), torch::kFloat32);
      const Autocast again(torch::kBFloat16);
      EXPECT_EQ(type_of_a_product(), torch::kBFloat16);
    }
    EXPECT_EQ(type_of_a_product(), torch::kBFloat16);
  }
  EXPECT_THROW(
      {
        const Autocast autocast(torch::kBFloat16);
        static_cast<void>(torch::mm(torch::ones({2, 3}), torch::ones({2, 3})));
      },
      c10::Error);
  EXPECT_ERROR(Autocast(torch::kFloat64), sr::ErrorKind::usage,
               "expected torch::kBFloat16, torch::kFloat16, or torch::kFloat32 for none, got Double");
  EXPECT_EQ(type_of_a_product(), torch::kFloat32);
}

/// Whether LibTorch computes in float16 on CPUs.
constexpr bool kHasFloat16 = TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4);

TEST(LibtorchAutocast, ComputesInFloat16IfLibTorchCan) {
  if (!kHasFloat16) {
    EXPECT_ERROR(Autocast(torch::kFloat16), sr::ErrorKind::usage, "does not compute in float16 on CPUs");
    return;
  }
  const Autocast autocast(torch::kFloat16);
  EXPECT_EQ(type_of_a_product(), torch::kFloat16);
}

TEST(LibtorchAutocast, ConvertsAParameterAgainAfterItHasChanged) {
  const auto weight = torch::ones({2, 2}, torch::requires_grad());
  const auto product = [&] {
    const Autocast autocast(torch::kBFloat16);
    torch::mm(torch::ones({2, 2}), weight);
    return torch::mm(torch::ones({2, 2}), weight).sum().item<float>();
  };
  EXPECT_EQ(product(), 8);
  weight.data_ptr<float>()[0] = 5;  // as an update rule does, which LibTorch does not see
  EXPECT_EQ(product(), 16);
}

torch::Tensor mixed_loss(models::Transformer& net, sr::Scattered<const std::uint8_t, 2> rows) {
  const Autocast autocast(torch::kBFloat16);
  const auto ids = tensor(rows).to(torch::kInt64);
  const auto logits = net.forward(ids.narrow(1, 0, models::kContext));
  EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
  const auto wanted = ids.narrow(1, 1, models::kContext).reshape(-1);
  return torch::cross_entropy_loss(logits.reshape({-1, models::kVocabulary}).to(torch::kFloat32), wanted);
}
/// Fails in the scope.
torch::Tensor failing_loss(models::Transformer& net, sr::Scattered<const std::uint8_t, 2> rows) {
  const Autocast autocast(torch::kBFloat16);
  const auto logits = net.forward(tensor(rows).to(torch::kInt64).narrow(1, 0, models::kContext));
  throw std::runtime_error("the loss had enough");
}

class LibtorchMixed : public OnSharedWorkers {};
INSTANTIATE_ON_WORKERS(LibtorchMixed, 1, 3);

TEST_P(LibtorchMixed, LossesAreCloseToThoseInFloat32) {
  constexpr std::int64_t kRows = 64;
  const auto tokens = models::make_tokens(kRows);
  const auto data = session().data(tokens, sr::Shape{kRows, models::kContext + 1});
  const auto train = [&](auto make) {
    const auto net = session().replicate<Replica<models::Transformer>>(7, std::int64_t{32}, std::int64_t{2});
    auto params = parameters(session(), net);
    auto step = make(net, params);
    std::vector<double> losses;
    for (int i = 0; i < 50; ++i) losses.push_back(step(data, {.learning_rate = 0.003}));
    for (const float value : step.gradient().get(0).to_vector()) EXPECT_TRUE(std::isfinite(value));
    return losses;
  };
  const auto plain = train([&](const auto& net, auto& params) {
    return models::lt::train_step<sr::Adam, models::transformer_loss>(session(), net, params);
  });
  const auto mixed = train([&](const auto& net, auto& params) {
    // The check of each gradient includes its type: it is the memory of a float32 variable.
    return models::lt::train_step<sr::Adam, mixed_loss>(session(), net, params);
  });
  EXPECT_NE(mixed, plain) << "bfloat16 has an effect";
  EXPECT_LT(plain.back(), 0.7 * plain.front());
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(mixed[i] / plain[i], 1, 0.01) << "step " << i;
}

torch::Tensor float16_loss(models::Mlp& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  const Autocast autocast(torch::kFloat16);
  const auto output = net.forward(tensor(x));
  if (output.scalar_type() != torch::kFloat16) throw std::logic_error("not in float16");  // nobody reads EXPECT here
  return models::mean_square(output.to(torch::kFloat32), tensor(y));
}

TEST_P(LibtorchMixed, InFloat16NeedAScaledLoss) {
  constexpr std::int64_t kRows = 40;
  const auto samples = models::make_samples(kRows);
  const auto x = session().data(samples.x, sr::Shape{kRows, models::kInputs});
  const auto y = session().data(samples.y);
  const auto net = session().replicate<Replica<models::Mlp>>(7);
  const auto params = parameters(session(), net);
  const auto before = params.get(0).to_vector();
  auto plain = models::lt::train_step<sr::Adam, float16_loss>(session(), net, params);
  auto scaled = models::lt::scaled_step<sr::Adam, float16_loss>(session(), net, params);
  if (!kHasFloat16) {
    EXPECT_ERROR(scaled(x, y, {}), sr::ErrorKind::function, "does not compute in float16 on CPUs");
    return;
  }
  EXPECT_ERROR(plain(x, y, {}), sr::ErrorKind::function, "the loss of this step is not scaled");
  EXPECT_EQ(params.get(0).to_vector(), before);
  const auto evaluate = models::lt::evaluation<float16_loss>(session(), net, params);
  const double at_first = evaluate(x, y);
  for (int i = 0; i < 50; ++i) scaled(x, y, {.learning_rate = 0.02});
  EXPECT_LT(evaluate(x, y), 0.7 * at_first);
}

TEST_P(LibtorchMixed, AFailedStepLeavesNothingBehind) {
  const auto tokens = models::make_tokens(9);
  const auto data = session().data(tokens, sr::Shape{std::int64_t{9}, models::kContext + 1});
  const auto net = session().replicate<Replica<models::Transformer>>(7, std::int64_t{16}, std::int64_t{2});
  auto params = parameters(session(), net);
  const auto evaluate = models::lt::evaluation<models::transformer_loss>(session(), net, params);
  const double before = evaluate(data);
  auto step = models::lt::train_step<sr::Sgd, failing_loss>(session(), net, params);
  EXPECT_ERROR(step(data, {}), sr::ErrorKind::function, "the loss had enough");
  EXPECT_EQ(evaluate(data), before) << "still in float32";
}

}  // namespace mixed
}  // namespace
