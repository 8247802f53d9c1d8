// Near misses: each stands beside a program that is refused (refused.cpp), and compiles.

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
  session.function(configure)(Settings{{1, 2, 3, 4}, 5}, 6, 7);
  session.function(stats)(x);
  session.function(one_field)(x);
  // A constant is not a capture.
  session.function([](sr::Scattered<const float, 2> rows) -> sr::Sum<double> { return kFactor * double(rows.rows()); });
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, program); }
