#include "demos/gpt/options.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "demos/common/command_line.hpp"

namespace gpt {
namespace {

constexpr std::int64_t kMost = 1'000'000'000;
constexpr std::int64_t kMostWarmupIters = 2000;
constexpr std::string_view kDefaultPreset = "tiny";
constexpr std::array<std::pair<std::string_view, Precision>, 2> kPrecisions{
    {{"float32", Precision::kFloat32}, {"bfloat16", Precision::kBfloat16}}};

/// What the command line says. What it leaves out depends on the preset, or on other options.
struct Given {
  Options options;
  std::optional<std::int64_t> n_layer, n_head, n_embd, block_size;
  std::optional<std::int64_t> batch_size, slices, max_iters, warmup_iters, lr_decay_iters, checkpoint_every;
  std::optional<double> learning_rate, min_lr;
};

auto count(std::int64_t from = 1) { return demos::whole_number<std::int64_t>(from, kMost); }

auto from_zero(double up_to, const char* expected) {
  return demos::number<double>(expected, [=](double value) { return value >= 0 && value <= up_to; });
}

const Preset& preset_named(std::string_view option, std::string_view name) {
  std::string expected;
  for (const Preset& preset : presets()) {
    if (preset.name == name) return preset;
    expected.append(expected.empty() ? "'" : ", '").append(preset.name).append("'");
  }
  demos::refuse_option(option, "one of " + expected, name);
}

/// The folder that the build has made from data/new_testament: the installed copy if there is one.
std::filesystem::path default_data() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto installed = (program.parent_path() / GPT_INSTALLED_TOKENS).lexically_normal();
  if (!error && std::filesystem::is_directory(installed, error)) return installed;
  return GPT_BUILT_TOKENS;
}

void add_model_options(CLI::App& app, Given& given) {
  using namespace demos;
  Options& options = given.options;
  add_option(
      app, "--data", "DIR", options.data, nonempty("a folder"),
      "train.bin, val.bin and vocab.txt, as demos/gpt/tools/prepare_tokens.py makes them from a text (default: the New "
      "Testament that comes with Syncrun, with bytes as tokens)");
  add_option(
      app, "--size", "NAME", options.size_name,
      [](std::string_view option, std::string_view text) { return std::string(preset_named(option, text).name); },
      "the sizes of the model and of a step: tiny (default; 0.1 million parameters), mini (0.8), small (10.8, "
      "nanoGPT's "
      "model for Shakespeare), 124m, 355m, 774m and 1.5b (GPT-2), 2.7b and 6.7b (GPT-3), 1.64b and 6.86b (1.5b and "
      "6.7b "
      "with a last layer of their own). The following options replace single sizes");
  add_option(app, "--n-layer", "N", given.n_layer, count(), "layers");
  add_option(app, "--n-head", "N", given.n_head, count(), "heads of the attention, of which --n-embd is a multiple");
  add_option(app, "--n-embd", "N", given.n_embd, count(), "width of the embedding");
  add_option(app, "--block-size", "N", given.block_size, count(), "context: the most tokens that the model reads");
  add_option(app, "--dtype", "NAME", options.model.precision, one_of(kPrecisions),
             "type of matrix products: float32 (default) or bfloat16, which is faster on GPUs");
  add_flag(app, "--checkpoint-activations", options.model.activations, Activations::kRecomputed,
           "keep only the inputs of each block for the backward pass, which computes the block again. This needs less "
           "memory and a third more time");
  add_flag(app, "--deterministic", options.model.is_deterministic, true,
           "on GPUs: equal runs give the same bits also with a --block-size of more than some hundred. This is slower");
  add_option(app, "--dropout", "X", options.model.dropout, from_zero_below_one(),
             "probability of dropping a unit (default 0). The masks depend on the number of workers");
}

void add_step_options(CLI::App& app, Given& given) {
  using namespace demos;
  Options& options = given.options;
  const auto rate = number<double>("a number above 0 and up to 1000", [](double x) { return x > 0 && x <= 1000; });
  add_option(app, "--batch-size", "N", given.batch_size, count(),
             "windows of --block-size tokens per step, on all devices together");
  add_option(
      app, "--slices", "N", given.slices, count(),
      "gradient accumulation: passes over a device's windows in a step. More passes need less memory. The result "
      "is the same");
  add_option(app, "--max-iters", "N", given.max_iters, count(0), "steps");
  add_option(app, "--learning-rate", "X", given.learning_rate, rate, "learning rate of AdamW at its peak");
  add_option(app, "--min-lr", "X", given.min_lr, from_zero(1000, "a number from 0 to 1000"),
             "learning rate at the end of the decay, along a cosine (default: a tenth of --learning-rate)");
  add_option(app, "--warmup-iters", "N", given.warmup_iters, count(0),
             "steps in which the learning rate rises (default: a twentieth of --max-iters, at most 2000)");
  add_option(app, "--lr-decay-iters", "N", given.lr_decay_iters, count(0),
             "the step at which the decay ends (default: --max-iters)");
  add_option(app, "--weight-decay", "X", options.weight_decay, from_zero(1000, "a number from 0 to 1000"),
             "decoupled weight decay (default 0.1), without biases and the weights of norms");
  add_option(app, "--beta1", "X", options.beta1, from_zero_below_one(), "of AdamW (default 0.9)");
  add_option(app, "--beta2", "X", options.beta2, from_zero_below_one(), "of AdamW (default 0.95)");
  add_option(app, "--grad-clip", "X", options.grad_clip, from_zero(1e9, "a number from 0 to 1e9"),
             "largest norm of the gradient (default 1). 0: the gradient is not clipped");
  add_flag(
      app, "--sharded", options.sharding, Sharding::kModel,
      "divide the parameters, the gradient and the state of AdamW among the devices, for models that are larger than "
      "one. A device has the parameters of a block only while it computes the block");
  add_flag(app, "--sharded-state", options.sharding, Sharding::kState, "divide only the state of AdamW");
  add_option(app, "--seed", "N", options.seed, any_seed(),
             "seed of the parameters, the windows, the dropout and the sample (default 1)");
}

void add_run_options(CLI::App& app, Given& given) {
  using namespace demos;
  Options& options = given.options;
  add_option(app, "--eval-interval", "N", options.eval_interval, count(), "steps per evaluation (default 250)");
  add_option(
      app, "--eval-iters", "N", options.eval_iters, count(0),
      "batches per evaluation, the same every time (default 10). 0: all of both texts. The last evaluation of the "
      "held-out text always uses all of it");
  add_option(app, "--log-interval", "N", options.log_interval, count(), "steps per printed line (default 50)");
  add_option(app, "--losses", "FILE", options.losses, nonempty("a file"),
             "also write the number and the loss of each step to FILE, in full precision");
  add_option(app, "--checkpoint", "DIR", options.checkpoint, nonempty("a folder"),
             "save everything that is needed to continue to the folder DIR");
  add_option(app, "--checkpoint-every", "N", given.checkpoint_every, count(),
             "save after every Nth step and after the last one (default: --eval-interval)");
  add_flag(app, "--resume", options.resume, true,
           "continue from the checkpoint in DIR. A program that `syncrun --max-restarts` restarts does so without it");
  add_option(app, "--init-from", "FILE", options.init_from, nonempty("a file"),
             "begin with the weights in FILE: GPT-2's published ones, or what --save has written, as safetensors. "
             "The sizes must be those of the file");
  add_option(app, "--save", "FILE", options.save, nonempty("a file"),
             "write the finished model to FILE: safetensors if its name ends so, otherwise the format of torch::save");
}

void add_sample_options(CLI::App& app, Given& given) {
  using namespace demos;
  Options& options = given.options;
  add_option(app, "--max-new-tokens", "N", options.max_new_tokens, count(0),
             "tokens of the sample that the model writes at the end (default 400). 0: no sample");
  add_option(app, "--prompt", "TEXT", options.prompt, nonempty("a text"),
             "how the sample begins (default: a line break)");
  add_option(app, "--temperature", "X", options.sampling.temperature, from_zero(100, "a number from 0 to 100"),
             "below 1: more of the likely tokens; 0: always the most likely one (default 0.8)");
  add_option(app, "--top-k", "N", options.sampling.top_k, count(),
             "choose among the N most likely tokens (default 200)");
}

void add_options(CLI::App& app, Given& given) {
  add_model_options(app, given);
  add_step_options(app, given);
  add_run_options(app, given);
  add_sample_options(app, given);
  demos::add_help(app);
}

/// The options, with the sizes of the preset where the command line has none.
Options complete(const Given& given) {
  Options options = given.options;
  const Preset& preset = preset_named("--size", options.size_name);
  options.model.n_layer = given.n_layer.value_or(preset.model.n_layer);
  options.model.n_head = given.n_head.value_or(preset.model.n_head);
  options.model.n_embd = given.n_embd.value_or(preset.model.n_embd);
  options.model.block_size = given.block_size.value_or(preset.model.block_size);
  options.model.last_layer = preset.model.last_layer;
  if (options.sharding == Sharding::kModel) options.model.parameters = Parameters::kSharded;
  options.batch_size = given.batch_size.value_or(preset.batch_size);
  options.slices = given.slices.value_or(std::min(preset.slices, options.batch_size));
  options.max_iters = given.max_iters.value_or(preset.max_iters);
  options.learning_rate = given.learning_rate.value_or(preset.learning_rate);
  options.min_lr = given.min_lr.value_or(options.learning_rate / 10);
  options.warmup_iters = given.warmup_iters.value_or(std::min(options.max_iters / 20, kMostWarmupIters));
  options.lr_decay_iters = given.lr_decay_iters.value_or(options.max_iters);
  options.checkpoint_every = given.checkpoint_every.value_or(options.eval_interval);
  return options;
}

void check(const Options& options) {
  const ModelConfig& model = options.model;
  if (model.n_embd % model.n_head != 0) {
    throw UsageError("--n-embd: expected a multiple of the " + std::to_string(model.n_head) + " heads, got '" +
                     std::to_string(model.n_embd) + "'");
  }
  if (options.slices > options.batch_size) {
    throw UsageError("--slices: expected at most the " + std::to_string(options.batch_size) +
                     " windows of a step, got '" + std::to_string(options.slices) + "'");
  }
  if (options.min_lr > options.learning_rate) {
    throw UsageError("--min-lr: expected at most --learning-rate, " + std::to_string(options.learning_rate) +
                     ", got '" + std::to_string(options.min_lr) + "'");
  }
  if (options.sharding == Sharding::kModel && !options.save.empty() && options.save.extension() != ".safetensors") {
    throw UsageError("--save: expected a name that ends in '.safetensors' beside --sharded, got '" +
                     options.save.string() + "'");
  }
  if (options.checkpoint.empty() && options.resume) {
    throw UsageError("--resume: expected --checkpoint DIR beside it, got none");
  }
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Given given;
  given.options.data = default_data();
  given.options.size_name = kDefaultPreset;
  CLI::App app;
  add_options(app, given);
  if (!demos::parse_command_line(app, argc, argv)) return std::nullopt;
  if (app.count("--sharded") != 0 && app.count("--sharded-state") != 0)
    throw UsageError("expected one of --sharded and --sharded-state, got both");
  const Options options = complete(given);
  check(options);
  return options;
}

std::string help_text() {
  Given unused;
  CLI::App app(R"(Trains a language model in the style of GPT-2 on all devices, and lets it write a text.

usage: syncrun-gpt [OPTION...]
       syncrun -n 4 syncrun-gpt [OPTION...]

)");
  add_options(app, unused);
  return demos::help_of(app);
}

}  // namespace gpt
