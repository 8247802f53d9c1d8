// Averages of parameters on the devices, against those of Python's torch.optim.swa_utils (tests/support/torch_optim.py).

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "tests/support/on_workers.hpp"
#include "tests/support/torch_optim_cases.hpp"

namespace {

using Form = sr::AverageOptions::Form;

class AveragedWeights : public OnWorkers {};
INSTANTIATE_ON_WORKERS(AveragedWeights, 1, 3);

/// Trains with two averages. Halfway, each goes on from its values and its number of updates in another object.
template <class T>
void expect_averages(sr::Session& session, double tolerance) {
  const auto weights = torch_optim::starting_weights<T>(session);
  const sr::AverageOptions of_ema{.decay = 0.9, .name = "ema"};
  auto ema = sr::averaged_weights(session, weights, of_ema);
  auto swa = sr::averaged_weights(session, weights, {.form = Form::equal});
  EXPECT_EQ(swa.values().name(), weights.name() + ".average");
  auto step = sr::train_step<sr::Adam>(
      session, torch_optim::gradient_in_double<T>, weights,
      {.groups = torch_optim::groups_with({.beta1 = 0.8, .beta2 = 0.95}), .clip_norm = torch_optim::kClipNorm});
  const sr::Adam adam{.learning_rate = 0.02, .weight_decay = 0.01};
  torch_optim::train<T>(session, adam, step, [&] {
    ema.update();
    auto taken = swa.async();
    if (ema.updates() == torch_optim::kSteps / 2) {
      auto resumed = sr::averaged_weights(session, weights, {.decay = 0.9});
      resumed.values().broadcast(ema.values().get(0));
      resumed.set_updates(ema.updates());
      ema = std::move(resumed);
    }
    taken.get();
  });
  torch_optim::expect_near(session, weights, torch_optim::kAdam, tolerance);
  torch_optim::expect_near(session, ema.values(), torch_optim::kAdamEma, tolerance);
  torch_optim::expect_near(session, swa.values(), torch_optim::kAdamSwa, tolerance);
}

TEST_P(AveragedWeights, AreThoseOfTorchIn64Bits) { expect_averages<double>(session(), 1e-12); }
TEST_P(AveragedWeights, AreThoseOfTorchIn32Bits) { expect_averages<float>(session(), 1e-6); }

// A decay that float cannot represent exactly must not pull the average away from parameters that stay the same.
TEST_P(AveragedWeights, OfConstantParametersAreTheParameters) {
  auto weights = session().shared<float, 1>();
  auto average = [&] {
    weights.broadcast(std::vector<float>{0.1F, -3, 1e20F, 0});
    return sr::averaged_weights(session(), weights, {.decay = 0.9999});
  }();
  for (int i = 0; i < 1000; ++i) average.update();
  for (int rank = 0; rank < world_size(); ++rank)
    EXPECT_EQ(average.values().get(rank).to_vector(), (std::vector<float>{0.1F, -3, 1e20F, 0}));
}

// An update that fails with the step before it moves nothing. If it counted, the next one would not copy the parameters.
TEST_P(AveragedWeights, DoNotCountUpdatesThatFail) {
  auto weights = session().shared<double, 1>("weights");
  weights.broadcast(std::vector<double>{8});
  auto step = sr::train_step<sr::Sgd>(
      session(),
      +[](sr::Scattered<const double, 1> x, sr::Local<double, 1>, sr::Local<double, 1> gradient) {
        if (x[0] < 0) throw std::runtime_error("a negative row");
        gradient[0] = 1;
      },
      weights);
  const auto good = session().data(std::vector<double>(6, 1));
  const auto bad = session().data(std::vector<double>(6, -1));
  auto average = sr::averaged_weights(session(), weights, {.form = Form::equal});
  for (const double expected : {7.0, 6.5}) {  // the means of 7, and of 7 and 6
    auto failed = step.async(bad, {.learning_rate = 1});
    auto first = average.async();
    auto second = average.async();
    EXPECT_ERROR(failed.get(), sr::ErrorKind::function, "a negative row");
    EXPECT_ERROR(second.get(), sr::ErrorKind::function, "a negative row");
    EXPECT_ERROR(first.get(), sr::ErrorKind::function, "a negative row");
    step(good, {.learning_rate = 1});
    average.update();
    EXPECT_EQ(average.values().get(world_size() - 1)[0], expected);
  }
  EXPECT_EQ(average.updates(), 2);
  // A number that the program sets is not changed by updates that were in flight.
  auto failed = step.async(bad, {.learning_rate = 1});
  auto taken = average.async();
  average.set_updates(5);
  EXPECT_ERROR(taken.get(), sr::ErrorKind::function, "a negative row");
  EXPECT_ERROR(failed.get(), sr::ErrorKind::function, "a negative row");
  EXPECT_EQ(average.updates(), 5);
}

TEST_P(AveragedWeights, RefuseWhatMakesNoSense) {
  auto weights = session().shared<double, 1>("weights");
  EXPECT_ERROR(sr::averaged_weights(session(), weights), sr::ErrorKind::usage, "'weights' has no shape yet");
  weights.broadcast(std::vector<double>(3));
  EXPECT_ERROR(sr::averaged_weights(session(), weights, {.decay = 1}), sr::ErrorKind::usage,
               "decay is from 0 to below 1, got 1");
  auto average = sr::averaged_weights(session(), weights);
  EXPECT_ERROR(average.set_updates(-1), sr::ErrorKind::usage, "updates is at least 0, got -1");
  weights.broadcast(std::vector<double>(4));
  EXPECT_ERROR(average.update(), sr::ErrorKind::function, "the parameters have 4 elements, but the average has 3");
  EXPECT_EQ(average.updates(), 0);
}

}  // namespace
