#include "demos/common/model.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace demos {
namespace {

std::string complaint_about(const std::string& text) {
  try {
    parse_model(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Model, HasTheLayersThatItsNameSays) {
  EXPECT_EQ(plan_layers(parse_model("mlp"), 28, 28, 10).parameter_count,
            784U * 800 + 800 + 800 * 800 + 800 + 800 * 10 + 10);
  const ModelSpec custom = parse_model("custom_mlp:3,100,0.2,0.5");
  EXPECT_EQ(custom.width, 100U);
  EXPECT_EQ(custom.drop_input, 0.2);
  EXPECT_EQ(custom.drop_hidden, 0.5);
  EXPECT_EQ(plan_layers(custom, 8, 8, 10).layers.size(), 4U + 4U) << "four dense layers, four of dropout";
  const std::size_t convolutions = 9 * 32 + 32 + 9 * 32 * 64 + 64;
  for (const auto& [size, pooled] : {std::pair{28U, 49U}, std::pair{8U, 4U}}) {
    EXPECT_EQ(plan_layers(parse_model("cnn"), size, size, 10).parameter_count,
              convolutions + pooled * 64 * 128 + 128 + 1280 + 10);
  }
}

TEST(Model, ErrorsSayWhatWasExpectedAndGot) {
  EXPECT_EQ(complaint_about("custom_mlp:0,800,0,0"),
            "model 'custom_mlp:0,800,0,0': expected DEPTH to be a whole number from 1 to 64, got '0'");
  EXPECT_EQ(complaint_about("custom_mlp:2,8x,0,0"),
            "model 'custom_mlp:2,8x,0,0': expected WIDTH to be a whole number from 1 to 65536, got '8x'");
  EXPECT_EQ(complaint_about("custom_mlp:2,8,1,0"),
            "model 'custom_mlp:2,8,1,0': expected DROP_IN to be a probability from 0 to below 1, got '1'");
  EXPECT_EQ(complaint_about("custom_mlp:2,8,0,nan"),
            "model 'custom_mlp:2,8,0,nan': expected DROP_HID to be a probability from 0 to below 1, got 'nan'");
  EXPECT_THROW(plan_layers({}, 0, 8, 10), std::invalid_argument);
  EXPECT_THROW(plan_layers({}, 8, 1000000, 10), std::invalid_argument);
  EXPECT_THROW(plan_layers({}, 8, 8, 257), std::invalid_argument);
  EXPECT_THROW(plan_layers({.hidden_layers = 0}, 8, 8, 10), std::invalid_argument);
  EXPECT_THROW(plan_layers({.drop_hidden = 1}, 8, 8, 10), std::invalid_argument);
}

}  // namespace
}  // namespace demos
