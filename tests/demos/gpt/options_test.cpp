#include "demos/gpt/options.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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
  const Options options = *parse({"--n-layer", "3", "--learning-rate=0.5", "--model", "gpt2", "--block-size", "128",
                                  "--max-iters", "40", "--dtype", "bfloat16"});
  EXPECT_EQ(options.model.precision, Precision::kBfloat16);
  EXPECT_EQ(describe(options.model), "3 layers, 12 heads, width 768, context 128, vocabulary 256");
  EXPECT_EQ(options.learning_rate, 0.5);
  EXPECT_EQ(options.min_lr, 0.05);
  EXPECT_EQ(options.warmup_iters, 2);
  EXPECT_EQ(options.batch_size, 480);
  EXPECT_EQ(options.slices, 40);
  EXPECT_EQ(parse({"--model", "gpt2", "--batch-size", "5"})->slices, 5);
}

TEST(GptOptions, CountTheParametersOfPublishedModels) {
  const auto millions = [](const char* name, std::int64_t vocabulary) {
    ModelConfig model = parse({"--model", name})->model;
    model.vocab_size = vocabulary;
    return static_cast<double>(count_parameters(model)) / 1e6;
  };
  EXPECT_NEAR(millions("gpt2", 50'257), 124.44, 0.005);
  EXPECT_NEAR(millions("gpt2-medium", 50'257), 354.82, 0.005);
  EXPECT_NEAR(millions("tiny", 256), 0.12, 0.005);
}

TEST(GptOptions, AreRefusedWithWhatWasExpected) {
  EXPECT_EQ(complaint({"--model", "gpt3"}),
            "--model: expected one of 'tiny', 'mini', 'small', 'gpt2', 'gpt2-medium', got 'gpt3'");
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
  EXPECT_NE(help_text().find("--model NAME"), std::string::npos);
}

}  // namespace
}  // namespace gpt
