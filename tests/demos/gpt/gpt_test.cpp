// syncrun-gpt as users run it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "demos/gpt/model_config.hpp"
#include "demos/gpt/vocabulary.hpp"
#include "tests/demos/gpt/gpt_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace gpt::test {
namespace {

using ::testing::HasSubstr;

const Words kNoSample{"--max-new-tokens", "0"};

int number_of_unit_folders(const std::filesystem::path& checkpoint) {
  const std::filesystem::directory_iterator entries(checkpoint);
  return static_cast<int>(std::count_if(begin(entries), end(entries), [](const auto& entry) {
    return entry.path().filename().string().starts_with("units-");
  }));
}

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
  expect_near(ten_losses(2, {"--sharded-state"}), alone, kTolerance);
  expect_near(ten_losses(2, {"--checkpoint-activations"}), alone, kTolerance);
}

TEST(GptLosses, AreTheSameIfTheModelIsDivided) {
  const auto alone = ten_losses(1);
  constexpr double kTolerance = 1e-5;
  expect_near(ten_losses(1, {"--sharded"}), alone, kTolerance);
  expect_near(ten_losses(5, {"--sharded", "--slices", "3"}), alone, kTolerance);  // some slices have no windows
  expect_near(ten_losses(2, {"--sharded", "--checkpoint-activations"}), alone, kTolerance);
  // A rank has no windows.
  expect_near(ten_losses(3, {"--sharded", "--batch-size", "2"}), ten_losses(1, {"--batch-size", "2"}), kTolerance);
  EXPECT_EQ(ten_losses(3, {"--sharded", "--batch-size", "2", "--dropout", "0.2"}).size(), 10U);
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
  expect_resumes_equally(2, {"--dropout", "0.1", "--sharded-state", "--slices", "2"});
}

TEST(GptCheckpoints, ContinueWithTheSameBitsIfTheModelIsDivided) {
  expect_resumes_equally(2, {"--dropout", "0.1", "--sharded", "--checkpoint-activations"});
}

TEST(GptCheckpoints, OfADividedModelFitAnyNumberOfWorkers) {
  const TemporaryFolder folder;
  const Words run = with(kNoSample, {"--sharded", "--warmup-iters", "2", "--lr-decay-iters", "9", "--checkpoint-every",
                                     "3", "--checkpoint", folder.at("run")});
  const auto whole = losses_on(1, with(with(small(), kNoSample), {"--max-iters", "9", "--warmup-iters", "2"}));
  std::vector<double> losses;
  for (const auto& [workers, until] : {std::pair(3, "3"), std::pair(1, "6"), std::pair(2, "9")}) {
    Words options = with(with(small(), run), {"--max-iters", until});
    if (!losses.empty()) options.push_back("--resume");
    for (const double loss : losses_on(workers, options)) losses.push_back(loss);
    EXPECT_EQ(number_of_unit_folders(folder / "run"), 1) << "those of older checkpoints are removed";
  }
  expect_near(losses, whole, 1e-5);
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
  refused(with(options, {"--resume", "--sharded"}),
          "expected a checkpoint with state 'sharded model', got 'replicated'");
  refused({"--checkpoint", folder.at("none"), "--resume"}, "--resume: expected a checkpoint in");
}

TEST(GptSample, IsTheSameForEveryNumberOfWorkersAndContinuesThePrompt) {
  const Words options = with(small(), {"--max-iters", "0", "--prompt", "In the beginning", "--max-new-tokens", "40"});
  const std::string sample = sample_in(run_gpt_on(1, options).output);
  EXPECT_EQ(sample.size(), 16U + 40U);
  EXPECT_THAT(sample, testing::StartsWith("In the beginning"));
  EXPECT_EQ(sample_in(run_gpt_on(1, options).output), sample);
  EXPECT_EQ(sample_in(run_gpt_on(2, options).output), sample);
  EXPECT_EQ(sample_in(run_gpt_on(2, with(options, {"--sharded"})).output), sample);
  EXPECT_NE(sample_in(run_gpt_on(1, with(options, {"--seed", "2"})).output), sample);
}

