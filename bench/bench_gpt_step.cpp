// Measures a training step of a GPT-2 style model of LibTorch modules: loss, gradient, all_reduce and update by AdamW.
// The models are GPT-2 (124 million parameters, context 1,024, vocabulary 50,304), and three with a vocabulary of 256:
// medium (4.8 million, context 128), small (0.84 million, context 128) and tiny (0.12 million, context 64). The other sizes
// of syncrun-gpt are there by their names, such as 6.7b, with a vocabulary of 50,304. Two others are networks of three
// layers for rows of 784 numbers: mlp (widths 800, 800 and 10, 1.3 million parameters) and mlp_small (128, 128 and 10, 0.12
// million). A row is then one token. Two steps are in flight. For each mode and number of rows, it prints a JSON line. "gib"
// is the memory in use on the GPU, for all settings up to this one, where it is largest. "first_step_s" is the time from the
// start of the command until the first step was made, if the variable BENCH_STARTED_NS has that time (CLOCK_REALTIME).
//
// The modes: replayed (by a CUDA graph), plain (without one), during (without one, and the ranks average the gradient
// during the backward pass). With --sharded, the parameters are divided among the ranks, and with --checkpoint-activations,
// blocks are computed again in the backward pass. These have no modes, and their variants are sharded, sharded_recomputed
// and plain_recomputed. "tflops" is that of a device, by the formula in demos/gpt/model_config.hpp.
//
//   syncrun -n 2 bench_gpt_step --model gpt2 --rows 32,8 --mode replayed,plain,during
//   syncrun -n 2 bench_gpt_step --model 6.7b --rows 4 --sharded --checkpoint-activations

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
#include <tuple>
#include <type_traits>
#include <utility>
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
constexpr lt::ShardOptions kMixed{.gather = lt::UnitType::bfloat16, .prefetch = lt::Prefetch::on_gpus};
constexpr lt::ShardOptions kAllMixed{
    .gather = lt::UnitType::bfloat16, .reduce = lt::UnitType::bfloat16, .prefetch = lt::Prefetch::on_gpus};

std::optional<gpt::ModelConfig> config_of(std::string_view model) {
  if (model == "gpt2") return config_of("124m");
  if (model == "tiny")
    return gpt::ModelConfig{.n_layer = 2, .n_head = 4, .n_embd = 64, .block_size = 64, .vocab_size = 256};
  if (model == "medium")
    return gpt::ModelConfig{.n_layer = 6, .n_head = 4, .n_embd = 256, .block_size = 128, .vocab_size = 256};
  if (model == "small")
    return gpt::ModelConfig{.n_layer = 4, .n_head = 4, .n_embd = 128, .block_size = 128, .vocab_size = 256};
  for (const gpt::Preset& preset : gpt::presets()) {
    if (preset.name != model) continue;
    gpt::ModelConfig config = preset.model;
    config.vocab_size = 50304;
    return config;
  }
  return std::nullopt;
}

bool is_mlp(std::string_view model) { return model.starts_with("mlp"); }

/// Three layers with ReLU between them, from 784 numbers to the scores of 10 classes.
class Mlp : public torch::nn::Module {
 public:
  static constexpr std::int64_t kFeatures = 784;
  static constexpr std::int64_t kClasses = 10;

  explicit Mlp(std::int64_t width) : first_(kFeatures, width), second_(width, width), last_(width, kClasses) {
    register_module("first", first_);
    register_module("second", second_);
    register_module("last", last_);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last_(torch::relu(second_(torch::relu(first_(x))))); }

 private:
  torch::nn::Linear first_;
  torch::nn::Linear second_;
  torch::nn::Linear last_;
};

struct Options {
  std::string model = "small";
  std::vector<std::int64_t> rows{64};  // of each device
  std::vector<std::string> modes{"replayed"};
  std::string dtype = "bfloat16";
  bool is_sharded = false;
  bool reduces_in_bfloat16 = false;
  gpt::ModelConfig config;  // not of an MLP
  int steps = 20;           // of a sample
};

