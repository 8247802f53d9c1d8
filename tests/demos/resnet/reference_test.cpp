// The contents of a folder of references, and distances from them.

#include "tests/demos/resnet/reference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.hpp"

namespace resnet::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(References, ThatHaveNoLossesSayHowToMakeThem) {
  const TemporaryFolder folder;
  std::filesystem::copy(carried_references() + "/resnet18", folder.path());
  std::filesystem::remove(folder / "losses.npy");
  EXPECT_THAT([&] { FullReference(folder.path().string()); },
              ThrowsMessage<std::runtime_error>(HasSubstr("losses.npy is missing: make these references again")));
}

TEST(References, ThatHaveOtherLossesThanOfTenStepsAreRefused) {
  const TemporaryFolder folder;
  std::filesystem::copy(carried_references() + "/resnet18", folder.path());
  std::filesystem::copy(folder / "float32_distances.npy", folder / "losses.npy",
                        std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT([&] { FullReference(folder.path().string()); },
              ThrowsMessage<std::runtime_error>(HasSubstr("expected 10 losses, found 3")));
}

TEST(References, SayWhoseNetworksTheyAreOf) {
  EXPECT_THAT(Reference("resnet50").networks, HasSubstr("torchvision 0.14.1"));
  const TemporaryFolder folder;
  std::filesystem::copy(carried_references() + "/resnet18", folder / "resnet18");
  std::filesystem::remove(folder / "resnet18" / "networks.txt");
  EXPECT_EQ(Reference("resnet18", folder.path().string()).networks, "not recorded");
}

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
