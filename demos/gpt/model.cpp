#include "demos/gpt/model.hpp"

#include <cmath>
#include <limits>
#include <memory>
#include <syncrun/torch.hpp>
#include <vector>

namespace gpt {
namespace {

namespace lt = syncrun::libtorch;

constexpr double kDeviation = 0.02;  // of the initial values of matrices

void draw(torch::Tensor& weight, double deviation = kDeviation) {
  const torch::NoGradGuard no_gradients;
  weight.normal_(0, deviation);
}
void draw(const torch::nn::Linear& layer, double deviation = kDeviation) {
  const torch::NoGradGuard no_gradients;
  layer->weight.normal_(0, deviation);
  layer->bias.zero_();
}
/// The deviation for the layers whose results are added to x: there are two for each block.
double deviation_of_last(const ModelConfig& config) {
  return kDeviation / std::sqrt(2 * static_cast<double>(config.n_layer));
}

torch::nn::LayerNorm layer_norm(const ModelConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.n_embd}));
}

// The modules hold the parameters. Syncrun's functions compute the same as their forward(), faster on a GPU.
torch::Tensor product(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return lt::linear(x, layer->weight, layer->bias);
}
lt::SumAndNorm add_and_normalize(const torch::nn::LayerNorm& norm, const torch::Tensor& x,
                                 const torch::Tensor& change) {
  const double epsilon = norm->options.eps();
  if (change.dim() == x.dim()) return lt::add_layer_norm(x, change, norm->weight, norm->bias, epsilon);
  return {x, lt::layer_norm(x, norm->weight, norm->bias, epsilon)};
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
  draw(c_attn_);
  draw(c_proj_, deviation_of_last(config));
}

torch::Tensor CausalSelfAttention::attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
#if TORCH_VERSION_MAJOR >= 2
  if (q.size(0) == 0) return q + k + v;  // on a rank without windows. Not every kernel accepts that
  return torch::scaled_dot_product_attention(q, k, v, {}, is_training() ? dropout_ : 0, /*is_causal=*/true);
#else
  const std::int64_t time = q.size(2);
  const std::int64_t width = q.size(3);
  const auto one_batch = [&](const torch::Tensor& x) { return x.reshape({x.size(0) * n_head_, time, width}); };
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
  draw(c_fc_);
  draw(c_proj_, deviation_of_last(config));
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

Residual Block::forward(const torch::Tensor& x, const torch::Tensor& change) {
  const auto [sum, normal] = add_and_normalize(ln_1_, x, change);
  const auto [next_sum, next_normal] = add_and_normalize(ln_2_, sum, attn_->forward(normal));
  return {next_sum, mlp_->forward(next_normal)};
}

Gpt::Gpt(const ModelConfig& config)
    : config_(config),
      wte_(config.vocab_size, config.n_embd),
      wpe_(config.block_size, config.n_embd),
      ln_f_(layer_norm(config)) {
  if (config.is_deterministic) lt::use_deterministic_algorithms();
  register_module("wte", wte_);
  register_module("wpe", wpe_);
  draw(wte_->weight);
  draw(wpe_->weight);
  const auto h = register_module("h", torch::nn::ModuleList());
  const auto reshard = config.activations == Activations::kRecomputed ? lt::Reshard::recompute : lt::Reshard::keep;
  for (std::int64_t i = 0; i < config.n_layer; ++i) {
    h_.push_back(std::make_shared<lt::Sharded<Block>>(reshard, config));
    h->push_back(h_.back());
  }
  register_module("ln_f", ln_f_);
  if (config.last_layer == LastLayer::kTied) return;
  lm_head_ = torch::nn::Linear(torch::nn::LinearOptions(config.n_embd, config.vocab_size).bias(false));
  register_module("lm_head", lm_head_);
  draw(lm_head_->weight);
}

const torch::Tensor& Gpt::head() const { return lm_head_.is_empty() ? wte_->weight : lm_head_->weight; }

Residual Gpt::run_block(std::size_t number, const Residual& residual) const {
  const auto& [x, change] = residual;
  const auto& block = h_[number];
  // A unit computes its block again by itself.
  const bool recomputes = config_.activations == Activations::kRecomputed && config_.parameters == Parameters::kWhole;
  if (!recomputes || !torch::GradMode::is_enabled()) return block->forward(x, change);
  return lt::checkpoint(
      [&block](const torch::Tensor& again, const torch::Tensor& more) { return block->forward(again, more); }, x,
      change);
}

torch::Tensor Gpt::embed(const torch::Tensor& tokens) {
  // The rows of the first positions, for all windows.
  const auto x = lt::embedding(tokens, wte_->weight) + wpe_->weight.narrow(0, 0, tokens.size(1));
  Residual residual{drop(x, config_.dropout, is_training()), torch::empty({0}, x.options())};  // nothing is added yet
  for (std::size_t i = 0; i < h_.size(); ++i) residual = run_block(i, residual);
  return add_and_normalize(ln_f_, std::get<0>(residual), std::get<1>(residual)).norm;
}

torch::Tensor Gpt::forward(const torch::Tensor& tokens) { return lt::linear(embed(tokens), head()); }

torch::Tensor Gpt::next(const torch::Tensor& tokens) {
  return lt::linear(embed(tokens).select(1, tokens.size(1) - 1), head());
}

torch::Tensor Gpt::loss(const torch::Tensor& windows) {
  const std::int64_t time = windows.size(1) - 1;
  const auto scores = forward(windows.narrow(1, 0, time));
  return lt::cross_entropy(scores, windows.narrow(1, 1, time));
}

}  // namespace gpt
