// The layers of layers.hpp with a fake of the kernels, on the CPU: gradients next to those of LibTorch, and which arguments
// have kernels.

#include "libtorch/layer_functions.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <exception>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "libtorch/autocast_state.hpp"
#include "libtorch/converted_parameters.hpp"
#include "syncrun/error.hpp"
#include "tests/libtorch/models.hpp"

namespace {

using syncrun::libtorch::detail::add_and_normalize;
using syncrun::libtorch::detail::BoundParameter;
using syncrun::libtorch::detail::can_add;
using syncrun::libtorch::detail::can_choose;
using syncrun::libtorch::detail::can_multiply;
using syncrun::libtorch::detail::can_normalize;
using syncrun::libtorch::detail::choose;
using syncrun::libtorch::detail::ConvertedParameters;
using syncrun::libtorch::detail::CrossEntropyParts;
using syncrun::libtorch::detail::GpuOperations;
using syncrun::libtorch::detail::multiply;
using syncrun::libtorch::detail::NormalizationArguments;
using syncrun::libtorch::detail::normalize;
using syncrun::libtorch::detail::NormalizedRows;
using syncrun::libtorch::detail::set_autocast;
using syncrun::libtorch::detail::SummandGradients;
using syncrun::libtorch::detail::UpstreamGradients;
using syncrun::libtorch::detail::WeightGradients;

using Tensors = std::vector<torch::Tensor>;

/// Computes with LibTorch, and counts the calls.
class FakeOperations final : public GpuOperations {
 public:
  CrossEntropyParts cross_entropy(const torch::Tensor&, const torch::Tensor&, std::int64_t) override { return {}; }
  torch::Tensor cross_entropy_gradient(const torch::Tensor&, const torch::Tensor&, const CrossEntropyParts&,
                                       std::int64_t) override {
    return {};
  }
  NormalizedRows layer_norm(const NormalizationArguments& of) override {
    EXPECT_TRUE(of.x.is_contiguous());
    EXPECT_TRUE(!of.change.defined() || of.change.is_contiguous());
    const auto sum = of.change.defined() ? of.x + of.change : of.x;
    auto [y, means, scales] = torch::native_layer_norm(sum, {sum.size(-1)}, of.weight, of.bias, of.epsilon);
    return {sum, y.to(of.type_of_y), means.flatten(), scales.flatten()};
  }
  SummandGradients layer_norm_gradient(const NormalizationArguments& of, const NormalizedRows& rows,
                                       const UpstreamGradients& upstream) override {
    ++gradients_of_x;
    auto of_x = std::get<0>(gradients(of, rows, upstream.of_y));
    if (upstream.of_sum.defined()) {
      EXPECT_EQ(upstream.of_sum.scalar_type(), rows.sum.scalar_type());
      EXPECT_TRUE(upstream.of_sum.is_contiguous());
      of_x = of_x + upstream.of_sum;
    }
    return {of_x, of_x.to(upstream.type_of_change)};
  }
  WeightGradients layer_norm_sums(const NormalizationArguments& of, const NormalizedRows& rows,
                                  const torch::Tensor& dy) override {
    ++sums;
    const auto all = gradients(of, rows, dy);
    return {std::get<1>(all), std::get<2>(all)};
  }
  torch::Tensor column_sums(const torch::Tensor& matrix) override {
    ++sums;
    return matrix.to(torch::kFloat32).sum(0);
  }
  torch::Tensor embedding_gradient(const torch::Tensor& tokens, const torch::Tensor& dy,
                                   std::int64_t vocabulary) override {
    return torch::zeros({vocabulary, dy.size(-1)}).index_add(0, tokens.flatten(), dy.reshape({-1, dy.size(-1)}));
  }
  void side_by_side(const std::vector<std::function<void()>>& works) override {
    // In another order, which must not matter.
    for (auto work = works.rbegin(); work != works.rend(); ++work) (*work)();
  }

  int gradients_of_x = 0;
  int sums = 0;

