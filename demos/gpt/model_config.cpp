#include "demos/gpt/model_config.hpp"

#include <array>

namespace gpt {
namespace {

/// `small` is the model that nanoGPT trains on the characters of Shakespeare. `gpt2` and `gpt2-medium` are models of A.
/// Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, table 2, with the batches and learning
/// rates of nanoGPT and of T. Brown et al., arXiv 2005.14165, table 2.1.
constexpr std::array<Preset, 5> kPresets{{
    {"tiny", {.n_layer = 2, .n_head = 4, .n_embd = 64, .block_size = 64}, 32, 1, 1000, 4e-3},
    {"mini", {.n_layer = 4, .n_head = 4, .n_embd = 128, .block_size = 128}, 32, 1, 3000, 2e-3},
    {"small", {.n_layer = 6, .n_head = 6, .n_embd = 384, .block_size = 256}, 64, 4, 5000, 1e-3},
    {"gpt2", {.n_layer = 12, .n_head = 12, .n_embd = 768, .block_size = 1024}, 480, 40, 600'000, 6e-4},
    {"gpt2-medium", {.n_layer = 24, .n_head = 16, .n_embd = 1024, .block_size = 1024}, 480, 80, 600'000, 3e-4},
}};

}  // namespace

std::int64_t count_parameters(const ModelConfig& config) {
  const std::int64_t width = config.n_embd;
  const std::int64_t norm = 2 * width;
  const std::int64_t attention = 3 * width * (width + 1) + width * (width + 1);
  const std::int64_t mlp = 4 * width * (width + 1) + width * (4 * width + 1);
  return (config.vocab_size + config.block_size) * width + config.n_layer * (2 * norm + attention + mlp) + norm;
}

std::string describe(const ModelConfig& config) {
  return std::to_string(config.n_layer) + " layers, " + std::to_string(config.n_head) + " heads, width " +
         std::to_string(config.n_embd) + ", context " + std::to_string(config.block_size) + ", vocabulary " +
         std::to_string(config.vocab_size);
}

std::span<const Preset> presets() { return kPresets; }

}  // namespace gpt
