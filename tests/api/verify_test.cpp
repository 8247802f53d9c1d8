// Session::verify: programs that compute the same on one worker and on many, programs with a mistake, and the state
// afterwards. Expected values are the reasons that the comments of the bodies give.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/on_workers.hpp"

namespace {

using sr::VerifyReason;
using Rows = sr::Scattered<const double, 1>;

class Verify : public OnSharedWorkers {
 protected:
  void SetUp() override {
    OnSharedWorkers::SetUp();
    std::vector<double> values(13);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1 + static_cast<double>(i * i % 11);
    x_.emplace(session().data(values));
  }
  const sr::Data<double, 1>& x() const { return *x_; }

  /// Verifies a function of the rows. On one worker there are only the slices.
  template <class F>
  sr::Verification of(F body) {
    const auto f = session().function(body);
    return session().verify(f)(x());
  }

 private:
  std::optional<sr::Data<double, 1>> x_;
};
INSTANTIATE_ON_WORKERS(Verify, 1, 3);

double sum_of(const Rows& x) { return std::accumulate(x.begin(), x.end(), 0.0); }
double mean_of(const Rows& x) { return sum_of(x) / static_cast<double>(x.size()); }

struct Numbers {
  sr::Avg<double> mean;
  sr::Sum<double> sum;
  sr::Max<double> largest;
  sr::Gather<double, 1> squares;
};
Numbers numbers_of(sr::CpuWorker& worker, Rows x) {
  sr::Gather<double, 1> squares(worker, sr::Shape<1>(x.rows()));
  for (std::int64_t i = 0; i < x.rows(); ++i) squares[i] = x[i] * x[i];
  return {mean_of(x), sum_of(x), *std::max_element(x.begin(), x.end()), std::move(squares)};
}

TEST_P(Verify, FindsNothingInAProgramWithoutMistake) {
  const auto found = of(numbers_of);
  EXPECT_TRUE(found.is_same()) << found;
  EXPECT_EQ(found.reason, VerifyReason::none);
  EXPECT_TRUE(found.notes.empty()) << found;
}

// Mistakes that slices show on one worker too.

sr::Avg<double> sum_for_mean(Rows x) { return sum_of(x); }
sr::Avg<double> norm_of_rows(Rows x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  return std::sqrt(squares / static_cast<double>(x.size()));
}
/// Averages what is greater than 1, as a loss without padding.
sr::Avg<double> mean_of_some(Rows x) {
  double sum = 0;
  double count = 0;
  for (const double value : x) {
    if (value > 1) sum += value;
    if (value > 1) ++count;
  }
  return sum / count;
}
/// A variance over the rows that are together.
sr::Avg<double> variance(Rows x) {
  double squares = 0;
  for (const double value : x) squares += (value - mean_of(x)) * (value - mean_of(x));
  return squares / static_cast<double>(x.size());
}
/// 0 / 0 where no row is greater than 6.
sr::Avg<double> mean_of_few(Rows x) {
  double sum = 0;
  double count = 0;
  for (const double value : x) {
    if (value >= 5) sum += value;
    if (value >= 5) ++count;
  }
  return x.size() > 5 ? mean_of(x) : sum / (count > 1 ? 0 : 0.0 * sum);
}
sr::Avg<double> random_noise(sr::CpuWorker& worker, Rows x) {
  return mean_of(x) + std::uniform_real_distribution<double>()(worker.rng());
}
sr::Avg<double> counts_calls(Rows x) {
  static double calls = 0;
  return mean_of(x) + ++calls;
}
sr::Avg<double> fails_on_few_rows(Rows x) {
  if (x.size() < 13) throw std::runtime_error("too few rows");
  return mean_of(x);
}

TEST_P(Verify, FindsMistakesThatSlicesShow) {
  const auto reason_of = [&](auto body) {
    const auto found = of(body);
    EXPECT_FALSE(found.is_same());
    EXPECT_NE(found.to_string().find("likely reason: "), std::string::npos) << found;
    return found.reason;
  };
  EXPECT_EQ(reason_of(sum_for_mean), VerifyReason::is_sum);
  EXPECT_EQ(reason_of(norm_of_rows), VerifyReason::rows_together);
  EXPECT_EQ(reason_of(mean_of_some), VerifyReason::rows_together);
  EXPECT_EQ(reason_of(variance), VerifyReason::rows_together);
  EXPECT_EQ(reason_of(random_noise), VerifyReason::random_numbers);
  EXPECT_EQ(reason_of(counts_calls), VerifyReason::kept_state);
  EXPECT_EQ(reason_of(fails_on_few_rows), VerifyReason::failed);
}

TEST_P(Verify, KnowsASumInSlices) {
  const auto f = session().function(sum_for_mean);
  EXPECT_EQ(session().verify(f)(x(), {.slices = 2}).reason, VerifyReason::is_sum);
}

struct Timed {
  sr::Avg<double> mean;
  sr::Sum<double> calls;
};
Timed timed(Rows x) {
  static double calls = 0;
  return {mean_of(x), ++calls};
}
TEST_P(Verify, ComparesOnlyTheOutputsThatAreWanted) {
  const auto f = session().function(timed);
  EXPECT_EQ(session().verify(f)(x()).reason, VerifyReason::kept_state);
  const auto found = session().verify(f.only<&Timed::mean>())(x());
  EXPECT_TRUE(found.is_same()) << found;
}

TEST_P(Verify, FindsANumberThatIsNotFinite) {
  if (world_size() == 1) GTEST_SKIP() << "two slices have enough rows";
  EXPECT_EQ(of(mean_of_few).reason, VerifyReason::not_finite);
}

/// The mistake of the wrong row: the Broadcast has the rows of the whole call.
sr::Avg<double> wrong_row(Rows x, sr::Broadcast<const double, 1> y) {
  double sum = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) sum += x[i] * y[i];
  return sum / static_cast<double>(x.rows());
}

