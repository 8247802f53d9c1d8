// A worker is lost and replaced: docs/failures.md.

#include <csignal>
#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

// [program]
void step(sr::CpuWorker& worker, sr::Comm& comm, sr::Local<float, 1> weights, bool dies) {
  if (dies && worker.rank() == 1) std::raise(SIGKILL);
  std::vector<float> gradient(weights.begin(), weights.end());
  comm.all_reduce(gradient, sr::Reduction::max);
  auto slope = gradient.begin();
  for (float& weight : weights) weight -= *slope++ / 2;
}

void program(sr::Session& session) {
  auto weights = session.shared<float, 1>("weights");
  auto scales = session.shared<float, 1>("scales");
  weights.broadcast(std::vector<float>{8, 4});
  scales.broadcast(std::vector<float>{1, 1});
  const auto f = session.function(step);
  f(weights, false);
  const auto kept = weights.get(0);
  try {
    f(weights, true);
  } catch (const sr::Error& error) {
    std::printf("%s\n", error.what());
    weights.broadcast(kept);  // go on from here
  }
  f(weights, false);
  std::printf("rank 1 has %g %g\n", weights.get(1)[0], weights.get(1)[1]);
}

int main(int argc, char** argv) {
  return syncrun::run(argc, argv, program, {.on_worker_lost = sr::OnWorkerLost::respawn});
}
// [/program]
