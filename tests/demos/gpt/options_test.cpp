#include "demos/gpt/options.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demos/gpt/device_peak.hpp"
#include "tests/demos/options_support.hpp"

namespace gpt {
namespace {

std::optional<Options> parse(const std::vector<std::string>& words) {
  return demos::testing::parse(parse_options, words);
}

std::string complaint(const std::vector<std::string>& words) { return demos::testing::complaint(parse_options, words); }

TEST(GptOptions, AreThoseOfTheTinyModelAtFirst) {
  const Options options = *parse({});
  EXPECT_EQ(describe(options.model), "2 layers, 4 heads, width 64, context 64, vocabulary 256");
  EXPECT_EQ(options.batch_size, 32);
  EXPECT_EQ(options.model.precision, Precision::kFloat32);
  EXPECT_EQ(options.slices, 1);
  EXPECT_EQ(options.max_iters, 1000);
  EXPECT_EQ(options.warmup_iters, 50);
  EXPECT_EQ(options.lr_decay_iters, 1000);
  EXPECT_EQ(options.min_lr, options.learning_rate / 10);
  EXPECT_EQ(options.checkpoint_every, options.eval_interval);
  EXPECT_EQ(options.grad_clip, 1);
}

TEST(GptOptions, ReplaceSizesOfAModelInAnyOrder) {
  const Options options = *parse({"--n-layer", "3", "--learning-rate=0.5", "--size", "124m", "--block-size", "128",
                                  "--max-iters", "40", "--dtype", "bfloat16"});
  EXPECT_EQ(options.model.precision, Precision::kBfloat16);
  EXPECT_EQ(describe(options.model), "3 layers, 12 heads, width 768, context 128, vocabulary 256");
  EXPECT_EQ(options.learning_rate, 0.5);
  EXPECT_EQ(options.min_lr, 0.05);
  EXPECT_EQ(options.warmup_iters, 2);
  EXPECT_EQ(options.batch_size, 480);
  EXPECT_EQ(options.slices, 40);
  EXPECT_EQ(parse({"--size", "124m", "--batch-size", "5"})->slices, 5);
}

TEST(GptOptions, CountTheParametersOfPublishedModels) {
  const std::vector<std::pair<const char*, double>> millions{{"124m", 124.44},  {"355m", 354.82},   {"774m", 774.03},
                                                             {"1.5b", 1557.61}, {"1.64b", 1638.02}, {"2.7b", 2651.55},
                                                             {"6.7b", 6658.40}, {"6.86b", 6864.26}};
  for (const auto& [name, expected] : millions) {
    ModelConfig model = parse({"--size", name})->model;
    model.vocab_size = 50'257;
    EXPECT_NEAR(static_cast<double>(count_parameters(model)) / 1e6, expected, 0.005) << name;
    EXPECT_EQ(model.n_embd % model.n_head, 0) << name;
  }
  EXPECT_NEAR(static_cast<double>(count_parameters(parse({})->model)) / 1e6, 0.12, 0.005);
  EXPECT_EQ(describe(parse({"--size", "6.86b"})->model),
            "32 layers, 32 heads, width 4096, context 2048, vocabulary 256, a last layer of its own");
}

TEST(GptOptions, CountTheOperationsOfATokenAsNanoGptDoes) {
  ModelConfig model = parse({"--size", "124m"})->model;
  model.vocab_size = 50'304;
  // nanoGPT: N = get_num_params() = 123,689,472 without the positions, 6 N + 12 L H Q T
  EXPECT_EQ(training_operations_per_token(model), 6 * 123'689'472.0 + 12.0 * 12 * 12 * 64 * 1024);
  const double tied = training_operations_per_token(model);
  model.last_layer = LastLayer::kOwn;  // the same products
  EXPECT_EQ(training_operations_per_token(model), tied);
}

TEST(GptOptions, CompareWithThePeakOfKnownGpus) {
  EXPECT_EQ(bfloat16_peak("NVIDIA H200"), 989.4e12);
  EXPECT_EQ(bfloat16_peak("NVIDIA H100 80GB HBM3"), 989.4e12);
  EXPECT_EQ(bfloat16_peak("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(bfloat16_peak("NVIDIA A100-SXM4-80GB"), 312e12);
  for (const char* const unknown :
       {"", "NVIDIA GH200 480GB", "Tesla V100-SXM2-16GB", "NVIDIA RTX A1000", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"})
    EXPECT_EQ(bfloat16_peak(unknown), std::nullopt) << unknown;
}

TEST(GptOptions, AreRefusedWithWhatWasExpected) {
  EXPECT_EQ(complaint({"--size", "gpt3"}),
            "--size: expected one of 'tiny', 'mini', 'small', '124m', '355m', '774m', '1.5b', '1.64b', '2.7b', '6.7b', "
            "'6.86b', got 'gpt3'");
  EXPECT_EQ(complaint({"--sharded", "--save", "net.pt"}),
            "--save: expected a name that ends in '.safetensors' beside --sharded, got 'net.pt'");
  EXPECT_EQ(complaint({"--sharded", "--sharded-state"}), "expected one of --sharded and --sharded-state, got both");
  EXPECT_EQ(complaint({"--n-embd", "65"}), "--n-embd: expected a multiple of the 4 heads, got '65'");
  EXPECT_EQ(complaint({"--batch-size", "4", "--slices", "5"}),
            "--slices: expected at most the 4 windows of a step, got '5'");
  EXPECT_EQ(complaint({"--dropout", "1"}), "--dropout: expected a number from 0 to below 1, got '1'");
  EXPECT_EQ(complaint({"--resume"}), "--resume: expected --checkpoint DIR beside it, got none");
  EXPECT_EQ(complaint({"--max-iters", "-1"}), "--max-iters: expected a whole number from 0 to 1000000000, got '-1'");
  EXPECT_EQ(complaint({"--prompt", ""}), "--prompt: expected a text, got ''");
  EXPECT_NE(complaint({"--learning-rate", "0.1", "--min-lr", "0.2"}).find("--min-lr: expected at most"),
            std::string::npos);
  EXPECT_NE(complaint({"--dtype", "half"}).find("'float32' or 'bfloat16'"), std::string::npos);
  EXPECT_FALSE(parse({"--help"}));
  EXPECT_NE(help_text().find("--size NAME"), std::string::npos);
}

}  // namespace
}  // namespace gpt
