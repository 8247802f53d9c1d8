// The model on one device, without Syncrun.

#include "demos/gpt/model.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

namespace gpt {
namespace {

constexpr ModelConfig kConfig{.n_layer = 2, .n_head = 2, .n_embd = 16, .block_size = 12, .vocab_size = 30};

torch::Tensor random_tokens(std::int64_t rows, std::int64_t time) {
  return torch::randint(kConfig.vocab_size, {rows, time}, torch::kInt64);
}

class GptModel : public testing::Test {
 protected:
  GptModel() { torch::manual_seed(1); }

  torch::NoGradGuard no_gradients_;
};

TEST_F(GptModel, HasAsManyParametersAsItsSizesSay) {
  for (const LastLayer last_layer : {LastLayer::kTied, LastLayer::kOwn}) {
    ModelConfig config = kConfig;
    config.last_layer = last_layer;
    std::int64_t count = 0;
    for (const auto& each : Gpt(config).parameters()) count += each.numel();
    EXPECT_EQ(count, count_parameters(config));
  }
  Gpt net(kConfig);
  const auto parameters = net.named_parameters();
  EXPECT_EQ(parameters["h.1.attn.c_attn.weight"].sizes(), (torch::IntArrayRef{48, 16}));
  EXPECT_EQ(parameters["h.0.ln_2.bias"].dim(), 1);
}

TEST_F(GptModel, BeginsWithTheValuesOfNanoGpt) {
  ModelConfig config = kConfig;
  config.n_embd = 128;
  for (const auto& each : Gpt(config).named_parameters()) {
    const std::string& name = each.key();
    const auto& values = each.value();
    if (values.dim() == 1) {
      EXPECT_TRUE(values.equal(torch::full_like(values, name.ends_with("weight") ? 1 : 0))) << name;
      continue;
    }
    const double deviation = name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(2 * 2.0) : 0.02;
    EXPECT_NEAR(values.std().item<double>() / deviation, 1, 0.1) << name;
    EXPECT_NEAR(values.mean().item<double>() / deviation, 0, 0.1) << name;
  }
}

TEST_F(GptModel, ComputesTheSameGradientIfBlocksAreRecomputed) {
  const torch::AutoGradMode with_gradients(true);
  const auto gradients = [](Activations activations) {
    torch::manual_seed(3);
    ModelConfig config = kConfig;
    config.dropout = 0.3;
    config.activations = activations;
    Gpt net(config);
    net.loss(random_tokens(2, 9)).backward();
    std::vector<torch::Tensor> each;
    for (const auto& parameter : net.parameters()) each.push_back(parameter.grad());
    return each;
  };
  const auto kept = gradients(Activations::kKept);
  const auto recomputed = gradients(Activations::kRecomputed);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(recomputed[i].allclose(kept[i], 1e-5, 1e-8)) << i;
}

TEST_F(GptModel, SeesNoLaterTokens) {
  Gpt net(kConfig);
  for (auto& each : net.parameters()) each.normal_(0, 0.3);
  const auto tokens = random_tokens(3, 12);
  const auto scores = net.forward(tokens);
  for (std::int64_t place = 1; place < 12; ++place) {
    auto changed = tokens.clone();
    changed.select(1, place).add_(1).remainder_(kConfig.vocab_size);
    const auto other = net.forward(changed);
    EXPECT_TRUE(other.narrow(1, 0, place).allclose(scores.narrow(1, 0, place), 1e-5, 1e-6)) << place;
    EXPECT_FALSE(other.select(1, place).allclose(scores.select(1, place), 1e-3, 1e-3)) << place;
    if (place == 11) continue;
    EXPECT_FALSE(other.select(1, 11).allclose(scores.select(1, 11), 1e-5, 1e-6)) << place << " is seen by the last";
  }
}

TEST_F(GptModel, AttendsByTheFormula) {
  CausalSelfAttention attention(kConfig);
  const auto x = torch::randn({2, 5, 16});
  const auto parameters = attention.named_parameters();
  const auto qkv = torch::linear(x, parameters["c_attn.weight"], parameters["c_attn.bias"]);
  auto mixed = torch::zeros({2, 5, 16});
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::int64_t head = 0; head < 2; ++head) {
      for (std::int64_t i = 0; i < 5; ++i) {
        const auto of = [&](std::int64_t part, std::int64_t place) {
          return qkv[row][place].slice(0, part * 16 + head * 8, part * 16 + head * 8 + 8);
        };
        auto scores = torch::empty({i + 1});
        for (std::int64_t j = 0; j <= i; ++j) scores[j] = (of(0, i) * of(1, j)).sum() / std::sqrt(8.0);
        const auto weights = torch::softmax(scores, 0);
        for (std::int64_t j = 0; j <= i; ++j) mixed[row][i].slice(0, head * 8, head * 8 + 8) += weights[j] * of(2, j);
      }
    }
  }
  const auto expected = torch::linear(mixed, parameters["c_proj.weight"], parameters["c_proj.bias"]);
  EXPECT_TRUE(attention.forward(x).allclose(expected, 1e-5, 1e-6));
}

TEST_F(GptModel, ScoresTheNextTokenAsTheLastOfAll) {
  Gpt net(kConfig);
  const auto tokens = random_tokens(2, 7);
  EXPECT_TRUE(net.next(tokens).allclose(net.forward(tokens).select(1, 6), 1e-5, 1e-6));
}

TEST_F(GptModel, LosesTheMeanCrossEntropyOfEachNextToken) {
  Gpt net(kConfig);
  const auto windows = random_tokens(2, 6);
  const auto logs = torch::log_softmax(net.forward(windows.narrow(1, 0, 5)), -1);
  double sum = 0;
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::int64_t i = 0; i < 5; ++i) sum -= logs[row][i][windows[row][i + 1].item<std::int64_t>()].item<double>();
  }
  EXPECT_NEAR(net.loss(windows).item<double>(), sum / 10, 1e-5);
}

TEST_F(GptModel, DropsUnitsInTrainingOnly) {
  ModelConfig config = kConfig;
  config.dropout = 0.5;
  Gpt net(config);
  const auto tokens = random_tokens(2, 7);
  EXPECT_FALSE(net.forward(tokens).equal(net.forward(tokens)));
  net.eval();
  EXPECT_TRUE(net.forward(tokens).equal(net.forward(tokens)));
}

}  // namespace
}  // namespace gpt
