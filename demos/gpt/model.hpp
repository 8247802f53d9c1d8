#pragma once

// Gpt: a language model in the style of GPT-2, of LibTorch's modules. Each block is a unit: in a ShardedReplica, its
// parameters are divided among the ranks. Anywhere else, it is a plain module.
//
// Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3. Names of modules
// and initial values are those of nanoGPT, without its prefix "transformer.".

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <syncrun/torch.hpp>
#include <tuple>
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
using Residual = std::tuple<torch::Tensor, torch::Tensor>;

/// x + attention(norm(x)), and then x + mlp(norm(x)).
class Block : public torch::nn::Module {
 public:
  explicit Block(const ModelConfig& config);
  /// `change` has the shape of x, or has one dimension and stands for nothing.
  Residual forward(const torch::Tensor& x, const torch::Tensor& change);

 private:
  torch::nn::LayerNorm ln_1_;
  std::shared_ptr<CausalSelfAttention> attn_;
  torch::nn::LayerNorm ln_2_;
  std::shared_ptr<Mlp> mlp_;
};

class Gpt : public torch::nn::Module {
 public:
  /// Draws the initial values from LibTorch's generator. Each block draws its own, so no device ever has all of a model
  /// whose parameters are divided.
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
  /// The matrix of the last layer.
  const torch::Tensor& head() const;
  Residual run_block(std::size_t number, const Residual& residual) const;
  /// [rows, time, n_embd]: what the last layer reads.
  torch::Tensor embed(const torch::Tensor& tokens);

  ModelConfig config_;
  torch::nn::Embedding wte_;  // of tokens
  torch::nn::Embedding wpe_;  // of positions
  std::vector<std::shared_ptr<syncrun::libtorch::Sharded<Block>>> h_;
  torch::nn::LayerNorm ln_f_;
  torch::nn::Linear lm_head_{nullptr};  // LastLayer::kOwn only
};

}  // namespace gpt
