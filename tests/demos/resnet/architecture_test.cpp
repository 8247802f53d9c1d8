#include "demos/resnet/network/architecture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/demos/resnet/reference.hpp"

namespace resnet {
namespace {

TEST(PublishedArchitectures, HaveTheKnownNumberOfParametersAndLayThemOutWithoutOverlaps) {
  using Where = NamedArray::Where;
  for (const auto& [depth, parameters] :
       {std::pair{18, 11'689'512U}, std::pair{34, 21'797'672U}, std::pair{50, 25'557'032U}, std::pair{101, 44'549'160U},
        std::pair{152, 60'192'808U}}) {
    SCOPED_TRACE(depth);
    const Architecture architecture = plan({.depth = depth});
    EXPECT_EQ(architecture.final_size(), 7);
    std::size_t count = 0;
    for (const Where where : {Where::kParameters, Where::kStatistics}) {
      std::vector<NamedArray> arrays = named_arrays(architecture);
      std::erase_if(arrays, [&](const NamedArray& array) { return array.where != where; });
      std::sort(arrays.begin(), arrays.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
      std::size_t end = 0;
      for (const NamedArray& array : arrays) {
        EXPECT_GE(array.offset, end) << array.name;
        end = array.offset + array.elements();
        if (where == Where::kStatistics) continue;
        EXPECT_EQ(array.offset % 16, 0) << array.name;
        count += array.elements();
      }
      EXPECT_LE(end, where == Where::kParameters ? architecture.parameter_count : architecture.statistics_count);
    }
    EXPECT_EQ(count, parameters);
  }
}

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
