#include "demos/mnist/options.hpp"

#include <array>
#include <string_view>
#include <utility>

#include "demos/common/command_line.hpp"

namespace mnist {
namespace {

constexpr std::size_t kMaxBatchSize = 1'000'000;
constexpr int kMaxEpochs = 10'000;

/// The meaning of a value of --dtype: how numbers are stored, and how they are multiplied.
struct Dtype {
  Precision precision;
  demos::MatrixMath math;
};

constexpr std::array<std::pair<std::string_view, Dtype>, 3> kDtypes{{
    {"float32", {Precision::kFloat32, demos::MatrixMath::kFull}},
    {"float64", {Precision::kFloat64, demos::MatrixMath::kFull}},
    {"tf32", {Precision::kFloat32, demos::MatrixMath::kTf32}},
}};
constexpr std::array<std::pair<std::string_view, Input>, 2> kInputs{
    {{"host", Input::kHost}, {"device", Input::kDevice}}};

demos::ModelSpec model(const std::string& text) try {
  return demos::parse_model(text);
} catch (const std::invalid_argument& error) {
  throw UsageError(std::string("--model: ") + error.what());
}

/// The repository's data/digits: the installed copy if there is one, otherwise the one in the source tree.
std::filesystem::path default_data() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto installed = (program.parent_path() / MNIST_INSTALLED_DIGITS).lexically_normal();
  if (!error && std::filesystem::is_directory(installed, error)) return installed;
  return MNIST_SOURCE_DIGITS;
}

void add_training_options(CLI::App& app, Options& options) {
  using namespace demos;
  add_option(
      app, "--data", "DIR", [&](const std::string& text) { options.data = text; },
      "IDX files, plain or .gz, with the names of MNIST's files or of those in data/digits (default: the digits that "
      "come with Syncrun). The last twentieth of the training rows is held out for validation");
  add_option(
      app, "--model", "MODEL",
      [&](const std::string& text) {
        options.model = model(text);
        options.model_text = text;
      },
      "mlp (default): two hidden layers of 800 rectified units without dropout, as in Synkhronos's demo; "
      "custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID: any number of hidden layers, with the probabilities of dropping an "
      "input and a hidden unit; cnn: two 3x3 convolutions with max-pooling and a hidden layer of 128");
  add_option(app, "--batch-size", "N", options.batch_size, whole_number<std::size_t>(1, kMaxBatchSize),
             "rows per step, on all devices together (default 60). The last batch may be smaller");
  add_option(app, "--epochs", "N", options.epochs, whole_number(1, kMaxEpochs),
             "passes over the training rows (default 15)");
  add_option(app, "--learning-rate", "X", options.learning_rate,
             number<double>("a number above 0 and up to 1000", [](double rate) { return rate > 0 && rate <= 1000; }),
             "default 0.1");
  add_option(app, "--momentum", "X", options.momentum, from_zero_below_one(), "Nesterov's momentum (default 0.9)");
  add_option(app, "--seed", "N", options.seed, any_seed(),
             "seed of the parameters, the shuffling and the dropout (default 1)");
  add_option(app, "--input", "host|device", options.input, one_of(kInputs),
             "host (default): the rows of a batch are picked from shared memory at each step; device: the data set is "
             "scattered once to the memory of the devices. The losses are the same");
  add_option(
      app, "--dtype", "float32|float64|tf32",
      [&](const std::string& text) {
        const Dtype dtype = one_of(kDtypes)("--dtype", text);
        options.precision = dtype.precision;
        options.math = dtype.math;
      },
      "element type of images and parameters (default float32). tf32 is float32 with products rounded to TF32: faster, "
      "on CUDA devices only");
  add_option(
      app, "--losses", "FILE", [&](const std::string& text) { options.losses = text; },
      "also write epoch, training loss and validation loss to FILE, in full precision");
}

void add_checkpoint_options(CLI::App& app, Options& options) {
  using namespace demos;
  add_option(app, "--checkpoint", "DIR", options.checkpoint, nonempty("a folder"),
             "after every epoch, save everything that is needed to continue to the folder DIR");
  add_option(app, "--checkpoint-every", "N", options.checkpoint_every, whole_number(1, kMaxEpochs),
             "save after every Nth epoch and after the last one (default 1)");
  add_flag(app, "--resume", options.resume, true,
           "continue from the checkpoint in DIR. A program that `syncrun --max-restarts` restarts does so without it");
}

void add_options(CLI::App& app, Options& options, Checkpointing checkpointing) {
  add_training_options(app, options);
  if (checkpointing == Checkpointing::kOffered) add_checkpoint_options(app, options);
  demos::add_help(app);
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, Checkpointing checkpointing) {
  Options options;
  options.data = default_data();
  CLI::App app;
  add_options(app, options, checkpointing);
  if (!demos::parse_command_line(app, argc, argv)) return std::nullopt;
  if (options.checkpoint.empty() && options.resume) {
    throw UsageError("--resume: expected --checkpoint DIR beside it, got none");
  }
  return options;
}

std::string help_text(std::string_view usage, Checkpointing checkpointing) {
  Options unused;
  CLI::App app(std::string(usage) + "\n");
  add_options(app, unused, checkpointing);
  return demos::help_of(app);
}

}  // namespace mnist
