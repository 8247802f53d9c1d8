// syncrun-gpt as users run it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "demos/gpt/vocabulary.hpp"
#include "tests/demos/gpt/gpt_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace gpt::test {
namespace {

using ::testing::HasSubstr;

const Words kNoSample{"--max-new-tokens", "0"};

/// The losses of ten steps.
std::vector<double> ten_losses(int workers, const Words& more = {}) {
  return losses_on(workers, with(with(with(small(), kNoSample), {"--max-iters", "10", "--warmup-iters", "2"}), more));
}

TEST(GptLosses, DoNotDependOnTheNumberOfWorkersOrSlices) {
  const auto alone = ten_losses(1);
  ASSERT_EQ(alone.size(), 10U);
  EXPECT_NEAR(alone.front(), std::log(256), 0.1) << "the model knows nothing yet";
  EXPECT_LT(alone.back(), alone.front() - 0.5) << "it learns";
  constexpr double kTolerance = 1e-5;
  expect_near(ten_losses(2), alone, kTolerance);
  expect_near(ten_losses(5), alone, kTolerance);  // two or three windows for each worker
  expect_near(ten_losses(2, {"--slices", "3"}), alone, kTolerance);
  expect_near(ten_losses(2, {"--sharded"}), alone, kTolerance);
}

TEST(GptLosses, AreNearlyTheSameInBfloat16) {
  const auto full = ten_losses(2);
  const auto mixed = ten_losses(2, {"--dtype", "bfloat16"});
  expect_near(mixed, full, 0.01);
  EXPECT_NE(mixed, full);
}

TEST(GptLosses, AreTheSameAgainWithDropout) {
  const auto losses = ten_losses(2, {"--dropout", "0.2"});
  EXPECT_EQ(ten_losses(2, {"--dropout", "0.2"}), losses);
  EXPECT_NE(ten_losses(2, {"--dropout", "0.2", "--seed", "2"}), losses);
  EXPECT_NE(ten_losses(2), losses);
}

TEST(GptCheckpoints, ContinueWithTheSameBits) { expect_resumes_equally(2); }

TEST(GptCheckpoints, ContinueWithTheSameBitsWithDropoutAndAShardedState) {
  expect_resumes_equally(2, {"--dropout", "0.1", "--sharded", "--slices", "2"});
}

TEST(GptCheckpoints, OfAnotherModelAreRefused) {
  const TemporaryFolder folder;
  const Words options = with(with(small(), kNoSample), {"--max-iters", "1", "--checkpoint", folder.at("run")});
  ASSERT_EQ(run_gpt_on(1, options).exit_code, 0);
  const auto refused = [](const Words& words, const std::string& why) {
    const CommandResult result = run_gpt_on(1, words);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.errors, HasSubstr(why));
  };
  refused(options, "--checkpoint: expected a folder without a checkpoint");
  refused(with(options, {"--resume", "--n-layer", "3"}), "expected a checkpoint with model '3 layers");
  refused(with(options, {"--resume", "--seed", "3"}), "expected a checkpoint with seed '3', got '1'");
  refused(with(options, {"--resume", "--sharded"}), "expected a checkpoint with state 'sharded', got 'replicated'");
  refused({"--checkpoint", folder.at("none"), "--resume"}, "--resume: expected a checkpoint in");
}

TEST(GptSample, IsTheSameForEveryNumberOfWorkersAndContinuesThePrompt) {
  const Words options = with(small(), {"--max-iters", "0", "--prompt", "In the beginning", "--max-new-tokens", "40"});
  const std::string sample = sample_in(run_gpt_on(1, options).output);
  EXPECT_EQ(sample.size(), 16U + 40U);
  EXPECT_THAT(sample, testing::StartsWith("In the beginning"));
  EXPECT_EQ(sample_in(run_gpt_on(1, options).output), sample);
  EXPECT_EQ(sample_in(run_gpt_on(2, options).output), sample);
  EXPECT_NE(sample_in(run_gpt_on(1, with(options, {"--seed", "2"})).output), sample);
}

TEST(GptInput, IsRefusedBeforeAWorkerIsStartedAndTokensByPosition) {
  const auto refused = [](const Words& words, const std::string& why) {
    const CommandResult result = run_gpt_on(1, words);
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr("syncrun-gpt: " + why));
  };
  const TemporaryFolder folder;
  refused({"--data", folder.path().string()}, "cannot read " + folder.at("vocab.txt"));
  refused({"--n-layer", "x"}, "--n-layer: expected a whole number from 1 to 1000000000, got 'x'");
  refused({"--losses", "/nowhere/losses"}, "--losses: expected a file that can be written");
  refused({"--block-size", "1000000"}, "--data: expected 1000001 tokens of two bytes or more in ");
  write_text(folder / "vocab.txt", "syncrun-gpt vocabulary 1\n");
  write_text(folder / "train.bin", std::string(2001, 'a'));
  refused({"--data", folder.path().string()}, "--data: expected 65 tokens of two bytes or more in " +
                                                  folder.at("train.bin") + " (--block-size + 1), found 2001 bytes");
  write_text(folder / "train.bin", std::string(2000, 'a'));
  refused({"--data", folder.path().string()}, "--data: cannot read " + folder.at("val.bin") + ": No such file");

  const std::string tokens = std::string(2000, '\0').replace(700, 2, "\x2c\x01");  // token 350 is number 300
  write_text(folder / "train.bin", tokens);
  write_text(folder / "val.bin", tokens);
  const CommandResult result = run_gpt_on(1, with(small(), {"--data", folder.path().string()}));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.errors, HasSubstr("expected tokens below 256, found 300 at position 350"));
}

/// The New Testament's first lines as tokens of a vocabulary of 400, made by the script.
class GptBytePairs : public testing::Test {
 protected:
  void SetUp() override {
    const auto bytes = built_tokens("train.bin");
    write_text(folder_ / "text.txt", std::string(bytes.begin(), bytes.begin() + 60'000));
    const CommandResult result = syncrun::test::run_command(
        {GPT_PYTHON, "-B", GPT_PREPARE, folder_.at("text.txt"), data(), "--tokens", "bpe", "--vocab-size", "400"});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
  }
  std::string data() const { return folder_.at("tokens"); }

  TemporaryFolder folder_;
};

TEST_F(GptBytePairs, AreJoinedAsTheScriptJoinsThem) {
  const Vocabulary vocabulary(folder_ / "tokens/vocab.txt");
  EXPECT_EQ(vocabulary.size(), 400);
  const std::string bytes = text_of(folder_ / "tokens/val.bin");
  std::vector<std::int64_t> tokens;
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    tokens.push_back(static_cast<unsigned char>(bytes[i]) + 256 * static_cast<unsigned char>(bytes[i + 1]));
    text += vocabulary.text_of(tokens.back());
  }
  EXPECT_THAT(text_of(folder_ / "text.txt"), testing::EndsWith(text));
  EXPECT_EQ(vocabulary.encode(text), tokens);
}

TEST_F(GptBytePairs, AreLearntAndWritten) {
  const CommandResult result = run_gpt_on(
      2, with(small(), {"--data", data(), "--max-iters", "3", "--prompt", "And Jesus", "--max-new-tokens", "20"}));
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("vocabulary 400)"));
  EXPECT_THAT(sample_in(result.output), testing::StartsWith("And Jesus"));
  // A token is about two bytes, so the loss in bits per byte is less than in nats per token.
  EXPECT_LT(number_after("nats per token, ", result.output), number_after("held-out loss: ", result.output));
}

/// The mean loss in nats per token of a bigram model: the frequency of each pair of tokens in the training text, with
/// `added` added to each count. It predicts all tokens of the held-out text except the first one.
double bigram_loss(double added) {
  constexpr std::size_t kTokens = 256;
  std::vector<double> pairs(kTokens * kTokens, added);
  std::vector<double> firsts(kTokens, added * kTokens);
  const auto training = built_tokens("train.bin");
  for (std::size_t i = 1; i < training.size(); ++i) {
    pairs.at(training[i - 1] * kTokens + training[i]) += 1;
    firsts.at(training[i - 1]) += 1;
  }
  const auto held_out = built_tokens("val.bin");
  double sum = 0;
  for (std::size_t i = 1; i < held_out.size(); ++i)
    sum -= std::log(pairs[held_out[i - 1] * kTokens + held_out[i]] / firsts[held_out[i - 1]]);
  return sum / static_cast<double>(held_out.size() - 1);
}

TEST(Gpt, LearnsMoreThanABigramModelKnows) {
  const double bigram = std::min({bigram_loss(1), bigram_loss(0.1), bigram_loss(0.01)});
  const CommandResult result =
      run_gpt_on(2, {"--model", "tiny", "--batch-size", "8", "--max-iters", "600", "--learning-rate", "0.003"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const double loss = number_after("held-out loss: ", result.output);
  std::printf("held-out loss %.4f, bigram model %.4f\n", loss, bigram);
  EXPECT_GT(bigram, 2.2) << "as measured when this test was written";
  EXPECT_LT(loss, bigram - 0.1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("step 250: train loss "));
  EXPECT_EQ(sample_in(result.output).size(), 1U + 400U);
}

}  // namespace
}  // namespace gpt::test
