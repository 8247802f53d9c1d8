#include "demos/gpt/model.hpp"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <syncrun/torch.hpp>
#include <vector>

namespace gpt {
namespace {

torch::nn::LayerNorm layer_norm(const ModelConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.n_embd}));
}

// The modules hold the parameters. Syncrun's functions compute the same as their forward(), faster on a GPU.
torch::Tensor product(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return syncrun::libtorch::linear(x, layer->weight, layer->bias);
}
syncrun::libtorch::SumAndNorm add_and_normalize(const torch::nn::LayerNorm& norm, const Residual& residual) {
  const double epsilon = norm->options.eps();
  const auto& [x, change] = residual;
  if (change.defined()) return syncrun::libtorch::add_layer_norm(x, change, norm->weight, norm->bias, epsilon);
  return {x, syncrun::libtorch::layer_norm(x, norm->weight, norm->bias, epsilon)};
}

torch::Tensor drop(const torch::Tensor& x, double dropout, bool is_training) {
  return dropout == 0 ? x : torch::dropout(x, dropout, is_training);
}

}  // namespace

CausalSelfAttention::CausalSelfAttention(const ModelConfig& config)
    : n_head_(config.n_head),
      dropout_(config.dropout),
      c_attn_(config.n_embd, 3 * config.n_embd),
      c_proj_(config.n_embd, config.n_embd) {
  register_module("c_attn", c_attn_);
  register_module("c_proj", c_proj_);
}

torch::Tensor CausalSelfAttention::attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
#if TORCH_VERSION_MAJOR >= 2
  return torch::scaled_dot_product_attention(q, k, v, {}, is_training() ? dropout_ : 0, /*is_causal=*/true);
#else
  const std::int64_t time = q.size(2);
  const std::int64_t width = q.size(3);
  const auto one_batch = [&](const torch::Tensor& x) { return x.reshape({-1, time, width}); };
  // Minus infinity where a position is after the one that looks. baddbmm adds it to the scaled scores in one pass.
  const auto later = torch::full({time, time}, -std::numeric_limits<float>::infinity(), q.options()).triu(1);
  const auto scores = torch::baddbmm(later.unsqueeze(0), one_batch(q), one_batch(k).transpose(1, 2), 1,
                                     1 / std::sqrt(static_cast<double>(width)));
  const auto weights = drop(torch::softmax(scores, -1), dropout_, is_training());
  return torch::bmm(weights, one_batch(v)).view(q.sizes());
#endif
}

torch::Tensor CausalSelfAttention::forward(const torch::Tensor& x) {
  const std::int64_t rows = x.size(0);
  const std::int64_t time = x.size(1);
  const std::int64_t width = x.size(2);
  const auto parts = product(c_attn_, x).split(width, 2);
  const auto by_head = [&](std::size_t i) {
    return parts[i].view({rows, time, n_head_, width / n_head_}).transpose(1, 2);
  };
  const auto mixed = attend(by_head(0), by_head(1), by_head(2)).transpose(1, 2).reshape({rows, time, width});
  return drop(product(c_proj_, mixed), dropout_, is_training());
}

Mlp::Mlp(const ModelConfig& config)
    : dropout_(config.dropout), c_fc_(config.n_embd, 4 * config.n_embd), c_proj_(4 * config.n_embd, config.n_embd) {
  register_module("c_fc", c_fc_);
  register_module("c_proj", c_proj_);
}

torch::Tensor Mlp::forward(const torch::Tensor& x) {
  return drop(product(c_proj_, torch::gelu(product(c_fc_, x), "tanh")), dropout_, is_training());
}

Block::Block(const ModelConfig& config)
    : ln_1_(layer_norm(config)),
      attn_(std::make_shared<CausalSelfAttention>(config)),
      ln_2_(layer_norm(config)),
      mlp_(std::make_shared<Mlp>(config)) {
  register_module("ln_1", ln_1_);
  register_module("attn", attn_);
  register_module("ln_2", ln_2_);
  register_module("mlp", mlp_);
}

Residual Block::forward(const Residual& residual) {
  const auto [x, normal_x] = add_and_normalize(ln_1_, residual);
  const auto [y, normal_y] = add_and_normalize(ln_2_, {x, attn_->forward(normal_x)});
  return {y, mlp_->forward(normal_y)};
}

Gpt::Gpt(const ModelConfig& config)
    : config_(config),
      wte_(config.vocab_size, config.n_embd),
      wpe_(config.block_size, config.n_embd),
      ln_f_(layer_norm(config)) {
  if (config.is_deterministic) syncrun::libtorch::use_deterministic_algorithms();
  register_module("wte", wte_);
  register_module("wpe", wpe_);
  const auto h = register_module("h", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.n_layer; ++i) {
    h_.push_back(std::make_shared<Block>(config));
    h->push_back(h_.back());
  }
  register_module("ln_f", ln_f_);
  set_initial_values();
}

void Gpt::set_initial_values() {
  const torch::NoGradGuard no_gradients;
  const double last = 0.02 / std::sqrt(2 * static_cast<double>(config_.n_layer));
  for (auto& each : named_parameters()) {
    const std::string& name = each.key();
    auto& values = each.value();
    if (values.dim() >= 2) values.normal_(0, name.ends_with("c_proj.weight") ? last : 0.02);
    else values.fill_(name.ends_with("weight") ? 1 : 0);  // the weights of a norm, and biases
  }
}

torch::Tensor Gpt::embed(const torch::Tensor& tokens) {
  // The rows of the first positions, for all windows.
  const auto x = syncrun::libtorch::embedding(tokens, wte_->weight) + wpe_->weight.narrow(0, 0, tokens.size(1));
  Residual residual{drop(x, config_.dropout, is_training()), {}};
  for (const auto& block : h_) residual = block->forward(residual);
  return add_and_normalize(ln_f_, residual).norm;
}

torch::Tensor Gpt::forward(const torch::Tensor& tokens) {
  return syncrun::libtorch::linear(embed(tokens), wte_->weight);
}

torch::Tensor Gpt::next(const torch::Tensor& tokens) {
  return syncrun::libtorch::linear(embed(tokens).select(1, tokens.size(1) - 1), wte_->weight);
}

torch::Tensor Gpt::loss(const torch::Tensor& windows) {
  const std::int64_t time = windows.size(1) - 1;
  const auto scores = forward(windows.narrow(1, 0, time));
  return syncrun::libtorch::cross_entropy(scores, windows.narrow(1, 1, time));
}

}  // namespace gpt
