#include "demos/gpt/model_config.hpp"

#include <array>

namespace gpt {
namespace {

constexpr ModelConfig kXl{.n_layer = 48, .n_head = 25, .n_embd = 1600, .block_size = 1024};
constexpr ModelConfig kGpt3Of6Billion{.n_layer = 32, .n_head = 32, .n_embd = 4096, .block_size = 2048};

constexpr ModelConfig with_own_last_layer(ModelConfig config) {
  config.last_layer = LastLayer::kOwn;
  return config;
}

/// `small` is the model that nanoGPT trains on the characters of Shakespeare. 124m to 1.5b are the models of A. Radford et
/// al., "Language Models are Unsupervised Multitask Learners", 2019, table 2, with nanoGPT's batches. 2.7b and 6.7b are
/// models of T. Brown et al., arXiv 2005.14165, table 2.1, with its batches and about 300 billion tokens. All models from
/// 124m on have the learning rates of that table, for the nearest size. 1.64b and 6.86b are 1.5b and 6.7b with a last layer
/// of their own.
constexpr std::array<Preset, 11> kPresets{{
    {"tiny", {.n_layer = 2, .n_head = 4, .n_embd = 64, .block_size = 64}, 32, 1, 1000, 4e-3},
    {"mini", {.n_layer = 4, .n_head = 4, .n_embd = 128, .block_size = 128}, 32, 1, 3000, 2e-3},
    {"small", {.n_layer = 6, .n_head = 6, .n_embd = 384, .block_size = 256}, 64, 4, 5000, 1e-3},
    {"124m", {.n_layer = 12, .n_head = 12, .n_embd = 768, .block_size = 1024}, 480, 40, 600'000, 6e-4},
    {"355m", {.n_layer = 24, .n_head = 16, .n_embd = 1024, .block_size = 1024}, 480, 80, 600'000, 3e-4},
    {"774m", {.n_layer = 36, .n_head = 20, .n_embd = 1280, .block_size = 1024}, 480, 120, 600'000, 2.5e-4},
    {"1.5b", kXl, 480, 120, 600'000, 2e-4},
    {"1.64b", with_own_last_layer(kXl), 480, 120, 600'000, 2e-4},
    {"2.7b", {.n_layer = 32, .n_head = 32, .n_embd = 2560, .block_size = 2048}, 512, 64, 300'000, 1.6e-4},
    {"6.7b", kGpt3Of6Billion, 1024, 128, 150'000, 1.2e-4},
    {"6.86b", with_own_last_layer(kGpt3Of6Billion), 1024, 128, 150'000, 1.2e-4},
}};

}  // namespace

std::int64_t count_parameters(const ModelConfig& config) {
  const std::int64_t width = config.n_embd;
  const std::int64_t norm = 2 * width;
  const std::int64_t attention = 3 * width * (width + 1) + width * (width + 1);
  const std::int64_t mlp = 4 * width * (width + 1) + width * (4 * width + 1);
  const std::int64_t token_matrices = config.last_layer == LastLayer::kTied ? 1 : 2;
  return (token_matrices * config.vocab_size + config.block_size) * width +
         config.n_layer * (2 * norm + attention + mlp) + norm;
}

double training_operations_per_token(const ModelConfig& config) {
  // Looking up an embedding is no product. If it has a matrix of its own, this matrix does not count.
  const std::int64_t looked_up = config.last_layer == LastLayer::kTied ? 0 : config.vocab_size;
  const std::int64_t multiplied = count_parameters(config) - (looked_up + config.block_size) * config.n_embd;
  return 6 * static_cast<double>(multiplied) +
         12 * static_cast<double>(config.n_layer) * static_cast<double>(config.n_embd * config.block_size);
}

std::string describe(const ModelConfig& config) {
  return std::to_string(config.n_layer) + " layers, " + std::to_string(config.n_head) + " heads, width " +
         std::to_string(config.n_embd) + ", context " + std::to_string(config.block_size) + ", vocabulary " +
         std::to_string(config.vocab_size) + (config.last_layer == LastLayer::kTied ? "" : ", a last layer of its own");
}

std::span<const Preset> presets() { return kPresets; }

}  // namespace gpt