std::optional<Options> parse_options(int argc, char** argv) {
  static const option kOptions[] = {{"model", required_argument, nullptr, 'm'},
                                    {"rows", required_argument, nullptr, 'r'},
                                    {"mode", required_argument, nullptr, 'o'},
                                    {"dtype", required_argument, nullptr, 'd'},
                                    {"steps", required_argument, nullptr, 's'},
                                    {"sharded", no_argument, nullptr, 'f'},
                                    {"bfloat16-sums", no_argument, nullptr, 'b'},
                                    {"checkpoint-activations", no_argument, nullptr, 'c'},
                                    {nullptr, 0, nullptr, 0}};
  Options options;
  auto activations = gpt::Activations::kKept;
  bool has_modes = false;
  for (int chosen = 0; (chosen = ::getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    if (chosen == 'm') options.model = optarg;
    else if (chosen == 'o') options.modes = benchmark_steps::split(optarg), has_modes = true;
    else if (chosen == 'd') options.dtype = optarg;
    else if (chosen == 's') options.steps = std::atoi(optarg);
    else if (chosen == 'f') options.is_sharded = true;
    else if (chosen == 'b') options.reduces_in_bfloat16 = true;
    else if (chosen == 'c') activations = gpt::Activations::kRecomputed;
    else if (chosen == 'r') options.rows = benchmark_steps::numbers(optarg);
    else return std::nullopt;
  }
  for (const std::string& mode : options.modes) {
    if (mode != "replayed" && mode != "plain" && mode != "during") return std::nullopt;
  }
  const bool is_special = options.is_sharded || activations == gpt::Activations::kRecomputed;
  if (is_special && (has_modes || is_mlp(options.model))) return std::nullopt;
  if (is_mlp(options.model)) return options;
  const auto config = config_of(options.model);
  if (!config) return std::nullopt;
  options.config = *config;
  options.config.activations = activations;
  if (options.is_sharded) options.config.parameters = gpt::Parameters::kSharded;
  if (is_special) options.modes = {"plain"};
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

torch::Tensor full_mlp_loss(Mlp& net, sr::Scattered<const float, 2> x, sr::Scattered<const std::int64_t, 1> y) {
  return torch::cross_entropy_loss(net.forward(lt::tensor(x)), lt::tensor(y));
}
torch::Tensor mixed_mlp_loss(Mlp& net, sr::Scattered<const float, 2> x, sr::Scattered<const std::int64_t, 1> y) {
  const lt::Autocast autocast(torch::kBFloat16);
  return full_mlp_loss(net, x, y);
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

/// The rows of all settings.
std::int64_t most_rows(const sr::Session& session, const Options& options) {
  return *std::max_element(options.rows.begin(), options.rows.end()) * session.world_size();
}

/// Measures the steps of one module. `Model` is an lt::Replica or an lt::ShardedReplica, and `Inputs` are what the loss
/// reads.
template <class Model, class... Inputs>
class Bench {
 public:
  /// `operations` are the floating-point operations of a step for each token.
  Bench(sr::Session& session, const Options& options, std::int64_t tokens_of_row, double operations,
        sr::Replicated<Model> net, Inputs... inputs)
      : session_(session),
        options_(options),
        tokens_of_row_(tokens_of_row),
        operations_(operations),
        inputs_(std::move(inputs)...),
        net_(std::move(net)),
        params_(lt::parameters(session, net_)) {}

  template <auto kFullLoss, auto kMixedLoss>
  void measure_all() {
    for (const std::string& mode : options_.modes) {
      if (options_.dtype == "bfloat16" && !kIsSharded) measure<kMixedLoss>(mode);  // otherwise, units are in bfloat16
      else measure<kFullLoss>(mode);
    }
  }

 private:
  static constexpr bool kIsSharded =
      !std::is_same_v<Model, lt::Replica<gpt::Gpt>> && !std::is_same_v<Model, lt::Replica<Mlp>>;
  static constexpr lt::BackwardOptions kPlain{.replay = lt::Replay::never};
  static constexpr lt::BackwardOptions kDuring{.average = lt::GradientAverage::during_backward};

  template <auto kLoss>
  void measure(const std::string& mode) {
    if constexpr (kIsSharded) {
      measure<kLoss, kPlain>("sharded");
    } else {
      if (mode == "during") return measure<kLoss, kDuring>(mode);
      if (mode == "plain") return measure<kLoss, kPlain>(mode);
      measure<kLoss, lt::BackwardOptions{}>(mode);
    }
  }

  template <auto kLoss, lt::BackwardOptions kBackward>
  void measure(const std::string& mode) {
    const auto form = kIsSharded ? sr::StepForm::fully_sharded : sr::StepForm::replicated;
    auto step = lt::train_step<sr::Adam, kLoss, kBackward>(session_, net_, params_, {.form = form});
    for (const std::int64_t rows : options_.rows) {
      const sr::Adam rule{.learning_rate = 1e-4, .decoupled_weight_decay = 0.1};
      const sr::CallOptions call{.batch = rows * session_.world_size()};
      const auto start = [&] {
        return std::apply([&](const Inputs&... inputs) { return step.async(inputs..., rule, call); }, inputs_);
      };
      if (first_step_s_ == 0) {
        last_loss_ = start().get();
        note_first_step();
      }
      const auto times = benchmark_steps::measure(start, options_.steps, last_loss_);
      const double tokens_per_s =
          static_cast<double>(rows * session_.world_size() * tokens_of_row_) / times.median * 1e6;
      const double tflops = tokens_per_s * operations_ / session_.world_size() / 1e12;
      const double gib = session_.function(no_gib, used_gib)();
      const bool is_recomputed = options_.config.activations == gpt::Activations::kRecomputed;
      std::printf(
          "{\"bench\":\"gpt_step\",\"impl\":\"syncrun\",\"variant\":\"%s\",\"devices\":%d,\"model\":\"%s\","
          "\"rows\":%lld,\"dtype\":\"%s\",\"median_us\":%.1f,\"min_us\":%.1f,\"max_us\":%.1f,\"tokens_per_s\":%.0f,"
          "\"tflops\":%.4g,\"gib\":%.2f,\"first_step_s\":%.2f,\"last_loss\":%.6f}\n",
          (mode + (is_recomputed ? "_recomputed" : "")).c_str(), session_.world_size(), options_.model.c_str(),
          static_cast<long long>(rows), options_.dtype.c_str(), times.median, times.least, times.most, tokens_per_s,
          tflops, gib, first_step_s_, last_loss_);
      std::fflush(stdout);
    }
  }

  void note_first_step() {
    const char* const started = std::getenv("BENCH_STARTED_NS");
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    first_step_s_ = started == nullptr ? -1 : now - std::atof(started) / 1e9;
  }

  sr::Session& session_;
  const Options& options_;
  std::int64_t tokens_of_row_;
  double operations_;
  std::tuple<Inputs...> inputs_;
  sr::Replicated<Model> net_;
  sr::Shared<float, 1> params_;
  double first_step_s_ = 0;
  double last_loss_ = 0;
};

/// Model is lt::Replica<gpt::Gpt> or an lt::ShardedReplica of it.
template <class Model>
void run_gpt(sr::Session& session, const Options& options) {
  const gpt::ModelConfig& config = options.config;
  const std::int64_t rows = most_rows(session, options);
  std::mt19937 random(1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows * (config.block_size + 1)));
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<unsigned>(config.vocab_size));
  Bench bench(session, options, config.block_size, gpt::training_operations_per_token(config),
              session.replicate<Model>(std::uint64_t{7}, config),
              session.data(tokens, sr::Shape{rows, config.block_size + 1}));
  bench.template measure_all<full_loss, mixed_loss>();
}

void run_mlp(sr::Session& session, const Options& options) {
  const std::int64_t rows = most_rows(session, options);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> number;
  std::vector<float> x(static_cast<std::size_t>(rows * Mlp::kFeatures));
  std::vector<std::int64_t> y(static_cast<std::size_t>(rows));
  for (auto& each : x) each = number(random);
  for (auto& each : y) each = static_cast<std::int64_t>(random() % static_cast<unsigned>(Mlp::kClasses));
  const std::int64_t width = options.model == "mlp" ? 800 : 128;
  // As for a GPT: six operations for each weight.
  const auto operations = static_cast<double>(6 * width * (Mlp::kFeatures + width + Mlp::kClasses));
  Bench bench(session, options, 1, operations, session.replicate<lt::Replica<Mlp>>(std::uint64_t{7}, width),
              session.data(x, sr::Shape{rows, Mlp::kFeatures}), session.data(y, sr::Shape{rows}));
  bench.measure_all<full_mlp_loss, mixed_mlp_loss>();
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto exit_code = sr::serve_if_worker(argc, argv)) return *exit_code;
  const auto options = parse_options(argc, argv);
  if (!options) {
    std::fprintf(
        stderr,
        "usage: [syncrun -n N] bench_gpt_step [--model tiny|small|medium|gpt2|SIZE|mlp_small|mlp]\n"
        "                      [--rows ROWS_PER_DEVICE,...] [--dtype float32|bfloat16] [--steps N]\n"
        "                      [--mode replayed,plain,during | --sharded --bfloat16-sums --checkpoint-activations]\n"
        "SIZE: a size of syncrun-gpt\n");
    return 2;
  }
  return sr::run(argc, argv, [&](sr::Session& session) {
    if (is_mlp(options->model)) run_mlp(session, *options);
    else if (!options->is_sharded) run_gpt<lt::Replica<gpt::Gpt>>(session, *options);
    else if (options->dtype == "float32") run_gpt<lt::ShardedReplica<gpt::Gpt>>(session, *options);
    else if (options->reduces_in_bfloat16) run_gpt<lt::ShardedReplica<gpt::Gpt, kAllMixed>>(session, *options);
    else run_gpt<lt::ShardedReplica<gpt::Gpt, kMixed>>(session, *options);
  });
}
