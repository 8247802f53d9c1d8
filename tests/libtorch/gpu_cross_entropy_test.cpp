// cross_entropy() on CUDA devices: next to LibTorch's function in float64.

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/on_gpus.hpp"
#include "tests/libtorch/models.hpp"

namespace {

namespace entropy {

using models::lt::cross_entropy;

/// How far loss and gradient are from those of LibTorch in float64, which gets the same scores.
struct Difference {
  sr::Max<double> loss;      // relative
  sr::Max<double> gradient;  // the largest of any score, relative to the largest gradient
};

torch::TensorOptions on_gpu(torch::ScalarType type) { return torch::TensorOptions().dtype(type).device(torch::kCUDA); }

Difference compare(torch::Tensor scores, const torch::Tensor& targets) {
  scores.requires_grad_();
  const auto loss = cross_entropy(scores, targets);
  const auto gradient = torch::autograd::grad({loss * 3}, {scores})[0];
  const auto exact = scores.detach().to(torch::kFloat64).requires_grad_();
  const auto expected = torch::cross_entropy_loss(exact.reshape({-1, exact.size(-1)}), targets.reshape({-1}));
  const auto wanted = torch::autograd::grad({expected * 3}, {exact})[0];
  const double largest = wanted.abs().max().item<double>();
  return {std::abs(loss.item<double>() / expected.item<double>() - 1),
          (gradient.to(torch::kFloat64) - wanted).abs().max().item<double>() / largest};
}

/// `type` is a torch::ScalarType. `offset`: how many elements after an address that is a multiple of 512 bytes the scores
/// begin.
Difference differences(sr::CudaWorker& worker, int type, std::int64_t rows, std::int64_t classes, std::int64_t offset) {
  const models::lt::Guard guard(worker);
  return guard.run([&] {
    torch::manual_seed(1);
    const auto all = torch::randn({rows * classes + offset}, on_gpu(torch::kFloat32)).mul(4);
    const auto memory = all.to(static_cast<torch::ScalarType>(type));
    const auto targets = torch::randint(classes, {rows}, on_gpu(torch::kInt64));
    if (rows > 2) targets[rows / 2] = -100;
    return compare(memory.narrow(0, offset, rows * classes).view({rows, classes}), targets);
  });
}

constexpr double kOfFive = 4.4519144;  // log(1 + e + e^2 + e^3 + e^4)

class LibtorchCrossEntropyOnGpus : public gpu_test::OnGpus {};
INSTANTIATE_ON_GPUS(LibtorchCrossEntropyOnGpus);

TEST_P(LibtorchCrossEntropyOnGpus, IsThatOfLibtorchInFloat64) {
  const auto f = session().function(differences);
  struct Type {
    torch::ScalarType type;
    double loss;      // tolerances
    double gradient;  // of bfloat16: half of its last place
  };
  for (const Type& one :
       {Type{torch::kFloat64, 1e-13, 1e-12}, Type{torch::kFloat32, 2e-6, 1e-5}, Type{torch::kBFloat16, 2e-6, 0.004}}) {
    for (const std::int64_t classes : {2, 7, 10, 31, 64, 256, 1000, 50257, 50304}) {
      for (const std::int64_t offset : {0, 1}) {
        const auto found = f(static_cast<int>(one.type), std::int64_t{37}, classes, offset);
        const std::string what = std::string(c10::toString(one.type)) + " " + std::to_string(classes) + " classes";
        EXPECT_LT(double(found.loss), one.loss) << what << ", offset " << offset;
        EXPECT_LT(double(found.gradient), one.gradient) << what << ", offset " << offset;
      }
    }
  }
}

struct Unusual {
  sr::Max<double> one_class;
  sr::Max<double> none_counts;
  sr::Max<double> gradient_of_none;
  sr::Max<double> no_rows;
  sr::Max<double> too_large;
  sr::Max<double> not_a_number;
  sr::Max<double> masked;
  sr::Max<double> of_three_dimensions;
};

/// Whether the second derivative is an error that says so.
bool refuses_second_derivative(const torch::Tensor& scores, const torch::Tensor& targets) {
  try {
    torch::autograd::grad({cross_entropy(scores, targets)}, {scores}, {}, true, /*create_graph=*/true);
  } catch (const std::exception& error) {
    return std::string(error.what()).find("second derivatives are not supported") != std::string::npos;
  }
  return false;
}

struct MoreUnusual {
  sr::Max<double> transposed;
  sr::Max<double> ignores_zero;
  sr::Max<double> far_from_zero;
  sr::Max<double> gradient_far_from_zero;
  sr::Max<double> gradient_of_too_large;
  sr::Max<double> second_derivative_is_refused;
};

torch::Tensor four_rows() { return torch::arange(20, on_gpu(torch::kFloat32)).view({4, 5}).requires_grad_(); }
torch::Tensor of(const torch::Tensor& scores, const std::vector<std::int64_t>& targets) {
  return cross_entropy(scores, torch::tensor(targets, on_gpu(torch::kInt64)));
}

Unusual unusual(sr::CudaWorker& worker) {
  const models::lt::Guard guard(worker);
  return guard.run([&]() -> Unusual {
    const auto scores = four_rows();
    const auto none = of(scores, {-100, -100, -100, -100});
    const auto gradient = torch::autograd::grad({none}, {scores})[0];
    const auto masked = scores.detach().masked_fill(scores.detach().fmod(5) < 4, -INFINITY);
    const auto broken = scores.detach().masked_fill(scores.detach() == 7, NAN);
    return {of(scores.narrow(1, 0, 1), {0, 0, 0, 0}).item<double>(),
            std::isnan(none.item<double>()) ? 1 : 0,
            gradient.abs().max().item<double>(),
            std::isnan(of(scores.narrow(0, 0, 0), {}).item<double>()) ? 1 : 0,
            std::isnan(of(scores, {0, 5, 0, 0}).item<double>()) ? 1 : 0,
            std::isnan(of(broken, {0, 0, 0, 0}).item<double>()) ? 1 : 0,
            of(masked, {4, 4, 4, 4}).item<double>(),
            cross_entropy(scores.view({2, 2, 5}), torch::zeros({2, 2}, on_gpu(torch::kInt64))).item<double>()};
  });
}

MoreUnusual more_unusual(sr::CudaWorker& worker) {
  const models::lt::Guard guard(worker);
  return guard.run([&]() -> MoreUnusual {
    const auto scores = four_rows();
    const auto shifted = torch::full({3, 2}, 1e8, on_gpu(torch::kFloat32)).requires_grad_();
    const auto of_shifted = of(shifted, {0, 1, 0});
    const auto too_large = of(scores, {0, 5, 0, 0});
    const auto numbers = torch::tensor({0, 1, 0, 2}, on_gpu(torch::kInt64));
    return {cross_entropy(scores.t().contiguous().t(), torch::zeros({4, 2}, on_gpu(torch::kInt64)).select(1, 0))
                .item<double>(),
            cross_entropy(scores, numbers, 0).item<double>(),
            of_shifted.item<double>(),
            torch::autograd::grad({of_shifted}, {shifted})[0].abs().max().item<double>(),
            torch::autograd::grad({too_large}, {scores})[0][1].isnan().all().item<bool>() ? 1 : 0,
            refuses_second_derivative(scores, numbers) ? 1 : 0};
  });
}

TEST_P(LibtorchCrossEntropyOnGpus, HasAValueForUnusualRows) {
  const auto found = session().function(unusual)();
  EXPECT_EQ(double(found.one_class), 0);
  EXPECT_EQ(double(found.none_counts), 1);
  EXPECT_EQ(double(found.gradient_of_none), 0);
  EXPECT_EQ(double(found.no_rows), 1);
  EXPECT_EQ(double(found.too_large), 1);
  EXPECT_EQ(double(found.not_a_number), 1);
  EXPECT_EQ(double(found.masked), 0);
  EXPECT_NEAR(double(found.of_three_dimensions), kOfFive, 1e-5);
}

TEST_P(LibtorchCrossEntropyOnGpus, IsCarefulWithRowsAndTheirGradients) {
  const auto found = session().function(more_unusual)();
  EXPECT_NEAR(double(found.transposed), kOfFive, 1e-5);
  EXPECT_NEAR(double(found.ignores_zero), kOfFive - 1.5, 1e-5) << "the mean of targets 1 and 2";
  EXPECT_NEAR(double(found.far_from_zero), std::log(2.0), 1e-6);
  EXPECT_NEAR(double(found.gradient_far_from_zero), 0.5 / 3, 1e-6);
  EXPECT_EQ(double(found.gradient_of_too_large), 1);
  EXPECT_EQ(double(found.second_derivative_is_refused), 1);
}

}  // namespace entropy
}  // namespace
