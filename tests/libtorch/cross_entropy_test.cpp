// cross_entropy() on CPU devices, and what it refuses.

#include <torch/torch.h>

#include <cmath>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace entropy {

using models::lt::cross_entropy;

TEST(LibtorchCrossEntropy, IsThatOfLibtorchForScoresOfAnyShape) {
  torch::manual_seed(3);
  const auto scores = torch::randn({2, 3, 5}, torch::requires_grad());
  const auto targets = torch::tensor({0, 4, 2, 2, 1, 3}, torch::kInt64).view({3, 2});
  const auto loss = cross_entropy(scores.transpose(0, 1), targets);
  const auto expected = torch::cross_entropy_loss(scores.transpose(0, 1).reshape({6, 5}), targets.reshape({6}));
  EXPECT_EQ(loss.item<float>(), expected.item<float>());
  EXPECT_TRUE(torch::equal(torch::autograd::grad({loss}, {scores})[0], torch::autograd::grad({expected}, {scores})[0]));
  const auto of_one = cross_entropy(scores[0][0], targets[0][0]);
  EXPECT_NEAR(of_one.item<float>(), -torch::log_softmax(scores[0][0], 0)[0].item<float>(), 1e-6);
}

TEST(LibtorchCrossEntropy, DoesNotCountIgnoredTargets) {
  torch::manual_seed(5);
  const auto scores = torch::randn({4, 5}, torch::requires_grad());
  const auto targets = torch::tensor({1, -100, 3, -100}, torch::kInt64);
  const auto weights = torch::tensor({1.0F, 2.0F, 3.0F, 4.0F, 5.0F});
  for (const auto& weight : {torch::Tensor(), weights}) {
    const auto loss = cross_entropy(scores, targets, -100, weight);
    EXPECT_EQ(loss.count.item<float>(), weight.defined() ? 6 : 2);
    EXPECT_FLOAT_EQ(loss.mean().item<float>(), torch::cross_entropy_loss(scores, targets, weight).item<float>());
    const auto nothing = cross_entropy(scores, torch::full({4}, 9, torch::kInt64), 9, weight);
    EXPECT_EQ(nothing.count.item<float>(), 0);
    EXPECT_EQ(nothing.sum.item<float>(), 0);
    EXPECT_EQ(torch::autograd::grad({nothing.sum}, {scores})[0].abs().max().item<float>(), 0);
  }
  EXPECT_THROW(cross_entropy(scores, targets), std::exception) << "all targets count";
}

TEST(LibtorchCrossEntropy, ComputesInFloat32OrFloat64) {
  torch::manual_seed(6);
  const auto scores = torch::randn({4, 5});
  const auto targets = torch::tensor({1, 0, 3, 4}, torch::kInt64);
  const auto mixed = cross_entropy(scores.to(torch::kBFloat16), targets);
  EXPECT_EQ(mixed.scalar_type(), torch::kFloat32);
  EXPECT_NEAR(mixed.item<float>(), cross_entropy(scores, targets).item<float>(), 0.02);
  EXPECT_EQ(cross_entropy(scores.to(torch::kFloat64), targets).scalar_type(), torch::kFloat64);
}

TEST(LibtorchCrossEntropy, RefusesWhatDoesNotFit) {
  const auto scores = torch::zeros({4, 5});
  const auto targets = torch::zeros({4}, torch::kInt64);
  const auto expect_refused = [](const torch::Tensor& x, const torch::Tensor& y, const char* what) {
    EXPECT_ERROR(cross_entropy(x, y), sr::ErrorKind::usage, what);
  };
  expect_refused(scores.to(torch::kInt64), targets, "expected scores of type float32, float64 or bfloat16, got Long");
  expect_refused(scores, targets.to(torch::kInt32), "expected targets of type int64, got Int");
  expect_refused(scores, targets.narrow(0, 0, 3), "got targets [3] and scores [4, 5]");
  expect_refused(scores.narrow(1, 0, 0), targets, "got the shape [4, 0]");
  expect_refused(torch::zeros({}), targets, "expected scores of at least one class");
  EXPECT_ERROR(cross_entropy(scores, targets, 0, torch::ones({4})), sr::ErrorKind::usage,
               "expected floating-point weights for 5 classes, got Float of shape [4]");
}

}  // namespace entropy
}  // namespace
