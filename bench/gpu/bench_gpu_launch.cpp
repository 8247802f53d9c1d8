// Measures a launch. The program prints when its first call has run on all GPUs, and when its first all_reduce has.
//
//   syncrun -n 8 bench_gpu_launch

#include <stdexcept>
#include <vector>

#include "bench/gpu/first_result.hpp"
#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

namespace {

sr::Sum<std::int32_t> count(sr::CudaWorker& /*worker*/) { return 1; }

void add_up(sr::CudaWorker& /*worker*/, sr::Comm& comm, sr::Local<float, 1> values) {
  comm.all_reduce(values, sr::Reduction::sum);
}

void program(sr::Session& session) {
  const int devices = session.world_size();
  if (session.function(count, "count")() != devices) throw std::runtime_error("not every device has counted");
  bench::print_first_result(devices, "first call");

  auto values = session.shared<float, 1>("values");
  values.broadcast(std::vector<float>{1});
  session.function(add_up, "add_up")(values);
  if (values.get(0)[0] != static_cast<float>(devices)) throw std::runtime_error("all_reduce gave a wrong sum");
  bench::print_first_result(devices, "first all_reduce");
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, program); }
