#include "demos/resnet/network/cpu/cpu_network.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "demos/resnet/network/cpu/cpu_head.hpp"
#include "tests/demos/resnet/reference.hpp"

namespace resnet {
namespace {

using testing::Reference;

#ifndef DEMOS_HAVE_DNNL

TEST(CpuNetworkWithoutOneDnn, SaysWhatToInstall) {
  try {
    CpuNetwork network(plan({.depth = 18}));
    FAIL() << "made without oneDNN";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("libdnnl-dev"), std::string::npos) << error.what();
  }
}

TEST(CpuNetwork, ComputesWhatTorchvisionDoes) { GTEST_SKIP() << "this build has no oneDNN"; }

#else

const SumOverRanks kAlone;

struct Batch {
  std::vector<float> images;
  std::vector<std::int64_t> labels;

  Batch part(std::size_t first, std::size_t count) const {
    const std::size_t elements = images.size() / labels.size();
    const auto image = images.begin() + static_cast<std::ptrdiff_t>(first * elements);
    const auto label = labels.begin() + static_cast<std::ptrdiff_t>(first);
    return {{image, image + static_cast<std::ptrdiff_t>(count * elements)},
            {label, label + static_cast<std::ptrdiff_t>(count)}};
  }
};

Batch batch_of(const Architecture& architecture, std::size_t rows) {
  return {testing::reference_images(architecture, rows), testing::reference_labels(architecture, rows)};
}

/// A network with the initial parameters and statistics of the references.
struct Trained {
  explicit Trained(const Architecture& described)
      : architecture(described),
        network(described),
        params(testing::reference_params(described)),
        statistics(testing::reference_statistics(described)),
        gradient(described.parameter_count, 99) {}

  Outcome step(const Batch& batch, const SumOverRanks& sum = kAlone) {
    return network.loss_and_gradient(params, statistics, batch.images, batch.labels,
                                     {.label_smoothing = testing::kReferenceSmoothing}, sum, gradient);
  }