 private:
  static std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> gradients(const NormalizationArguments& of,
                                                                           const NormalizedRows& rows,
                                                                           const torch::Tensor& dy) {
    EXPECT_EQ(dy.scalar_type(), of.type_of_y);
    const torch::Tensor& x = rows.sum;
    auto sizes = x.sizes().vec();
    sizes.back() = 1;
    return torch::native_layer_norm_backward(
        dy.to(x.scalar_type()), x, {x.size(-1)}, rows.means.view(sizes), rows.scales.view(sizes),
        of.weight.defined() ? of.weight : torch::ones({x.size(-1)}), torch::zeros({x.size(-1)}), {true, true, true});
  }
};

class LibtorchLayerFunctions : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(1); }

  FakeOperations fake_;
};

/// The gradients of those of `inputs` that have one, for a loss whose gradient differs from element to element.
Tensors gradients(const torch::Tensor& y, const Tensors& inputs) {
  Tensors wanted;
  for (const auto& each : inputs) {
    if (each.defined() && each.requires_grad()) wanted.push_back(each);
  }
  const auto factors = torch::arange(y.numel(), torch::kFloat32).view(y.sizes());
  return torch::autograd::grad({(y.to(torch::kFloat32) * factors).sum()}, wanted);
}

/// Both functions have the same value and the same gradients.
void expect_equal(const Tensors& inputs, const std::function<torch::Tensor(const Tensors&)>& own,
                  const std::function<torch::Tensor(const Tensors&)>& of_libtorch) {
  const auto y = own(inputs);
  const auto expected = of_libtorch(inputs);
  EXPECT_TRUE(torch::allclose(y, expected, 1e-5, 1e-5));
  EXPECT_EQ(y.sizes(), expected.sizes());
  const auto found = gradients(y, inputs);
  const auto wanted = gradients(expected, inputs);
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(torch::allclose(found[i], wanted[i], 1e-4, 1e-4)) << i;
}

torch::Tensor with_gradient(std::vector<std::int64_t> sizes) { return torch::randn(sizes).requires_grad_(); }

TEST_F(LibtorchLayerFunctions, MultiplyArraysOfAnyShape) {
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{4}, {3, 4}, {2, 3, 4}, {2, 1, 3, 4}}) {
    const Tensors inputs{with_gradient(sizes), with_gradient({5, 4}), with_gradient({5})};
    expect_equal(
        inputs, [this](const Tensors& in) { return multiply(fake_, in[0], in[1], in[2]); },
        [](const Tensors& in) { return torch::linear(in[0], in[1], in[2]); });
    expect_equal(
        inputs, [this](const Tensors& in) { return multiply(fake_, in[0], in[1], in[2]).mul_(2).relu_(); },
        [](const Tensors& in) { return torch::linear(in[0], in[1], in[2]).mul_(2).relu_(); });
    expect_equal(
        {inputs[0], inputs[1]}, [this](const Tensors& in) { return multiply(fake_, in[0], in[1], {}); },
        [](const Tensors& in) { return torch::linear(in[0], in[1]); });
  }
}

TEST_F(LibtorchLayerFunctions, ComputeOnlyTheGradientsThatAreWanted) {
  const auto x = with_gradient({3, 4});
  const auto weight = with_gradient({5, 4});
  const auto bias = with_gradient({5});
  const auto own = [this](const Tensors& in) { return multiply(fake_, in[0], in[1], in[2]); };
  const auto of_libtorch = [](const Tensors& in) { return torch::linear(in[0], in[1], in[2]); };
  expect_equal({x.detach(), weight, bias}, own, of_libtorch);
  expect_equal({x, weight.detach(), bias}, own, of_libtorch);
  expect_equal({x.detach(), weight.detach(), bias}, own, of_libtorch);
  EXPECT_EQ(fake_.sums, 3);
  expect_equal({x, weight, bias.detach()}, own, of_libtorch);
  EXPECT_EQ(fake_.sums, 3) << "the bias is frozen";
}

TEST_F(LibtorchLayerFunctions, AddTheGradientsOfAWeightThatIsUsedTwice) {
  const auto tokens = torch::tensor({0, 4, 2, 2}, torch::kInt64).view({2, 2});
  expect_equal(
      {with_gradient({5, 3})},
      [&](const Tensors& in) { return multiply(fake_, choose(fake_, tokens, in[0]), in[0], {}); },
      [&](const Tensors& in) { return torch::linear(torch::embedding(in[0], tokens), in[0]); });
}

TEST_F(LibtorchLayerFunctions, NormalizeTheLastDimension) {
  const auto own = [this](const Tensors& in) { return normalize(fake_, in[0], in[1], in[2], 1e-3); };
  const auto of_libtorch = [](const Tensors& in) {
    return torch::layer_norm(in[0], {in[0].size(-1)}, in[1], in[2], 1e-3);
  };
  const auto x = with_gradient({2, 3, 4});
  const auto weight = with_gradient({4});
  const auto bias = with_gradient({4});
  expect_equal({x, weight, bias}, own, of_libtorch);
  expect_equal({x, weight, {}}, own, of_libtorch);
  expect_equal({x, {}, bias}, own, of_libtorch);
  expect_equal({with_gradient({4}), weight, bias.detach()}, own, of_libtorch);
  EXPECT_EQ(fake_.sums, 4);
  expect_equal({x, {}, {}}, own, of_libtorch);
  expect_equal({x, weight.detach(), bias.detach()}, own, of_libtorch);
  EXPECT_EQ(fake_.sums, 4) << "no weight is trained";
  EXPECT_EQ(fake_.gradients_of_x, 6);
  expect_equal({x.detach(), weight, bias}, own, of_libtorch);
  EXPECT_EQ(fake_.gradients_of_x, 6) << "x is an input";
}

TEST_F(LibtorchLayerFunctions, TakeArraysThatAreNotContiguous) {
  expect_equal(
      {with_gradient({4, 3, 2}), with_gradient({4, 5}), with_gradient({5})},
      [this](const Tensors& in) { return multiply(fake_, in[0].transpose(0, 2), in[1].t(), in[2]).transpose(0, 1); },
      [](const Tensors& in) { return torch::linear(in[0].transpose(0, 2), in[1].t(), in[2]).transpose(0, 1); });
  expect_equal(
      {with_gradient({4, 3}), with_gradient({8}), with_gradient({4})},
      [this](const Tensors& in) { return normalize(fake_, in[0].t(), in[1].slice(0, 0, 8, 2), in[2], 1e-5).t(); },
      [](const Tensors& in) { return torch::layer_norm(in[0].t(), {4}, in[1].slice(0, 0, 8, 2), in[2]).t(); });
  expect_equal(
      {with_gradient({3, 4}), with_gradient({4, 3}), with_gradient({4}), with_gradient({4})},
      [this](const Tensors& in) {
        return add_and_normalize(fake_, {in[0], in[1].t()}, in[2], in[3], 1e-5).norm;
      },
      [](const Tensors& in) { return torch::layer_norm(in[0] + in[1].t(), {4}, in[2], in[3]); });
}

/// Both results in one array, with different factors.
torch::Tensor together(const torch::Tensor& sum, const torch::Tensor& norm) { return torch::cat({sum, 2 * norm}); }

TEST_F(LibtorchLayerFunctions, AddAndNormalize) {
  const auto own = [this](const Tensors& in) {
    const auto [sum, norm] = add_and_normalize(fake_, {in[0], in[1]}, in[2], in[3], 1e-3);
    return together(sum, norm);
  };
  const auto of_libtorch = [](const Tensors& in) {
    const auto sum = in[0] + in[1];
    return together(sum, torch::layer_norm(sum, {sum.size(-1)}, in[2], in[3], 1e-3));
  };
  const auto x = with_gradient({2, 3, 4});
  const auto change = with_gradient({2, 3, 4});
  const auto weight = with_gradient({4});
  const auto bias = with_gradient({4});
  expect_equal({x, change, weight, bias}, own, of_libtorch);
  expect_equal({x, change, weight, {}}, own, of_libtorch);
  expect_equal({x, change, {}, bias}, own, of_libtorch);
  expect_equal({with_gradient({4}), with_gradient({4}), weight, bias.detach()}, own, of_libtorch);
  EXPECT_EQ(fake_.sums, 4);
  expect_equal({x, change, {}, {}}, own, of_libtorch);
  expect_equal({x, change.detach(), weight.detach(), bias.detach()}, own, of_libtorch);
  expect_equal({x.detach(), change, weight.detach(), bias.detach()}, own, of_libtorch);
  EXPECT_EQ(fake_.sums, 4) << "no weight is trained";
  EXPECT_EQ(fake_.gradients_of_x, 7);
  expect_equal({x.detach(), change.detach(), weight, bias}, own, of_libtorch);
  EXPECT_EQ(fake_.gradients_of_x, 7) << "both are inputs";
}

TEST_F(LibtorchLayerFunctions, AddAndNormalizeForOneOfTheResults) {
  const Tensors inputs{with_gradient({3, 4}), with_gradient({3, 4}), with_gradient({4}), with_gradient({4})};
  const auto own = [this](const Tensors& in) { return add_and_normalize(fake_, {in[0], in[1]}, in[2], in[3], 1e-5); };
  expect_equal(
      inputs, [&](const Tensors& in) { return own(in).norm; },
      [](const Tensors& in) { return torch::layer_norm(in[0] + in[1], {4}, in[2], in[3]); });
  EXPECT_EQ(fake_.gradients_of_x, 1);
  expect_equal(
      {inputs[0], inputs[1], inputs[2].detach(), {}}, [&](const Tensors& in) { return own(in).sum; },
      [](const Tensors& in) { return in[0] + in[1]; });
  EXPECT_EQ(fake_.gradients_of_x, 1) << "the sum needs no kernel";
  const auto without = torch::autograd::grad({own(inputs).sum.sum()}, {inputs[2]}, {}, false, false, true);
  EXPECT_FALSE(without[0].defined()) << "the sum does not depend on the weight";
}

/// As in units that are gathered in bfloat16.
TEST_F(LibtorchLayerFunctions, NormalizeWithWeightsInBfloat16) {
  const auto x = torch::rand({3, 4});
  const auto rounded = [](const torch::Tensor& values) { return values.to(torch::kBFloat16).detach(); };
  const auto weight = rounded(torch::rand({4})).requires_grad_();
  const auto bias = rounded(torch::rand({4})).requires_grad_();
  const auto y = normalize(fake_, x, weight, bias, 1e-5);
  const auto found = torch::autograd::grad({y.square().sum()}, {weight, bias});
  const auto same_weight = weight.detach().to(torch::kFloat32).requires_grad_();
  const auto same_bias = bias.detach().to(torch::kFloat32).requires_grad_();
  const auto same_y = torch::layer_norm(x, {4}, same_weight, same_bias, 1e-5);
  const auto wanted = torch::autograd::grad({same_y.square().sum()}, {same_weight, same_bias});
  EXPECT_TRUE(y.allclose(same_y, 1e-5, 1e-6));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(found[i].to(torch::kFloat32).allclose(wanted[i], 0.01, 0.01));
  }
}

TEST_F(LibtorchLayerFunctions, NoticeThatAKeptSumWasChanged) {
  const auto x = with_gradient({3, 4});
  const auto [sum, norm] = add_and_normalize(fake_, {x, torch::ones({3, 4})}, {}, {}, 1e-5);
  sum.mul_(2);
  EXPECT_THROW(torch::autograd::grad({norm.sum()}, {x}), c10::Error);
}

TEST_F(LibtorchLayerFunctions, HaveNoSecondDerivatives) {
  const auto x = with_gradient({4, 4});
  const auto tokens = torch::zeros({2}, torch::kInt64);
  for (const auto& y : {multiply(fake_, x, x, {}), normalize(fake_, x, {}, {}, 1e-5), choose(fake_, tokens, x),
                        add_and_normalize(fake_, {x, x}, {}, {}, 1e-5).norm}) {
    try {
      torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true);
      FAIL() << "it computed one";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("has create_graph, but on a GPU this function has no second"));
    }
  }
}

