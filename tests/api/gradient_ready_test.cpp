// GradientReady: a body says which elements of its gradient are final while it computes the others. This changes
// nothing in the result of a train step. The tests compare with the same steps, computed serially here. Tests of the
// buckets themselves are in tests/worker and tests/gpu.

#include <stdexcept>

#include "tests/api/train_steps.hpp"
#include "tests/support/on_workers.hpp"

namespace {

class GradientReady : public OnWorkers {};
INSTANTIATE_ON_WORKERS(GradientReady, 1, 3);

using Rows = sr::Scattered<const double, 2>;
using Targets = sr::Scattered<const double, 1>;
using Vector = sr::Local<double, 1>;

/// Least squares. Computes the gradient from its last element to its first, and calls `say(i)` after element i.
template <class Say>
double gradient_from_the_end(const Rows& x, const Targets& y, const Vector& params, const Vector& gradient, Say&& say) {
  const auto rows = static_cast<double>(x.rows());
  std::vector<double> errors;
  double loss = 0;
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    double error = -y[row];
    for (std::int64_t i = 0; i < params.size(); ++i) error += x(row, i) * params[i];
    errors.push_back(error);
    loss += error * error / rows;
  }
  for (std::int64_t i = params.size(); i-- > 0;) {
    gradient[i] = 0;
    for (std::int64_t row = 0; row < x.rows(); ++row)
      gradient[i] += 2 * errors[static_cast<std::size_t>(row)] * x(row, i) / rows;
    say(i);
  }
  return loss;
}

sr::Avg<double> says_nothing(sr::GradientReady&, Rows x, Targets y, Vector params, Vector gradient) {
  return gradient_from_the_end(x, y, params, gradient, [](std::int64_t) {});
}
sr::Avg<double> says_each(sr::CpuWorker&, sr::GradientReady& ready, Rows x, Targets y, Vector params, Vector gradient) {
  return gradient_from_the_end(x, y, params, gradient, [&](std::int64_t first) { ready.from(first); });
}
sr::Avg<double> says_half(Rows x, Targets y, sr::GradientReady& ready, Vector params, Vector gradient) {
  return gradient_from_the_end(x, y, params, gradient, [&](std::int64_t first) {
    if (first == params.size() / 2) ready.from(first);
  });
}
/// Calls a collective. So it also runs on ranks without rows, and writes no gradient there.
sr::Avg<double> with_peers(sr::Comm& comm, sr::GradientReady& ready, Rows x, Targets y, Vector params,
                           Vector gradient) {
  if (comm.all_reduce(1, sr::Reduction::sum) != comm.world_size()) throw std::runtime_error("another sum");
  const auto say = [&](std::int64_t first) { ready.from(first); };
  if (x.rows() != 0) return gradient_from_the_end(x, y, params, gradient, say);
  ready.from(0);
  return 0.0;
}

TEST_P(GradientReady, ChangesNothingOfAStep) {
  const auto follow = [&](auto body) {
    for (const sr::StepForm form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
      for (const std::size_t bucket_bytes : {0, 256, 1 << 20}) {
        for (const std::int64_t columns : {1, 3, 500})
          follow_serial_steps<double>(session(), body, {.form = form, .bucket_bytes = bucket_bytes}, columns, 1e-12);
      }
    }
  };
  follow(says_nothing);
  follow(says_each);
  follow(says_half);
  follow(with_peers);
}

/// Contradicts itself: the gradient is final from element 2 on, and then only from element 3 on.
void lies(sr::GradientReady& ready, sr::Scattered<const double, 1>, Vector, Vector gradient) {
  std::fill(gradient.begin(), gradient.end(), 1.0);
  ready.from(2);
  ready.from(3);
}
void says_too_much(sr::GradientReady& ready, sr::Scattered<const double, 1>, Vector, Vector gradient) {
  ready.from(gradient.size() + 1);
}

TEST_P(GradientReady, IsRefusedWhereItCannotBe) {
  auto weights = session().shared<double, 1>("weights");
  weights.broadcast(std::vector<double>(6, 1.0));
  const auto x = session().data(counting<double>(8));
  auto lying = sr::train_step<sr::Sgd>(session(), lies, weights);
  EXPECT_ERROR(lying(x, {}), sr::ErrorKind::function, "it was said to be final from 2 on, and now from 3");
  auto too_much = sr::train_step<sr::Sgd>(session(), says_too_much, weights);
  EXPECT_ERROR(too_much(x, {}), sr::ErrorKind::function, "first is from 0 to the gradient's 6 elements, got 7");
  EXPECT_EQ(weights.get(0).to_vector(), std::vector<double>(6, 1.0));
}

class BucketModel {
 public:
  void step(sr::GradientReady& ready, sr::Scattered<const double, 1> x, Vector, Vector gradient) const {
    gradient[1] = 2;
    ready.from(1);
    gradient[0] = x[0];
    ready.from(0);
  }
};

TEST_P(GradientReady, IsAParameterOfMethodsToo) {
  const auto model = session().replicate<BucketModel>();
  auto weights = session().shared<double, 1>("weights");
  weights.broadcast(std::vector<double>{0, 0});
  auto step = sr::train_step<sr::Sgd>(session(), &BucketModel::step, model, weights, {.bucket_bytes = 8});
  step(session().data(std::vector<double>(9, 1.0)), {.learning_rate = 1});
  EXPECT_EQ(weights.get(world_size() - 1).to_vector(), (std::vector<double>{-1, -2}));
}

}  // namespace
