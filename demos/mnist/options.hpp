#pragma once

// The command-line options of syncrun-mnist and of its serial twins.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "demos/common/blas.hpp"
#include "demos/common/model.hpp"
#include "demos/common/usage_error.hpp"

namespace mnist {

/// The place from which a step takes its training rows.
enum class Input {
  kHost,    // shared memory, picked by index at each step
  kDevice,  // each device's own shard, scattered once
};

/// The element type of images, parameters and gradients.
enum class Precision { kFloat32, kFloat64 };

struct Options {
  std::filesystem::path data;  // directory of the IDX files
  std::string model_text = "mlp";
  demos::ModelSpec model{};
  std::size_t batch_size = 60;  // rows per step, of all workers together
  int epochs = 15;
  double learning_rate = 0.1;
  double momentum = 0.9;
  std::uint64_t seed = 1;
  Input input = Input::kHost;
  Precision precision = Precision::kFloat32;
  demos::MatrixMath math = demos::MatrixMath::kFull;
  std::string losses;  // file for the losses in full precision; empty: no file

  std::filesystem::path checkpoint;  // folder; empty: no checkpoints
  int checkpoint_every = 1;          // epochs
  bool resume = false;
};

/// Whether a program has the options about checkpoints.
enum class Checkpointing { kNone, kOffered };

using demos::UsageError;

/// Reads the command line. Returns nothing if --help is given. Throws UsageError.
std::optional<Options> parse_options(int argc, char** argv, Checkpointing checkpointing = Checkpointing::kNone);

/// The text that --help prints: `usage`, followed by the meaning of each option.
std::string help_text(std::string_view usage, Checkpointing checkpointing = Checkpointing::kNone);

}  // namespace mnist
