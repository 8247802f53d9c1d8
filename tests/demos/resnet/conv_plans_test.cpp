#include "demos/resnet/network/conv_plans.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

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

TEST(ConvPlans, AreWrittenOneToALineAndSorted) { EXPECT_EQ(two_plans().text(), kText); }

TEST(ConvPlans, AreReadAsTheyWereWritten) {
  EXPECT_EQ(ConvPlans::parse(kText), two_plans());
  EXPECT_EQ(ConvPlans::parse(kText).text(), kText);
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

TEST(ConvPlans, ThatAreTruncatedAnywhereAreRefused) {
  for (std::size_t length = 0; length < kText.size(); ++length) {
    EXPECT_THAT(complaint_about(kText.substr(0, length)), HasSubstr("expected")) << length;
  }
}

TEST(ConvPlans, OfAnotherVersionOfTheFormatAreRefusedWithBoth) {
  EXPECT_EQ(complaint_about(with("plans 1", "plans 2")),
            "line 1: expected 'syncrun-resnet plans 1', found 'syncrun-resnet plans 2'");
  EXPECT_EQ(complaint_about("\x7f\x45\n"), "line 1: expected 'syncrun-resnet plans 1', found '?E'");
}

TEST(ConvPlans, HaveEachConvolutionOnce) {
  EXPECT_THAT(complaint_about(kHead + kForwardLine + kForwardLine + "end\n"),
              HasSubstr("line 7: expected each convolution once"));
  const std::string other_plan = with("plan=eng31_k2=4_k14=1", "plan=eng2", kForwardLine);
  EXPECT_THAT(complaint_about(kHead + kForwardLine + other_plan + "end\n"),
              HasSubstr("line 7: expected each convolution once"));
}

TEST(ConvPlans, SayWhatIsWrongInWhichLine) {
  EXPECT_THAT(complaint_about(with("gpu NVIDIA H200", "gpu ")),
              HasSubstr("line 2: expected the name of a GPU, found 'gpu '"));
  EXPECT_THAT(complaint_about(with("gpu", "GPU")), HasSubstr("line 2: expected 'gpu ...'"));
  EXPECT_THAT(complaint_about(with("132", "-1")), HasSubstr("line 3: expected a whole number up to 1000000"));
  EXPECT_THAT(complaint_about(with("9.19.0", "9 19")), HasSubstr("line 4: expected a version of cuDNN"));
  EXPECT_THAT(complaint_about(with("convolution", "pooling")), HasSubstr("line 6: expected a line that begins with"));
  EXPECT_THAT(complaint_about(with("forward", "sideways")),
              HasSubstr("line 6: expected one of 'forward', 'backward-input', 'backward-filter' as 'pass'"));
  EXPECT_THAT(complaint_about(with("bfloat16", "float8")), HasSubstr("line 6: expected one of"));
  EXPECT_THAT(complaint_about(with("nhwc", "nchw")), HasSubstr("line 6: expected 'layout=nhwc'"));
  EXPECT_THAT(complaint_about(with("epilogue=none", "epilogue=relu")), HasSubstr("line 6: expected 'epilogue=none'"));
  EXPECT_THAT(complaint_about(with("rows=256 ", "")), HasSubstr("line 6: expected 'rows='"));
  EXPECT_THAT(complaint_about(with("in=64", "in=064")), HasSubstr("as 'in'"));
  EXPECT_THAT(complaint_about(with("size=56", "size=99999999999999999999")), HasSubstr("as 'size'"));
  EXPECT_THAT(complaint_about(with("plan=eng0", "plan=")), HasSubstr("line 7: expected the name of a plan"));
  EXPECT_THAT(complaint_about(with("plan=eng0", "plan=a;b")), HasSubstr("line 7: expected the name of a plan"));
  EXPECT_THAT(complaint_about(with("workspace=4096", "workspace=268435457")),
              HasSubstr("line 6: expected a whole number up to 268435456 as 'workspace'"));
  EXPECT_THAT(complaint_about(with("workspace=4096", "workspace=4096 more=1")),
              HasSubstr("nothing after 'workspace='"));
  EXPECT_THAT(complaint_about(with("workspace=4096", "workspace=4096 ")), HasSubstr("nothing after 'workspace='"));
  EXPECT_THAT(complaint_about(kText + "end\n"), HasSubstr("expected nothing after 'end'"));
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

TEST(ConvPlans, SayWhatTheyAreFor) {
  EXPECT_EQ(describe(kPlace), "NVIDIA H200 (132 multiprocessors), cuDNN 9.19.0, cudnn-frontend 1.32.0");
}

}  // namespace
}  // namespace resnet
