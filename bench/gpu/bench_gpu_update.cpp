// Measures an update of 25 million float32 parameters by adam on every GPU, and a copy within its memory that moves as
// many bytes: 28 for each parameter, as in bench_update. Updates and copies take turns. Events on the worker's stream
// measure the time. The body either runs in every call (eager) or is replayable (graph). A third variant has vectors
// that the GPU cannot read 16 bytes at a time. The time is that of the slowest rank.
//
//   syncrun -n 1 bench_gpu_update --seconds 1

#include <cuda_runtime_api.h>

#include <cmath>

#include "bench/comparators/gpu_report.hpp"
#include "bench/comparators/gpu_timer.hpp"
#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

namespace {

constexpr std::int64_t kParameters = 25'000'000;
constexpr std::size_t kBytes = 28 * kParameters;
constexpr int kRepeats = 10;  // in one timed sequence, so that the time to start it does not matter

using Vector = sr::Local<float, 1>;

class Sequence {
 public:
  explicit Sequence(sr::CudaWorker& /*worker*/) {}

  void update(sr::CudaWorker& worker, Vector params, Vector gradient, Vector m, Vector v,
              sr::DeviceScalar<sr::Adam> adam) {
    timer_.begin(worker.stream());
    for (int i = 0; i < kRepeats; ++i) sr::update(worker, adam, params, gradient, m, v);
    timer_.end(worker.stream());
  }

  /// Updates vectors that begin one element later, so that they are not aligned to 16 bytes.
  void update_unaligned(sr::CudaWorker& worker, Vector params, Vector gradient, Vector m, Vector v,
                        sr::DeviceScalar<sr::Adam> adam) {
    const auto rest = [](const Vector& vector) { return vector.span().subspan(1); };
    timer_.begin(worker.stream());
    for (int i = 0; i < kRepeats; ++i) sr::update(worker, adam, rest(params), rest(gradient), rest(m), rest(v));
    timer_.end(worker.stream());
  }

  void copy(sr::CudaWorker& worker, Vector from, Vector to) {
    timer_.begin(worker.stream());
    for (int i = 0; i < kRepeats; ++i) {
      const cudaError_t code =
          cudaMemcpyAsync(to.data(), from.data(), kBytes / 2, cudaMemcpyDeviceToDevice, worker.stream());
      if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
    }
    timer_.end(worker.stream());
  }

  sr::Max<double> elapsed_us(sr::CudaWorker& /*worker*/) { return timer_.elapsed_us() / kRepeats; }

 private:
  comparators::GpuTimer timer_;
};

int measure(sr::Session& session, int argc, char** argv) {
  const comparators::Options options = comparators::parse_options(argc, argv);
  const auto sequence = session.replicate<Sequence>();
  const auto eager = session.function(&Sequence::update, sequence, "updates");
  const auto graph = session.function(sr::replayable(&Sequence::update), sequence, "replayed updates");
  const auto unaligned = session.function(&Sequence::update_unaligned, sequence, "unaligned updates");
  const auto copy = session.function(&Sequence::copy, sequence, "copies");
  const auto elapsed_us = session.function(&Sequence::elapsed_us, sequence, "elapsed");

  auto params = session.shared<float, 1>("params");
  auto gradient = session.shared<float, 1>("gradient");
  auto from = session.shared<float, 1>("from");
  params.broadcast(std::vector<float>(kParameters));
  gradient.broadcast(std::vector<float>(kParameters, 0.5F));
  from.broadcast(std::vector<float>(kBytes / 2 / sizeof(float), 1.0F));
  const auto [m, v] = sr::state_for<sr::Adam>(session, params);
  const auto [to] = sr::state_for<sr::Momentum>(session, from);

  const auto copy_us = [&] {
    copy(from, to);
    return elapsed_us().value();
  };
  const auto report = [&](const auto& update, const char* what) {
    std::int64_t step = 0;
    const auto update_us = [&] {
      update(params, gradient, m, v, {.step = ++step});
      return elapsed_us().value();
    };
    constexpr int kWarm = 4;  // enough for a replayable function to run, to be captured and to be replayed
    double warm_us = 0;
    for (int i = 0; i < kWarm; ++i) warm_us = update_us() + copy_us();
    std::vector<double> updates(
        static_cast<std::size_t>(comparators::iterations_for(options.seconds, warm_us * kRepeats)));
    std::vector<double> copies(updates.size());
    for (std::size_t i = 0; i < updates.size(); ++i) {
      updates[i] = update_us();
      copies[i] = copy_us();
    }
    const std::size_t bytes = kBytes * static_cast<std::size_t>(session.world_size());
    comparators::print_gpu_line({"gpu_update", "syncrun", session.world_size(), what, bytes}, std::move(updates));
    comparators::print_gpu_line({"gpu_update", "copy", session.world_size(), what, bytes}, std::move(copies));
  };
  report(eager, "adam, 25 M float32, eager");
  // A gradient that stays the same moves every parameter by about the rate in each step.
  const float after = params.get(session.world_size() - 1)[kParameters - 1];
  if (!(after < -0.001F) || !std::isfinite(after)) throw std::runtime_error("the update gave wrong parameters");
  report(graph, "adam, 25 M float32, graph");
  report(unaligned, "adam, 25 M float32, not aligned");
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, measure); }
