#pragma once

// The command line of syncrun-mnist and of its serial twins.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "demos/common/blas.hpp"
#include "demos/common/command_line.hpp"
#include "demos/common/model.hpp"

namespace mnist {

/// Where the training rows of a step come from.
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
  std::string losses;  // file for the losses in full precision; empty: none

  std::filesystem::path checkpoint;  // folder; empty: none
  int checkpoint_every = 1;          // epochs
  bool resume = false;
};

/// Whether a program has the options about checkpoints.
enum class Checkpointing { kNone, kOffered };

using demos::UsageError;

/// Reads the command line; nothing where it asks for --help. Throws UsageError.
std::optional<Options> parse_options(int argc, char** argv, Checkpointing checkpointing = Checkpointing::kNone);

/// What --help prints: `usage`, and what the options mean.
std::string help_text(std::string_view usage, Checkpointing checkpointing = Checkpointing::kNone);

}  // namespace mnist
