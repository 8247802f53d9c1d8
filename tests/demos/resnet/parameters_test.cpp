#include "demos/resnet/network/parameters.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

namespace resnet {
namespace {

class InitialParameters : public ::testing::Test {
 protected:
  std::span<const float> array(const std::vector<float>& values, const std::string& name) const {
    for (const NamedArray& found : named_arrays(architecture_)) {
      if (found.name == name) return std::span(values).subspan(found.offset, found.elements());
    }
    ADD_FAILURE() << "no array " << name;
    return {};
  }

  const Architecture architecture_ = plan({.depth = 18, .image_size = 32, .classes = 10, .width = 32});
  const std::vector<float> params_ = initial_parameters(architecture_, 1, ResidualScale::kOne);
};

struct Moments {
  double mean;
  double deviation;
};

Moments moments(std::span<const float> values) {
  double sum = 0;
  double squares = 0;
  for (const double value : values) sum += value, squares += value * value;
  const auto count = static_cast<double>(values.size());
  return {sum / count, std::sqrt(squares / count - sum / count * sum / count)};
}

bool are_all(std::span<const float> values, float value) {
  return !values.empty() && std::all_of(values.begin(), values.end(), [=](float v) { return v == value; });
}

TEST_F(InitialParameters, OfFiltersAreNormalWithTheVarianceOfKaiming) {
  for (const char* name : {"conv1.weight", "layer2.0.conv1.weight", "layer4.1.conv2.weight"}) {
    const auto filters = array(params_, name);
    const auto unit = std::find_if(architecture_.units.begin(), architecture_.units.end(),
                                   [&](const ConvUnit& u) { return u.conv_name + ".weight" == name; });
    const double expected = std::sqrt(2.0 / static_cast<double>(unit->channels_out * unit->kernel * unit->kernel));
    const Moments got = moments(filters);
    const double error = expected / std::sqrt(static_cast<double>(filters.size()));
    EXPECT_NEAR(got.mean, 0, 5 * error) << name;
    EXPECT_NEAR(got.deviation, expected, 5 * error) << name;
    const auto within = std::count_if(filters.begin(), filters.end(), [&](float f) { return std::abs(f) < expected; });
    EXPECT_NEAR(static_cast<double>(within) / static_cast<double>(filters.size()), 0.6827, 0.03) << name;
  }
}

TEST_F(InitialParameters, OfTheDenseLayerAreUniform) {
  const double bound = 1 / std::sqrt(static_cast<double>(architecture_.features));
  const auto weights = array(params_, "fc.weight");
  EXPECT_LE(*std::max_element(weights.begin(), weights.end()), bound);
  EXPECT_GE(*std::min_element(weights.begin(), weights.end()), -bound);
  EXPECT_NEAR(moments(weights).deviation, bound / std::sqrt(3.0), 0.05 * bound);
}

TEST_F(InitialParameters, OfNormalisationAreOneAndZeroAndBlocksCanStartAsTheirShortcut) {
  const auto zero = initial_parameters(architecture_, 1, ResidualScale::kZero);
  for (const std::string name : {"bn1", "layer1.0.bn1", "layer1.0.bn2", "layer4.0.downsample.1"}) {
    EXPECT_TRUE(are_all(array(params_, name + ".weight"), 1)) << name;
    EXPECT_TRUE(are_all(array(params_, name + ".bias"), 0)) << name;
    EXPECT_TRUE(are_all(array(zero, name + ".weight"), name == "layer1.0.bn2" ? 0 : 1)) << name;
  }
  const auto statistics = initial_statistics(architecture_);
  EXPECT_TRUE(are_all(array(statistics, "layer3.1.bn1.running_mean"), 0));
  EXPECT_TRUE(are_all(array(statistics, "layer3.1.bn1.running_var"), 1));
}

TEST_F(InitialParameters, AreAPureFunctionOfTheSeed) {
  EXPECT_EQ(initial_parameters(architecture_, 1, ResidualScale::kOne), params_);
  EXPECT_NE(initial_parameters(architecture_, 2, ResidualScale::kOne), params_);
}

}  // namespace
}  // namespace resnet
