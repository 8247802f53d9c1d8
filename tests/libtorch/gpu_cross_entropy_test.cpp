// cross_entropy() on CUDA devices: next to LibTorch's function in float64.

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

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
    for (const std::int64_t classes : {1, 2, 7, 10, 31, 64, 256, 1000, 50257, 50304}) {
      for (const std::int64_t offset : {0, 1}) {
        if (classes == 1) continue;  // the loss is 0
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

Unusual unusual(sr::CudaWorker& worker) {
  const models::lt::Guard guard(worker);
  return guard.run([&]() -> Unusual {
    const auto scores = torch::arange(20, on_gpu(torch::kFloat32)).view({4, 5}).requires_grad_();
    const auto of = [](const torch::Tensor& x, const std::vector<std::int64_t>& y) {
      return cross_entropy(x, torch::tensor(y, on_gpu(torch::kInt64)));
    };
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

TEST_P(LibtorchCrossEntropyOnGpus, HasAValueForUnusualRows) {
  const auto found = session().function(unusual)();
  EXPECT_EQ(double(found.one_class), 0);
  EXPECT_EQ(double(found.none_counts), 1);
  EXPECT_EQ(double(found.gradient_of_none), 0);
  EXPECT_EQ(double(found.no_rows), 1);
  EXPECT_EQ(double(found.too_large), 1);
  EXPECT_EQ(double(found.not_a_number), 1);
  EXPECT_EQ(double(found.masked), 0);
  EXPECT_NEAR(double(found.of_three_dimensions), 4.4519144, 1e-5);  // log(1 + e + e^2 + e^3 + e^4)
}

}  // namespace entropy
}  // namespace
