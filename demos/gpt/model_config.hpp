#pragma once

// The sizes of a model, and the sizes that have a name. The names of the fields are those of nanoGPT.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gpt {

/// The type of matrix products. Parameters, gradients and losses are float32.
enum class Precision : std::int8_t { kFloat32, kBfloat16 };

struct ModelConfig {
  std::int64_t n_layer = 2;
  std::int64_t n_head = 4;
  std::int64_t n_embd = 64;      // the width: a multiple of n_head
  std::int64_t block_size = 64;  // the context: the most tokens that the model reads
  std::int64_t vocab_size = 256;
  double dropout = 0;
  Precision precision = Precision::kFloat32;
  bool is_deterministic = false;  // sums in an order that does not change from run to run
};

/// The number of parameters. The embedding of tokens counts once, although it is also the last layer.
std::int64_t count_parameters(const ModelConfig& config);

/// For messages and checkpoints: "2 layers, 4 heads, width 64, context 64, vocabulary 256".
std::string describe(const ModelConfig& config);

/// A model with a name, and how it is trained by default.
struct Preset {
  std::string_view name;
  ModelConfig model;
  std::int64_t batch_size;  // windows per step, of all workers together
  std::int64_t slices;      // passes over a worker's windows in a step
  std::int64_t max_iters;
  double learning_rate;
};

/// From 0.1 to 355 million parameters.
std::span<const Preset> presets();

}  // namespace gpt
