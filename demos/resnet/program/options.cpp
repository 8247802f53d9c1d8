#include "demos/resnet/program/options.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "demos/common/command_line.hpp"
#include "demos/resnet/network/architecture.hpp"

namespace resnet {
namespace {

constexpr int kMaxEpochs = 100'000;
constexpr std::int64_t kMaxBatchRows = 10'000'000;
constexpr std::int64_t kMaxRows = std::int64_t{1} << 40;
constexpr std::int64_t kMaxSlices = 1'000'000;
constexpr std::size_t kMaxWidth = 256;
constexpr double kUsualWarmupEpochs = 5;

struct Rule {
  Optimizer optimizer;
  double rate_of_256_rows;  // the learning rate for a batch of 256 rows; 0 if it does not depend on the batch size
  double rate;              // the learning rate if rate_of_256_rows is 0
};

/// The default learning rates. Plain gradient descent and momentum use the rate of torchvision's reference: 0.1 for a
/// batch of 256 rows, in proportion to the batch size. The other rules have rates of their own. Source of the
/// proportion: P. Goyal et al., arXiv 1706.02677, section 2.1.
constexpr std::array<std::pair<std::string_view, Rule>, 9> kRules{{
    {"sgd", {Optimizer::kSgd, 0.1, 0}},
    {"momentum", {Optimizer::kMomentum, 0.1, 0}},
    {"nesterov", {Optimizer::kNesterov, 0.1, 0}},
    {"adagrad", {Optimizer::kAdagrad, 0, 0.01}},
    {"rmsprop", {Optimizer::kRmsProp, 0, 0.001}},
    {"adadelta", {Optimizer::kAdadelta, 0, 1}},
    {"adam", {Optimizer::kAdam, 0, 0.001}},
    {"adamw", {Optimizer::kAdamW, 0, 0.001}},
    {"adamax", {Optimizer::kAdamax, 0, 0.002}},
}};
constexpr std::array<std::pair<std::string_view, Precision>, 3> kDtypes{{
    {"float32", Precision::kFloat32},
    {"tf32", Precision::kTf32},
    {"bfloat16", Precision::kBfloat16},
}};
constexpr std::array<std::pair<std::string_view, Feed>, 3> kFeeds{
    {{"mapped", Feed::kMapped}, {"memory", Feed::kMemory}, {"device", Feed::kDevice}}};
constexpr std::array<std::pair<std::string_view, int>, 5> kDepths{
    {{"18", 18}, {"34", 34}, {"50", 50}, {"101", 101}, {"152", 152}}};

auto from_zero(double up_to, const char* expected) {
  return demos::number<double>(expected, [=](double value) { return value >= 0 && value <= up_to; });
}

auto above_zero(double below, const char* expected) {
  return demos::number<double>(expected, [=](double value) { return value > 0 && value < below; });
}

void add_data_options(CLI::App& app, Options& options) {
  using namespace demos;
  add_option(app, "--data", "DIR", options.data, nonempty("a folder"),
             "images.npy and labels.npy, and for evaluation images_test.npy and labels_test.npy, as "
             "demos/resnet/tools/pack_images.py makes them");
  add_option(app, "--synthetic", "N", options.synthetic_rows, whole_number<std::int64_t>(1, kMaxRows),
             "N random images instead, to measure speed");
  add_option(app, "--feed", "mapped|memory|device", options.chosen_feed, one_of(kFeeds),
             "mapped (default with --data): workers read rows from the files, which may be larger than memory; memory: "
             "images lie in shared memory, into which files are copied first, which helps if the disk is slow; device "
             "(default with --synthetic, and only there): one batch lies on the devices, and every step trains on it");
  add_option(app, "--evaluate-fraction", "X", options.evaluate_fraction, above_zero(1, "a number above 0 and below 1"),
             "hold back this part of the images for evaluation instead (X above 0, below 1)");
  add_option(app, "--classes", "N", options.classes,
             whole_number<std::int64_t>(2, static_cast<std::int64_t>(kMostClasses)),
             "number of classes (default: the largest label + 1; with random images 1000)");
}

void add_network_options(CLI::App& app, Options& options) {
  using namespace demos;
  add_option(app, "--depth", "N", options.depth, one_of(kDepths), "18, 34, 50 (default), 101 or 152 layers");
  add_option(app, "--width", "N", options.width,
             number<std::size_t>("a multiple of 8 from 8 to 256",
                                 [](std::size_t width) { return width >= 8 && width <= kMaxWidth && width % 8 == 0; }),
             "channels of the first stage (default 64)");
  add_option(app, "--crop", "N", options.crop, whole_number(kSmallestImage, kLargestImage),
             "height and width of the part of an image that the network sees: at a random place in training, in the "
             "middle in evaluation (default: 224, or the smaller side of the images if that is less)");
  add_flag(app, "--no-mirror", options.mirrors, false, "do not exchange left and right at random");
}

void add_training_options(CLI::App& app, Options& options) {
  using namespace demos;
  add_option(app, "--batch", "N", options.batch_rows, whole_number<std::int64_t>(1, kMaxBatchRows),
             "rows per step, on all devices together (default 256). The last batch may be smaller");
  add_option(app, "--epochs", "N", options.epochs, whole_number(1, kMaxEpochs),
             "passes over the training rows (default 90)");
  add_option(
      app, "--optimizer", "NAME",
      [&](const std::string& text) {
        options.rule.optimizer = one_of(kRules)("--optimizer", text).optimizer;
        options.rule.name = text;
      },
      "sgd, momentum (default), nesterov, adagrad, rmsprop, adadelta, adam, adamw or adamax");
  add_option(
      app, "--lr", "X", options.rule.learning_rate, above_zero(1000, "a number above 0 and below 1000"),
      "learning rate at its peak (default for sgd, momentum and nesterov: 0.1 for 256 rows and in proportion for "
      "other batches; for rmsprop, adam and adamw 0.001, adamax 0.002, adagrad 0.01, adadelta 1)");
  add_option(
      app, "--warmup-epochs", "X", options.warmup_epochs, from_zero(kMaxEpochs, "a number from 0 to 100000"),
      "epochs in which the learning rate rises to its peak. Then it falls to 0 along a cosine (default 5, but at "
      "most a tenth of all epochs)");
  add_option(app, "--momentum", "X", options.rule.momentum, from_zero_below_one(),
             "momentum of the rules momentum and nesterov (default 0.9)");
  add_option(app, "--weight-decay", "X", options.rule.weight_decay, from_zero(1000, "a number from 0 to 1000"),
             "weight decay of all parameters (default 0.0001). It is decoupled with adamw");
  add_option(app, "--label-smoothing", "X", options.label_smoothing, from_zero_below_one(),
             "part of each label that is divided equally among all classes (default 0)");
  add_flag(app, "--zero-init-residual", options.last_scale, ResidualScale::kZero,
           "start with each block equal to its shortcut");
  add_option(app, "--seed", "N", options.seed, any_seed(),
             "seed of the parameters, the shuffling, the crops and the rows that are held back (default 1)");
}

void add_device_options(CLI::App& app, Options& options) {
  using namespace demos;
  add_flag(app, "--sync-norm", options.normalization, Normalization::kSynchronized,
           "normalise by the rows of all devices, not by each device's own rows");
  add_option(app, "--dtype", "float32|tf32|bfloat16", options.precision, one_of(kDtypes),
             "arithmetic of the activations (default float32). The others require CUDA devices");
  add_option(app, "--bucket-mib", "X", options.bucket_mebibytes, from_zero(1 << 20, "a number from 0 to 1048576"),
             "average the gradient over GPUs in parts of this many MiB while the backward pass continues (default 16, "
             "the largest part that copy engines move). 0: all of it after the backward pass, as always with "
             "--sync-norm, with --slices and on CPU devices");
  add_option(app, "--slices", "N", options.slices, whole_number<std::int64_t>(1, kMaxSlices),
             "passes over a device's rows in a step: more passes need less memory (default 1)");
  add_option(app, "--eval-slices", "N", options.evaluation_slices, whole_number<std::int64_t>(1, kMaxSlices),
             "the same in an evaluation (default: as many as keep a pass no larger than one of a step)");
  add_option(app, "--plans", "FILE", options.plans, nonempty("a file"),
             "on CUDA devices: compute convolutions by the cuDNN plans that FILE lists, so that equal runs give the "
             "same bits. Plans that FILE lacks are chosen by timing and added to it. Checkpoints contain the plans of "
             "their run, and --resume takes from there what FILE lacks");
}

void add_run_options(CLI::App& app, Options& options) {
  using namespace demos;
  add_option(app, "--interval", "N", options.interval, whole_number<std::int64_t>(1, kMaxRows),
             "steps per printed line (default 50)");
  add_option(app, "--checkpoint", "DIR", options.checkpoint, nonempty("a folder"),
             "after every epoch, save everything that is needed to continue to the folder DIR");
  add_option(app, "--checkpoint-every", "N", options.checkpoint_every, whole_number(1, kMaxEpochs),
             "save after every Nth epoch and after the last one (default 1)");
  add_flag(app, "--resume", options.resume, true,
           "continue from the checkpoint in DIR. A program that `syncrun --max-restarts` restarts does so without it");
}

void add_options(CLI::App& app, Options& options) {
  add_data_options(app, options);
  add_network_options(app, options);
  add_training_options(app, options);
  add_device_options(app, options);
  add_run_options(app, options);
  demos::add_help(app);
}

void check(const Options& options) {
  if (options.data.empty() == (options.synthetic_rows == 0)) {
    throw UsageError(std::string("--data, --synthetic: expected one of them, got ") +
                     (options.data.empty() ? "neither" : "both"));
  }
  if (options.synthetic_rows == 0 && options.feed() == Feed::kDevice) {
    throw UsageError("--feed: expected 'mapped' or 'memory' with --data, got 'device', which is for --synthetic");
  }
  if (options.synthetic_rows != 0 && options.feed() == Feed::kMapped) {
    throw UsageError("--feed: expected 'memory' or 'device' with --synthetic, got 'mapped': there is no file");
  }
  if (options.feed() == Feed::kDevice && options.evaluate_fraction) {
    throw UsageError(
        "--evaluate-fraction: expected --feed memory beside it with --synthetic, since all rows on the devices are "
        "trained on, got --feed device");
  }
  if (options.checkpoint.empty() && options.resume) {
    throw UsageError("--resume: expected --checkpoint DIR beside it, got none");
  }
}

double usual_learning_rate(const Options& options) {
  const auto row = std::find_if(kRules.begin(), kRules.end(),
                                [&](const auto& rule) { return rule.second.optimizer == options.rule.optimizer; });
  const Rule& rule = row->second;
  return rule.rate_of_256_rows == 0 ? rule.rate : rule.rate_of_256_rows * static_cast<double>(options.batch_rows) / 256;
}

}  // namespace

double Options::warmup() const { return warmup_epochs.value_or(std::min(kUsualWarmupEpochs, epochs / 10.0)); }

Feed Options::feed() const { return chosen_feed.value_or(synthetic_rows == 0 ? Feed::kMapped : Feed::kDevice); }

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app;
  add_options(app, options);
  if (!demos::parse_command_line(app, argc, argv)) return std::nullopt;
  check(options);
  if (options.rule.learning_rate == 0) options.rule.learning_rate = usual_learning_rate(options);
  return options;
}

std::string help_text() {
  Options unused;
  CLI::App app(R"(Trains a residual network on images on every device at once.

usage: syncrun-resnet --data DIR [OPTION...]
       syncrun -n 4 syncrun-resnet --data DIR [OPTION...]

)");
  add_options(app, unused);
  return demos::help_of(app);
}

}  // namespace resnet
