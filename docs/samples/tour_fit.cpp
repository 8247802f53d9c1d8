// Tour, step 4: shared variables, and collectives inside a function.

#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "points.hpp"

namespace sr = syncrun;

// [step]
/// One step of gradient descent on `line` = {slope, intercept}. Every rank ends with the same line.
sr::Avg<double> step(sr::Comm& comm, sr::Scattered<const double, 1> x, sr::Scattered<const double, 1> y,
                     sr::Local<double, 1> line, double rate) {
  double loss = 0;
  std::vector<double> gradient(2);  // the gradient of the mean loss over this rank's rows
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    const double error = line[0] * x[i] + line[1] - y[i];
    loss += error * error / static_cast<double>(x.rows());
    gradient[0] += 2 * error * x[i] / static_cast<double>(x.rows());
    gradient[1] += 2 * error / static_cast<double>(x.rows());
  }
  comm.avg(std::span(gradient));  // now the gradient of the mean loss over all rows
  line[0] -= rate * gradient[0];
  line[1] -= rate * gradient[1];
  return loss;
}
// [/step]

void program(sr::Session& session) {
  // [fit]
  const Points points = make_points(500);
  const auto x = session.data(points.x);
  const auto y = session.data(points.y);
  auto line = session.shared<double, 1>("line");
  line.broadcast(std::vector<double>{0, 0});

  const auto f = session.function(step);
  double loss = 0;
  for (int i = 0; i < 200; ++i) loss = f(x, y, line, 0.5);

  const auto fitted = line.get(0);  // the copy of rank 0; all copies are equal
  std::printf("y = %.4f x + %.4f, loss %.6f\n", fitted[0], fitted[1], loss);
  // [/fit]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }
