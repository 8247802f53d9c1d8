// Train steps, replicated and sharded, for several numbers of workers and slices, with groups of parameters and with a
// clipped gradient. The tests compare with the same steps computed here, serially and over all rows at once.

#include <cmath>
#include <limits>

#include "tests/api/train_steps.hpp"
#include "tests/support/least_squares.hpp"
#include "tests/support/on_workers.hpp"

namespace {

using least_squares::as;
using least_squares::loss_and_gradient;
using least_squares::problem;
using least_squares::Serial;

class TrainStep : public OnWorkers {};
INSTANTIATE_ON_WORKERS(TrainStep, 1, 3);

TEST_P(TrainStep, IsTheSameForAnyNumberOfWorkersAndSlices) {
  for (const sr::StepForm form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    for (const std::int64_t columns : {1, 3, 17, 800}) {  // fewer parameters than ranks, or more
      follow_serial_steps<double>(session(), loss_and_gradient<double>, {.form = form}, columns, 1e-12);
      follow_serial_steps<float>(session(), loss_and_gradient<float>, {.form = form}, columns, 1e-5);
    }
  }
}

/// Checks that both forms agree after ten steps.
template <class Rule>
void expect_forms_agree(sr::Session& session) {
  const Serial serial = problem(30, 13, 11);
  const auto x = session.data(serial.x, sr::Shape{30, 13});
  const auto y = session.data(serial.y);
  const auto whole = weights_of<double>(session, serial);
  const auto shared_out = weights_of<double>(session, serial);
  auto replicated = sr::train_step<Rule>(session, loss_and_gradient<double>, whole);
  auto sharded = sr::train_step<Rule>(session, loss_and_gradient<double>, shared_out, {.form = sr::StepForm::sharded});
  for (int i = 0; i < 10; ++i) {
    const sr::CallOptions options{.slices = 1 + i % 3};
    EXPECT_DOUBLE_EQ(replicated(x, y, {}, options), sharded(x, y, {}, options));
  }
  const auto expected = whole.get(0).to_vector();
  expect_equal_on_all_ranks(session, shared_out, {expected.begin(), expected.end()}, 1e-12);
  const auto gathered = sharded.state()[0].gather().to_vector();
  const auto all = replicated.state()[0].get(0).to_vector();
  ASSERT_EQ(gathered.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(gathered[i], all[i], 1e-12);
}

// torch_optim_test.cpp has the other rules.
TEST_P(TrainStep, ShardsTheState) {
  expect_forms_agree<sr::Momentum>(session());
  expect_forms_agree<sr::Nesterov>(session());
}

TEST_P(TrainStep, ShardsHoldTheirShareOnly) {
  Serial serial = problem(9, 10, 1);
  const auto weights = weights_of<float>(session(), serial, "weights");
  const auto step =
      sr::train_step<sr::Adam>(session(), loss_and_gradient<float>, weights, {.form = sr::StepForm::sharded});
  std::int64_t all = 0;
  for (int rank = 0; rank < world_size(); ++rank) {
    const std::int64_t own = step.state()[0].shape(rank)[0];
    EXPECT_LE(std::abs(own - 10 / world_size()), 1);
    all += own;
  }
  EXPECT_EQ(all, 10);
  EXPECT_EQ(step.state()[1].name(), "weights.v");
  EXPECT_EQ(step.gradient().name(), "weights.gradient");
  const auto second = sr::train_step<sr::Adam>(session(), loss_and_gradient<float>, weights);
  EXPECT_EQ(second.gradient().name(), "weights.gradient#2");
}

TEST_P(TrainStep, GivesTheSameBitsInEveryRun) {
  const Serial serial = problem(37, 300, 2);
  const auto x = session().data(as<float>(serial.x), sr::Shape{37, 300});
  const auto y = session().data(as<float>(serial.y));
  const auto run = [&](sr::StepForm form) {
    const auto weights = weights_of<float>(session(), serial);
    auto step = sr::train_step<sr::Adam>(session(), loss_and_gradient<float>, weights, {.form = form});
    for (int i = 0; i < 5; ++i) step(x, y, {}, {.slices = 3});
    return weights.get(world_size() - 1).to_vector();
  };
  const auto replicated = run(sr::StepForm::replicated);
  EXPECT_EQ(run(sr::StepForm::replicated), replicated);
  EXPECT_EQ(run(sr::StepForm::sharded), run(sr::StepForm::sharded));
}

TEST_P(TrainStep, CanBeInFlightSeveralTimes) {
  Serial serial = problem(20, 6, 5);
  const auto x = session().data(serial.x, sr::Shape{20, 6});
  const auto y = session().data(serial.y);
  const auto weights = weights_of<double>(session(), serial);
  auto step = sr::train_step<sr::Adam>(session(), loss_and_gradient<double>, weights);
  const std::vector<std::int64_t> all = counting<std::int64_t>(20);
  std::vector<sr::Future<sr::Avg<double>>> losses;
  for (int i = 0; i < 5; ++i) losses.push_back(step.async(x, y, {.learning_rate = 0.1}, {.slices = 2}));
  for (auto& loss : losses) EXPECT_NEAR(loss.get(), serial.take(all, {.learning_rate = 0.1}), 1e-10);
  expect_equal_on_all_ranks(session(), weights, serial.params, 1e-12);
}

// A checkpoint of a train step contains parameters, state and the number of steps.
TEST_P(TrainStep, GoesOnFromACheckpoint) {
  for (const sr::StepForm form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    Serial serial = problem(20, 7, 5);
    const auto x = session().data(serial.x, sr::Shape{20, 7});
    const auto y = session().data(serial.y);
    const auto straight = weights_of<double>(session(), serial);
    auto step = sr::train_step<sr::Adam>(session(), loss_and_gradient<double>, straight, {.form = form});
    for (int i = 0; i < 3; ++i) step(x, y, {});
    auto resumed = session().shared<double, 1>("resumed");
    resumed.broadcast(straight.get(0));
    auto other = sr::train_step<sr::Adam>(session(), loss_and_gradient<double>, resumed, {.form = form});
    for (std::size_t i = 0; i < 2; ++i) {
      auto vector = other.state()[i];
      if (form == sr::StepForm::sharded) vector.scatter(step.state()[i].gather());
      else vector.broadcast(step.state()[i].get(0));
    }
    other.set_steps(step.steps());
    step(x, y, {});
    other(x, y, {});
    EXPECT_EQ(resumed.get(0).to_vector(), straight.get(0).to_vector());
  }
}

class Model {
 public:
  explicit Model(double factor) : factor_(factor) {}
  sr::Avg<double> loss_and_gradient(sr::Sliced<const double, 1> x, sr::Local<double, 1> params,
                                    sr::Local<double, 1> gradient) const {
    gradient[0] = factor_ * std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.rows());
    return params[0];
  }

 private:
  double factor_;
};

// The body is a method, and the devices already hold its rows. Every rank has a different number of rows.
TEST_P(TrainStep, IsMadeOfAMethodToo) {
  const auto model = session().replicate<Model>(2.0);
  auto x = session().shared<double, 1>("x");
  double sum = 0;
  std::int64_t rows = 0;
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto own = counting<double>(static_cast<std::size_t>(rank) + 3, rank);
    x.set(rank, own, {own.size()});
    sum += std::accumulate(own.begin(), own.end(), 0.0);
    rows += rank + 3;
  }
  auto weights = session().shared<double, 1>("weights");
  weights.broadcast(std::vector<double>{4});
  auto step = sr::train_step<sr::Sgd>(session(), &Model::loss_and_gradient, model, weights, {.name = "a method"});
  EXPECT_EQ(step.name(), "a method");
  EXPECT_EQ(step(x, {.learning_rate = 1}, {.slices = 2}), 4);
  for (int rank = 0; rank < world_size(); ++rank)
    EXPECT_NEAR(weights.get(rank)[0], 4 - 2 * sum / static_cast<double>(rows), 1e-12);
}