/// Writes the model in a file as GPT-2 is published: with a row for each input of a layer, and with masks.
constexpr const char* kPublish = R"(
import array, json, struct, sys
data = open(sys.argv[1], "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:8 + length]), data[8 + length:]
header.pop("__metadata__", None)
out, named = b"", {}
def add(name, shape, values):
    global out
    named[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(out), len(out) + 4 * len(values)]}
    out += values.tobytes()
for name, each in header.items():
    begin, end = each["data_offsets"]
    values, shape = array.array("f", body[begin:end]), each["shape"]
    if name.split(".")[-2] in ("c_attn", "c_proj", "c_fc") and len(shape) == 2:
        shape, rows = shape[::-1], [values[i::shape[1]] for i in range(shape[1])]
        values = sum(rows, array.array("f"))
    add(sys.argv[3] + name, shape, values)
add(sys.argv[3] + "h.0.attn.bias", [2], array.array("f", [0, 0]))
text = json.dumps(named).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + out)
)";

TEST(GptWeights, ArePublishedOnesToBeginWith) {
  const TemporaryFolder folder;
  const std::string saved = folder.at("saved.safetensors");
  const Words options = with(small(), kNoSample);
  const CommandResult trained = run_gpt_on(2, with(options, {"--max-iters", "20", "--save", saved}));
  ASSERT_EQ(trained.exit_code, 0) << trained.errors;
  for (const std::string prefix : {"", "transformer."}) {
    const CommandResult written =
        syncrun::test::run_command({GPT_PYTHON, "-c", kPublish, saved, folder.at("published.safetensors"), prefix});
    ASSERT_EQ(written.exit_code, 0) << written.errors;
    for (const auto& [file, more] :
         {std::pair(saved, Words{"--sharded"}), std::pair(folder.at("published.safetensors"), Words{}),
          std::pair(folder.at("published.safetensors"), Words{"--sharded"})}) {
      const CommandResult begun = run_gpt_on(2, with(with(options, {"--max-iters", "0", "--init-from", file}), more));
      EXPECT_EQ(begun.exit_code, 0) << begun.errors;
      EXPECT_THAT(begun.output, HasSubstr("beginning with the weights in " + file));
      EXPECT_NEAR(number_after("held-out loss: ", begun.output), number_after("held-out loss: ", trained.output), 1e-4);
    }
  }
  const auto refused = [&](const Words& words, const std::string& why) {
    const CommandResult result = run_gpt_on(1, with(options, words));
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(why));
  };
  refused({"--init-from", folder.at("none")}, "--init-from: ");
  const std::string own = folder.at("own.safetensors");
  const CommandResult untied = run_gpt_on(
      1,
      with(with({"--size", "1.64b", "--n-layer", "2", "--n-head", "4", "--max-iters", "0"}, options), {"--save", own}));
  EXPECT_EQ(untied.exit_code, 0) << untied.errors;
  refused({"--init-from", own}, "expected a model whose last layer is its embedding, found another 'lm_head.weight'");
  refused({"--init-from", saved, "--n-layer", "3"}, "expected the sizes of this model (3 layers, ");
  refused({"--init-from", saved, "--n-layer", "3"},
          "found 2 layers, 4 heads, width 32, context 32, vocabulary 256 in ");
}

TEST(GptReport, CountsOperationsPerSecond) {
  const CommandResult result =
      run_gpt_on(1, with(with(small(), kNoSample), {"--max-iters", "30", "--log-interval", "29"}));
  const ModelConfig model{.n_embd = 32, .block_size = 32};
  const auto line = result.output.rfind("iter 29:");
  ASSERT_NE(line, std::string::npos) << result.output << result.errors;
  const std::string rest = result.output.substr(line);
  const double tokens = 12 * 32 / (number_after(", time ", rest) / 1e3);
  EXPECT_NEAR(number_after(" tokens/s, ", rest) / (tokens * training_operations_per_token(model) / 1e12), 1, 0.02);
  EXPECT_THAT(rest, testing::Not(HasSubstr("of the peak"))) << "a CPU has no known one";
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
      run_gpt_on(2, {"--size", "tiny", "--batch-size", "8", "--max-iters", "600", "--learning-rate", "0.003"});
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
