#include "demos/common/network.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/demos/allocations.hpp"
#include "tests/demos/gradient_check.hpp"

namespace demos {
namespace {

using testing::allocations_so_far;
using testing::expect_gradient;
using testing::noise;

constexpr std::size_t kClasses = 4;
constexpr StepKey kKey{.seed = 11, .step = 5};

/// Some rows of a data set. Their ids are spread over it.
struct Batch {
  std::vector<double> images;
  std::vector<std::uint8_t> labels;
  std::vector<std::int64_t> row_ids;
};

Batch make_batch(std::size_t rows, std::size_t pixels) {
  Batch batch{noise(rows * pixels, 21), std::vector<std::uint8_t>(rows), std::vector<std::int64_t>(rows)};
  for (std::size_t i = 0; i < rows; ++i) {
    batch.labels[i] = static_cast<std::uint8_t>(i * 7 % kClasses);
    batch.row_ids[i] = static_cast<std::int64_t>(i * 31 + 3);
  }
  return batch;
}

Batch rows_of(const Batch& batch, std::size_t first, std::size_t count) {
  const std::size_t pixels = batch.images.size() / batch.labels.size();
  const auto part = [](const auto& values, std::size_t begin, std::size_t size) {
    const auto from = values.begin() + static_cast<std::ptrdiff_t>(begin);
    return std::decay_t<decltype(values)>(from, from + static_cast<std::ptrdiff_t>(size));
  };
  return {part(batch.images, first * pixels, count * pixels), part(batch.labels, first, count),
          part(batch.row_ids, first, count)};
}

struct NetworkCase {
  std::string model;
  std::size_t height;
  std::size_t width;
};

class EveryNetwork : public ::testing::TestWithParam<NetworkCase> {
 protected:
  Network<double> network_{parse_model(GetParam().model), GetParam().height, GetParam().width, kClasses};
  std::vector<double> params_ = initial_params();
  std::vector<double> gradient_ = std::vector<double>(params_.size(), 99);

  std::vector<double> initial_params() const {
    std::vector<double> params(network_.parameter_count());
    network_.initialize(params, 3);
    // Moves the biases, which start at zero, so that no rectifier is at the point where it has no derivative.
    const std::vector<double> moved = noise(params.size(), 5);
    for (std::size_t i = 0; i < params.size(); ++i) params[i] += 0.05 * moved[i];
    return params;
  }

  Outcome loss_and_gradient(const Batch& batch) {
    return network_.loss_and_gradient(params_, batch.images, batch.labels, batch.row_ids, kKey, gradient_);
  }
};

TEST_P(EveryNetwork, GradientMatchesFiniteDifferences) {
  const Batch batch = make_batch(5, network_.image_elements());
  loss_and_gradient(batch);
  const std::vector<double> gradient = gradient_;
  const std::size_t stride = params_.size() / 500 + 1;
  expect_gradient(
      params_, gradient, [&] { return loss_and_gradient(batch).mean_loss; }, stride);
}

TEST_P(EveryNetwork, StepAllocatesNothingOnceWarm) {
  const Batch batch = make_batch(8, network_.image_elements());
  const Batch smaller = rows_of(batch, 2, 5);
  loss_and_gradient(batch);
  network_.evaluate(params_, batch.images, batch.labels);
  const std::size_t before = allocations_so_far();
  loss_and_gradient(smaller);
  loss_and_gradient(batch);
  network_.evaluate(params_, smaller.images, smaller.labels);
  EXPECT_EQ(allocations_so_far(), before);
}

TEST_P(EveryNetwork, EvaluatesManyRowsLikeOneAtATime) {
  const Batch batch = make_batch(600, network_.image_elements());  // more rows than the network computes at a time
  const Outcome whole = network_.evaluate(params_, batch.images, batch.labels);
  double loss = 0;
  std::int64_t correct = 0;
  for (std::size_t i = 0; i < 600; ++i) {
    const Batch row = rows_of(batch, i, 1);
    const Outcome outcome = network_.evaluate(params_, row.images, row.labels);
    loss += outcome.mean_loss / 600;
    correct += outcome.correct;
  }
  EXPECT_NEAR(whole.mean_loss, loss, 1e-12);
  EXPECT_EQ(whole.correct, correct);
}

INSTANTIATE_TEST_SUITE_P(Models, EveryNetwork,
                         ::testing::Values(NetworkCase{"custom_mlp:2,12,0.2,0.5", 4, 3}, NetworkCase{"mlp", 8, 8},
                                           NetworkCase{"cnn", 8, 8}, NetworkCase{"cnn", 5, 7}),
                         [](const auto& tested) {
                           std::string name = tested.param.model + "_on_" + std::to_string(tested.param.height) + "x" +
                                              std::to_string(tested.param.width);
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

TEST(NetworkInitialization, IsGlorotUniformFromTheSeedAlone) {
  const Network<double> network(parse_model("mlp"), 8, 8, 10);
  std::vector<double> params(network.parameter_count(), 99);
  network.initialize(params, 1);
  const double limit = std::sqrt(6.0 / (64 + 800));
  const auto weights_end = params.begin() + 64 * 800;
  const auto [smallest, largest] = std::minmax_element(params.begin(), weights_end);
  EXPECT_GT(*smallest, -limit);
  EXPECT_LT(*smallest, -0.99 * limit);
  EXPECT_LT(*largest, limit);
  EXPECT_GT(*largest, 0.99 * limit);
  EXPECT_NEAR(std::accumulate(params.begin(), weights_end, 0.0) / (64 * 800), 0, limit / 100);
  EXPECT_TRUE(std::all_of(weights_end, weights_end + 800, [](double bias) { return bias == 0; }));

  std::vector<double> again(params.size()), other(params.size());
  network.initialize(again, 1);
  network.initialize(other, 2);
  EXPECT_EQ(again, params);
  EXPECT_NE(other, params);
}

}  // namespace
}  // namespace demos