// A body with collectives of its own runs on all ranks. The gradient that it writes on a rank without rows does not
// count.
TEST_P(TrainStep, TakesBodiesWithACommunicator) {
  auto weights = session().shared<double, 1>("weights");
  weights.broadcast(std::vector<double>{0});
  auto step = sr::train_step<sr::Sgd>(
      session(),
      +[](sr::Comm& comm, sr::Scattered<const double, 1> x, sr::Local<double, 1>, sr::Local<double, 1> gradient) {
        const int ranks = comm.all_reduce(1, sr::Reduction::sum);
        gradient[0] = x.rows() == 0 ? std::nan("") : static_cast<double>(ranks);
      },
      weights);
  step(session().data(std::vector<double>{1, 2}), {.learning_rate = 1}, {.slices = 2});
  EXPECT_EQ(weights.get(world_size() - 1)[0], -world_size());
}

TEST_P(TrainStep, OfNoParametersIsNoUpdate) {
  auto weights = session().shared<float, 1>("weights");
  weights.broadcast(std::vector<float>());
  for (const sr::StepForm form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    auto step = sr::train_step<sr::Adam>(session(),
                                         +[](sr::Scattered<const int, 1> x, sr::Local<float, 1>, sr::Local<float, 1>) {
                                           return sr::Sum<std::int64_t>(x.rows());
                                         },
                                         weights, {.form = form});
    EXPECT_EQ(step(session().data(std::vector<int>(9)), {}, {.slices = 2}), 9);
  }
}

