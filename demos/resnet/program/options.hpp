#pragma once

// The command-line options of syncrun-resnet.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "demos/common/usage_error.hpp"
#include "demos/resnet/network/parameters.hpp"
#include "demos/resnet/network/precision.hpp"

namespace resnet {

using demos::UsageError;

/// An update rule of Syncrun. AdamW is Adam with decoupled weight decay.
enum class Optimizer { kSgd, kMomentum, kNesterov, kAdagrad, kRmsProp, kAdadelta, kAdam, kAdamW, kAdamax };

/// The optimizer and its hyperparameters.
struct OptimizerOptions {
  Optimizer optimizer = Optimizer::kMomentum;
  std::string name = "momentum";  // as the user has written it
  double learning_rate = 0;       // at the peak
  double momentum = 0.9;          // used by kMomentum and kNesterov
  double weight_decay = 1e-4;     // applies to all parameters, as in torchvision's reference
};

/// The place from which the workers take the images of a step.
enum class Feed {
  kMapped,  // the files, which each worker maps
  kMemory,  // shared memory
  kDevice   // the memory of the devices; every step uses the same rows
};

struct Options {
  std::filesystem::path data;       // folder of the data set; empty if random images are used
  std::int64_t synthetic_rows = 0;  // number of random images; 0 if `data` is used
  std::optional<Feed> chosen_feed;  // if left out: kDevice for random images, otherwise kMapped
  std::optional<double> evaluate_fraction;
  std::optional<std::int64_t> classes;

  int depth = 50;
  std::size_t width = 64;
  std::optional<std::size_t> crop;  // if left out: 224, or less if the images are smaller

  std::int64_t batch_rows = 256;  // per step, of all workers together
  int epochs = 90;
  OptimizerOptions rule;
  std::optional<double> warmup_epochs;  // if left out: 5, but at most a tenth of all epochs
  double label_smoothing = 0;
  Normalization normalization = Normalization::kPerDevice;
  Precision precision = Precision::kFloat32;
  ResidualScale last_scale = ResidualScale::kOne;
  double bucket_mebibytes = 16;  // of gradient, averaged at a time in the backward pass; 0: all of it after the pass
  std::int64_t slices = 1;
  std::int64_t evaluation_slices = 0;  // 0: so many that a pass is no larger than a pass of a step
  std::int64_t interval = 50;          // steps per line
  std::uint64_t seed = 1;
  bool mirrors = true;

  std::filesystem::path checkpoint;  // folder; empty: no checkpoints
  int checkpoint_every = 1;          // epochs
  bool resume = false;

  std::filesystem::path plans;  // file of cuDNN's plans; empty: no file

  double warmup() const;
  Feed feed() const;
};

/// Reads the command line. Returns nothing if --help is given. Throws UsageError.
std::optional<Options> parse_options(int argc, char** argv);

/// The text that --help prints.
std::string help_text();

}  // namespace resnet
