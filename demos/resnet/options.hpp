#pragma once

// The command line of syncrun-resnet.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "demos/common/command_line.hpp"
#include "demos/resnet/parameters.hpp"
#include "demos/resnet/precision.hpp"

namespace resnet {

using demos::UsageError;

/// An update rule of Syncrun; AdamW is Adam with decoupled weight decay.
enum class Optimizer { kSgd, kMomentum, kNesterov, kAdagrad, kRmsProp, kAdadelta, kAdam, kAdamW, kAdamax };

/// Numbers for the optimizer.
struct OptimizerOptions {
  Optimizer optimizer = Optimizer::kMomentum;
  std::string name = "momentum";  // as it was written
  double learning_rate = 0;       // at the peak
  double momentum = 0.9;          // of kMomentum and kNesterov
  double weight_decay = 1e-4;     // of all parameters, as in torchvision's reference
};

/// Where the workers have the images of a step from.
enum class Feed {
  kMapped,  // the files, which each of them maps
  kMemory,  // shared memory
  kDevice   // the devices themselves: always the same rows
};

struct Options {
  std::filesystem::path data;       // folder; or else
  std::int64_t synthetic_rows = 0;  // random images
  std::optional<Feed> chosen_feed;  // left out: kMapped, and kDevice of random images
  std::optional<double> evaluate_fraction;
  std::optional<std::int64_t> classes;

  int depth = 50;
  std::size_t width = 64;
  std::optional<std::size_t> crop;  // left out: 224, or less where images are smaller

  std::int64_t batch_rows = 256;  // per step, of all workers together
  int epochs = 90;
  OptimizerOptions rule;
  std::optional<double> warmup_epochs;  // left out: 5, but a tenth of all at most
  double label_smoothing = 0;
  Normalization normalization = Normalization::kPerDevice;
  Precision precision = Precision::kFloat32;
  ResidualScale last_scale = ResidualScale::kOne;
  double bucket_mebibytes = 16;  // of gradient, averaged at a time during the backward pass; 0: all of it after
  std::int64_t slices = 1;
  std::int64_t evaluation_slices = 0;  // 0: as many as keep a pass at the size of a step's
  std::int64_t interval = 50;          // steps per line
  std::uint64_t seed = 1;
  bool mirrors = true;

  std::filesystem::path checkpoint;  // folder; empty: none
  int checkpoint_every = 1;          // epochs
  bool resume = false;

  std::filesystem::path plans;  // file of cuDNN's plans; empty: none

  double warmup() const;
  Feed feed() const;
};

/// Reads the command line; nothing where it asks for --help. Throws UsageError.
std::optional<Options> parse_options(int argc, char** argv);

/// What --help prints.
std::string help_text();

}  // namespace resnet
