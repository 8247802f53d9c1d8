#include "demos/mnist/options.hpp"

#include <getopt.h>

#include <array>
#include <string_view>
#include <utility>

#include "demos/common/command_line.hpp"

namespace mnist {
namespace {

constexpr std::size_t kMaxBatchSize = 1'000'000;
constexpr int kMaxEpochs = 10'000;

using demos::parse_count;
using demos::parse_number;
using demos::parse_word;
using demos::refuse_option;

/// What --dtype chooses: how numbers are stored, and how they are multiplied.
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

void set_dtype(Options& options, std::string_view text) {
  const Dtype dtype = parse_word("--dtype", text, kDtypes);
  options.precision = dtype.precision;
  options.math = dtype.math;
}

demos::ModelSpec model(std::string_view text) try {
  return demos::parse_model(text);
} catch (const std::invalid_argument& error) {
  throw UsageError(std::string("--model: ") + error.what());
}

enum Option : int {  // unscoped: getopt_long deals in int
  kData = 256,       // above every character, which getopt_long has for short options and errors
  kModel,
  kBatchSize,
  kEpochs,
  kLearningRate,
  kMomentum,
  kSeed,
  kInput,
  kDtype,
  kLosses,
  kHelp,
  kCheckpoint,
  kCheckpointEvery,
  kResume,
};

/// Those that every program has come last: the others leave the ones about checkpoints out.
constexpr std::size_t kCheckpointOptions = 3;
constexpr std::array kOptions{
    option{"checkpoint", required_argument, nullptr, kCheckpoint},
    option{"checkpoint-every", required_argument, nullptr, kCheckpointEvery},
    option{"resume", no_argument, nullptr, kResume},
    option{"data", required_argument, nullptr, kData},
    option{"model", required_argument, nullptr, kModel},
    option{"batch-size", required_argument, nullptr, kBatchSize},
    option{"epochs", required_argument, nullptr, kEpochs},
    option{"learning-rate", required_argument, nullptr, kLearningRate},
    option{"momentum", required_argument, nullptr, kMomentum},
    option{"seed", required_argument, nullptr, kSeed},
    option{"input", required_argument, nullptr, kInput},
    option{"dtype", required_argument, nullptr, kDtype},
    option{"losses", required_argument, nullptr, kLosses},
    option{"help", no_argument, nullptr, kHelp},
    option{},
};

void set(Options& options, int chosen, std::string_view text) {
  switch (chosen) {
    case kData: options.data = text; return;
    case kModel:
      options.model = model(text);
      options.model_text = text;
      return;
    case kBatchSize: options.batch_size = parse_count<std::size_t>("--batch-size", text, kMaxBatchSize); return;
    case kEpochs: options.epochs = parse_count<int>("--epochs", text, kMaxEpochs); return;
    case kLearningRate:
      options.learning_rate = parse_number<double>("--learning-rate", text, "a number above 0 and up to 1000",
                                                   [](double rate) { return rate > 0 && rate <= 1000; });
      return;
    case kMomentum:
      options.momentum = parse_number<double>("--momentum", text, "a number from 0 to below 1",
                                              [](double momentum) { return momentum >= 0 && momentum < 1; });
      return;
    case kSeed:
      options.seed =
          parse_number<std::uint64_t>("--seed", text, "a whole number from 0 to 2^64 - 1", [](auto) { return true; });
      return;
    case kInput: options.input = parse_word("--input", text, kInputs); return;
    case kDtype: set_dtype(options, text); return;
    case kLosses: options.losses = text; return;
    case kCheckpoint:
      if (text.empty()) refuse_option("--checkpoint", "a folder", text);
      options.checkpoint = text;
      return;
    case kCheckpointEvery: options.checkpoint_every = parse_count<int>("--checkpoint-every", text, kMaxEpochs); return;
    case kResume: options.resume = true; return;
    default: return;
  }
}

/// What getopt_long has just returned '?' for: one letter of a cluster, or a whole argument.
std::string refused_option(char** argv) {
  const bool is_letter = optopt > 0 && optopt < kData;
  return is_letter ? std::string{'-', static_cast<char>(optopt)} : argv[optind - 1];
}

/// data/digits of the repository, where `make install` put it or else where the program was built.
std::filesystem::path default_data() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto installed = (program.parent_path() / MNIST_INSTALLED_DIGITS).lexically_normal();
  if (!error && std::filesystem::is_directory(installed, error)) return installed;
  return MNIST_SOURCE_DIGITS;
}

void check_checkpointing(const Options& options) {
  if (options.checkpoint.empty() && options.resume) {
    throw UsageError("--resume: expected --checkpoint DIR beside it, got none");
  }
}

constexpr std::string_view kCheckpointingHelp =
    R"(  --checkpoint DIR      after every epoch, save to the folder DIR all it takes to go on from there
  --checkpoint-every N  after every Nth epoch and the last one (default 1)
  --resume              go on from what DIR has; done unasked when `syncrun --max-restarts` starts it again
)";

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, Checkpointing checkpointing) {
  const option* known = kOptions.data() + (checkpointing == Checkpointing::kNone ? kCheckpointOptions : 0);
  Options options;
  options.data = default_data();
  opterr = 0;  // the messages are ours
  for (int chosen = 0; (chosen = getopt_long(argc, argv, ":", known, nullptr)) != -1;) {
    if (chosen == kHelp) return std::nullopt;
    if (chosen == ':') throw UsageError(std::string(argv[optind - 1]) + ": expected a value, got none");
    if (chosen == '?') refuse_option("options", "one of those that --help lists", refused_option(argv));
    set(options, chosen, optarg == nullptr ? "" : optarg);
  }
  if (optind < argc) refuse_option("options", "no other arguments", argv[optind]);
  check_checkpointing(options);
  return options;
}

std::string help_text(std::string_view usage, Checkpointing checkpointing) {
  return std::string(usage) + R"(
  --data DIR            IDX files, plain or .gz, named as MNIST's or as data/digits' (default: the digits that
                        come with Syncrun). The last twentieth of the training rows is held out for validation
  --model MODEL         mlp (default): two hidden layers of 800 rectified units, without dropout, which
                        Synkhronos's demo has; custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID: as many hidden layers
                        as you like, with the probabilities of dropping an input and a hidden unit; cnn: two
                        3x3 convolutions with max-pooling and a hidden layer of 128
  --batch-size N        rows per step, of all devices together (default 60); the last batch may be smaller
  --epochs N            passes over the training rows (default 15)
  --learning-rate X     default 0.1
  --momentum X          Nesterov's, default 0.9
  --seed N              of parameters, shuffling and dropout (default 1)
  --input host|device   rows of a batch picked from shared memory at each step (default), or a data set
                        scattered once to the memory of the devices; the losses are the same
  --dtype float32|float64|tf32
                        element type of images and parameters (default float32); tf32 is float32 with products
                        rounded to TF32, faster on CUDA devices, which alone have it
  --losses FILE         also write epoch, training loss and validation loss to FILE, in full precision
)" + std::string(checkpointing == Checkpointing::kOffered ? kCheckpointingHelp : "") +
         "  --help                this text\n";
}

}  // namespace mnist
