// Copies of parameters in the type of autocast: which ones one conversion serves, and their values.

#include "libtorch/converted_parameters.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/libtorch/models.hpp"

namespace {

namespace converted_parameters {

namespace lt = models::lt;
using syncrun::libtorch::detail::BoundParameter;
using syncrun::libtorch::detail::ConvertedParameters;

/// Parameters of a module: a matrix, vectors that begin at even and at odd addresses, and an empty one.
class LibtorchConvertedParameters : public testing::Test {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = 0.37F * static_cast<float>(i) - 9;
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{8, 4}, {0}, {16}, {3}, {5}, {8}}) {
      const std::int64_t offset =
          parameters_.empty() ? 0 : parameters_.back().offset + parameters_.back().tensor.numel();
      auto tensor = torch::from_blob(memory_.data() + offset, sizes, torch::kFloat32).requires_grad_();
      auto strides = tensor.strides().vec();
      parameters_.push_back({std::to_string(offset), std::move(tensor), offset, std::move(strides)});
    }
    converted_.bind(parameters_, memory_);
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
  bool are_together(const torch::Tensor& a, const torch::Tensor& b) {
    const auto copy_of_a = get(a);
    const auto copy_of_b = get(b);
    return copy_of_a.storage().data() == copy_of_b.storage().data();
  }

  std::vector<float> memory_ = std::vector<float>(64);
  std::vector<BoundParameter> parameters_;
  ConvertedParameters converted_;
  const torch::Tensor& matrix() { return parameters_[0].tensor; }
  const torch::Tensor& vector() { return parameters_[2].tensor; }
};

TEST_F(LibtorchConvertedParameters, AreConvertedTogetherInAScopeWithItsValuesAndTheOrderOfTheirMemory) {
  for (int i = 0; i < 3; ++i) {
    in_scope([&] {  // get() compares the values
      EXPECT_TRUE(are_together(matrix(), vector()));
      EXPECT_TRUE(are_together(vector(), parameters_[5].tensor));
      EXPECT_TRUE(are_together(matrix(), matrix().t()));
      EXPECT_TRUE(are_together(matrix(), matrix().slice(0, 2, 8, 2)));
      EXPECT_TRUE(are_together(matrix(), vector().view({2, 2, 4}).transpose(0, 2)));
    });
    memory_[5] += 1;
  }
  in_scope([&] {
    get(matrix());
    memory_[5] += 1;
    converted_.bind(parameters_, memory_);
    get(matrix());
  });
  EXPECT_FALSE(are_together(matrix(), vector())) << "without a scope, values may change";
}

TEST_F(LibtorchConvertedParameters, AreConvertedAnewIfForwardChangesThem) {
  in_scope([&] {
    get(matrix());
    {
      const torch::NoGradGuard no_gradients;
      vector().clamp_(-1, 1);
    }
    EXPECT_FALSE(are_together(matrix(), vector()));
    EXPECT_TRUE(are_together(matrix(), parameters_[5].tensor)) << "this one has not changed";
  });
  in_scope([&] { EXPECT_TRUE(are_together(matrix(), vector())); });
}

TEST_F(LibtorchConvertedParameters, LeaveOtherTensorsToLibtorch) {
  in_scope([&] {
    EXPECT_TRUE(are_together(matrix(), parameters_[3].tensor)) << "it begins at a multiple of 16 bytes";
    EXPECT_FALSE(are_together(matrix(), parameters_[4].tensor)) << "its copy would not";
    EXPECT_FALSE(are_together(matrix(), parameters_[1].tensor)) << "it is empty";
    EXPECT_FALSE(are_together(matrix(), torch::ones({8}))) << "it is no parameter";
    const auto own = torch::ones({8}).to(torch::kBFloat16);
    EXPECT_EQ(get(own).data_ptr(), own.data_ptr());
  });
  // Those of another module, and of a large one.
  std::vector<float> memory(ConvertedParameters::kMostElements + 1);
  const auto first = torch::from_blob(memory.data(), {8}, torch::kFloat32);
  const auto next = torch::from_blob(memory.data() + 8, {8}, torch::kFloat32);
  in_scope([&] {
    get(matrix());
    converted_.bind(parameters_, std::span(memory).first(ConvertedParameters::kMostElements));
    EXPECT_FALSE(are_together(matrix(), vector()));
    EXPECT_TRUE(are_together(first, next));
    converted_.unbind();
    EXPECT_FALSE(are_together(first, next));
  });
  converted_.bind(parameters_, memory);
  in_scope([&] { EXPECT_FALSE(are_together(first, next)); });
}

}  // namespace converted_parameters
}  // namespace
