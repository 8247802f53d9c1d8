// docs/api/checkpoints.md

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

void train_epoch(sr::CpuWorker& worker, sr::Local<double, 1> params, sr::Local<float, 1> rows, int epoch) {
  if (epoch == 3 && sr::restarts() == 0 && worker.rank() == 1) std::_Exit(9);  // a worker is lost, the first time
  for (double& value : params) value += 1;
  for (float& value : rows) value *= 2;
}

void print(const char* what, sr::Array<float, 1> values) {
  std::printf("%s", what);
  for (const float value : values) std::printf(" %g", static_cast<double>(value));
  std::printf("\n");
}

void arrays(sr::Session& session, const sr::Shared<float, 1>& rows) {
  // [arrays]
  const auto x = session.data(std::vector<float>{1, 2, 3, 4, 5, 6}, sr::Shape{3, 2}, "x");
  sr::save("x.npy", x);
  const auto y = session.load<float, 2>("x.npy", "y");   // a new Data
  sr::save("rows.npy", rows, sr::Placement::scattered);  // the rows of all ranks, in rank order
  auto everywhere = session.shared<float, 1>();
  sr::load("rows.npy", everywhere);  // on every rank
  // [/arrays]
  std::printf("y has %d rows, every rank %d\n", static_cast<int>(y.rows()), static_cast<int>(everywhere.lengths()[0]));
}

void program(sr::Session& session) {
  if (sr::restarts() == 0) std::filesystem::remove_all("run");  // what an earlier run of this sample has left

  // [checkpoint]
  auto params = session.shared("params", std::vector<double>{0, 0});  // the same on every rank
  auto rows = session.shared<float, 1>("rows");                       // to each its part
  rows.scatter(std::vector<float>{1, 2, 3, 4, 5});
  int epoch = 0;
  if (sr::Checkpoint::exists("run")) {
    const sr::Checkpoint checkpoint("run");
    checkpoint.load({{"params", params}, {"rows", rows}});
    epoch = checkpoint.value<int>("epoch");
    std::printf("going on after epoch %d\n", epoch);
  }
  const auto train = session.function(train_epoch);
  while (++epoch <= 4) {
    train(params, rows, epoch);
    sr::save_checkpoint("run", {{"params", params}, {"rows", rows, sr::Placement::scattered}}, {{"epoch", epoch}});
    std::printf("saved epoch %d\n", epoch);
    std::fflush(stdout);
  }
  // [/checkpoint]
  print("rows", rows.gather());
  arrays(session, rows);
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }
