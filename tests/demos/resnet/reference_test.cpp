// Distances from references.

#include "tests/demos/resnet/reference.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace resnet::testing {
namespace {

class WorstArray : public ::testing::Test {
 protected:
  std::span<float> array(std::vector<float>& gradient, const std::string& name) const {
    for (const NamedArray& found : parameter_arrays(architecture_)) {
      if (found.name == name) return std::span(gradient).subspan(found.offset, found.elements());
    }
    throw std::runtime_error("no array " + name);
  }
  ArrayDistance worst() const { return worst_array(architecture_, gradient_, expected_); }

  const Architecture architecture_ = plan({.depth = 18, .image_size = 32, .classes = 5, .width = 8});
  std::vector<float> expected_ = reference_params(architecture_);
  std::vector<float> gradient_ = expected_;
};

TEST_F(WorstArray, IsTheOneFurthestByItsOwnNorm) {
  for (float& value : array(gradient_, "fc.weight")) value *= 1.001F;
  for (float& value : array(gradient_, "layer1.0.bn1.bias")) value *= 1.01F;  // its norm is far smaller
  EXPECT_EQ(worst().name, "layer1.0.bn1.bias");
  EXPECT_NEAR(worst().distance, 0.01, 1e-6);
}

TEST_F(WorstArray, ThatShouldBeZeroIsComparedWithTheWhole) {
  std::ranges::fill(array(expected_, "bn1.bias"), 1e-18F);
  std::ranges::fill(array(gradient_, "bn1.bias"), -1e-9F);
  EXPECT_LT(worst().distance, 1e-9);
  std::ranges::fill(array(expected_, "bn1.bias"), 1e-9F);  // small, but larger than rounding
  EXPECT_EQ(worst().name, "bn1.bias");
  EXPECT_NEAR(worst().distance, 2, 1e-6);
}

TEST_F(WorstArray, IsTheOneThatIsNoNumber) {
  array(gradient_, "layer2.0.conv1.weight")[3] = std::numeric_limits<float>::quiet_NaN();
  array(gradient_, "fc.bias")[0] += 1e6F;
  EXPECT_EQ(worst().name, "layer2.0.conv1.weight");
  EXPECT_TRUE(std::isnan(worst().distance));
}

}  // namespace
}  // namespace resnet::testing
