#include "demos/resnet/network/architecture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/demos/resnet/reference.hpp"

namespace resnet {
namespace {

std::size_t parameters_without_gaps(const Architecture& architecture) {
  std::size_t sum = 0;
  for (const NamedArray& array : testing::parameter_arrays(architecture)) sum += array.elements();
  return sum;
}

struct KnownCount {
  int depth;
  std::size_t parameters;
};

class PublishedArchitecture : public ::testing::TestWithParam<KnownCount> {
 protected:
  Architecture architecture_ = plan({.depth = GetParam().depth});
};

TEST_P(PublishedArchitecture, HasTheKnownNumberOfParameters) {
  EXPECT_EQ(parameters_without_gaps(architecture_), GetParam().parameters);
}

TEST_P(PublishedArchitecture, EndsInImagesOfSevenPixels) { EXPECT_EQ(architecture_.final_size(), 7); }

TEST_P(PublishedArchitecture, HasAUnitsInputWhereTheOneBeforeEnds) {
  std::size_t size = architecture_.pooled_size();
  std::size_t channels = architecture_.stem().channels_out;
  for (const Block& block : architecture_.blocks) {
    const std::size_t size_in = size;
    const std::size_t channels_in = channels;
    for (std::size_t i = block.first_unit; i < block.first_unit + block.unit_count; ++i) {
      const ConvUnit& unit = architecture_.units[i];
      EXPECT_EQ(unit.size_in, size) << unit.conv_name;
      EXPECT_EQ(unit.channels_in, channels) << unit.conv_name;
      size = unit.size_out();
      channels = unit.channels_out;
    }
    if (!block.shortcut) {
      EXPECT_EQ(size_in * channels_in, size * channels);
      continue;
    }
    const ConvUnit& shortcut = architecture_.units[*block.shortcut];
    EXPECT_EQ(shortcut.size_in, size_in) << shortcut.conv_name;
    EXPECT_EQ(shortcut.channels_in, channels_in) << shortcut.conv_name;
    EXPECT_EQ(shortcut.elements_out(), size * size * channels) << shortcut.conv_name;
  }
  EXPECT_EQ(architecture_.final_size(), size);
  EXPECT_EQ(architecture_.features, channels);
}

TEST_P(PublishedArchitecture, LaysOutArraysThatDoNotOverlap) {
  using Where = NamedArray::Where;
  for (const Where where : {Where::kParameters, Where::kStatistics}) {
    std::vector<NamedArray> arrays = named_arrays(architecture_);
    std::erase_if(arrays, [&](const NamedArray& array) { return array.where != where; });
    std::sort(arrays.begin(), arrays.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
    std::size_t end = 0;
    for (const NamedArray& array : arrays) {
      EXPECT_GE(array.offset, end) << array.name;
      if (where == Where::kParameters) {
        EXPECT_EQ(array.offset % 16, 0) << array.name;
      }
      end = array.offset + array.elements();
    }
    EXPECT_LE(end, where == Where::kParameters ? architecture_.parameter_count : architecture_.statistics_count);
  }
}

INSTANTIATE_TEST_SUITE_P(Depths, PublishedArchitecture,
                         ::testing::Values(KnownCount{18, 11'689'512}, KnownCount{34, 21'797'672},
                                           KnownCount{50, 25'557'032}, KnownCount{101, 44'549'160},
                                           KnownCount{152, 60'192'808}),
                         [](const auto& tested) { return "ResNet" + std::to_string(tested.param.depth); });

TEST(NamedArrays, HaveTheNamesOrderAndShapesOfTorchvision) {
  for (const char* name : {"resnet18", "resnet50"}) {
    const testing::Reference reference(name);
    std::vector<std::string> lines;
    for (const NamedArray& array : named_arrays(reference.architecture)) {
      std::string line = array.name;
      for (const std::size_t size : array.shape) line.append(" ").append(std::to_string(size));
      lines.push_back(line);
    }
    EXPECT_EQ(lines, reference.arrays);
  }
}

TEST(ArchitectureSpec, ThatIsOutOfRangeIsRefused) {
  EXPECT_THROW(plan({.depth = 51}), std::invalid_argument);
  EXPECT_THROW(plan({.image_size = 31}), std::invalid_argument);
  EXPECT_THROW(plan({.image_size = 1025}), std::invalid_argument);
  EXPECT_THROW(plan({.classes = 1}), std::invalid_argument);
  EXPECT_THROW(plan({.width = 12}), std::invalid_argument);
  EXPECT_THROW(plan({.width = 0}), std::invalid_argument);
  EXPECT_NO_THROW(plan({.depth = 152, .image_size = 33, .classes = 2, .width = 8}));
}

}  // namespace
}  // namespace resnet
