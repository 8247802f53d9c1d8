#include "demos/resnet/options.hpp"

#include <getopt.h>

#include <algorithm>
#include <array>
#include <utility>

#include "demos/resnet/architecture.hpp"

namespace resnet {
namespace {

using demos::parse_count;
using demos::parse_number;
using demos::parse_word;
using demos::refuse_option;

constexpr int kMaxEpochs = 100'000;
constexpr std::int64_t kMaxBatchRows = 10'000'000;
constexpr std::int64_t kMaxRows = std::int64_t{1} << 40;
constexpr std::int64_t kMaxSlices = 1'000'000;
constexpr std::size_t kMaxWidth = 256;
constexpr double kUsualWarmupEpochs = 5;

struct Rule {
  Optimizer optimizer;
  double rate_of_256_rows;  // 0: the learning rate does not follow the size of the batch, and is
  double rate;
};

/// Learning rates at first: those of the rule by itself; for plain gradient descent and momentum torchvision's reference,
/// 0.1 for a batch of 256, in proportion. Source of the proportion: P. Goyal et al., arXiv 1706.02677, section 2.1.
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

double number(std::string_view option, std::string_view text, std::string_view expected, double above, double below) {
  return parse_number<double>(option, text, expected, [=](double value) { return value > above && value < below; });
}

double from_zero(std::string_view option, std::string_view text, std::string_view expected, double up_to) {
  return parse_number<double>(option, text, expected, [=](double value) { return value >= 0 && value <= up_to; });
}

double from_zero_below_one(std::string_view option, std::string_view text) {
  return parse_number<double>(option, text, "a number from 0 to below 1",
                              [](double value) { return value >= 0 && value < 1; });
}

std::filesystem::path folder(std::string_view option, std::string_view text) {
  if (text.empty()) refuse_option(option, "a folder", text);
  return text;
}

/// An option by its name without "--", whether it has a value, and what it does.
struct OptionRow {
  const char* name;
  int argument;
  void (*set)(Options& options, std::string_view text);
};

constexpr std::array kOptions{
    OptionRow{"data", required_argument, [](Options& o, std::string_view t) { o.data = folder("--data", t); }},
    OptionRow{"synthetic", required_argument,
              [](Options& o, std::string_view t) { o.synthetic_rows = parse_count("--synthetic", t, kMaxRows); }},
    OptionRow{"feed", required_argument,
              [](Options& o, std::string_view t) { o.chosen_feed = parse_word("--feed", t, kFeeds); }},
    OptionRow{"evaluate-fraction", required_argument,
              [](Options& o, std::string_view t) {
                o.evaluate_fraction = number("--evaluate-fraction", t, "a number above 0 and below 1", 0, 1);
              }},
    OptionRow{"classes", required_argument,
              [](Options& o, std::string_view t) {
                o.classes = parse_number<std::int64_t>("--classes", t, "a whole number from 2 to 1048576", [](auto n) {
                  return n >= 2 && static_cast<std::size_t>(n) <= kMostClasses;
                });
              }},
    OptionRow{"depth", required_argument,
              [](Options& o, std::string_view t) { o.depth = parse_word("--depth", t, kDepths); }},
    OptionRow{"width", required_argument,
              [](Options& o, std::string_view t) {
                o.width = parse_number<std::size_t>("--width", t, "a multiple of 8 from 8 to 256",
                                                    [](auto n) { return n >= 8 && n <= kMaxWidth && n % 8 == 0; });
              }},
    OptionRow{"crop", required_argument,
              [](Options& o, std::string_view t) {
                o.crop = parse_number<std::size_t>("--crop", t, "a whole number from 32 to 1024",
                                                   [](auto n) { return n >= kSmallestImage && n <= kLargestImage; });
              }},
    OptionRow{"batch", required_argument,
              [](Options& o, std::string_view t) { o.batch_rows = parse_count("--batch", t, kMaxBatchRows); }},
    OptionRow{"epochs", required_argument,
              [](Options& o, std::string_view t) { o.epochs = parse_count("--epochs", t, kMaxEpochs); }},
    OptionRow{"optimizer", required_argument,
              [](Options& o, std::string_view t) {
                o.rule.optimizer = parse_word("--optimizer", t, kRules).optimizer;
                o.rule.name = t;
              }},
    OptionRow{"lr", required_argument,
              [](Options& o, std::string_view t) {
                o.rule.learning_rate = number("--lr", t, "a number above 0 and below 1000", 0, 1000);
              }},
    OptionRow{"momentum", required_argument,
              [](Options& o, std::string_view t) { o.rule.momentum = from_zero_below_one("--momentum", t); }},
    OptionRow{"weight-decay", required_argument,
              [](Options& o, std::string_view t) {
                o.rule.weight_decay = from_zero("--weight-decay", t, "a number from 0 to 1000", 1000);
              }},
    OptionRow{"label-smoothing", required_argument,
              [](Options& o, std::string_view t) { o.label_smoothing = from_zero_below_one("--label-smoothing", t); }},
    OptionRow{"warmup-epochs", required_argument,
              [](Options& o, std::string_view t) {
                o.warmup_epochs = from_zero("--warmup-epochs", t, "a number from 0 to 100000", kMaxEpochs);
              }},
    OptionRow{"sync-norm", no_argument,
              [](Options& o, std::string_view) { o.normalization = Normalization::kSynchronized; }},
    OptionRow{"dtype", required_argument,
              [](Options& o, std::string_view t) { o.precision = parse_word("--dtype", t, kDtypes); }},
    OptionRow{"zero-init-residual", no_argument,
              [](Options& o, std::string_view) { o.last_scale = ResidualScale::kZero; }},
    OptionRow{"bucket-mib", required_argument,
              [](Options& o, std::string_view t) {
                o.bucket_mebibytes = from_zero("--bucket-mib", t, "a number from 0 to 1048576", 1 << 20);
              }},
    OptionRow{"slices", required_argument,
              [](Options& o, std::string_view t) { o.slices = parse_count("--slices", t, kMaxSlices); }},
    OptionRow{
        "eval-slices", required_argument,
        [](Options& o, std::string_view t) { o.evaluation_slices = parse_count("--eval-slices", t, kMaxSlices); }},
    OptionRow{"interval", required_argument,
              [](Options& o, std::string_view t) { o.interval = parse_count("--interval", t, kMaxRows); }},
    OptionRow{"seed", required_argument,
              [](Options& o, std::string_view t) {
                o.seed = parse_number<std::uint64_t>("--seed", t, "a whole number from 0 to 2^64 - 1",
                                                     [](auto) { return true; });
              }},
    OptionRow{"no-mirror", no_argument, [](Options& o, std::string_view) { o.mirrors = false; }},
    OptionRow{"checkpoint", required_argument,
              [](Options& o, std::string_view t) { o.checkpoint = folder("--checkpoint", t); }},
    OptionRow{
        "checkpoint-every", required_argument,
        [](Options& o, std::string_view t) { o.checkpoint_every = parse_count("--checkpoint-every", t, kMaxEpochs); }},
    OptionRow{"resume", no_argument, [](Options& o, std::string_view) { o.resume = true; }},
    OptionRow{"plans", required_argument,
              [](Options& o, std::string_view t) {
                if (t.empty()) refuse_option("--plans", "a file", t);
                o.plans = t;
              }},
};

constexpr int kFirstOption = 256;  // above every character, which getopt_long has for short options and errors
constexpr int kHelp = kFirstOption - 1;

/// The table as getopt_long wants it.
auto known_options() {
  std::array<option, kOptions.size() + 2> known{};
  for (std::size_t i = 0; i < kOptions.size(); ++i) {
    known[i] = {kOptions[i].name, kOptions[i].argument, nullptr, kFirstOption + static_cast<int>(i)};
  }
  known[kOptions.size()] = {"help", no_argument, nullptr, kHelp};
  return known;
}

/// What getopt_long has just returned '?' for: one letter of a cluster, or a whole argument.
std::string refused_option(char** argv) {
  const bool is_letter = optopt > 0 && optopt < kHelp;
  return is_letter ? std::string{'-', static_cast<char>(optopt)} : argv[optind - 1];
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
  const auto known = known_options();
  Options options;
  opterr = 0;  // the messages are ours
  for (int chosen = 0; (chosen = getopt_long(argc, argv, ":", known.data(), nullptr)) != -1;) {
    if (chosen == kHelp) return std::nullopt;
    if (chosen == ':') throw UsageError(std::string(argv[optind - 1]) + ": expected a value, got none");
    if (chosen == '?') refuse_option("options", "one of those that --help lists", refused_option(argv));
    kOptions[static_cast<std::size_t>(chosen - kFirstOption)].set(options, optarg == nullptr ? "" : optarg);
  }
  if (optind < argc) refuse_option("options", "no other arguments", argv[optind]);
  check(options);
  if (options.rule.learning_rate == 0) options.rule.learning_rate = usual_learning_rate(options);
  return options;
}

std::string help_text() {
  return R"(Trains a residual network on images on every device at once.

usage: syncrun-resnet --data DIR [OPTION...]
       syncrun -n 4 syncrun-resnet --data DIR [OPTION...]

  --data DIR            images.npy and labels.npy, and for evaluation images_test.npy and labels_test.npy, as
                        scripts/pack_images.py makes them
  --synthetic N         N random images instead, to see how fast it is
  --feed mapped|memory|device
                        mapped (default with --data): workers read rows from the files, which need not fit into memory;
                        memory: images lie in shared memory, into which files are copied first: for files on a slow disk;
                        device (default with --synthetic, and only there): one batch lies on the devices, and every step
                        trains on it
  --evaluate-fraction X hold back this part of the images for evaluation instead (X above 0, below 1)
  --classes N           default: the largest label + 1; of random images 1000
  --depth N             18, 34, 50 (default), 101 or 152 layers
  --width N             channels of the first stage (default 64)
  --crop N              height and width that the network sees, of a place that is random in training and the
                        middle in evaluation (default: 224, or the smaller side of the images where that is less)
  --no-mirror           do not exchange left and right at random
  --batch N             rows per step, of all devices together (default 256); the last batch may be smaller
  --epochs N            passes over the training rows (default 90)
  --optimizer NAME      sgd, momentum (default), nesterov, adagrad, rmsprop, adadelta, adam, adamw or adamax
  --lr X                learning rate at its peak (default: 0.1 for 256 rows and in proportion for sgd, momentum and
                        nesterov; 0.001 for rmsprop, adam and adamw, 0.002 for adamax, 0.01 for adagrad, 1 for adadelta)
  --warmup-epochs X     epochs in which it rises to the peak; then it falls to 0 along a cosine (default 5, but a
                        tenth of all epochs at most)
  --momentum X          of momentum and nesterov (default 0.9)
  --weight-decay X      of all parameters (default 0.0001); decoupled with adamw
  --label-smoothing X   part of each label that goes to all classes alike (default 0)
  --zero-init-residual  start with each block as its shortcut
  --sync-norm           normalise by the rows of all devices, not by each device's own
  --dtype float32|tf32|bfloat16
                        arithmetic of activations (default float32); the others are for CUDA devices
  --bucket-mib X        average gradients over GPUs in parts of so many MiB while the backward pass goes on (default 16,
                        the most that copy engines move; 0: all at once when it is over, as always with --sync-norm,
                        --slices and on CPU devices)
  --slices N            passes over a device's rows in a step: less memory (default 1)
  --eval-slices N       the same of an evaluation (default: so many that a pass is no larger than one of a step)
  --interval N          steps per line that is printed (default 50)
  --seed N              of parameters, shuffling, crops and what is held back (default 1)
  --checkpoint DIR      after every epoch, save to the folder DIR all it takes to go on from there
  --checkpoint-every N  after every Nth epoch and the last one (default 1)
  --resume              go on from what DIR has; done unasked when `syncrun --max-restarts` starts it again
  --plans FILE          on CUDA devices: compute convolutions by the plans of cuDNN's that FILE names, so that equal runs
                        give the same bits; those that FILE lacks are chosen by timing and added to it. Checkpoints have
                        the plans of their run, and --resume takes them from there where FILE has none
  --help                this text
)";
}

}  // namespace resnet