TEST_P(TrainStep, AFailedStepChangesNothingAndDoesNotCount) {
  auto weights = session().shared<double, 1>("weights");
  weights.broadcast(std::vector<double>{1});
  auto step = sr::train_step<sr::Adam>(
      session(),
      +[](sr::CpuWorker& worker, sr::Scattered<const double, 1> x, sr::Local<double, 1>,
          sr::Local<double, 1> gradient) {
        gradient[0] = 1;
        if (worker.slice() == 1 && x[0] < 0) throw std::runtime_error("a negative row");
      },
      weights);
  std::vector<double> rows(16, 1);
  step(session().data(rows), {.learning_rate = 0.1});
  const double before = weights.get(0)[0];
  for (auto& row : rows) row = -1;
  EXPECT_ERROR(step(session().data(rows), {.learning_rate = 0.1}, {.slices = 2}), sr::ErrorKind::function,
               "a negative row");
  EXPECT_EQ(step.steps(), 1);
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(weights.get(rank)[0], before);
}

// A step that failed after async() has returned counts. The accumulator must begin at its initial value all the same.
TEST_P(TrainStep, OfAdagradBeginsAtItsAccumulatorAfterAFailedStep) {
  auto weights = session().shared<double, 1>("weights");
  weights.broadcast(std::vector<double>{1});
  auto step = sr::train_step<sr::Adagrad>(
      session(),
      +[](sr::Scattered<const double, 1> x, sr::Local<double, 1>, sr::Local<double, 1> gradient) {
        if (x[0] < 0) throw std::runtime_error("a negative row");
        gradient[0] = 2;
      },
      weights);
  const sr::Adagrad adagrad{.learning_rate = 0.25, .epsilon = 0, .initial_accumulator = 5};
  auto failed = step.async(session().data(std::vector<double>(6, -1)), adagrad);
  EXPECT_ERROR(failed.get(), sr::ErrorKind::function, "a negative row");
  for (const double sum : {5 + 4, 5 + 4 + 4}) {
    step(session().data(std::vector<double>(6, 1)), adagrad);
    EXPECT_EQ(step.state()[0].get(0)[0], sum);
  }
}

