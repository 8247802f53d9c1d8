#pragma once

// Gpt: a language model in the style of GPT-2, of LibTorch's modules. It does not use Syncrun.
//
// Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3. Names of modules
// and initial values are those of nanoGPT, without its prefix "transformer.".

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "demos/gpt/model_config.hpp"

namespace gpt {

/// Attention from each position to itself and to those before it.
class CausalSelfAttention : public torch::nn::Module {
 public:
  explicit CausalSelfAttention(const ModelConfig& config);
  /// [rows, time, n_embd] to the same shape.
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::Tensor attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v);

  std::int64_t n_head_;
  double dropout_;
  torch::nn::Linear c_attn_;  // queries, keys and values
  torch::nn::Linear c_proj_;
};

/// Two layers with GELU between them.
class Mlp : public torch::nn::Module {
 public:
  explicit Mlp(const ModelConfig& config);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  double dropout_;
  torch::nn::Linear c_fc_;
  torch::nn::Linear c_proj_;
};

/// What a block passes on: `x`, and what its last layer adds to it. The next layer adds it while it normalizes.
struct Residual {
  torch::Tensor x;
  torch::Tensor change;  // undefined: nothing
};

/// x + attention(norm(x)), and then x + mlp(norm(x)).
class Block : public torch::nn::Module {
 public:
  explicit Block(const ModelConfig& config);
  Residual forward(const Residual& residual);

 private:
  torch::nn::LayerNorm ln_1_;
  std::shared_ptr<CausalSelfAttention> attn_;
  torch::nn::LayerNorm ln_2_;
  std::shared_ptr<Mlp> mlp_;
};

class Gpt : public torch::nn::Module {
 public:
  /// Draws the initial values from LibTorch's generator.
  explicit Gpt(const ModelConfig& config);

  const ModelConfig& config() const noexcept { return config_; }

  /// For tokens [rows, time] of int64: the scores of each next token, [rows, time, vocab_size]. `time` is at most
  /// block_size. The tokens are on the device of the parameters.
  torch::Tensor forward(const torch::Tensor& tokens);
  /// The scores of the next token after the last one only: [rows, vocab_size].
  torch::Tensor next(const torch::Tensor& tokens);
  /// The mean cross entropy in nats, for windows [rows, time + 1] of int64: each token predicts the one after it.
  torch::Tensor loss(const torch::Tensor& windows);

 private:
  void set_initial_values();
  /// [rows, time, n_embd]: what the last layer reads.
  torch::Tensor embed(const torch::Tensor& tokens);

  ModelConfig config_;
  torch::nn::Embedding wte_;  // of tokens; its weight is also that of the last layer
  torch::nn::Embedding wpe_;  // of positions
  std::vector<std::shared_ptr<Block>> h_;
  torch::nn::LayerNorm ln_f_;
};

}  // namespace gpt
