// Algorithms of LibTorch on GPUs that give the same bits each time, and that compute with all digits of float32.

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/gpus.hpp"

namespace {

namespace lt = models::lt;

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kWidth = 128;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kSampleRows = 4;

enum class Algorithms : std::uint8_t { fastest, deterministic };

struct Attention : torch::nn::Module {
  explicit Attention(Algorithms algorithms) : parts(kWidth, 3 * kWidth) {
    if (algorithms == Algorithms::deterministic) lt::use_deterministic_algorithms();
    register_module("parts", parts);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto qkv = parts(x).view({-1, kTokens, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    return torch::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0, /*is_causal=*/true);
  }
  torch::nn::Linear parts;
};
torch::Tensor attention_loss(Attention& net, sr::Scattered<const float, 3> x) {
  const lt::Autocast autocast(torch::kBFloat16);
  return net.forward(lt::tensor(x)).to(torch::kFloat32).square().mean();
}

sr::SessionOptions on_one_gpu() { return {.devices = "cuda0", .timeout = std::chrono::seconds(120)}; }

std::vector<float> normal_values(std::int64_t count) {
  torch::manual_seed(3);
  const auto values = torch::randn({count});
  return {values.data_ptr<float>(), values.data_ptr<float>() + count};
}

/// How many of twelve equal trainings end with other parameters than the first.
int different_trainings(Algorithms algorithms) {
  sr::Session session(on_one_gpu());
  const auto x = session.data(normal_values(kSampleRows * kTokens * kWidth), sr::Shape{kSampleRows, kTokens, kWidth});
  std::vector<float> first;
  int different = 0;
  for (int training = 0; training <= 12; ++training) {
    const auto net = session.replicate<lt::Replica<Attention>>(std::uint64_t{5}, algorithms);
    const auto params = lt::parameters(session, net);
    auto step = lt::train_step<sr::Sgd, attention_loss>(session, net, params);
    for (int i = 0; i < 6; ++i) step(x, {.learning_rate = 1});
    const auto values = params.get(0).to_vector();
    if (training == 0) first = values;
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float each) { return std::isfinite(each); }));
    different += values == first ? 0 : 1;
  }
  session.close();
  return different;
}

TEST(LibtorchAlgorithmsOnGpus, GiveTheSameBitsForLongAttentionIfTheyAreDeterministic) {
  if (syncrun::test::gpus_present() == 0) GTEST_SKIP() << "no GPU is present";
  std::printf("without deterministic algorithms, %d of 12 trainings differ from the first\n",
              different_trainings(Algorithms::fastest));
  EXPECT_EQ(different_trainings(Algorithms::deterministic), 0);
}

constexpr std::int64_t kSide = 32;
constexpr std::int64_t kChannels = 64;

struct Convolution : torch::nn::Module {
  explicit Convolution(bool is_full) : filter(torch::nn::Conv2dOptions(kChannels, kChannels, 3).padding(1)) {
    if (is_full) lt::use_full_float32();
    register_module("filter", filter);
  }
  torch::nn::Conv2d filter;
};
/// The largest error of an output, in units of the largest output.
sr::Max<double> relative_error(Convolution& net, sr::Scattered<const float, 4> images) {
  const auto x = lt::tensor(images);
  const auto exact = torch::conv2d(x.to(torch::kFloat64), net.filter->weight.to(torch::kFloat64),
                                   net.filter->bias.to(torch::kFloat64), 1, 1);
  return ((net.filter(x).to(torch::kFloat64) - exact).abs().max() / exact.abs().max()).item<double>();
}

TEST(LibtorchAlgorithmsOnGpus, ConvolveWithAllDigitsOfFloat32OnRequest) {
  if (syncrun::test::gpus_present() == 0) GTEST_SKIP() << "no GPU is present";
  const auto error = [](bool is_full) {
    sr::Session session(on_one_gpu());
    const auto images =
        session.data(normal_values(8 * kChannels * kSide * kSide), sr::Shape{8, kChannels, kSide, kSide});
    const auto net = session.replicate<lt::Replica<Convolution>>(std::uint64_t{5}, is_full);
    const auto params = lt::parameters(session, net);
    const double found = lt::evaluation<relative_error, lt::Replay::never>(session, net, params)(images);
    session.close();
    return found;
  };
  std::printf("largest relative error by default: %.2g\n", error(false));
  EXPECT_LT(error(true), 1e-5) << "TF32 has errors of about 1e-4";
}

}  // namespace
