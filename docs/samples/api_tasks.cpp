// docs/api/tasks.md

#include <cstdio>
#include <cstdlib>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

// [task]
struct Score {
  int step;
  double loss;
};

/// Receives weights, sends scores; returns how many it has computed.
int validate(sr::Pipe<std::vector<double>, Score>& pipe, std::string name) {
  std::printf("%s on GPU '%s'\n", name.c_str(), std::getenv("CUDA_VISIBLE_DEVICES"));
  int step = 0;
  while (const auto weights = pipe.receive()) {  // nothing once the master has no more
    double loss = 0;
    for (const double w : *weights) loss += (w - 1) * (w - 1);
    pipe.send({.step = step++, .loss = loss});
  }
  return step;
}
// [/task]

int main(int argc, char** argv) {
  if (const auto code = sr::serve_if_worker(argc, argv)) return *code;  // a task's process ends here

  // [use]
  auto task = sr::task(validate, {.name = "validation", .environment = {{"CUDA_VISIBLE_DEVICES", "3"}}}, "digits");
  std::vector<double> weights{0, 0};
  for (int step = 0; step < 3; ++step) {
    task.send(weights);  // it computes while the program goes on
    for (double& w : weights) w += 0.5;
    const Score score = task.receive().value();
    std::printf("step %d: loss %g\n", score.step, score.loss);
  }
  std::printf("%d steps were validated\n", task.get());  // no more messages: the function returns
  // [/use]
}
