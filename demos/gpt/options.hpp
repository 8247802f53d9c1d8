#pragma once

// The command-line options of syncrun-gpt. Their names are those of nanoGPT where it has the same option.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "demos/common/usage_error.hpp"
#include "demos/gpt/model_config.hpp"
#include "demos/gpt/sampling.hpp"

namespace gpt {

/// What is divided among the devices.
enum class Sharding {
  kNone,
  kState,  // the state of the update rule
  kModel   // also the parameters and the gradient
};

struct Options {
  std::filesystem::path data;  // a folder that tools/prepare_tokens.py has made
  std::string size_name;       // of the preset
  ModelConfig model;           // without vocab_size, which the folder determines

  std::int64_t batch_size = 0;  // windows per step, of all workers together
  std::int64_t slices = 0;      // passes over a worker's windows in a step
  std::int64_t max_iters = 0;
  double learning_rate = 0;
  double min_lr = 0;
  std::int64_t warmup_iters = 0;
  std::int64_t lr_decay_iters = 0;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double grad_clip = 1;  // 0: the gradient is not clipped
  Sharding sharding = Sharding::kNone;
  std::uint64_t seed = 1;

  std::int64_t eval_interval = 250;  // steps
  std::int64_t eval_iters = 10;      // batches per evaluation; 0: all of the text
  std::int64_t log_interval = 50;    // steps
  std::string losses;                // file for the losses in full precision; empty: no file

  std::filesystem::path checkpoint;   // folder; empty: no checkpoints
  std::int64_t checkpoint_every = 0;  // steps
  bool resume = false;
  std::filesystem::path init_from;  // file with the weights to begin with; empty: drawn
  std::filesystem::path save;       // file for the finished model; empty: no file

  std::string prompt = "\n";
  std::int64_t max_new_tokens = 400;  // 0: no sample
  SamplingOptions sampling;
};

using demos::UsageError;

/// Reads the command line. Returns nothing if --help is given. Throws UsageError.
std::optional<Options> parse_options(int argc, char** argv);

/// The text that --help prints.
std::string help_text();

}  // namespace gpt
