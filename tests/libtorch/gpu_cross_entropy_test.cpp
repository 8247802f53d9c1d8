// cross_entropy() on CUDA devices: next to LibTorch's function in float64.

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
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
  const auto loss = cross_entropy(scores, targets, -100).mean();
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

/// Whether the second derivative is an error that says so.
bool refuses_second_derivative(const torch::Tensor& scores, const torch::Tensor& targets) {
  try {
    torch::autograd::grad({cross_entropy(scores, targets)}, {scores}, {}, true, /*create_graph=*/true);
  } catch (const std::exception& error) {
    return std::string(error.what()).find("second derivatives are not supported") != std::string::npos;
  }
  return false;
}

torch::Tensor four_rows() { return torch::arange(20, on_gpu(torch::kFloat32)).view({4, 5}).requires_grad_(); }
torch::Tensor of(const torch::Tensor& scores, const std::vector<std::int64_t>& targets) {
  return cross_entropy(scores, torch::tensor(targets, on_gpu(torch::kInt64)));
}

/// Throws an exception with the sentence if it is not true. Then the call fails with it.
void require(bool is_true, const char* sentence) {
  if (!is_true) throw std::runtime_error(sentence);
}
bool is_near(const torch::Tensor& found, double expected, double tolerance) {
  return std::abs(found.item<double>() - expected) <= tolerance;
}
bool is_nan(const torch::Tensor& values) { return values.isnan().all().item<bool>(); }

void take_unusual_rows() {
  const auto scores = four_rows();
  const auto plain = scores.detach();
  const auto gradient = [](const torch::Tensor& loss, const torch::Tensor& x) {
    return torch::autograd::grad({loss}, {x})[0];
  };
  require(is_near(of(scores.narrow(1, 0, 1), {0, 0, 0, 0}), 0, 0), "The loss of one class is 0.");
  const auto none = cross_entropy(scores, torch::full({4}, -100, on_gpu(torch::kInt64)), -100);
  require(is_near(none.sum, 0, 0) && is_near(none.count, 0, 0), "The sum over no rows that count is 0.");
  require(is_near(gradient(none.sum, scores).abs().max(), 0, 0), "Its gradient is 0.");
  require(is_nan(of(scores.narrow(0, 0, 0), {})), "The mean of no rows is not a number.");
  const auto too_large = of(scores, {0, 5, 0, 0});
  require(is_nan(too_large), "The loss of a target that is no class is not a number.");
  require(is_nan(gradient(too_large, scores)[1]), "Its gradient is not a number either.");
  require(is_nan(of(plain.masked_fill(plain == 7, NAN), {0, 0, 0, 0})), "A score that is not a number shows.");
  require(is_near(of(plain.masked_fill(plain.fmod(5) < 4, -INFINITY), {4, 4, 4, 4}), 0, 0),
          "Scores may be minus infinity.");
  require(is_near(cross_entropy(scores.view({2, 2, 5}), torch::zeros({2, 2}, on_gpu(torch::kInt64))), kOfFive, 1e-5),
          "Scores may have three dimensions.");
  const auto zeros = torch::zeros({4, 2}, on_gpu(torch::kInt64)).select(1, 0);
  require(is_near(cross_entropy(scores.t().contiguous().t(), zeros), kOfFive, 1e-5), "Scores may be transposed.");
  const auto numbers = torch::tensor({0, 1, 0, 2}, on_gpu(torch::kInt64));
  require(is_near(cross_entropy(scores, numbers, 0).mean(), kOfFive - 1.5, 1e-5),
          "The loss without target 0 is the mean of targets 1 and 2.");
  const auto shifted = torch::full({3, 2}, 1e8, on_gpu(torch::kFloat32)).requires_grad_();
  const auto of_shifted = of(shifted, {0, 1, 0});
  require(is_near(of_shifted, std::log(2.0), 1e-6), "Scores may be far from zero.");
  require(is_near(gradient(of_shifted, shifted).abs().max(), 0.5 / 3, 1e-6), "Their gradient is right.");
  require(refuses_second_derivative(scores, numbers), "There is no second derivative.");
}

TEST_P(LibtorchCrossEntropyOnGpus, IsCarefulWithUnusualRows) {
  session().function([](sr::CudaWorker& worker) {
    const models::lt::Guard guard(worker);
    guard.run(take_unusual_rows);
  })();
}

}  // namespace entropy
}  // namespace