using StepRows = sr::Scattered<const double, 1>;
using StepVector = sr::Local<double, 1>;

bool is_last_rank(const sr::CpuWorker& worker) { return worker.rank() == worker.world_size() - 1; }

void throw_before_the_update(sr::CpuWorker& worker, StepRows, StepVector, StepVector gradient) {
  std::fill(gradient.begin(), gradient.end(), 1.0);
  if (is_last_rank(worker)) throw std::runtime_error("before the update");
}
/// The result of the second slice has another length. The worker sees it after the update.
sr::Sum<double, 1> fail_after_the_update(sr::CpuWorker& worker, StepRows, StepVector, StepVector gradient) {
  static const std::vector<double> kResult{1, 2};
  std::fill(gradient.begin(), gradient.end(), 1.0);
  const std::size_t length = is_last_rank(worker) && worker.slice() == 1 ? 1 : 2;
  return {std::span(kResult).first(length), sr::Shape{length}};
}
/// The other ranks may go on to the update, because this collective meets that of the step.
void throw_when_others_have_the_gradient(sr::CpuWorker& worker, sr::Comm& comm, StepRows, StepVector,
                                         StepVector gradient) {
  std::fill(gradient.begin(), gradient.end(), 1.0);
  if (!is_last_rank(worker)) return;
  comm.all_reduce(gradient, sr::Reduction::avg);
  throw std::runtime_error("when others have the gradient");
}

class FailedTrainStep : public OnWorkers {
 protected:
  struct Outcome {
    std::vector<std::string> named;
    bool is_state_changed = false;
  };
  template <class Body>
  Outcome fail(Body body, std::int64_t slices, sr::StepForm form = sr::StepForm::replicated) {
    auto weights = session().shared<double, 1>("weights");
    weights.broadcast(std::vector<double>{1, 2, 3});
    auto step = sr::train_step<sr::Momentum>(session(), body, weights, {.form = form});
    Outcome outcome{{"the step has not failed"}};
    try {
      step(session().data(std::vector<double>(12)), {.learning_rate = 0.1}, {.slices = slices});
    } catch (const sr::Error& error) {
      outcome.named = error.failure().undefined;
    }
    for (int rank = 0; rank < world_size(); ++rank) {
      for (const double each : step.state()[0].get(rank).to_vector())
        outcome.is_state_changed = outcome.is_state_changed || each != 0;
    }
    return outcome;
  }
  const std::vector<std::string> body_writes{"weights", "weights.gradient"};
  const std::vector<std::string> all{"weights", "weights.gradient", "weights.v", "weights.slice_gradient",
                                     "weights.plan"};
};
INSTANTIATE_ON_WORKERS(FailedTrainStep, 1, 3);

TEST_P(FailedTrainStep, DoesNotNameTheStateIfNoRankHasBegunTheUpdate) {
  for (const sr::StepForm form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    for (const std::int64_t slices : {1, 2}) {
      const Outcome outcome = fail(throw_before_the_update, slices, form);
      EXPECT_EQ(outcome.named, body_writes);
      EXPECT_FALSE(outcome.is_state_changed);
    }
  }
}

TEST_P(FailedTrainStep, NamesEverythingIfARankHasUpdated) {
  for (const sr::StepForm form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    const Outcome outcome = fail(fail_after_the_update, 2, form);
    EXPECT_EQ(outcome.named, all);
    EXPECT_TRUE(outcome.is_state_changed);
  }
  // Whether the others get the gradient before they learn of the failure depends on their speed.
  for (int attempt = 0; attempt < 20; ++attempt) {
    const Outcome outcome = fail(throw_when_others_have_the_gradient, 1);
    if (outcome.is_state_changed) {
      EXPECT_EQ(outcome.named, all);
    }
  }
}

TEST_P(TrainStep, RefusesWhatMakesNoSenseBeforeAnythingMoves) {
  auto weights = session().shared<double, 1>("weights");
  const auto body = +[](sr::Scattered<const double, 1>, sr::Local<double, 1>, sr::Local<double, 1> gradient) {
    std::fill(gradient.begin(), gradient.end(), 1.0);
  };
  EXPECT_ERROR(sr::train_step<sr::Adam>(session(), body, weights), sr::ErrorKind::usage, "'weights' has no shape yet");
  weights.broadcast(std::vector<double>(6, 1.0));
  auto step = sr::train_step<sr::Adam>(session(), body, weights);
  const auto x = session().data(std::vector<double>(8));
  EXPECT_ERROR(step(x, {.learning_rate = -0.1}), sr::ErrorKind::usage,
               "adam: learning_rate is a finite number of at least 0, got -0.1");
  EXPECT_ERROR(step(x, {.beta1 = 1}), sr::ErrorKind::usage, "adam: beta1 is from 0 to below 1, got 1");
  EXPECT_ERROR(step(x, {}, {.slices = 9}), sr::ErrorKind::usage, "slices is from 1 to the number of rows, 8, got 9");
  EXPECT_ERROR(step(x, {}, {.batch = sr::Slice{0, 9}}), sr::ErrorKind::usage, "batch is the slice [0, 9)");
  EXPECT_ERROR(step.set_steps(-1), sr::ErrorKind::usage, "steps is at least 0, got -1");
  auto m = step.state()[0];
  m.set(0, std::vector<double>(5), {5});
  EXPECT_ERROR(step(x, {}), sr::ErrorKind::usage, "'weights.m' has 5 elements on rank 0, expected 6");
  m.broadcast(std::vector<double>(6));
  auto gradient = step.gradient();
  gradient.broadcast(std::vector<double>(7));
  EXPECT_ERROR(step(x, {}), sr::ErrorKind::usage, "'weights.gradient' has 7 elements on rank 0, expected 6");
  gradient.broadcast(std::vector<double>(6));
  EXPECT_EQ(step.steps(), 0);
  EXPECT_EQ(weights.get(0)[0], 1);
  if (world_size() > 1) {
    weights.set(1, std::vector<double>(4), {4});
    EXPECT_ERROR(step(x, {}), sr::ErrorKind::usage, "'weights' has 6 elements on rank 0 and 'weights' has 4");
    weights.broadcast(std::vector<double>(6, 1.0));
  }
  step(x, {});
  EXPECT_EQ(step.steps(), 1);
}

// ---- groups and clipping -----------------------------------------------------------------------------------------

class StepGroups : public OnWorkers {};
INSTANTIATE_ON_WORKERS(StepGroups, 1, 3);

/// Ten steps in both forms next to the serial ones.
void follow(sr::Session& session, std::int64_t columns, const std::vector<sr::ParameterGroup>& groups,
            double clip_norm) {
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    follow_serial_steps<double>(session, loss_and_gradient<double>,
                                {.form = form, .groups = groups, .clip_norm = clip_norm}, columns, 1e-12);
  }
}

TEST_P(StepGroups, HaveTheirOwnRatesAndDecays) {
  follow(session(), 17,
         {{.begin = 2, .end = 5, .learning_rate = 0.5},
          {.begin = 5, .end = 9, .weight_decay = 0},
          {.begin = 12, .end = 17, .learning_rate = 2, .weight_decay = 3}},
         0);
  follow(session(), 9'000, {{.begin = 100, .end = 8'900, .weight_decay = 0}}, 0);
}

TEST_P(StepGroups, ThatAreFrozenStayAsTheyAre) {
  follow(session(), 17, {{.begin = 0, .end = 6, .learning_rate = 0}, {.begin = 8, .end = 9, .learning_rate = 0}}, 0);
  follow(session(), 3, {{.begin = 0, .end = 3, .learning_rate = 0}}, 0);
}

