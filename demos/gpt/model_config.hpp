#pragma once

// The sizes of a model, and the sizes that have a name. The names of the fields are those of nanoGPT.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gpt {

/// The type of matrix products. Parameters, gradients and losses are float32.
enum class Precision : std::int8_t { kFloat32, kBfloat16 };

/// The matrix of the last layer.
enum class LastLayer : std::int8_t {
  kTied,  // that of the embedding of tokens
  kOwn    // another one
};

/// What a block keeps for the backward pass.
enum class Activations : std::int8_t {
  kKept,       // all that it needs
  kRecomputed  // its inputs. The backward pass computes the block again
};

/// Which parameters a device keeps.
enum class Parameters : std::int8_t {
  kWhole,   // all
  kSharded  // its share. Each block is a unit of a ShardedReplica
};

struct ModelConfig {
  std::int64_t n_layer = 2;
  std::int64_t n_head = 4;
  std::int64_t n_embd = 64;      // the width: a multiple of n_head
  std::int64_t block_size = 64;  // the context: the most tokens that the model reads
  std::int64_t vocab_size = 256;
  LastLayer last_layer = LastLayer::kTied;
  double dropout = 0;
  Precision precision = Precision::kFloat32;
  Activations activations = Activations::kKept;
  Parameters parameters = Parameters::kWhole;
  bool is_deterministic = false;  // sums in an order that does not change from run to run
};

/// The number of parameters. The embedding of tokens counts once if it is also the last layer.
std::int64_t count_parameters(const ModelConfig& config);

/// The floating-point operations of a training step for one token, as nanoGPT's estimate_mfu() counts them: 6 N + 12 L H Q
/// T. N is the number of parameters that take part in products: all but the positions. The second term is the attention,
/// with L layers, H heads of Q numbers and a context of T tokens. What activations recompute does not count.
/// Source: A. Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B.
double training_operations_per_token(const ModelConfig& config);

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

/// From 0.1 million to 6.9 billion parameters.
std::span<const Preset> presets();

}  // namespace gpt
