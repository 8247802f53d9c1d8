// Measures a training step of a GPT-2 style model of LibTorch modules: loss, gradient, all_reduce and update by AdamW.
// The models are GPT-2 (124 million parameters, context 1,024, vocabulary 50,304), and three with a vocabulary of 256:
// medium (4.8 million, context 128), small (0.84 million, context 128) and tiny (0.12 million, context 64). Two steps are
// in flight. For each mode and number of rows, it prints a JSON line. "gib" is the memory in use on the GPU, for all
// settings up to this one, where it is largest. "first_step_s" is the time from the start of the command until the first
// step was made, if the variable BENCH_STARTED_NS has that time (CLOCK_REALTIME).
//
// The modes: replayed (by a CUDA graph), plain (without one), during (without one, and the ranks average the gradient
// during the backward pass).
//
//   syncrun -n 2 bench_gpt_step --model gpt2 --rows 32,8 --mode replayed,plain,during

#include <getopt.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>
#include <vector>

#include "bench/steps_in_flight.hpp"
#include "demos/gpt/model.hpp"
#ifdef GPT_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace {

namespace sr = syncrun;
namespace lt = syncrun::libtorch;

[[maybe_unused]] constexpr double kGibibyte = 1 << 30;

gpt::ModelConfig config_of(std::string_view model) {
  if (model == "gpt2") return {.n_layer = 12, .n_head = 12, .n_embd = 768, .block_size = 1024, .vocab_size = 50304};
  if (model == "tiny") return {.n_layer = 2, .n_head = 4, .n_embd = 64, .block_size = 64, .vocab_size = 256};
  if (model == "medium") return {.n_layer = 6, .n_head = 4, .n_embd = 256, .block_size = 128, .vocab_size = 256};
  return {.n_layer = 4, .n_head = 4, .n_embd = 128, .block_size = 128, .vocab_size = 256};
}

struct Options {
  std::string model = "small";
  std::vector<std::int64_t> rows{64};  // of each device
  std::vector<std::string> modes{"replayed"};
  std::string dtype = "bfloat16";
  int steps = 20;  // of a sample
};