TEST_P(StepGroups, TheNormOfTheGradientIsClipped) {
  follow(session(), 17, {}, 0.05);
  follow(session(), 17, {}, std::numeric_limits<double>::infinity());
  follow(session(), 2, {}, 0.1);
  follow(session(), 9'000, {{.begin = 100, .end = 8'900, .learning_rate = 0}}, 0.5);
}

TEST_P(StepGroups, WithoutFactorsChangeNoBit) {
  constexpr std::int64_t kRows = 30;
  const Serial serial = problem(kRows, 50, 3);
  const auto x = session().data(serial.x, sr::Shape{kRows, std::int64_t{50}});
  const auto y = session().data(serial.y);
  const auto train = [&](const sr::TrainStepOptions& options) {
    auto weights = session().shared<double, 1>();
    weights.broadcast(serial.params);
    auto step = sr::train_step<sr::Adam>(session(), loss_and_gradient<double>, weights, options);
    for (int i = 0; i < 5; ++i) step(x, y, {.learning_rate = 0.02});
    return weights.get(0).to_vector();
  };
  EXPECT_EQ(train({.groups = {{.begin = 7, .end = 31}}, .clip_norm = 1e9}), train({}));
}

TEST_P(StepGroups, ANormThatIsNotFiniteIsAnErrorAndChangesNothing) {
  const Serial serial = problem(10, 4, 3);
  const auto x = session().data(serial.x, sr::Shape{std::int64_t{10}, std::int64_t{4}});
  const auto y = session().data(serial.y);
  auto weights = session().shared<double, 1>();
  const std::vector<double> huge(4, 1e300);
  weights.broadcast(huge);
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    auto step = sr::train_step<sr::Sgd>(session(), loss_and_gradient<double>, weights, {.form = form, .clip_norm = 1});
    EXPECT_ERROR(step(x, y, {}), sr::ErrorKind::function, "the norm of the gradient is inf, expected a finite number");
    EXPECT_EQ(weights.get(0).to_vector(), huge);
    EXPECT_EQ(step.steps(), 0);
    auto skipping = sr::train_step<sr::Sgd>(session(), loss_and_gradient<double>, weights,
                                            {.form = form, .clip_norm = 1, .non_finite = sr::NonFiniteGradient::skip});
    skipping(x, y, {});
    EXPECT_FALSE(std::isfinite(skipping.gradient_norm()));
    EXPECT_EQ(weights.get(0).to_vector(), huge);
    EXPECT_EQ(skipping.steps(), 1);
    // The step goes on with other parameters.
    weights.broadcast(serial.params);
    step(x, y, {});
    EXPECT_NE(weights.get(0).to_vector(), serial.params);
    weights.broadcast(huge);
  }
}

/// Its gradient has only the elements from 4.
sr::Avg<double> loss_and_part(sr::Scattered<const double, 2> x, sr::Scattered<const double, 1> y,
                              sr::Local<double, 1> params, sr::Local<double, 1> gradient) {
  std::vector<double> whole(static_cast<std::size_t>(params.size()));
  const sr::Local<double, 1> all(sr::ArrayView<double, 1>(whole.data(), params.shape()));
  const auto loss = loss_and_gradient<double>(x, y, params, all);
  std::copy_n(whole.begin() + 4, gradient.size(), gradient.data());
  return loss;
}