  Architecture architecture;
  CpuNetwork network;
  std::vector<float> params;
  std::vector<float> statistics;
  std::vector<float> gradient;
};

/// ResnetParity compares the logits, the running statistics and ten steps with the same references.
class CpuNetworkLikeTorchvision : public ::testing::TestWithParam<const char*> {
 protected:
  Reference reference_{GetParam()};
  Trained trained_{reference_.architecture};
  Batch batch_ = batch_of(reference_.architecture, reference_.rows);
};

TEST_P(CpuNetworkLikeTorchvision, GivesItsLossAndGradient) {
  const Outcome outcome = trained_.step(batch_);
  EXPECT_NEAR(outcome.mean_loss, reference_.losses[0], 1e-4);
  EXPECT_EQ(outcome.correct, smoothed_cross_entropy(batch_.labels, reference_.architecture.spec.classes, 0,
                                                    reference_.training_logits.data(), nullptr)
                                 .correct);
  testing::expect_reference_gradient(reference_, trained_.gradient, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Depths, CpuNetworkLikeTorchvision, ::testing::Values("resnet18", "resnet50"),
                         [](const auto& tested) { return std::string(tested.param); });

class CpuNetworkOfEverySpec : public ::testing::TestWithParam<ArchitectureSpec> {};

TEST_P(CpuNetworkOfEverySpec, HasTheLosssSlopeForAGradient) {
  Trained trained(plan(GetParam()));
  const Batch batch = batch_of(trained.architecture, 6);
  const std::vector<float> statistics = trained.statistics;
  trained.step(batch);
  const std::vector<float> params = trained.params;
  const std::vector<float> gradient = trained.gradient;
  const double square = std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0);
  constexpr double kRise = 2e-3;
  const auto loss_at = [&](double along) {
    for (std::size_t i = 0; i < params.size(); ++i) {
      trained.params[i] = params[i] + static_cast<float>(along) * gradient[i];
    }
    trained.statistics = statistics;
    return trained.step(batch).mean_loss;
  };
  const double rise = (loss_at(kRise / square) - loss_at(-kRise / square)) / 2;
  EXPECT_NEAR(rise, kRise, 0.02 * kRise);
}

INSTANTIATE_TEST_SUITE_P(Specs, CpuNetworkOfEverySpec,
                         ::testing::Values(ArchitectureSpec{.depth = 18, .image_size = 65, .classes = 11, .width = 24},
                                           ArchitectureSpec{.depth = 101, .image_size = 64, .classes = 4, .width = 8}),
                         [](const auto& tested) { return "ResNet" + std::to_string(tested.param.depth); });

TEST(CpuNetworkSteps, GoOnWithMoreRowCountsThanAreKeptPrepared) {
  Trained trained(plan({.depth = 18, .image_size = 32, .classes = 4, .width = 8}));
  const Batch batch = batch_of(trained.architecture, 12);
  const std::vector<float> statistics = trained.statistics;
  const double loss = trained.step(batch).mean_loss;
  for (std::size_t rows = 1; rows < 12; ++rows) trained.step(batch.part(0, rows));
  trained.statistics = statistics;
  EXPECT_EQ(trained.step(batch).mean_loss, loss);
}

TEST(CpuNetworkEvaluation, OfManyRowsIsThatOfEachAlone) {
  constexpr std::size_t kRows = 70;  // more rows than the network computes at a time
  Trained trained(plan({.depth = 18, .image_size = 32, .classes = 5, .width = 8}));
  const Batch batch = batch_of(trained.architecture, kRows);
  const Outcome whole = trained.network.evaluate(trained.params, trained.statistics, batch.images, batch.labels);
  double loss = 0;
  std::int64_t correct = 0;
  for (std::size_t row = 0; row < kRows; ++row) {
    const Batch one = batch.part(row, 1);
    const Outcome outcome = trained.network.evaluate(trained.params, trained.statistics, one.images, one.labels);
    loss += outcome.mean_loss / kRows;
    correct += outcome.correct;
  }
  EXPECT_NEAR(whole.mean_loss, loss, 1e-5);
  EXPECT_EQ(whole.correct, correct);
}

TEST(CpuNetworkOfOneRow, WhoseChannelsEndInOneValueStaysFinite) {
  Trained trained(plan({.depth = 18, .image_size = 32, .classes = 4, .width = 8}));
  ASSERT_EQ(trained.architecture.final_size(), 1);
  EXPECT_TRUE(std::isfinite(trained.step(batch_of(trained.architecture, 1)).mean_loss));
  for (const float value : trained.gradient) ASSERT_TRUE(std::isfinite(value));
  for (const float value : trained.statistics) ASSERT_TRUE(std::isfinite(value));
}

TEST(CpuNetworkOfWhatIsNoNumber, SaysSoInItsLoss) {
  Trained trained(plan({.depth = 18, .image_size = 32, .classes = 4, .width = 8}));
  Batch batch = batch_of(trained.architecture, 4);
  batch.images[5] = std::nanf("");
  EXPECT_TRUE(std::isnan(trained.step(batch).mean_loss));
}

TEST(CpuNetworkArguments, ThatDoNotFitAreRefusedBeforeAnythingIsComputed) {
  Trained trained(plan({.depth = 18, .image_size = 32, .classes = 4, .width = 8}));
  const Batch batch = batch_of(trained.architecture, 2);
  const std::vector<float> statistics = trained.statistics;
  const auto refuses = [&](const auto& change) {
    Batch changed = batch;
    Trained other(trained.architecture);
    LossOptions options;
    change(changed, other, options);
    EXPECT_THROW(other.network.loss_and_gradient(other.params, other.statistics, changed.images, changed.labels,
                                                 options, kAlone, other.gradient),
                 std::invalid_argument);
    EXPECT_TRUE(std::equal(other.statistics.begin(), other.statistics.end(), statistics.begin()));
    EXPECT_EQ(other.gradient, std::vector<float>(other.gradient.size(), 99));
  };
  refuses([](Batch& changed, Trained&, LossOptions&) { changed.images.pop_back(); });
  refuses([](Batch& changed, Trained&, LossOptions&) { changed.labels.pop_back(); });
  refuses([](Batch& changed, Trained&, LossOptions&) { changed.labels[1] = 4; });
  refuses([](Batch& changed, Trained&, LossOptions&) { changed.labels[0] = -1; });
  refuses([](Batch&, Trained& other, LossOptions&) { other.params.pop_back(); });
  refuses([](Batch&, Trained& other, LossOptions&) { other.statistics.pop_back(); });
  refuses([](Batch&, Trained& other, LossOptions&) { other.gradient.pop_back(); });
  refuses([](Batch&, Trained&, LossOptions& options) { options.label_smoothing = 1.5; });
  refuses([](Batch&, Trained&, LossOptions& options) { options.label_smoothing = std::nan(""); });

  const std::vector<std::int64_t> beyond{0, 4};
  const std::span<const float> short_params = std::span(trained.params).first(7);
  EXPECT_THROW(trained.network.evaluate(trained.params, statistics, batch.images, beyond), std::invalid_argument);
  EXPECT_THROW(trained.network.logits(short_params, statistics, batch.images), std::invalid_argument);
  EXPECT_THROW(trained.network.logits(trained.params, std::span(statistics).first(7), batch.images),
               std::invalid_argument);
}

#endif

}  // namespace
}  // namespace resnet
