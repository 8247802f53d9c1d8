// Tour, step 6: replicated objects.

#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "points.hpp"

namespace sr = syncrun;

// [class]
/// Fits a line by gradient descent with momentum. Each worker has one Fitter. All Fitters take the same steps.
class Fitter {
 public:
  Fitter(double rate, double momentum) : rate_(rate), momentum_(momentum) {}

  sr::Avg<double> step(sr::Comm& comm, sr::Scattered<const double, 1> x, sr::Scattered<const double, 1> y) {
    double loss = 0;
    std::vector<double> gradient(2);
    for (std::int64_t i = 0; i < x.rows(); ++i) {
      const double error = line_[0] * x[i] + line_[1] - y[i];
      loss += error * error / static_cast<double>(x.rows());
      gradient[0] += 2 * error * x[i] / static_cast<double>(x.rows());
      gradient[1] += 2 * error / static_cast<double>(x.rows());
    }
    comm.avg(std::span(gradient));
    for (std::size_t i = 0; i < 2; ++i) {
      velocity_[i] = momentum_ * velocity_[i] - rate_ * gradient[i];
      line_[i] += velocity_[i];
    }
    return loss;
  }

  sr::Gather<double, 1> line() const { return {line_, sr::Shape{2}}; }

 private:
  double rate_;
  double momentum_;
  std::vector<double> line_ = {0, 0};
  std::vector<double> velocity_ = {0, 0};
};
// [/class]

void program(sr::Session& session) {
  const Points points = make_points(500);
  const auto x = session.data(points.x);
  const auto y = session.data(points.y);
  // [use]
  const auto fitter = session.replicate<Fitter>(0.1, 0.9);  // Fitter(0.1, 0.9) on every worker
  const auto step = session.function(&Fitter::step, fitter);
  for (int i = 0; i < 200; ++i) step(x, y);

  const auto lines = session.function(&Fitter::line, fitter)();
  for (int rank = 0; rank < session.world_size(); ++rank) {
    std::printf("rank %d: y = %.4f x + %.4f\n", rank, lines[2 * rank], lines[2 * rank + 1]);
  }
  // [/use]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }
