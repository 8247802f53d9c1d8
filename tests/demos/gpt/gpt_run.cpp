#include "tests/demos/gpt/gpt_run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "tests/support/temporary_folder.hpp"

namespace gpt::test {

CommandResult run_gpt_on(int workers, const Words& options, Kind kind) {
  const Words devices = demos::testing::devices(workers, kind == Kind::cpu ? "cpu" : "cuda");
  return syncrun::test::run_command(with(with(with({SYNCRUN_COMMAND}, devices), {GPT_PROGRAM}), options));
}

std::vector<double> losses_on(int workers, const Words& options, Kind kind) {
  const TemporaryFolder folder;
  const CommandResult result = run_gpt_on(workers, with(options, {"--losses", folder.at("losses")}), kind);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  std::vector<double> losses;
  std::ifstream lines(folder / "losses");
  double loss = 0;
  for (std::int64_t step = 0; lines >> step >> loss;) losses.push_back(loss);
  return losses;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], tolerance * expected[i]) << "step " << i;
}

double number_after(const std::string& label, const std::string& output) {
  const auto at = output.rfind(label);
  if (at != std::string::npos) return std::strtod(output.c_str() + at + label.size(), nullptr);
  ADD_FAILURE() << "no '" << label << "' in:\n" << output;
  return 0;
}

std::string sample_in(const std::string& output) {
  const auto begin = output.find("---\n");
  const auto end = output.rfind("\n---\n");
  if (begin != std::string::npos && end != std::string::npos && begin < end)
    return output.substr(begin + 4, end - begin - 4);
  ADD_FAILURE() << "no sample in:\n" << output;
  return "";
}

std::vector<std::uint16_t> built_tokens(const std::string& name) {
  const std::string bytes = text_of(std::filesystem::path(GPT_TOKENS) / name);
  EXPECT_FALSE(bytes.empty()) << name << " is missing in " << GPT_TOKENS;
  std::vector<std::uint16_t> tokens(bytes.size() / sizeof(std::uint16_t));
  std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof(std::uint16_t));
  return tokens;
}

std::string short_text() {
  static const TemporaryFolder folder;
  if (!folder.is_empty()) return folder.path().string();
  for (const auto& [name, tokens] : {std::pair("train.bin", 50'000U), std::pair("val.bin", 2000U)}) {
    write_text(folder / name, text_of(std::filesystem::path(GPT_TOKENS) / name).substr(0, 2 * tokens));
  }
  write_text(folder / "vocab.txt", text_of(std::filesystem::path(GPT_TOKENS) / "vocab.txt"));
  return folder.path().string();
}

Words small() {
  return {"--data", short_text(), "--n-embd", "32", "--block-size", "32", "--batch-size", "12", "--eval-iters", "1"};
}

void expect_resumes_equally(int workers, const Words& more, Kind kind) {
  const TemporaryFolder folder;
  const Words options =
      with(with(small(), {"--max-iters", "14", "--lr-decay-iters", "14", "--warmup-iters", "3", "--eval-interval", "4",
                          "--max-new-tokens", "30", "--losses", folder.at("losses")}),
           more);
  const auto run = [&](const Words& rest) {
    const CommandResult result = run_gpt_on(workers, with(options, rest), kind);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return std::pair(text_of(folder / "losses"), result.output);
  };
  const auto [whole, whole_output] = run({"--save", folder.at("whole.safetensors")});
  const Words checkpoint{"--checkpoint", folder.at("run")};
  const auto [first, first_output] = run(with(checkpoint, {"--max-iters", "8"}));
  const auto [second, second_output] = run(with(checkpoint, {"--resume", "--save", folder.at("resumed.safetensors")}));
  EXPECT_EQ(first + second, whole);
  EXPECT_EQ(std::count(second.begin(), second.end(), '\n'), 6);
  EXPECT_THAT(second_output, testing::HasSubstr("going on after step 8, from "));
  EXPECT_EQ(sample_in(second_output), sample_in(whole_output));
  EXPECT_EQ(text_of(folder / "resumed.safetensors"), text_of(folder / "whole.safetensors"));
  EXPECT_FALSE(text_of(folder / "whole.safetensors").empty());
}

}  // namespace gpt::test
