// linear(), layer_norm(), add_layer_norm() and embedding() on CPU devices, where they are LibTorch's functions.

#include <torch/torch.h>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace layers {

namespace lt = models::lt;

TEST(LibtorchLayers, AreThoseOfLibtorch) {
  torch::manual_seed(3);
  const auto x = torch::randn({2, 3, 4});
  const auto weight = torch::randn({5, 4});
  const auto bias = torch::randn({5});
  EXPECT_TRUE(torch::equal(lt::linear(x, weight, bias), torch::linear(x, weight, bias)));
  EXPECT_TRUE(torch::equal(lt::linear(x, weight), torch::linear(x, weight)));
  const auto scale = torch::randn({4});
  const auto shift = torch::randn({4});
  EXPECT_TRUE(torch::equal(lt::layer_norm(x, scale, shift, 0.1), torch::layer_norm(x, {4}, scale, shift, 0.1)));
  EXPECT_TRUE(torch::equal(lt::layer_norm(x, {}, {}), torch::layer_norm(x, {4})));
  const auto change = torch::randn({4});
  const auto [sum, norm] = lt::add_layer_norm(x, change, scale, shift, 0.1);
  EXPECT_TRUE(torch::equal(sum, x + change));
  EXPECT_TRUE(torch::equal(norm, torch::layer_norm(x + change, {4}, scale, shift, 0.1)));
  const auto tokens = torch::tensor({0, 4, 4, 1, 2, 0}, torch::kInt64).view({2, 3});
  EXPECT_TRUE(torch::equal(lt::embedding(tokens, weight), torch::embedding(weight, tokens)));
}

TEST(LibtorchLayers, HaveTheTypeOfAutocast) {
  const auto x = torch::randn({3, 4});
  const auto scale = torch::ones({4});
  const auto shift = torch::zeros({4});
  EXPECT_EQ(lt::layer_norm(x, scale, shift).scalar_type(), torch::kFloat32);
  const lt::Autocast autocast(torch::kBFloat16);
  EXPECT_EQ(lt::layer_norm(x, scale, shift).scalar_type(), torch::kBFloat16);
  const auto [sum, norm] = lt::add_layer_norm(x, x.to(torch::kBFloat16), scale, shift);
  EXPECT_EQ(sum.scalar_type(), torch::kFloat32);
  EXPECT_EQ(norm.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(lt::layer_norm(x.to(torch::kFloat64), scale.to(torch::kFloat64), shift.to(torch::kFloat64)).scalar_type(),
            torch::kFloat64);
  EXPECT_EQ(lt::linear(x, torch::randn({2, 4})).scalar_type(), torch::kBFloat16);
}

TEST(LibtorchLayers, HaveTheErrorsOfLibtorch) {
  EXPECT_THROW(lt::linear(torch::ones({3, 4}), torch::ones({5, 3})), c10::Error);
  EXPECT_THROW(lt::layer_norm(torch::ones({3, 4}), torch::ones({3}), torch::ones({3})), c10::Error);
}

}  // namespace layers
}  // namespace
