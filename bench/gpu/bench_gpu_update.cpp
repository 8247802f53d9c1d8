// Measures an update of 25 million float32 parameters on every GPU, by Adam and by SGD with momentum, and a copy within
// its memory that moves as many bytes: 28 for each parameter by Adam, as in bench_update, and 20 by SGD with momentum.
// Updates and copies take turns. Events on the worker's stream measure the time. The body either runs in every call
// (eager) or is replayable (graph). A third variant has vectors that the GPU cannot read 16 bytes at a time. The time is
// that of the slowest rank.
//
//   syncrun -n 1 bench_gpu_update --seconds 1

#include <cuda_runtime_api.h>

#include <cmath>
#include <string>
#include <tuple>

#include "bench/comparators/gpu_report.hpp"
#include "bench/comparators/gpu_timer.hpp"
#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

namespace {

constexpr std::int64_t kParameters = 25'000'000;
constexpr int kRepeats = 10;  // in one timed sequence, so that the time to start it does not matter

using Vector = sr::Local<float, 1>;

/// Reads parameters, gradient and state, and writes parameters and state.
template <class Rule>
constexpr std::size_t kBytes = (3 + 2 * Rule::kState.size()) * sizeof(float) * kParameters;

class Sequence {
 public:
  explicit Sequence(sr::CudaWorker& /*worker*/) {}

  template <class Rule, class... State>
  void update(sr::CudaWorker& worker, Vector params, Vector gradient, State... state, sr::DeviceScalar<Rule> rule) {
    timer_.begin(worker.stream());
    for (int i = 0; i < kRepeats; ++i) sr::update(worker, rule, params, gradient, state...);
    timer_.end(worker.stream());
  }

  /// Updates vectors that begin one element later, so that they are not aligned to 16 bytes.
  template <class Rule, class... State>
  void update_unaligned(sr::CudaWorker& worker, Vector params, Vector gradient, State... state,
                        sr::DeviceScalar<Rule> rule) {
    const auto rest = [](const Vector& vector) { return vector.span().subspan(1); };
    timer_.begin(worker.stream());
    for (int i = 0; i < kRepeats; ++i) sr::update(worker, rule, rest(params), rest(gradient), rest(state)...);
    timer_.end(worker.stream());
  }

  void copy(sr::CudaWorker& worker, Vector from, Vector to) {
    timer_.begin(worker.stream());
    for (int i = 0; i < kRepeats; ++i) {
      const cudaError_t code = cudaMemcpyAsync(to.data(), from.data(), from.size() * sizeof(float),
                                               cudaMemcpyDeviceToDevice, worker.stream());
      if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
    }
    timer_.end(worker.stream());
  }

  sr::Max<double> elapsed_us(sr::CudaWorker& /*worker*/) { return timer_.elapsed_us() / kRepeats; }

 private:
  comparators::GpuTimer timer_;
};

/// Measures the updates of a rule whose state has the types State.
template <class Rule, class... State>
void measure_rule(sr::Session& session, const sr::Replicated<Sequence>& sequence, double seconds,
                  const std::string& name) {
  constexpr auto kUpdate = &Sequence::update<Rule, State...>;
  const auto eager = session.function(kUpdate, sequence, "updates");
  const auto graph = session.function(sr::replayable(kUpdate), sequence, "replayed updates");
  const auto unaligned = session.function(&Sequence::update_unaligned<Rule, State...>, sequence, "unaligned updates");
  const auto copy = session.function(&Sequence::copy, sequence, "copies");
  const auto elapsed_us = session.function(&Sequence::elapsed_us, sequence, "elapsed");

  auto params = session.shared<float, 1>("params");
  auto gradient = session.shared<float, 1>("gradient");
  auto from = session.shared<float, 1>("from");
  params.broadcast(std::vector<float>(kParameters));
  gradient.broadcast(std::vector<float>(kParameters, 0.5F));
  from.broadcast(std::vector<float>(kBytes<Rule> / 2 / sizeof(float), 1.0F));
  const auto states = sr::state_for<Rule>(session, params);
  const auto [to] = sr::state_for<sr::Momentum>(session, from);

  const auto copy_us = [&] {
    copy(from, to);
    return elapsed_us().value();
  };
  const auto report = [&](const auto& update, const std::string& variant) {
    std::int64_t step = 0;
    const auto update_us = [&] {
      std::apply([&](const auto&... state) { update(params, gradient, state..., {.step = ++step}); }, states);
      return elapsed_us().value();
    };
    constexpr int kWarm = 4;  // enough for a replayable function to run, to be captured and to be replayed
    double warm_us = 0;
    for (int i = 0; i < kWarm; ++i) warm_us = update_us() + copy_us();
    std::vector<double> updates(static_cast<std::size_t>(comparators::iterations_for(seconds, warm_us * kRepeats)));
    std::vector<double> copies(updates.size());
    for (std::size_t i = 0; i < updates.size(); ++i) {
      updates[i] = update_us();
      copies[i] = copy_us();
    }
    const std::string what = name + ", 25 M float32, " + variant;
    const std::size_t bytes = kBytes<Rule> * static_cast<std::size_t>(session.world_size());
    comparators::print_gpu_line({"gpu_update", "syncrun", session.world_size(), what, bytes}, std::move(updates));
    comparators::print_gpu_line({"gpu_update", "copy", session.world_size(), what, bytes}, std::move(copies));
  };
  report(eager, "eager");
  // A gradient that stays the same moves every parameter by about the rate in each step.
  const float after = params.get(session.world_size() - 1)[kParameters - 1];
  if (!(after < -0.001F) || !std::isfinite(after)) throw std::runtime_error("the update gave wrong parameters");
  report(graph, "graph");
  report(unaligned, "not aligned");
}

int measure(sr::Session& session, int argc, char** argv) {
  const comparators::Options options = comparators::parse_options(argc, argv);
  const auto sequence = session.replicate<Sequence>();
  measure_rule<sr::Adam, Vector, Vector>(session, sequence, options.seconds, "adam");
  measure_rule<sr::SgdMomentum, Vector>(session, sequence, options.seconds, "sgd with momentum");
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, measure); }