TEST_P(Verify, NamesTheRowOfABroadcast) {
  const auto f = session().function(wrong_row);
  const auto found = session().verify(f)(x(), x());
  EXPECT_EQ(found.reason, VerifyReason::rows_together);
  EXPECT_NE(found.advice.find("first_row()"), std::string::npos) << found;
}

// Mistakes that need several workers.

sr::Avg<double> uses_rank(sr::CpuWorker& worker, Rows x) { return mean_of(x) * (1 + worker.rank()); }
sr::Avg<double> uses_world_size(sr::Comm& comm, Rows x) { return x.rows() == 0 ? 0 : mean_of(x) * comm.world_size(); }
sr::Sum<double> same_on_all(sr::Comm&, Rows) { return 1.0; }

TEST_P(Verify, FindsMistakesOfRanks) {
  if (world_size() == 1) return;
  EXPECT_EQ(of(uses_rank).reason, VerifyReason::which_rank);
  EXPECT_EQ(of(uses_world_size).reason, VerifyReason::number_of_ranks);
  EXPECT_EQ(of(same_on_all).reason, VerifyReason::is_counted_often);
}

sr::Avg<double> dot(Rows x, sr::Local<const double, 1> w) { return mean_of(x) * w[0]; }

TEST_P(Verify, FindsACopyThatDiffers) {
  if (world_size() == 1) return;
  auto w = session().shared<double, 1>();
  w.broadcast(std::vector{2.0});
  const auto f = session().function(dot);
  EXPECT_TRUE(session().verify(f)(x(), w).is_same());
  w.set(1, std::vector{2.5});
  EXPECT_EQ(session().verify(f)(x(), w).reason, VerifyReason::which_rank);
}

/// Adds to the original in every slice, and not only in the first.
void add_original(Rows x, sr::Update<sr::op::sum, double, 1> total) {
  total.value()[0] = total.original()[0] + 0 * sum_of(x);
}

TEST_P(Verify, FindsAnUpdateThatCountsSlices) {
  auto total = session().shared<double, 1>();
  total.broadcast(std::vector{3.0});
  const auto f = session().function(add_original);
  const auto found = session().verify(f)(x(), total);
  EXPECT_EQ(found.reason, world_size() == 1 ? VerifyReason::is_counted_often : VerifyReason::number_of_slices) << found;
  EXPECT_EQ(total.get(0)[0], 3.0);
}

// ---- training steps ----

sr::Avg<double> squares(Rows x, sr::Local<double, 1> params, sr::Local<double, 1> gradient) {
  gradient[0] = gradient[1] = 0;
  double loss = 0;
  for (const double value : x) {
    const double error = params[0] * value + params[1] - 2 * value;
    loss += error * error / static_cast<double>(x.size());
    gradient[0] += 2 * error * value / static_cast<double>(x.size());
    gradient[1] += 2 * error / static_cast<double>(x.size());
  }
  return loss;
}
/// The gradient is that of the sum, and the loss is the mean.
sr::Avg<double> summed_gradient(Rows x, sr::Local<double, 1> params, sr::Local<double, 1> gradient) {
  const auto loss = squares(x, params, gradient);
  for (double& each : gradient) each *= static_cast<double>(x.size());
  return loss;
}

