// linear(), layer_norm(), add_layer_norm() and embedding() on CUDA devices: next to LibTorch's functions in float64.

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/gpu/on_gpus.hpp"
#include "tests/libtorch/models.hpp"

namespace {

namespace gpu_layers {

namespace lt = models::lt;

using Tensors = std::vector<torch::Tensor>;
using Layer = std::function<torch::Tensor(const Tensors&)>;

/// How far a result and its gradients are from those in float64, relative to their largest element. x is the first input
/// that has a gradient.
struct Distance {
  sr::Max<double> value;
  sr::Max<double> of_x;
  sr::Max<double> of_others;
  sr::Max<double> differs;  // 1 if a second run had other bits
  sr::Max<double> type;     // of the value
};

torch::TensorOptions on_gpu(torch::ScalarType type) { return torch::TensorOptions().dtype(type).device(torch::kCUDA); }

double distance(const torch::Tensor& found, const torch::Tensor& exact) {
  const double largest = exact.abs().max().item<double>();
  return (found.to(torch::kFloat64) - exact).abs().max().item<double>() / (largest == 0 ? 1 : largest);
}

/// A loss whose gradient differs from element to element. bfloat16 has its numbers exactly. Their sum is far from zero, so
/// that sums of gradients do not lose all digits.
torch::Tensor loss_of(const torch::Tensor& y) {
  const auto factors = torch::arange(y.numel(), on_gpu(torch::kFloat64)).mul(7).fmod(17).div(8).view(y.sizes());
  return (y.to(torch::kFloat64) * factors).sum();
}

Tensors with_gradients(const Tensors& inputs, torch::ScalarType type) {
  Tensors copies;
  for (const auto& each : inputs) {
    auto copy = each.is_floating_point() ? each.detach().to(type) : each;
    if (copy.is_floating_point()) copy.requires_grad_();
    copies.push_back(copy);
  }
  return copies;
}

Tensors gradients_of(const torch::Tensor& y, const Tensors& inputs) {
  Tensors wanted;
  for (const auto& each : inputs) {
    if (each.requires_grad()) wanted.push_back(each);
  }
  return torch::autograd::grad({loss_of(y)}, wanted);
}

/// `inputs` keep their memory and its address, and become inputs of `layer`. `exact` gets the same values in float64.
Distance compare(const Tensors& inputs, const Layer& layer, const Layer& exact, bool with_autocast) {
  for (const auto& each : inputs) {
    if (each.is_floating_point()) each.requires_grad_();
  }
  const auto run = [&](Tensors& gradients) {
    torch::Tensor y;
    {
      const lt::Autocast autocast(with_autocast ? torch::kBFloat16 : torch::kFloat32);
      y = layer(inputs);
    }
    gradients = gradients_of(y, inputs);
    return y;
  };
  Tensors found;
  Tensors again;
  const auto y = run(found);
  bool is_equal = torch::equal(y, run(again));
  const auto wide = with_gradients(inputs, torch::kFloat64);
  const auto expected = exact(wide);
  const auto wanted = gradients_of(expected, wide);
  double of_others = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (i > 0) of_others = std::max(of_others, distance(found[i], wanted[i]));
    is_equal = is_equal && torch::equal(found[i], again[i]);
  }
  return {distance(y, expected), distance(found[0], wanted[0]), of_others, is_equal ? 0 : 1,
          static_cast<double>(y.scalar_type())};
}

/// The types of a test, and its tolerances. For bfloat16, these are the rounding of the result: half of its last place.
struct Case {
  torch::ScalarType type;
  bool with_autocast;
  double of_value;
  double of_x;
  double of_others;
};

constexpr double kRounded = 0.004;
const Case kFloat64{torch::kFloat64, false, 1e-12, 1e-12, 1e-12};
const Case kFloat32{torch::kFloat32, false, 2e-6, 1e-5, 1e-5};
const Case kBFloat16{torch::kBFloat16, false, kRounded, kRounded, kRounded};

/// `offset`: how many elements after a multiple of 512 bytes the array begins. bfloat16 has its numbers exactly.
torch::Tensor random(std::vector<std::int64_t> sizes, torch::ScalarType type, std::int64_t offset) {
  std::int64_t count = 1;
  for (const std::int64_t each : sizes) count *= each;
  const auto memory = torch::randn({count + offset}, on_gpu(torch::kBFloat16)).to(type);
  return memory.narrow(0, offset, count).view(sizes);
}

std::string what(const Case& one, std::int64_t rows, std::int64_t width, std::int64_t offset) {
  return std::string(c10::toString(one.type)) + (one.with_autocast ? " with Autocast, " : ", ") + std::to_string(rows) +
         " rows of " + std::to_string(width) + ", offset " + std::to_string(offset);
}

torch::ScalarType type_of_result(const Case& one) { return one.with_autocast ? torch::kBFloat16 : one.type; }

void expect_close(const Distance& found, const Case& one, const std::string& what, torch::ScalarType type) {
  EXPECT_LT(double(found.value), one.of_value) << what;
  EXPECT_LT(double(found.of_x), one.of_x) << what;
  EXPECT_LT(double(found.of_others), one.of_others) << what;
  EXPECT_EQ(double(found.differs), 0) << what;
  EXPECT_EQ(double(found.type), static_cast<double>(type)) << what;
}
void expect_close(const Distance& found, const Case& one, const std::string& what) {
  expect_close(found, one, what, type_of_result(one));
}

Distance normalized(sr::CudaWorker& worker, int type, bool with_autocast, std::int64_t rows, std::int64_t width,
                    std::int64_t offset) {
  const lt::Guard guard(worker);
  return guard.run([&] {
    torch::manual_seed(1);
    const auto of_x = static_cast<torch::ScalarType>(type);
    const auto of_weights = of_x == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    // The mean is far from zero, next to the distances from it.
    const auto x = random({rows, width}, of_x, offset).add_(3);
    return compare(
        {x, random({width}, of_weights, offset), random({width}, of_weights, offset)},
        [](const Tensors& in) { return lt::layer_norm(in[0], in[1], in[2], 1e-3); },
        [](const Tensors& in) { return torch::layer_norm(in[0], {in[0].size(-1)}, in[1], in[2], 1e-3); },
        with_autocast);
  });
}

class LibtorchLayersOnGpus : public gpu_test::OnGpus {};
INSTANTIATE_ON_GPUS(LibtorchLayersOnGpus);

TEST_P(LibtorchLayersOnGpus, NormalizeAsLibtorchInFloat64) {
  const auto f = session().function(normalized);
  // The weights are float32 here.
  const Case short_rows{torch::kBFloat16, false, kRounded, kRounded, 1e-5};
  const Case autocast{torch::kFloat32, true, kRounded, 1e-5, 1e-5};
  for (const Case& one : {kFloat64, kFloat32, short_rows, autocast}) {
    for (const std::int64_t width : {7, 64, 130, 768, 2048, 5000}) {
      for (const std::int64_t rows : {1, 5, 3000}) {
        const std::int64_t offset = (width + rows) % 2;
        expect_close(f(static_cast<int>(one.type), one.with_autocast, rows, width, offset), one,
                     what(one, rows, width, offset));
      }
    }
  }
}

/// Both results of add_layer_norm(), in the type of the first one. The gradient of both has this type.
torch::Tensor together(const torch::Tensor& sum, const torch::Tensor& norm) {
  return torch::cat({sum, norm.to(sum.scalar_type())});
}

Distance added(sr::CudaWorker& worker, int type, bool is_change_short, bool with_autocast, std::int64_t rows,
               std::int64_t width, std::int64_t offset, bool reads_sum) {
  const lt::Guard guard(worker);
  return guard.run([&] {
    torch::manual_seed(4);
    const auto of_x = static_cast<torch::ScalarType>(type);
    const auto of_change = is_change_short ? torch::kBFloat16 : of_x;
    const auto of_weights = of_x == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    return compare(
        {random({rows, width}, of_x, offset).add_(3), random({rows, width}, of_change, offset),
         random({width}, of_weights, offset), random({width}, of_weights, offset)},
        [&](const Tensors& in) {
          const auto [sum, norm] = lt::add_layer_norm(in[0], in[1], in[2], in[3], 1e-3);
          return reads_sum ? together(sum, norm) : norm;
        },
        [&](const Tensors& in) {
          const auto sum = in[0] + in[1];
          const auto norm = torch::layer_norm(sum, {sum.size(-1)}, in[2], in[3], 1e-3);
          return reads_sum ? together(sum, norm) : norm;
        },
        with_autocast);
  });
}

TEST_P(LibtorchLayersOnGpus, AddAndNormalizeAsLibtorchInFloat64) {
  const auto f = session().function(added);
  // The sum is rounded before it is normalized.
  constexpr double kOfSum = 0.02;
  const Case all_short{torch::kBFloat16, false, kOfSum, kOfSum, kOfSum};
  const Case autocast{torch::kFloat32, true, kRounded, 1e-5, 1e-5};
  const Case autocast_short{torch::kFloat32, true, kRounded, 1e-5, kRounded};  // the gradient of the change is rounded
  for (const Case& one : {kFloat64, kFloat32, all_short, autocast, autocast_short}) {
    const bool is_change_short = one.with_autocast && one.of_others == kRounded;
    for (const std::int64_t width : {7, 64, 130, 768, 5000}) {
      for (const std::int64_t rows : {1, 5, 3000}) {
        const std::int64_t offset = (width + rows) % 2;
        for (const bool reads_sum : {false, true}) {
          const auto found =
              f(static_cast<int>(one.type), is_change_short, one.with_autocast, rows, width, offset, reads_sum);
          expect_close(found, one,
                       what(one, rows, width, offset) + (is_change_short ? ", with a change in bfloat16" : "") +
                           (reads_sum ? ", with the sum" : ""),
                       reads_sum ? one.type : type_of_result(one));
        }
      }
    }
  }
}

Distance multiplied(sr::CudaWorker& worker, int type, bool with_autocast, std::int64_t rows, std::int64_t width,
                    std::int64_t offset) {
  const lt::Guard guard(worker);
  return guard.run([&] {
    torch::manual_seed(2);
    const auto of_x = static_cast<torch::ScalarType>(type);
    const std::int64_t inputs = 24;
    Tensors arguments{random({rows, 2, inputs}, of_x, offset), random({width, inputs}, of_x, offset)};
    if (width != 130) arguments.push_back(random({width}, of_x, offset));  // one case without a bias
    const auto bias = [](const Tensors& in) { return in.size() > 2 ? in[2] : torch::Tensor(); };
    return compare(
        arguments, [&](const Tensors& in) { return lt::linear(in[0], in[1], bias(in)); },
        [&](const Tensors& in) { return torch::linear(in[0], in[1], bias(in)); }, with_autocast);
  });
}

TEST_P(LibtorchLayersOnGpus, MultiplyAsLibtorchInFloat64) {
  const auto f = session().function(multiplied);
  // cuBLAS may round sums of parts of a product to bfloat16, too. LibTorch writes products in float32 from 2.8 on.
  constexpr double kOfProduct = 0.01;
  const Case bfloat16{torch::kBFloat16, false, kOfProduct, kOfProduct, kOfProduct};
  constexpr bool kWritesFloat32 = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 8;
  const Case autocast{torch::kFloat32, true, kOfProduct, kOfProduct, kWritesFloat32 ? 1e-5 : kOfProduct};
  for (const Case& one : {kFloat64, kFloat32, bfloat16, autocast}) {
    for (const std::int64_t width : {7, 64, 130, 768, 2304}) {
      for (const std::int64_t rows : {1, 5, 2500}) {
        const std::int64_t offset = (width + rows) % 2;
        expect_close(f(static_cast<int>(one.type), one.with_autocast, rows, width, offset), one,
                     what(one, rows, width, offset));
      }
    }
  }
}

/// Half of the tokens are the same one, as a frequent letter of a text.
Distance chosen(sr::CudaWorker& worker, int type, std::int64_t vocabulary, std::int64_t rows, std::int64_t width) {
  const lt::Guard guard(worker);
  return guard.run([&] {
    torch::manual_seed(3);
    const auto tokens = torch::randint(vocabulary, {rows, 3}, on_gpu(torch::kInt64));
    tokens.masked_fill_(torch::rand({rows, 3}, on_gpu(torch::kFloat32)).lt(0.5), vocabulary - 1);
    return compare(
        {tokens, random({vocabulary, width}, static_cast<torch::ScalarType>(type), 0)},
        [](const Tensors& in) { return lt::embedding(in[0], in[1]); },
        [](const Tensors& in) { return torch::embedding(in[1], in[0]); }, false);
  });
}

TEST_P(LibtorchLayersOnGpus, ChooseRowsAsLibtorchInFloat64) {
  const auto f = session().function(chosen);
  for (const Case& one : {kFloat64, kFloat32, kBFloat16}) {
    for (const std::int64_t vocabulary : {1, 3, 256, 1000}) {
      for (const std::int64_t width : {5, 64, 260}) {
        for (const std::int64_t rows : {1, 300, 683, 6000}) {
          expect_close(f(static_cast<int>(one.type), vocabulary, rows, width), one,
                       what(one, rows, width, 0) + ", vocabulary " + std::to_string(vocabulary));
        }
      }
    }
  }
}

/// Two layers of lt::linear. All sizes are multiples of 8.
struct TwoLayers : torch::nn::Module {
  TwoLayers() : first(8, 24), last(24, 8) {
    register_module("first", first);
    register_module("last", last);
  }
  torch::nn::Linear first;
  torch::nn::Linear last;
};

struct Converted {
  sr::Max<double> conversions;
  sr::Max<double> difference;  // from LibTorch's layers
};

lt::Loss<Converted> two_layers_loss(TwoLayers& net, sr::Scattered<const float, 2> x) {
  const lt::Autocast autocast(torch::kBFloat16);
  const auto rows = lt::tensor(x).to(torch::kBFloat16);
  const models::ConversionCount conversions;
  const auto wide = lt::linear(rows, net.first->weight, net.first->bias);
  const auto y = lt::linear(torch::relu(wide), net.last->weight, net.last->bias);
  const auto count = static_cast<double>(conversions.count());
  const auto expected = net.last(torch::relu(net.first(rows)));
  const auto difference = (y - expected).abs().max().to(torch::kFloat64).item<double>();
  return {y.to(torch::kFloat32).square().mean(), {count, difference}};
}

TEST_P(LibtorchLayersOnGpus, ReadParametersThatOneKernelConverts) {
  const auto net = session().replicate<lt::Replica<TwoLayers>>(1);
  const auto params = lt::parameters(session(), net);
  auto step = lt::train_step<sr::Sgd, two_layers_loss>(session(), net, params);
  const std::vector<float> rows(static_cast<std::size_t>(8 * world_size()), 0.5F);
  const auto x = session().data(rows, sr::Shape{static_cast<std::int64_t>(world_size()), std::int64_t{8}});
  for (int i = 0; i < 3; ++i) {
    const Converted found = step(x, {.learning_rate = 0.1});
    EXPECT_EQ(double(found.conversions), 1) << "step " << i;
    EXPECT_LT(double(found.difference), 0.02) << "step " << i << ": the values are those before the step";
  }
}

bool is_refused(const std::function<void()>& run, const std::string& text) {
  try {
    run();
  } catch (const std::exception& error) {
    return std::string(error.what()).find(text) != std::string::npos;
  }
  return false;
}

/// Throws an exception with the sentence if it is not true. Then the call fails with it.
void require(bool is_true, const char* sentence) {
  if (!is_true) throw std::runtime_error(sentence);
}

bool are_close(const torch::Tensor& a, const torch::Tensor& b) { return torch::allclose(a, b, 1e-5, 1e-6); }

void take_unusual_arguments() {
  const auto x = torch::arange(12, on_gpu(torch::kFloat32)).view({3, 4});
  const auto square = torch::arange(16, on_gpu(torch::kFloat32)).view({4, 4}).requires_grad_();
  const auto weights = torch::ones({4}, on_gpu(torch::kFloat32)).requires_grad_();
  const auto deep = torch::ones({2, 3, 4}, on_gpu(torch::kFloat32));
  const auto gradient = [](const torch::Tensor& loss, const torch::Tensor& of) {
    return torch::autograd::grad({loss}, {of})[0];
  };
  const auto norm_of = [](const torch::Tensor& of, const torch::Tensor& factors) {
    return torch::layer_norm(of, {4}, factors, factors);
  };

  const auto normal = lt::layer_norm(square, {}, {});
  const auto expected = torch::layer_norm(square, {4});
  require(are_close(normal, expected) &&
              torch::allclose(gradient(normal.square().sum() + normal[0][0], square),
                              gradient(expected.square().sum() + expected[0][0], square), 1e-4, 1e-6),
          "A normalization without weight and bias is right, also its gradient.");
  require(are_close(lt::layer_norm(square.t(), weights, weights), norm_of(square.t(), weights)),
          "Arrays that are not contiguous are read as they are.");
  const auto third = square.detach() / 3;
  const auto short_third = third.to(torch::kBFloat16);
  require(torch::equal(lt::add_layer_norm(third, short_third, weights, weights).sum, third + short_third),
          "The sum of float32 and bfloat16 is in float32.");
  const auto broadcast = lt::add_layer_norm(square, weights, weights, weights);
  require(
      torch::equal(broadcast.sum, square + weights) && are_close(broadcast.norm, norm_of(square + weights, weights)),
      "LibTorch's functions handle a change of another shape.");
  require(lt::layer_norm(x.narrow(0, 0, 0), weights, weights).numel() == 0 &&
              lt::linear(x.narrow(0, 0, 0), square).size(1) == 4,
          "LibTorch's function handles an array without rows.");
  const auto large = torch::ones({70000, 2}, on_gpu(torch::kFloat32)).requires_grad_();
  const auto many = torch::full({300}, 69999, on_gpu(torch::kInt64));
  const auto of_large = gradient(lt::embedding(many, large).sum(), large);
  require(of_large.sum().item<double>() == 600 && of_large[69999][0].item<double>() == 300,
          "LibTorch's function handles a large vocabulary.");
  const auto plainly = [](auto&& layer) {
    const torch::NoGradGuard no_gradients;
    return layer();
  };
  const auto product = [&] { return lt::linear(deep, square, weights); };
  const auto norm = [&] { return lt::layer_norm(square, weights, weights); };
  require(torch::allclose(product(), plainly(product)) && torch::equal(norm(), plainly(norm)),
          "The result does not depend on whether gradients are computed.");
  const auto three_columns = weights.view({1, 4}).expand({5, 4}).narrow(1, 0, 3);
  require(is_refused([&] { lt::layer_norm(x, x, x); }, "normalized_shape") &&
              is_refused([&] { lt::linear(x, three_columns); }, "shapes"),
          "LibTorch says what is wrong with other sizes.");
  require(is_refused([&] { torch::autograd::grad({norm().sum()}, {square}, {}, true, /*create_graph=*/true); },
                     "this function has no second derivative"),
          "There are no second derivatives.");
}

TEST_P(LibtorchLayersOnGpus, AreCarefulWithUnusualArguments) {
  session().function([](sr::CudaWorker& worker) {
    const lt::Guard guard(worker);
    guard.run(take_unusual_arguments);
  })();
}

}  // namespace gpu_layers
}  // namespace
