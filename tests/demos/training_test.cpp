#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "demos/common/idx.hpp"
#include "demos/common/nesterov.hpp"
#include "demos/common/network.hpp"

namespace demos {
namespace {

constexpr std::size_t kPixels = 64;

struct Dataset {
  std::vector<float> images;
  std::vector<std::uint8_t> labels;
};

Dataset scaled(const LabeledImages& data, std::uint8_t maximum) {
  Dataset dataset{std::vector<float>(data.images.pixels.size()), data.labels};
  scale_pixels<float>(data.images.pixels, maximum, dataset.images);
  return dataset;
}

Dataset take(const Dataset& data, std::span<const std::int64_t> rows) {
  Dataset batch;
  for (const std::int64_t row : rows) {
    const auto first = data.images.begin() + row * static_cast<std::int64_t>(kPixels);
    batch.images.insert(batch.images.end(), first, first + kPixels);
    batch.labels.push_back(data.labels[static_cast<std::size_t>(row)]);
  }
  return batch;
}

/// Trains serially with momentum 0.9 on shuffled batches of 100.
std::vector<float> train(Network<float>& network, const Dataset& data, int epochs) {
  constexpr std::size_t kBatchRows = 100;
  std::vector<float> params(network.parameter_count()), velocity(params.size()), gradient(params.size());
  network.initialize(params, 1);
  std::vector<std::int64_t> order(data.labels.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(1);
  std::uint32_t step = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t first = 0; first < order.size(); first += kBatchRows) {
      const auto rows = std::span(order).subspan(first, std::min(kBatchRows, order.size() - first));
      const Dataset batch = take(data, rows);
      network.loss_and_gradient(params, batch.images, batch.labels, rows, {.seed = 1, .step = step++}, gradient);
      nesterov_update<float>(params, velocity, gradient, 0.1F, 0.9F);
    }
  }
  return params;
}

class Training : public ::testing::Test {
 protected:
  const LabeledImages train_files_ = load_split(DEMOS_DIGITS_DIRECTORY, Split::kTrain);
  const std::uint8_t maximum_ = maximum_pixel(train_files_.images.pixels);
  const Dataset train_ = scaled(train_files_, maximum_);
  const Dataset test_ = scaled(load_split(DEMOS_DIGITS_DIRECTORY, Split::kTest), maximum_);

  double test_accuracy_after(const char* model, int epochs) const {
    Network<float> network(parse_model(model), 8, 8, 10);
    const std::vector<float> params = train(network, train_, epochs);
    const Outcome outcome = network.evaluate(params, test_.images, test_.labels);
    return static_cast<double>(outcome.correct) / static_cast<double>(test_.labels.size());
  }
};

TEST_F(Training, TheDigitsAreThere) {
  EXPECT_EQ(train_.labels.size(), 1437U);
  EXPECT_EQ(test_.labels.size(), 360U);
  EXPECT_EQ(maximum_, 16);
}

TEST_F(Training, OfTheMlpReaches95PercentOfTheDigitsInAFewEpochs) { EXPECT_GT(test_accuracy_after("mlp", 8), 0.95); }

TEST_F(Training, OfTheCnnReaches95PercentOfTheDigitsInAFewEpochs) { EXPECT_GT(test_accuracy_after("cnn", 8), 0.95); }

TEST_F(Training, WithDropoutReaches90PercentOfTheDigitsInAFewEpochs) {
  EXPECT_GT(test_accuracy_after("custom_mlp:2,200,0.2,0.5", 10), 0.90);
}

}  // namespace
}  // namespace demos