std::optional<Options> parse_options(int argc, char** argv) {
  static const option kOptions[] = {
      {"model", required_argument, nullptr, 'm'}, {"rows", required_argument, nullptr, 'r'},
      {"mode", required_argument, nullptr, 'o'},  {"dtype", required_argument, nullptr, 'd'},
      {"steps", required_argument, nullptr, 's'}, {nullptr, 0, nullptr, 0}};
  Options options;
  for (int chosen = 0; (chosen = ::getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    if (chosen == 'm') options.model = optarg;
    else if (chosen == 'o') options.modes = benchmark_steps::split(optarg);
    else if (chosen == 'd') options.dtype = optarg;
    else if (chosen == 's') options.steps = std::atoi(optarg);
    else if (chosen == 'r') options.rows = benchmark_steps::numbers(optarg);
    else return std::nullopt;
  }
  for (const std::string& mode : options.modes) {
    if (mode != "replayed" && mode != "plain" && mode != "during") return std::nullopt;
  }
  return options;
}

torch::Tensor loss_of(gpt::Gpt& net, const torch::Tensor& rows) { return net.loss(rows.to(torch::kInt64)); }
torch::Tensor full_loss(gpt::Gpt& net, sr::Scattered<const std::int32_t, 2> rows) {
  return loss_of(net, lt::tensor(rows));
}
torch::Tensor mixed_loss(gpt::Gpt& net, sr::Scattered<const std::int32_t, 2> rows) {
  const lt::Autocast autocast(torch::kBFloat16);
  return loss_of(net, lt::tensor(rows));
}

/// The memory in use on this rank's GPU. 0 on a CPU device.
sr::Max<double> no_gib(sr::CpuWorker&) { return 0.0; }
sr::Max<double> used_gib(sr::CudaWorker&) {
#ifdef GPT_HAVE_CUDA
  std::size_t free = 0;
  std::size_t total = 0;
  if (::cudaMemGetInfo(&free, &total) == cudaSuccess) return static_cast<double>(total - free) / kGibibyte;
#endif
  return 0.0;
}

class Bench {
 public:
  Bench(sr::Session& session, const Options& options)
      : session_(session),
        options_(options),
        config_(config_of(options.model)),
        most_rows_(*std::max_element(options.rows.begin(), options.rows.end()) * session.world_size()),
        data_(session.data(random_tokens(), sr::Shape{most_rows_, config_.block_size + 1})),
        net_(session.replicate<lt::Replica<gpt::Gpt>>(std::uint64_t{7}, config_)),
        params_(lt::parameters(session, net_)) {}

  template <auto kLoss>
  void measure(const std::string& mode) {
    if (mode == "during") return measure<kLoss, kDuring>(mode);
    if (mode == "plain") return measure<kLoss, kPlain>(mode);
    measure<kLoss, lt::BackwardOptions{}>(mode);
  }

 private:
  static constexpr lt::BackwardOptions kPlain{.replay = lt::Replay::never};
  static constexpr lt::BackwardOptions kDuring{.average = lt::GradientAverage::during_backward};

  template <auto kLoss, lt::BackwardOptions kBackward>
  void measure(const std::string& mode) {
    auto step = lt::train_step<sr::Adam, kLoss, kBackward>(session_, net_, params_);
    for (const std::int64_t rows : options_.rows) {
      const sr::Adam rule{.learning_rate = 1e-3, .decoupled_weight_decay = 0.1};
      const sr::CallOptions call{.batch = rows * session_.world_size()};
      if (first_step_s_ == 0) {
        last_loss_ = step(data_, rule, call);
        note_first_step();
      }
      const auto times =
          benchmark_steps::measure([&] { return step.async(data_, rule, call); }, options_.steps, last_loss_);
      const double gib = session_.function(no_gib, used_gib)();
      std::printf(
          "{\"bench\":\"gpt_step\",\"impl\":\"syncrun\",\"variant\":\"%s\",\"devices\":%d,\"model\":\"%s\","
          "\"rows\":%lld,\"dtype\":\"%s\",\"median_us\":%.1f,\"min_us\":%.1f,\"max_us\":%.1f,\"tokens_per_s\":%.0f,"
          "\"gib\":%.2f,"
          "\"first_step_s\":%.2f,\"last_loss\":%.6f}\n",
          mode.c_str(), session_.world_size(), options_.model.c_str(), static_cast<long long>(rows),
          options_.dtype.c_str(), times.median, times.least, times.most,
          static_cast<double>(rows * session_.world_size() * config_.block_size) / times.median * 1e6, gib,
          first_step_s_, last_loss_);
      std::fflush(stdout);
    }
  }

  std::vector<std::int32_t> random_tokens() const {
    std::mt19937 random(1);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(most_rows_ * (config_.block_size + 1)));
    for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<unsigned>(config_.vocab_size));
    return tokens;
  }

  void note_first_step() {
    const char* const started = std::getenv("BENCH_STARTED_NS");
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    first_step_s_ = started == nullptr ? -1 : now - std::atof(started) / 1e9;
  }

  sr::Session& session_;
  const Options& options_;
  gpt::ModelConfig config_;
  std::int64_t most_rows_;
  sr::Data<std::int32_t, 2> data_;
  sr::Replicated<lt::Replica<gpt::Gpt>> net_;
  sr::Shared<float, 1> params_;
  double first_step_s_ = 0;
  double last_loss_ = 0;
};

void run_bench(sr::Session& session, const Options& options) {
  Bench bench(session, options);
  for (const std::string& mode : options.modes) {
    if (options.dtype == "bfloat16") bench.measure<mixed_loss>(mode);
    else bench.measure<full_loss>(mode);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto exit_code = sr::serve_if_worker(argc, argv)) return *exit_code;
  const auto options = parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr,
                 "usage: [syncrun -n N] bench_gpt_step [--model tiny|small|medium|gpt2] [--rows ROWS_PER_DEVICE,...]\n"
                 "                      [--mode replayed,plain,during] [--dtype float32|bfloat16] [--steps N]\n");
    return 2;
  }
  return sr::run(argc, argv, [&](sr::Session& session) { run_bench(session, *options); });
}