/// The same as a step whose other parameters are frozen, but the vectors are shorter.
TEST_P(StepGroups, CanBeAllThatAStepTrains) {
  const Serial serial = problem(30, 17, 3);
  const auto x = session().data(serial.x, sr::Shape{30, 17});
  const auto y = session().data(serial.y);
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    for (const double clip : {0.0, 0.1}) {
      const sr::ParameterGroup without_decay{.begin = 6, .end = 9, .weight_decay = 0};
      const auto frozen = weights_of<double>(session(), serial);
      auto step = sr::train_step<sr::Adam>(session(), loss_and_gradient<double>, frozen,
                                           {.form = form,
                                            .groups = {{.begin = 0, .end = 4, .learning_rate = 0},
                                                       without_decay,
                                                       {.begin = 12, .end = 17, .learning_rate = 0}},
                                            .clip_norm = clip});
      const auto weights = weights_of<double>(session(), serial);
      auto part = sr::train_step<sr::Adam>(
          session(), loss_and_part, weights,
          {.form = form, .groups = {without_decay}, .clip_norm = clip, .range = sr::ParameterRange{4, 12}});
      for (std::int64_t i = 0; i < 6; ++i) {
        const sr::CallOptions options{.slices = 1 + i % 3};
        step(x, y, {.weight_decay = 0.1}, options);
        part(x, y, {.weight_decay = 0.1}, options);
        if (clip != 0) {
          EXPECT_NEAR(part.gradient_norm(), step.gradient_norm(), 1e-12);
        }
      }
      const auto expected = frozen.get(0).to_vector();
      EXPECT_NE(expected, serial.params);
      expect_equal_on_all_ranks(session(), weights, {expected.begin(), expected.end()}, 1e-14);
      EXPECT_EQ(part.gradient().shape(0)[0], 8);
    }
  }
  const auto weights = weights_of<double>(session(), serial);
  for (const auto& range : {sr::ParameterRange{-1, 3}, {5, 4}, {3, 18}}) {
    EXPECT_ERROR(sr::train_step<sr::Adam>(session(), loss_and_part, weights, {.range = range}), sr::ErrorKind::usage,
                 "is not within the parameters");
  }
}

TEST_P(StepGroups, ThatAreWrongAreRefused) {
  auto weights = session().shared<double, 1>();
  weights.broadcast(std::vector<double>(10));
  const auto make = [&](const std::vector<sr::ParameterGroup>& groups, double clip_norm = 0) {
    return sr::train_step<sr::Adam>(session(), loss_and_gradient<double>, weights,
                                    {.groups = groups, .clip_norm = clip_norm});
  };
  EXPECT_ERROR(make({{.begin = 0, .end = 11}}), sr::ErrorKind::usage, "to 11 is not within the parameters 0 to 10");
  EXPECT_ERROR(make({{.begin = -1, .end = 2}}), sr::ErrorKind::usage, "elements -1 to 2 is not within");
  EXPECT_ERROR(make({{.begin = 5, .end = 2}}), sr::ErrorKind::usage, "elements 5 to 2 is not within");
  EXPECT_ERROR(make({{.begin = 0, .end = 5}, {.begin = 4, .end = 6}}), sr::ErrorKind::usage,
               "a group begins at element 4, but the one before it ends at 5");
  EXPECT_ERROR(make({{.begin = 0, .end = 5, .learning_rate = -1}}), sr::ErrorKind::usage, "expected finite numbers");
  EXPECT_ERROR(make({{.begin = 0, .end = 5, .weight_decay = std::nan("")}}), sr::ErrorKind::usage, "finite numbers");
  EXPECT_ERROR(make({{.begin = 0, .end = 5, .beta1 = 1}}), sr::ErrorKind::usage,
               "has the beta1 1, expected a number from 0 to below 1");
  EXPECT_ERROR(make({{.begin = 0, .end = 5, .momentum = 0.9}}), sr::ErrorKind::usage,
               "has a momentum, but the rule has none. Leave it out");
  EXPECT_ERROR(make({}, -1), sr::ErrorKind::usage, "clip_norm is -1");
  EXPECT_ERROR(make({}, std::nan("")), sr::ErrorKind::usage, "clip_norm is nan");
  EXPECT_ERROR(sr::train_step<sr::Adam>(session(), loss_and_gradient<double>, weights,
                                        {.non_finite = sr::NonFiniteGradient::skip}),
               sr::ErrorKind::usage, "expected a clip_norm, which can be infinite");
  EXPECT_ERROR(static_cast<void>(make({}).gradient_norm()), sr::ErrorKind::usage, "the step has no clip_norm");
}

}  // namespace
