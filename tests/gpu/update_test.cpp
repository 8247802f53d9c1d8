// Update rules and train steps on GPUs. The tests compare with numbers of tests/support/torch_optim.py, and with the same
// steps computed serially here.

#include <cmath>
#include <random>

#include "tests/gpu/on_gpus.hpp"
#include "tests/gpu/update_bodies.hpp"
#include "tests/support/least_squares.hpp"
#include "tests/support/torch_optim_cases.hpp"
#include "tests/support/velocity_rules.hpp"

namespace gpu_test {
namespace {

using least_squares::as;
using least_squares::problem;
using least_squares::Serial;

class GpuUpdate : public OnGpus {};
INSTANTIATE_ON_GPUS(GpuUpdate);
class GpuTrainStep : public OnGpus {};
INSTANTIATE_ON_GPUS(GpuTrainStep);

// ---- rules ----------------------------------------------------------------------------------------------------

template <class Rule, class T>
void one_step(sr::CudaWorker& worker, sr::DeviceScalar<Rule> rule, sr::Broadcast<const T, 1> gradient,
              sr::Local<T, 1> params, sr::Local<T, 1> v) {
  sr::update(worker, rule, params.span(), gradient.span(), v.span());
}

/// The rule is in device memory. The function is replayed from the third call on.
TEST_P(GpuUpdate, OfAVelocityIsThatOfItsPaper) {
  const auto f = [&]<class Rule, class T>() {
    return session().function(sr::replayable(&one_step<Rule, T>), "replayed");
  };
  velocity_rules::expect_all(session(), f);
}

/// Takes a step with the elements after the first `skipped`.
template <class Rule, class T>
void one_step_from(sr::CudaWorker& worker, Rule rule, std::int64_t skipped, sr::Local<T, 1> params,
                   sr::Local<T, 1> gradient, sr::Local<T, 1> first, sr::Local<T, 1> second) {
  const auto rest = [skipped](const sr::Local<T, 1>& vector) {
    return vector.span().subspan(static_cast<std::size_t>(skipped));
  };
  sr::update(worker, rule, rest(params), rest(gradient), rest(first), rest(second));
}

template <class T>
struct Vectors {
  Vectors(sr::Session& session, const std::vector<T>& start)
      : params(session.shared<T, 1>()), first(session.shared<T, 1>()), second(session.shared<T, 1>()) {
    params.broadcast(start);
    first.broadcast(std::vector<T>(start.size()));
    second.broadcast(std::vector<T>(start.size()));
  }
  sr::Shared<T, 1> params, first, second;
};

// The lengths include multiples of what a thread reads at a time, and others. The longest exceeds the number of
// threads. The vectors begin anywhere. The update must reach each element once, and no element outside.
template <class T>
void update_any_part(sr::Session& session) {
  const auto f = session.function(one_step_from<sr::Adam, T>);
  for (const std::int64_t size : {1, 2, 3, 5, 64, 1'000, 3'000'003}) {
    std::vector<T> start(static_cast<std::size_t>(size));
    std::vector<T> slope(start.size());
    for (std::size_t i = 0; i < start.size(); ++i) {
      start[i] = static_cast<T>(i % 17);
      slope[i] = i % 2 == 0 ? T(1) : T(-2);
    }
    auto gradient = session.shared<T, 1>("gradient");
    gradient.broadcast(slope);
    for (const std::int64_t skipped : {0, 1, 4}) {
      if (skipped > size) continue;
      const Vectors<T> vectors(session, start);
      f({.learning_rate = 0.5, .step = 1}, skipped, vectors.params, gradient, vectors.first, vectors.second);
      const auto got = vectors.params.get(session.world_size() - 1);
      const auto m = vectors.first.get(0);
      for (std::int64_t i = 0; i < size; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double moved = i < skipped ? 0 : (slope[at] > 0 ? -0.5 : 0.5);  // the first step of Adam
        ASSERT_NEAR(got[i], start[at] + moved, 1e-5) << i << " of " << size << " from " << skipped;
        ASSERT_NEAR(m[i], i < skipped ? 0 : 0.1 * slope[at], 1e-6);
      }
    }
  }
}

TEST_P(GpuUpdate, TakesAnyPartOfAVector) {
  update_any_part<float>(session());
  update_any_part<double>(session());
}

// ---- steps ----------------------------------------------------------------------------------------------------

template <class T>
sr::Avg<double> not_here(sr::CpuWorker&, sr::Scattered<const T, 2>, sr::Scattered<const T, 1>, sr::Local<T, 1>,
                         sr::Local<T, 1>) {
  throw std::runtime_error("a body for CPU devices ran on a GPU");
}

/// Takes ten steps. The batches have few sizes, so that captured steps are replayed. Rows and numbers of slices are
/// random.
template <class T, class Make>
void follow(sr::Session& session, double tolerance, Make&& make) {
  std::mt19937 random(7);
  for (const std::int64_t columns : {std::int64_t{1}, std::int64_t{3}, std::int64_t{17}, std::int64_t{800}}) {
    constexpr std::int64_t kRows = 40;
    Serial serial = problem(kRows, columns, 3);
    const auto x = session.data(as<T>(serial.x), sr::Shape{kRows, columns});
    const auto y = session.data(as<T>(serial.y));
    auto weights = session.shared<T, 1>("weights");
    weights.broadcast(as<T>(serial.params));
    auto step = make(weights);
    for (int i = 0; i < 20; ++i) {
      std::vector<std::int64_t> batch(i % 3 == 0 ? 1 : 12);
      for (auto& row : batch) row = static_cast<std::int64_t>(random() % kRows);
      const std::int64_t slices = i % 3 == 2 ? 3 : 1;
      const sr::Adam adam{.learning_rate = 0.02 / (1 + i)};
      const double loss = step(x, y, adam, {.batch = batch, .slices = slices});
      EXPECT_NEAR(loss, serial.take(batch, adam), tolerance * 100) << "step " << i;
    }
    const auto first = weights.get(0).to_vector();
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(first[i], serial.params[i], tolerance);
    for (int rank = 1; rank < session.world_size(); ++rank) EXPECT_EQ(weights.get(rank).to_vector(), first);
  }
}

template <class T>
void follow_in_all_forms(sr::Session& session, double tolerance) {
  for (const sr::StepForm form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    SCOPED_TRACE(form == sr::StepForm::sharded ? "sharded" : "replicated");
    follow<T>(session, tolerance, [&](const sr::Shared<T, 1>& weights) {
      return sr::train_step<sr::Adam>(session, not_here<T>, loss_and_gradient<T>, weights, {.form = form});
    });
    follow<T>(session, tolerance, [&](const sr::Shared<T, 1>& weights) {
      return sr::train_step<sr::Adam>(session, not_here<T>, sr::replayable(&loss_and_gradient<T>), weights,
                                      {.form = form, .name = "replayed"});
    });
  }
}

TEST_P(GpuTrainStep, IsTheSameForAnyNumberOfWorkersAndSlices) {
  follow_in_all_forms<double>(session(), 1e-11);
  follow_in_all_forms<float>(session(), 1e-4);
}

template <class T>
void expect_torch_optim(sr::Session& session, double tolerance) {
  torch_optim::for_each_case(
      [&]<class Rule>(const char* name, const Rule& rule, const auto& expected, const auto& own) {
        for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
          SCOPED_TRACE(std::string(name) + (form == sr::StepForm::sharded ? ", sharded" : ""));
          const auto make = [&](const auto& weights, const auto& options) {
            return sr::train_step<Rule>(session, not_here<T>, sr::replayable(&loss_and_gradient<T>), weights, options);
          };
          torch_optim::expect_as_torch<T>(session, rule, expected, own, form, tolerance, make);
        }
      });
}

// 100 steps with groups, a clipped gradient and a schedule. The gradient of the body is rounded to T.
TEST_P(GpuTrainStep, GivesTheParametersOfTorchOptim) {
  expect_torch_optim<double>(session(), 1e-12);
  expect_torch_optim<float>(session(), 4e-6);
}

template <class T>
void expect_averages(sr::Session& session, double tolerance) {
  const auto weights = torch_optim::starting_weights<T>(session);
  auto ema = sr::averaged_weights(session, weights, {.decay = 0.9});
  auto swa = sr::averaged_weights(session, weights, {.form = sr::AverageOptions::Form::equal});
  auto step = sr::train_step<sr::Adam>(
      session, not_here<T>, sr::replayable(&loss_and_gradient<T>), weights,
      {.groups = torch_optim::groups_with({.beta1 = 0.8, .beta2 = 0.95}), .clip_norm = torch_optim::kClipNorm});
  torch_optim::train<T>(session, sr::Adam{.learning_rate = 0.02, .weight_decay = 0.01}, step, [&] {
    ema.update();
    swa.update();
  });
  torch_optim::expect_near(session, ema.values(), torch_optim::kAdamEma, tolerance);
  torch_optim::expect_near(session, swa.values(), torch_optim::kAdamSwa, tolerance);
}

TEST_P(GpuTrainStep, HasAveragesOfItsParameters) {
  expect_averages<double>(session(), 1e-12);
  expect_averages<float>(session(), 4e-6);
}

// The same rows in as many slices as before, and in more. The work after the last slice belongs to another graph.
TEST_P(GpuTrainStep, ReplaysEachNumberOfSlicesAsItself) {
  auto weights = session().shared<float, 1>("weights");
  weights.broadcast(std::vector<float>(7, 1.0F));
  auto step = sr::train_step<sr::Sgd>(session(), sr::replayable(&gradient_is_params), weights);
  const std::int64_t rows = 8 * world_size();
  const auto x = session().data(std::vector<float>(static_cast<std::size_t>(2 * rows)));
  float expected = 1;
  for (int round = 0; round < 5; ++round) {
    for (const auto& [size, slices] : {std::pair<std::int64_t, std::int64_t>{rows, 2}, {2 * rows, 4}, {rows, 1}}) {
      step(x, {.learning_rate = 0.5}, {.batch = sr::Slice{0, size}, .slices = slices});
      expected *= 0.5F;  // once, however many slices
      for (int rank = 0; rank < world_size(); ++rank)
        ASSERT_NEAR(weights.get(rank)[6], expected, 1e-5F * expected) << slices;
    }
  }
}

}  // namespace
}  // namespace gpu_test