template <class Body>
sr::Verification verified_step(sr::Session& session, const sr::Data<double, 1>& x, Body body, sr::StepForm form) {
  auto params = session.shared<double, 1>();
  params.broadcast(std::vector{0.5, -1.0});
  auto step = sr::train_step<sr::Adam>(session, body, params, {.form = form, .clip_norm = 5});
  const sr::Adam rule{.learning_rate = 0.1};
  step(x, rule);
  const auto values = [&] {
    std::vector<double> all;
    for (int rank = 0; rank < session.world_size(); ++rank) {
      for (const auto& each : {params, step.gradient(), step.state()[0], step.state()[1]}) {
        const auto copy = each.get(rank);
        all.insert(all.end(), copy.begin(), copy.end());
      }
    }
    return all;
  };
  const std::vector<double> before = values();
  const double norm = step.gradient_norm();
  auto found = session.verify(step)(x, rule);
  EXPECT_EQ(values(), before) << "variables are not as they were";
  EXPECT_EQ(step.gradient_norm(), norm);
  EXPECT_EQ(step.steps(), 1);
  return found;
}

TEST_P(Verify, ComparesTheGradientOfAStepAndPutsAllBack) {
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    const auto right = verified_step(session(), x(), squares, form);
    EXPECT_TRUE(right.is_same()) << right;
    const auto wrong = verified_step(session(), x(), summed_gradient, form);
    EXPECT_EQ(wrong.reason, VerifyReason::is_sum) << wrong;
    for (const auto& each : wrong.differences) EXPECT_EQ(each.what, "the gradient");
  }
}

TEST_P(Verify, PutsWeightsAndRandomNumbersBack) {
  std::vector<double> weights(static_cast<std::size_t>(world_size()), 2.0);
  if (world_size() > 1) weights[0] = 0;  // rank 0 has no rows, but makes the call alone
  session().set_weights(weights);
  const auto draw = session().function([](sr::CpuWorker& worker) {
    std::mt19937_64 copy = worker.rng();
    return sr::Sum<std::int64_t>(static_cast<std::int64_t>(copy() % 1000));
  });
  const auto before = draw().value();
  const auto noise = session().function(random_noise);
  EXPECT_EQ(session().verify(noise)(x()).reason, VerifyReason::random_numbers);
  EXPECT_EQ(draw().value(), before);
  EXPECT_EQ(session().weights(), weights);
  session().set_weights({});
}

// ---- errors ----

sr::Avg<double> always_fails(Rows) { throw std::runtime_error("never"); }
void writes(Rows, sr::Local<double, 1> out) { out[0] += 1; }
sr::Avg<double> sliced(sr::Sliced<const double, 1> x) { return x[0]; }

TEST_P(Verify, RefusesWhatItCannotPutBackAndPassesOnWhatFailsAnyway) {
  const auto failing = session().function(always_fails);
  EXPECT_ERROR(session().verify(failing)(x()), sr::ErrorKind::function, "never");
  const auto writing = session().function(writes);
  const auto value = session().value(std::vector{1.0}, sr::Shape{1});
  EXPECT_ERROR(session().verify(writing)(x(), value), sr::ErrorKind::usage, "may write a Value");
  EXPECT_ERROR(session().verify(writing.on_rank(0))(x(), value), sr::ErrorKind::usage, "");
  auto scattered = session().shared<double, 1>();
  scattered.scatter(x());
  const auto of_slices = session().function(sliced);
  EXPECT_ERROR(session().verify(of_slices)(scattered), sr::ErrorKind::usage, "has a Sliced or a PerWorker parameter");
  auto gone = failing;
  const auto moved = std::move(gone);
  EXPECT_ERROR(session().verify(gone)(x()), sr::ErrorKind::usage, "moved from");
  auto local = session().shared<double, 1>("counter");
  local.broadcast(std::vector{1.0});
  const auto found = session().verify(writing)(x(), local);
  ASSERT_EQ(found.notes.size(), 1U);
  EXPECT_NE(found.notes.front().find("'counter'"), std::string::npos);
  EXPECT_EQ(local.get(world_size() - 1)[0], 1.0);
}

}  // namespace
