// Minerva's first example, and its way of training. x and y are computed on two devices at once, and z = x + y where x
// is. Then a model of one number is trained: each device computes a gradient of its own half of the data, and the
// parameters move to the device that uses them. The program works on one device, too.

#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace {

namespace sr = syncrun;

// [functions]
sr::Keep<double, 1> squares(sr::CpuWorker& worker, std::int64_t count) {
  sr::Keep<double, 1> result(worker, {count});
  for (std::int64_t i = 0; i < count; ++i) result[i] = static_cast<double>(i * i);
  return result;
}

sr::Keep<double, 1> sum(sr::CpuWorker& worker, sr::Local<const double, 1> x, sr::Local<const double, 1> y) {
  sr::Keep<double, 1> result(worker, x.shape());
  for (std::int64_t i = 0; i < x.rows(); ++i) result[i] = x[i] + y[i];
  return result;
}

/// The gradient of the mean of (w a - b)^2 over the pairs (a, b) of one half of the data.
sr::Keep<double, 1> gradient(sr::CpuWorker& worker, sr::Local<const double, 1> w, sr::Local<const double, 2> data) {
  sr::Keep<double, 1> result(worker, {1});
  for (std::int64_t i = 0; i < data.rows(); ++i) {
    result[0] += 2 * (w[0] * data(i, 0) - data(i, 1)) * data(i, 0) / static_cast<double>(data.rows());
  }
  return result;
}

void descend(sr::Local<double, 1> w, sr::Local<const double, 1> left, sr::Local<const double, 1> right) {
  w[0] -= 0.1 * (left[0] + right[0]) / 2;
}
// [/functions]

std::vector<double> pairs(int first) {
  std::vector<double> values;
  for (int i = first; i < 100; i += 2) {
    const double a = 0.01 * i;
    values.insert(values.end(), {a, 3 * a});
  }
  return values;
}

int program(sr::Session& session) {
  // [calls]
  const auto left = session.device(0);
  const auto right = session.device(session.world_size() - 1);

  const auto make = session.function(squares);
  const auto x = make.on(left)(1000);                   // returns at once
  const auto y = make.on(right)(1000);                  // runs at the same time
  const auto z = session.function(sum).on(left)(x, y);  // y moves to the device `left`
  std::printf("z[30] = %g\n", z.get()[30]);
  // [/calls]

  // [training]
  const auto a = session.value(pairs(0), sr::Shape{50, 2}, left);
  const auto b = session.value(pairs(1), sr::Shape{50, 2}, right);
  const auto w = session.value(std::vector{0.0}, sr::Shape{1}, left);
  const auto g = session.function(gradient);
  const auto step = session.function(descend).on(left);
  for (int i = 0; i < 100; ++i) {
    const auto of_left = g.on(left)(w, a);
    const auto of_right = g.on(right)(w, b);  // a copy of w moves there
    step(w, of_left, of_right);               // the gradient moves back
  }
  std::printf("w = %.4f\n", w.get()[0]);
  // [/training]
  return z.get()[30] == 1800 && w.get()[0] > 2.99 && w.get()[0] < 3.01 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return syncrun::run(argc, argv, program, {.processes = "2"}); }
