// Copies of parameters in the type of autocast: when one conversion serves all of them, and what its copies are.

#include "libtorch/converted_parameters.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "tests/libtorch/models.hpp"

namespace {

namespace converted_parameters {

namespace lt = models::lt;
using syncrun::libtorch::detail::ConvertedParameters;

/// An array of 64 parameters, and tensors that are parts of it. A scope is that of Autocast.
class LibtorchConvertedParameters : public testing::Test {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = 0.37F * static_cast<float>(i) - 9;
    converted_.bind(memory_);
  }

  torch::Tensor part(std::int64_t offset, std::vector<std::int64_t> sizes) {
    return torch::from_blob(memory_.data() + offset, sizes, torch::kFloat32).requires_grad_();
  }
  torch::Tensor get(const torch::Tensor& tensor) {
    auto copy = converted_.get(tensor, torch::kBFloat16);
    EXPECT_TRUE(torch::equal(copy, tensor.detach().to(torch::kBFloat16)));
    EXPECT_FALSE(copy.requires_grad());
    return copy;
  }
  template <class Use>
  void in_scope(Use&& use) {
    const lt::Autocast autocast(torch::kBFloat16);
    converted_.begin();
    use();
    converted_.end();
  }
  /// Whether one conversion has served both.
  static bool are_together(const torch::Tensor& a, const torch::Tensor& b) {
    return a.storage().data() == b.storage().data();
  }
  bool are_together_in_scope(const torch::Tensor& a, const torch::Tensor& b) {
    bool result = false;
    in_scope([&] { result = are_together(get(a), get(b)); });
    return result;
  }

  std::vector<float> memory_ = std::vector<float>(64);
  ConvertedParameters converted_;
};

TEST_F(LibtorchConvertedParameters, AreConvertedTogetherOnceMostWereRead) {
  const auto matrix = part(8, {6, 4});
  const auto vector = part(32, {8});
  EXPECT_FALSE(are_together_in_scope(matrix, vector));
  EXPECT_TRUE(are_together_in_scope(matrix, vector)) << "32 of 64 were read";
  EXPECT_TRUE(are_together_in_scope(matrix, vector));
  EXPECT_TRUE(are_together_in_scope(vector, vector));
  EXPECT_FALSE(are_together_in_scope(matrix, vector)) << "8 of 64 were read";
}

TEST_F(LibtorchConvertedParameters, CountATiedParameterOnce) {
  const auto matrix = part(8, {6, 4});
  for (int i = 0; i < 3; ++i) {
    in_scope([&] {
      get(matrix);
      get(matrix);
      EXPECT_FALSE(are_together(get(matrix), get(part(32, {4}))));
    });
  }
}

TEST_F(LibtorchConvertedParameters, HaveTheValuesOfTheirScope) {
  const auto all = part(0, {64});
  for (int i = 0; i < 3; ++i) {
    in_scope([&] { get(all); });
    memory_[5] += 1;
  }
  in_scope([&] {
    EXPECT_EQ(get(all).data_ptr(), get(all).data_ptr());
    memory_[5] += 1;
    converted_.bind(memory_);
    get(all);  // compares the values
  });
}

TEST_F(LibtorchConvertedParameters, KeepTheOrderOfTheirMemory) {
  const auto turned = part(0, {8, 8}).t();
  const auto every_second = part(0, {64}).slice(0, 1, 63, 2).slice(0, 0, 8);
  for (int i = 0; i < 2; ++i) {
    in_scope([&] {
      get(turned);
      get(every_second);
      get(part(56, {2, 2, 2}));
    });
  }
}

TEST_F(LibtorchConvertedParameters, AreConvertedOneByOneElsewhere) {
  const auto most = part(0, {56});
  in_scope([&] { get(most); });
  in_scope([&] {
    EXPECT_TRUE(are_together(get(most), get(part(56, {8}))));
    EXPECT_FALSE(are_together(get(most), get(part(57, {7})))) << "its copy would begin at an odd address";
    EXPECT_FALSE(are_together(get(most), get(torch::ones({8})))) << "it is not one of the parameters";
    EXPECT_FALSE(are_together(get(most), get(part(56, {0}))));
    const auto own = torch::ones({8}).to(torch::kBFloat16);
    EXPECT_EQ(get(own).data_ptr(), own.data_ptr());
  });
  EXPECT_FALSE(are_together(get(most), get(part(56, {8})))) << "outside of a scope, values may change";
}

TEST_F(LibtorchConvertedParameters, OfAnotherModuleBeginAnew) {
  const auto all = part(0, {64});
  in_scope([&] { get(all); });
  auto other = memory_;
  converted_.bind(other);
  in_scope([&] { EXPECT_FALSE(are_together(get(all), get(part(32, {8})))); });
  converted_.bind(memory_);
  EXPECT_FALSE(are_together_in_scope(all, part(32, {8})));
  EXPECT_TRUE(are_together_in_scope(all, part(32, {8})));
}

}  // namespace converted_parameters
}  // namespace
