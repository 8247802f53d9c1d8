#include "demos/resnet/network/conv_plans.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace resnet {
namespace {

using ::testing::HasSubstr;

const PlanPlace kPlace{.gpu = "NVIDIA H200", .multiprocessors = 132, .cudnn = "9.19.0", .frontend = "1.32.0"};
constexpr ConvShape kShape{
    .rows = 256, .channels_in = 64, .channels_out = 128, .size_in = 56, .kernel = 3, .stride = 2, .padding = 1};
const PlanKey kForward{ConvPass::kForward, CudaMath::kBfloat16, kShape};
const PlanKey kBackward{ConvPass::kBackwardFilter, CudaMath::kFloat32, kShape};

const std::string kHead =
    "syncrun-resnet plans 1\n"
    "gpu NVIDIA H200\n"
    "multiprocessors 132\n"
    "cudnn 9.19.0\n"
    "cudnn-frontend 1.32.0\n";
const std::string kForwardLine =
    "convolution pass=forward type=bfloat16 layout=nhwc epilogue=none rows=256 in=64 out=128 size=56 kernel=3 stride=2 "
    "padding=1 plan=eng31_k2=4_k14=1 workspace=4096\n";
const std::string kBackwardLine =
    "convolution pass=backward-filter type=float32 layout=nhwc epilogue=none rows=256 in=64 out=128 size=56 kernel=3 "
    "stride=2 padding=1 plan=eng0 workspace=0\n";
const std::string kText = kHead + kForwardLine + kBackwardLine + "end\n";

ConvPlans two_plans() {
  ConvPlans plans(kPlace);
  plans.set(kBackward, {"eng0", 0});
  plans.set(kForward, {"eng31_k2=4_k14=1", 4096});
  return plans;
}

std::string complaint_about(const std::string& text) {
  try {
    ConvPlans::parse(text);
  } catch (const PlansError& error) {
    return error.what();
  }
  return "nothing";
}

/// The text with one part of it replaced.
std::string with(std::string_view part, std::string_view other, std::string text = kText) {
  const std::size_t place = text.find(part);
  EXPECT_NE(place, std::string::npos) << part;
  return text.replace(place, part.size(), other);
}

TEST(ConvPlans, AreWrittenOneToALineAndSortedAndReadBack) {
  EXPECT_EQ(two_plans().text(), kText);
  EXPECT_EQ(ConvPlans::parse(kText), two_plans());
  const ConvPlans none = ConvPlans::parse(kHead + "end\n");
  EXPECT_EQ(none, ConvPlans(kPlace));
  EXPECT_EQ(none.size(), 0U);
}

TEST(ConvPlans, AreFoundByEverythingThatAConvolutionIs) {
  const ConvPlans plans = two_plans();
  ASSERT_NE(plans.find(kForward), nullptr);
  EXPECT_EQ(*plans.find(kForward), (PlanChoice{"eng31_k2=4_k14=1", 4096}));
  for (std::size_t ConvShape::*extent :
       {&ConvShape::rows, &ConvShape::channels_in, &ConvShape::channels_out, &ConvShape::size_in, &ConvShape::kernel,
        &ConvShape::stride, &ConvShape::padding}) {
    PlanKey other = kForward;
    ++(other.shape.*extent);
    EXPECT_EQ(plans.find(other), nullptr);
  }
  EXPECT_EQ(plans.find({ConvPass::kBackwardInput, CudaMath::kBfloat16, kShape}), nullptr);
  EXPECT_EQ(plans.find({ConvPass::kForward, CudaMath::kTf32, kShape}), nullptr);
}

TEST(ConvPlans, FillGapsAndKeepWhatTheyHave) {
  ConvPlans mine(kPlace);
  mine.set(kForward, {"eng1", 0});
  EXPECT_EQ(count_differences(mine, two_plans()), 1U);
  mine.fill_from(two_plans());
  EXPECT_EQ(mine.find(kForward)->name, "eng1");
  EXPECT_EQ(mine.find(kBackward)->name, "eng0");
  EXPECT_EQ(count_differences(mine, two_plans()), 1U);
  EXPECT_EQ(count_differences(two_plans(), two_plans()), 0U);
}

TEST(ConvPlans, SayWhatIsWrongInWhichLine) {
  for (std::size_t length = 0; length < kText.size(); ++length) {
    EXPECT_THAT(complaint_about(kText.substr(0, length)), HasSubstr("expected")) << length;
  }
  const std::string other_plan = with("plan=eng31_k2=4_k14=1", "plan=eng2", kForwardLine);
  for (const auto& [text, words] : std::initializer_list<std::pair<std::string, const char*>>{
           {with("plans 1", "plans 2"), "line 1: expected 'syncrun-resnet plans 1', found 'syncrun-resnet plans 2'"},
           {"\x7f\x45\n", "line 1: expected 'syncrun-resnet plans 1', found '?E'"},
           {kHead + kForwardLine + kForwardLine + "end\n", "line 7: expected each convolution once"},
           {kHead + kForwardLine + other_plan + "end\n", "line 7: expected each convolution once"},
           {with("gpu NVIDIA H200", "gpu "), "line 2: expected the name of a GPU, found 'gpu '"},
           {with("gpu", "GPU"), "line 2: expected 'gpu ...'"},
           {with("132", "-1"), "line 3: expected a whole number up to 1000000"},
           {with("9.19.0", "9 19"), "line 4: expected a version of cuDNN"},
           {with("convolution", "pooling"), "line 6: expected a line that begins with"},
           {with("forward", "sideways"), "expected one of 'forward', 'backward-input', 'backward-filter' as 'pass'"},
           {with("nhwc", "nchw"), "line 6: expected 'layout=nhwc'"},
           {with("epilogue=none", "epilogue=relu"), "line 6: expected 'epilogue=none'"},
           {with("rows=256 ", ""), "line 6: expected 'rows='"},
           {with("in=64", "in=064"), "as 'in'"},
           {with("size=56", "size=99999999999999999999"), "as 'size'"},
           {with("plan=eng0", "plan=a;b"), "line 7: expected the name of a plan"},
           {with("workspace=4096", "workspace=268435457"), "a whole number up to 268435456 as 'workspace'"},
           {with("workspace=4096", "workspace=4096 "), "nothing after 'workspace='"},
           {kText + "end\n", "expected nothing after 'end'"}}) {
    EXPECT_THAT(complaint_about(text), HasSubstr(words));
  }
}

TEST(ConvPlans, TakeNoNameThatCouldNotBeRead) {
  ConvPlans plans(kPlace);
  for (const std::string& name : {std::string(), std::string("a b"), std::string("a\nb"), std::string(501, 'x')}) {
    EXPECT_FALSE(is_plan_name(name));
    EXPECT_THROW(plans.set(kForward, {name, 0}), PlansError);
  }
  EXPECT_EQ(plans.size(), 0U);
  plans.set(kForward, {std::string(500, 'x'), kMostWorkspaceBytes});
  EXPECT_EQ(ConvPlans::parse(plans.text()), plans);
}

}  // namespace
}  // namespace resnet
