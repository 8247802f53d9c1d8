#include "demos/resnet/program/options.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/demos/options_support.hpp"

namespace resnet {
namespace {

using demos::testing::words_of;

std::optional<Options> parse(const std::vector<std::string>& words) {
  return demos::testing::parse(parse_options, words);
}

std::string complaint(const std::vector<std::string>& words) { return demos::testing::complaint(parse_options, words); }

TEST(ResnetOptions, AreThoseOfTorchvisionsReferenceAtFirst) {
  const Options options = *parse({"--data", "x"});
  EXPECT_EQ(options.data, "x");
  EXPECT_EQ(options.depth, 50);
  EXPECT_EQ(options.batch_rows, 256);
  EXPECT_EQ(options.epochs, 90);
  EXPECT_EQ(options.rule.optimizer, Optimizer::kMomentum);
  EXPECT_EQ(options.rule.learning_rate, 0.1);
  EXPECT_EQ(options.rule.momentum, 0.9);
  EXPECT_EQ(options.rule.weight_decay, 1e-4);
  EXPECT_EQ(options.warmup(), 5);
  EXPECT_TRUE(options.mirrors);
  EXPECT_FALSE(options.crop);
  EXPECT_EQ(options.normalization, Normalization::kPerDevice);
  EXPECT_EQ(options.feed(), Feed::kMapped);
  EXPECT_EQ(parse({"--synthetic", "8"})->feed(), Feed::kDevice);
  EXPECT_DOUBLE_EQ(parse({"--data=x", "--epochs=20"})->warmup(), 2);
}

/// Tests of the program read the other options, and see in what it prints or computes that they hold.
TEST(ResnetOptions, AreRead) {
  const Options options = *parse(words_of(
      "--synthetic 1000 --feed memory --evaluate-fraction 0.1 --warmup-epochs 0.5 --sync-norm --dtype bfloat16 "
      "--bucket-mib 0.5 --slices 4 --eval-slices 2 --no-mirror --plans plans.txt"));
  EXPECT_EQ(options.synthetic_rows, 1000);
  EXPECT_EQ(options.feed(), Feed::kMemory);
  EXPECT_EQ(options.evaluate_fraction, 0.1);
  EXPECT_EQ(options.warmup(), 0.5);
  EXPECT_EQ(options.normalization, Normalization::kSynchronized);
  EXPECT_EQ(options.precision, Precision::kBfloat16);
  EXPECT_DOUBLE_EQ(options.bucket_mebibytes, 0.5);
  EXPECT_EQ(options.slices, 4);
  EXPECT_EQ(options.evaluation_slices, 2);
  EXPECT_FALSE(options.mirrors);
  EXPECT_EQ(options.plans, "plans.txt");
}

TEST(ResnetOptions, TheUsualLearningRateFollowsTheOptimizerAndTheBatch) {
  const auto rate = [](const char* optimizer, const char* batch) {
    return parse({"--data", "x", "--optimizer", optimizer, "--batch", batch})->rule.learning_rate;
  };
  EXPECT_DOUBLE_EQ(rate("momentum", "1024"), 0.4);
  EXPECT_DOUBLE_EQ(rate("sgd", "64"), 0.025);
  EXPECT_DOUBLE_EQ(rate("adam", "1024"), 0.001);
  EXPECT_DOUBLE_EQ(rate("adadelta", "64"), 1);
}

TEST(ResnetOptions, HelpNamesEveryOptionWhereverItIsAskedFor) {
  EXPECT_FALSE(parse({"--help"}));
  EXPECT_FALSE(parse({"--epochs", "3", "--help"}));
  EXPECT_FALSE(parse({"--help", "--epochs", "0"}));
  for (const std::string& name :
       words_of("data synthetic feed evaluate-fraction classes depth width crop batch epochs optimizer lr momentum "
                "weight-decay label-smoothing warmup-epochs sync-norm dtype zero-init-residual bucket-mib slices "
                "eval-slices interval seed no-mirror checkpoint checkpoint-every resume help")) {
    EXPECT_NE(help_text().find("\n  --" + name), std::string::npos) << name;
  }
}

TEST(ResnetOptions, AreRefusedWithWhatWasExpected) {
  const auto said_of = [](const char* option, const char* value) { return complaint({"--data", "x", option, value}); };
  EXPECT_EQ(complaint({}), "--data, --synthetic: expected one of them, got neither");
  EXPECT_EQ(said_of("--synthetic", "5"), "--data, --synthetic: expected one of them, got both");
  EXPECT_EQ(said_of("--synthetic", "0"), "--synthetic: expected a whole number from 1 to 1099511627776, got '0'");
  EXPECT_EQ(said_of("--feed", "network"), "--feed: expected 'mapped', 'memory' or 'device', got 'network'");
  EXPECT_EQ(said_of("--feed", "device"),
            "--feed: expected 'mapped' or 'memory' with --data, got 'device', which is for --synthetic");
  EXPECT_EQ(complaint({"--synthetic", "8", "--feed", "mapped"}),
            "--feed: expected 'memory' or 'device' with --synthetic, got 'mapped': there is no file");
  EXPECT_EQ(complaint({"--synthetic", "8", "--evaluate-fraction", "0.5"}),
            "--evaluate-fraction: expected --feed memory beside it with --synthetic, since all rows on the devices are "
            "trained on, got --feed device");
  EXPECT_EQ(said_of("--depth", "20"), "--depth: expected '18', '34', '50', '101' or '152', got '20'");
  EXPECT_EQ(said_of("--width", "12"), "--width: expected a multiple of 8 from 8 to 256, got '12'");
  EXPECT_EQ(said_of("--crop", "31"), "--crop: expected a whole number from 32 to 1024, got '31'");
  EXPECT_EQ(said_of("--classes", "1"), "--classes: expected a whole number from 2 to 1048576, got '1'");
  EXPECT_EQ(said_of("--optimizer", "lion"),
            "--optimizer: expected 'sgd', 'momentum', 'nesterov', 'adagrad', 'rmsprop', 'adadelta', 'adam', 'adamw' or "
            "'adamax', got 'lion'");
  EXPECT_EQ(said_of("--lr", "0"), "--lr: expected a number above 0 and below 1000, got '0'");
  EXPECT_EQ(said_of("--momentum", "1"), "--momentum: expected a number from 0 to below 1, got '1'");
  EXPECT_EQ(said_of("--weight-decay", "-1"), "--weight-decay: expected a number from 0 to 1000, got '-1'");
  EXPECT_EQ(said_of("--label-smoothing", "1"), "--label-smoothing: expected a number from 0 to below 1, got '1'");
  EXPECT_EQ(said_of("--evaluate-fraction", "1"), "--evaluate-fraction: expected a number above 0 and below 1, got '1'");
  EXPECT_EQ(said_of("--dtype", "float16"), "--dtype: expected 'float32', 'tf32' or 'bfloat16', got 'float16'");
  EXPECT_EQ(said_of("--bucket-mib", "-1"), "--bucket-mib: expected a number from 0 to 1048576, got '-1'");
  EXPECT_EQ(said_of("--checkpoint", ""), "--checkpoint: expected a folder, got ''");
  EXPECT_EQ(complaint({"--data", "x", "--resume"}), "--resume: expected --checkpoint DIR beside it, got none");
  EXPECT_EQ(complaint({"--data", "x", "--sync-norm=1"}), "--sync-norm: expected no value, got '1'");
  EXPECT_EQ(complaint({"--data", "x", "y"}), "options: expected no other arguments, got 'y'");
}

}  // namespace
}  // namespace resnet
