// Measures all_reduce of a float32 shared variable inside a function on GPUs. One call makes a sequence of all_reduces.
// Events on the worker's stream measure its time. The body either runs in every call (eager) or is replayable (graph).
// The time is that of the slowest rank.
//
//   syncrun -n 8 bench_gpu_all_reduce --seconds 0.3 --max-bytes 1073741824

#include "bench/comparators/gpu_report.hpp"
#include "bench/comparators/gpu_timer.hpp"
#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

namespace {

/// The sequence and its timer, on every worker. A later call reads the timer. So no body has to wait, and a graph can
/// contain the events.
class Sequence {
 public:
  explicit Sequence(sr::CudaWorker& /*worker*/) {}

  void once(sr::CudaWorker& /*worker*/, sr::Comm& comm, sr::Local<float, 1> values) {
    comm.all_reduce(values, sr::Reduction::sum);
  }

  /// Runs the timed sequence. An all_reduce before it, which is not timed, makes the ranks start together.
  void put(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values) {
    const int repeats = comparators::all_reduce_repeats(values.span().size_bytes());
    comm.all_reduce(values, sr::Reduction::sum);
    timer_.begin(worker.stream());
    for (int i = 0; i < repeats; ++i) comm.all_reduce(values, sr::Reduction::sum);
    timer_.end(worker.stream());
  }

  sr::Max<double> elapsed_us(sr::CudaWorker& /*worker*/) { return timer_.elapsed_us(); }

 private:
  comparators::GpuTimer timer_;
};

struct Functions {
  explicit Functions(sr::Session& session)
      : sequence(session.replicate<Sequence>()),
        once(session.function(&Sequence::once, sequence, "all_reduce")),
        eager(session.function(&Sequence::put, sequence, "all_reduces")),
        graph(session.function(sr::replayable(&Sequence::put), sequence, "replayed all_reduces")),
        elapsed_us(session.function(&Sequence::elapsed_us, sequence, "elapsed")) {}

  using OnValues = sr::Function<void, sr::Local<float, 1>>;
  sr::Replicated<Sequence> sequence;
  OnValues once;
  OnValues eager;
  OnValues graph;
  sr::Function<sr::Max<double>> elapsed_us;
};

void report(sr::Session& session, const Functions& functions, const Functions::OnValues& put,
            const sr::Shared<float, 1>& values, double seconds, const std::string& what, std::size_t bytes) {
  constexpr int kWarm = 4;  // enough for a replayable function to run, to be captured and to be replayed
  const auto once_us = [&] {
    put(values);
    return functions.elapsed_us().value();
  };
  double warm_us = 0;
  for (int i = 0; i < kWarm; ++i) warm_us = once_us();
  std::vector<double> samples(static_cast<std::size_t>(comparators::iterations_for(seconds, warm_us)));
  for (auto& sample : samples) sample = once_us() / comparators::all_reduce_repeats(bytes);
  comparators::print_gpu_line({"gpu_all_reduce", "syncrun", session.world_size(), what}, std::move(samples));
}

int measure(sr::Session& session, int argc, char** argv) {
  const comparators::Options options = comparators::parse_options(argc, argv);
  const Functions functions(session);
  auto values = session.shared<float, 1>("values");
  for (const std::size_t bytes : comparators::kAllReduceBytes) {
    if (bytes < options.min_bytes || bytes > options.max_bytes) continue;
    values.broadcast(comparators::all_reduce_values(bytes));
    functions.once(values);
    const auto sums = values.get(session.world_size() - 1);
    comparators::require_all_reduced(sums.span(), sums.span().size(), session.world_size());
    const auto seconds = options.seconds;
    report(session, functions, functions.eager, values, seconds, comparators::all_reduce_text(bytes, "eager"), bytes);
    report(session, functions, functions.graph, values, seconds, comparators::all_reduce_text(bytes, "graph"), bytes);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, measure); }
