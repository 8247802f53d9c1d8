// docs/api/updates.md

#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "points.hpp"

namespace sr = syncrun;

// [body]
/// Of the mean over this rank's rows: the squared error of the line {slope, intercept}, and its gradient.
sr::Avg<double> loss_and_gradient(sr::Scattered<const double, 1> x, sr::Scattered<const double, 1> y,
                                  sr::Local<double, 1> line, sr::Local<double, 1> gradient) {
  const auto rows = static_cast<double>(x.rows());
  double loss = 0;
  gradient[0] = gradient[1] = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    const double error = line[0] * x[i] + line[1] - y[i];
    loss += error * error / rows;
    gradient[0] += 2 * error * x[i] / rows;
    gradient[1] += 2 * error / rows;
  }
  return loss;
}
// [/body]

// [ready]
/// The same from the end of the gradient to its beginning, as a backward pass goes through its layers.
sr::Avg<double> from_the_end(sr::GradientReady& ready, sr::Scattered<const double, 1> x,
                             sr::Scattered<const double, 1> y, sr::Local<double, 1> line,
                             sr::Local<double, 1> gradient) {
  const auto rows = static_cast<double>(x.rows());
  const auto error = [&](std::int64_t i) { return line[0] * x[i] + line[1] - y[i]; };
  double loss = 0;
  gradient[0] = gradient[1] = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) gradient[1] += 2 * error(i) / rows;
  ready.from(1);  // elements 1 and up are final: on GPUs they are averaged from here on, beside what follows
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    loss += error(i) * error(i) / rows;
    gradient[0] += 2 * error(i) * x[i] / rows;
  }
  return loss;
}
// [/ready]

// [update]
/// The same step by hand, by RMSProp.
sr::Avg<double> step_by_hand(sr::CpuWorker& worker, sr::Comm& comm, sr::Scattered<const double, 1> x,
                             sr::Scattered<const double, 1> y, sr::Local<double, 1> line, sr::Local<double, 1> s,
                             sr::RmsProp rule) {
  std::vector<double> gradient(2);
  const sr::Avg<double> loss = loss_and_gradient(x, y, line, sr::Local<double, 1>({gradient.data(), {2}}));
  comm.avg(gradient);
  sr::update(worker, rule, line, gradient, s);
  return loss;
}
// [/update]

void program(sr::Session& session) {
  // [step]
  const Points points = make_points(500);
  const auto x = session.data(points.x);
  const auto y = session.data(points.y);
  auto line = session.shared<double, 1>("line");
  line.broadcast(std::vector<double>{0, 0});

  auto step = sr::train_step<sr::Adam>(session, loss_and_gradient, line);
  double loss = 0;
  for (int i = 0; i < 400; ++i) {
    const double rate = i < 200 ? 0.1 : 0.01;
    loss = step(x, y, {.learning_rate = rate}, {.slices = 2});
  }
  const auto fitted = line.get(0);  // of rank 0; the others hold the same
  std::printf("y = %.4f x + %.4f, loss %.6f after %d steps\n", fitted[0], fitted[1], loss,
              static_cast<int>(step.steps()));
  // [/step]

  // [sharded]
  line.broadcast(std::vector<double>{0, 0});
  auto sharded = sr::train_step<sr::Adam>(session, loss_and_gradient, line, {.form = sr::StepForm::sharded});
  for (int i = 0; i < 200; ++i) sharded(x, y, {.learning_rate = 0.1});
  const auto [m, v] = sharded.state();
  for (int rank = 0; rank < session.world_size(); ++rank) {
    std::printf("rank %d holds %d of %d elements of %s\n", rank, static_cast<int>(v.shape(rank)[0]),
                static_cast<int>(line.shape(rank)[0]), v.name().c_str());
  }
  // [/sharded]

  // [checkpoint]
  const auto saved_line = line.get(0);
  const auto saved_m = m.gather();  // where the state is replicated: m.get(0), and broadcast below
  const auto saved_v = v.gather();
  const std::int64_t saved_steps = sharded.steps();

  line.broadcast(saved_line);
  auto resumed = sr::train_step<sr::Adam>(session, loss_and_gradient, line, {.form = sr::StepForm::sharded});
  auto [resumed_m, resumed_v] = resumed.state();
  resumed_m.scatter(saved_m);
  resumed_v.scatter(saved_v);
  resumed.set_steps(saved_steps);
  for (int i = 0; i < 200; ++i) resumed(x, y, {.learning_rate = 0.01});
  std::printf("y = %.4f x + %.4f after %d steps\n", line.get(0)[0], line.get(0)[1], static_cast<int>(resumed.steps()));
  // [/checkpoint]

  // [told]
  line.broadcast(std::vector<double>{0, 0});
  auto told = sr::train_step<sr::Adam>(session, from_the_end, line);
  for (int i = 0; i < 400; ++i) loss = told(x, y, {.learning_rate = i < 200 ? 0.1 : 0.01});
  std::printf("from the end: loss %.6f\n", loss);
  // [/told]

  // [by_hand]
  line.broadcast(std::vector<double>{0, 0});
  const auto [s] = sr::state_for<sr::RmsProp>(session, line);
  const auto f = session.function(step_by_hand);
  for (int i = 0; i < 400; ++i) loss = f(x, y, line, s, {.learning_rate = 0.02});
  std::printf("by hand: loss %.4f\n", loss);
  // [/by_hand]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }
