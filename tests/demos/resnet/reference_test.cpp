// What a folder of references has to hold, and distances from it.

#include "tests/demos/resnet/reference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "tests/demos/temporary_folder.hpp"

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

}  // namespace
}  // namespace resnet::testing