/// bfloat16 in its scope.
class InBfloat16 {
 public:
  InBfloat16() {
    set_autocast(torch::kCPU, true, torch::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~InBfloat16() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    set_autocast(torch::kCPU, false, torch::kBFloat16);
  }
  InBfloat16(const InBfloat16&) = delete;
  InBfloat16& operator=(const InBfloat16&) = delete;
};

TEST_F(LibtorchLayerFunctions, ComputeInTheTypeOfAutocast) {
  const auto x = with_gradient({3, 4});
  const auto weight = with_gradient({4, 4});
  const auto bias = with_gradient({4});
  torch::Tensor y;
  torch::Tensor of_libtorch;
  {
    const InBfloat16 scope;
    y = multiply(fake_, normalize(fake_, x, bias, bias, 1e-5), weight, bias);
    y = multiply(fake_, y, weight, bias);
    EXPECT_EQ(normalize(fake_, x, bias, bias, 1e-5).scalar_type(), torch::kBFloat16);
    of_libtorch = torch::linear(torch::layer_norm(x, {4}, bias, bias), weight, bias);
    of_libtorch = torch::linear(of_libtorch, weight, bias);
  }
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::allclose(y, of_libtorch, 0.02, 0.02));
  const auto found = gradients(y, {x, weight, bias});
  const auto wanted = gradients(of_libtorch, {x, weight, bias});
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), torch::kFloat32);
    EXPECT_TRUE(torch::allclose(found[i], wanted[i], 0.05, 0.05 * wanted[i].abs().max().item<double>())) << i;
  }
}

TEST_F(LibtorchLayerFunctions, AddAChangeInTheTypeOfAutocast) {
  const auto x = with_gradient({3, 4});
  const auto change = torch::randn({3, 4}).to(torch::kBFloat16).requires_grad_();
  const auto weight = with_gradient({4});
  const auto loss_of = [](const torch::Tensor& sum, const torch::Tensor& norm) {
    return (sum.square() + norm.to(torch::kFloat32) * torch::arange(4)).sum();
  };
  torch::Tensor loss;
  {
    const InBfloat16 scope;
    const auto [sum, norm] = add_and_normalize(fake_, {x, change}, weight, {}, 1e-5);
    EXPECT_EQ(sum.scalar_type(), torch::kFloat32);
    EXPECT_EQ(norm.scalar_type(), torch::kBFloat16);
    loss = loss_of(sum, norm);
  }
  const auto found = torch::autograd::grad({loss}, {x, change, weight});
  EXPECT_EQ(found[1].scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::equal(found[0].to(torch::kBFloat16), found[1]));
  const auto sum = x + change;
  const auto wanted =
      torch::autograd::grad({loss_of(sum, torch::layer_norm(sum, {4}, weight, {}))}, {x, change, weight});
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), wanted[i].scalar_type());
    EXPECT_TRUE(torch::allclose(found[i], wanted[i], 0.02, 0.02)) << i;
  }
}

TEST_F(LibtorchLayerFunctions, LeaveLibtorchACopyOfTheWeightThatHasAGradient) {
  const auto x = torch::randn({3, 4});
  const auto weight = with_gradient({5, 4});
  torch::Tensor sum;
  {
    const InBfloat16 scope;
    sum = multiply(fake_, x, weight, {}).sum() + torch::mm(x, weight.t()).sum();
  }
  const auto found = torch::autograd::grad({sum}, {weight})[0];
  EXPECT_TRUE(torch::allclose(found, 2 * x.sum(0).expand({5, 4}), 0.05, 0.05));
}

TEST_F(LibtorchLayerFunctions, MultiplyParametersThatAreConvertedTogether) {
  const auto memory = torch::randn({32});
  const auto weight = memory.narrow(0, 0, 24).view({8, 3}).detach().requires_grad_();
  const auto bias = memory.narrow(0, 24, 8).detach().requires_grad_();
  const std::vector<BoundParameter> parameters{{"weight", weight, 0, {3, 1}}, {"bias", bias, 24, {1}}};
  const auto x = torch::randn({4, 3}).to(torch::kBFloat16).requires_grad_();
  auto& converted = ConvertedParameters::of_thread();
  converted.bind(parameters, {memory.data_ptr<float>(), 32});
  for (int step = 0; step < 3; ++step) {
    torch::Tensor y;
    torch::Tensor of_libtorch;
    {
      const InBfloat16 scope;
      converted.begin();
      const models::ConversionCount conversions;
      y = multiply(fake_, x, weight, bias);
      EXPECT_EQ(conversions.count(), 1);
      converted.end();
      of_libtorch = torch::linear(x, weight, bias);
      EXPECT_EQ(conversions.count(), 3);
    }
    EXPECT_TRUE(torch::equal(y, of_libtorch)) << "step " << step;
    const auto found = gradients(y, {x, weight, bias});
    const auto wanted = gradients(of_libtorch, {x, weight, bias});
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(found[i].scalar_type(), wanted[i].scalar_type());
      EXPECT_TRUE(torch::allclose(found[i], wanted[i], 0.02, 0.02)) << i;
    }
    memory.add_(0.5);
  }
  converted.unbind();
}

