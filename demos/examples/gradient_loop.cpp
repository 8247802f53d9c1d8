// cutorch's loop: work on each device without a wait, the results are added up on one of them, which then takes a step
// of SGD, and the others get a copy of the parameters on demand.

#include <cmath>
#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace {

namespace sr = syncrun;

/// The gradient on one device: half of the way to its own target.
sr::Keep<double, 1> gradient(sr::CpuWorker& worker, sr::Local<const double, 1> params) {
  sr::Keep<double, 1> result(worker, params.shape());
  for (std::int64_t i = 0; i < params.rows(); ++i) result[i] = (params[i] - worker.rank()) / 2;
  return result;
}

void add(sr::Local<double, 1> sum, sr::Local<const double, 1> part) {
  for (std::int64_t i = 0; i < sum.rows(); ++i) sum[i] += part[i];
}

/// One step of SGD. The sum is zero afterwards.
void sgd(sr::Local<double, 1> params, sr::Local<double, 1> sum, double rate) {
  for (std::int64_t i = 0; i < params.rows(); ++i) {
    params[i] -= rate * sum[i];
    sum[i] = 0;
  }
}

int program(sr::Session& session) {
  const auto dev0 = session.device("dev0");
  const auto dev1 = session.device("dev1");
  const std::vector<double> zeros(3, 0.0);
  const auto params = session.value(zeros, sr::Shape{3}, dev0);
  const auto sum = session.value(zeros, sr::Shape{3}, dev0);
  const auto f = session.function(gradient);
  const auto accumulate = session.function(add).on(dev0);
  const auto step = session.function(sgd).on(dev0);
  for (int i = 0; i < 20; ++i) {
    for (const auto& device : {dev0, dev1}) accumulate(sum, f.on(device)(params));  // nothing waits
    step(params, sum, 0.5);
  }
  session.synchronize(dev0);
  std::printf("params: %.3f\n", params.get()[0]);
  const double expected = dev0 == dev1 ? 0.0 : 0.5;
  return std::abs(params.get()[0] - expected) < 1e-3 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return syncrun::run(argc, argv, program, {.devices = "dev0=cpu0,dev1=cpu1"}); }
