// Near misses. Each is similar to a program in refused.cpp, but it compiles.

#include <array>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

namespace {

struct Settings {
  std::array<float, 4> rates;
  int steps;
};
struct Stats {
  sr::Sum<double> total;
  sr::Max<std::int32_t> longest;
  sr::Gather<std::uint8_t, 1> labels;
};
struct OneField {
  sr::Avg<double> mean;
};

sr::Sum<double> total(sr::Scattered<const float, 2> x) { return double(x.rows()); }
sr::Sum<std::int32_t> count(sr::Scattered<const int, 1> x) { return static_cast<std::int32_t>(x.rows()); }
sr::Avg<float> mean(sr::Scattered<const int, 1> x) { return float(x[0]); }
void train(sr::Local<float, 1> weights) { weights[0] = 0; }
void tally(sr::Update<sr::op::sum, int, 1> counts) { counts.value()[0] = 1; }
void configure(Settings settings, const int steps, const double& rate) {
  static_cast<void>(settings.steps + steps + static_cast<int>(rate));
}
Stats stats(sr::CpuWorker& worker, sr::Scattered<const float, 2> x) {
  return {double(x.rows()), 1, {worker, sr::Shape{x.rows()}}};
}
OneField one_field(sr::Scattered<const float, 2> x) { return {double(x.rows())}; }
void with_peers(sr::Comm& comm, sr::Local<float, 1> gradient) { comm.avg(gradient); }
void on_gpu(sr::CudaWorker&, sr::Comm& comm, sr::Local<float, 1> gradient, sr::DeviceScalar<float>) {
  comm.avg(gradient);
}

sr::Avg<double> gradient_of(sr::Scattered<const float, 2>, sr::Local<float, 1> params, sr::Local<float, 1> gradient) {
  gradient[0] = params[0];
  return 0;
}
sr::Avg<double> gradient_on_gpu(sr::CudaWorker&, sr::Scattered<const float, 2>, sr::Local<float, 1>,
                                sr::Local<float, 1> gradient) {
  return sr::Avg<double>::in_device_memory(reinterpret_cast<const double*>(gradient.data()));
}
sr::Avg<double> gradient_in_parts(sr::Comm&, sr::GradientReady& ready, sr::Scattered<const float, 2>,
                                  sr::Local<float, 1> params, sr::Local<float, 1> gradient) {
  ready.from(gradient.size());
  gradient[0] = params[0];
  ready.from(0);
  return 0;
}
void update_by_hand(sr::CpuWorker& worker, sr::Adam adam, sr::Local<float, 1> params, sr::Local<float, 1> gradient) {
  std::vector<float> m(gradient.span().size());
  std::vector<float> v(gradient.span().size());
  sr::update(worker, adam, params, gradient, m, v);
  sr::update(worker, sr::Sgd{.learning_rate = 1}, params.span().subspan(1), std::span<const float>(m).subspan(1));
}
void update_on_gpu(sr::CudaWorker& worker, sr::DeviceScalar<sr::Momentum> rule, sr::Local<double, 1> params,
                   sr::Local<double, 1> gradient, sr::Local<double, 1> v) {
  sr::update(worker, rule, params, gradient, v);
}

constexpr double kFactor = 2;

void program(sr::Session& session) {
  const auto x = session.data<float, 2>({8, 3});
  const std::vector<float> pixels(24);
  const auto f = session.function(total);
  f(x);
  f(session.data(pixels, sr::Shape{8, 3}), {.slices = 2});
  [[maybe_unused]] const double reduced = f(x);
  f.on_rank(0)(x);
  f.async(x).get();

  session.function(count)(session.data<int, 1>({8}));
  session.function(mean)(session.data<int, 1>({8}));
  session.function(train)(session.shared<float, 1>());
  session.function(tally)(session.shared<int, 1>());
  session.function(with_peers)(session.shared<float, 1>());
  session.function(sr::replayable(on_gpu))(session.shared<float, 1>(), 1);
  session.function(update_by_hand)({.step = 1}, session.shared<float, 1>(), session.shared<float, 1>());
  session.function(sr::replayable(update_on_gpu));
  auto step =
      sr::train_step<sr::Adam>(session, gradient_of, sr::replayable(gradient_on_gpu), session.shared<float, 1>());
  [[maybe_unused]] const double loss = step(x, {.learning_rate = 1e-3}, {.slices = 2});
  step.async(x, {}).get();
  auto sharded = sr::train_step<sr::Sgd>(session, gradient_of, session.shared<float, 1>(),
                                         {.form = sr::StepForm::sharded, .name = "sharded"});
  sharded(x, {});
  auto in_parts = sr::train_step<sr::Adam>(session, gradient_in_parts, sr::replayable(gradient_on_gpu),
                                           session.shared<float, 1>(), {.bucket_bytes = 1 << 20});
  in_parts(x, {});
  session.function(configure)(Settings{{1, 2, 3, 4}, 5}, 6, 7);
  session.function(stats)(x);
  session.function(one_field)(x);
  // A constant is not a capture.
  session.function([](sr::Scattered<const float, 2> rows) -> sr::Sum<double> { return kFactor * double(rows.rows()); });
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, program); }