TEST_F(LibtorchLayerFunctions, LeaveOtherProductsToLibtorch) {
  const auto x = torch::ones({3, 4});
  const auto weight = torch::ones({5, 4});
  const auto bias = torch::ones({5});
  EXPECT_TRUE(can_multiply(x, weight, bias));
  EXPECT_TRUE(can_multiply(x, weight, {}));
  EXPECT_FALSE(can_multiply(x, weight, bias.to(torch::kFloat64)));
  EXPECT_FALSE(can_multiply(x, weight, torch::ones({3, 5})));
  EXPECT_FALSE(can_multiply(x, weight[0], {}));
  EXPECT_FALSE(can_multiply(x.to(torch::kBFloat16), weight, bias));
  EXPECT_FALSE(can_multiply(x.to(torch::kHalf), weight.to(torch::kHalf), {}));
  EXPECT_FALSE(can_multiply(torch::ones({0, 4}), weight, bias));
  EXPECT_FALSE(can_multiply(torch::ones({}), weight, bias));
  const InBfloat16 scope;
  EXPECT_TRUE(can_multiply(x, weight.to(torch::kBFloat16), bias));
  EXPECT_FALSE(can_multiply(x.to(torch::kInt64), weight, bias));
  EXPECT_FALSE(can_multiply(x.to(torch::kComplexFloat), weight, bias));
  EXPECT_FALSE(can_multiply(x.to(torch::kFloat64), weight, bias));
}

TEST_F(LibtorchLayerFunctions, LeaveOtherSumsNormalizationsAndTablesToLibtorch) {
  const auto x = torch::ones({3, 4});
  EXPECT_TRUE(can_add(x, x));
  EXPECT_TRUE(can_add(x, x.to(torch::kBFloat16)));
  EXPECT_TRUE(can_add(x.to(torch::kBFloat16), x.to(torch::kBFloat16)));
  EXPECT_FALSE(can_add(x.to(torch::kBFloat16), x));
  EXPECT_FALSE(can_add(x.to(torch::kFloat64), x));
  EXPECT_FALSE(can_add(x, x.to(torch::kHalf)));
  EXPECT_FALSE(can_add(x, x[0]));
  const auto values = torch::ones({4});
  EXPECT_TRUE(can_normalize(x, values, {}));
  EXPECT_TRUE(can_normalize(x.to(torch::kBFloat16), values, values));
  EXPECT_FALSE(can_normalize(x, torch::ones({3}), {}));
  EXPECT_TRUE(can_normalize(x, values, values.to(torch::kBFloat16)));
  EXPECT_FALSE(can_normalize(x, values, values.to(torch::kHalf)));
  EXPECT_FALSE(can_normalize(x.to(torch::kFloat64), values.to(torch::kBFloat16), {}));
  EXPECT_FALSE(can_normalize(x.to(torch::kFloat64), values, values));
  EXPECT_FALSE(can_normalize(torch::ones({3, 0}), {}, {}));
  const auto tokens = torch::zeros({3}, torch::kInt64);
  EXPECT_TRUE(can_choose(tokens, x));
  EXPECT_FALSE(can_choose(tokens.to(torch::kInt32), x));
  EXPECT_FALSE(can_choose(tokens, values));
  EXPECT_FALSE(can_choose(tokens, torch::ones({8193, 1})));
  EXPECT_FALSE(can_choose(torch::zeros({2049}, torch::kInt64), torch::ones({8192, 1})));
  EXPECT_FALSE(can_choose(torch::zeros({0}, torch::kInt64), x));
}

}  // namespace
