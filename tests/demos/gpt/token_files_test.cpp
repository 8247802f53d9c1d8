#include "demos/gpt/token_files.hpp"

#include <gtest/gtest.h>

#include <string>

#include "demos/common/usage_error.hpp"
#include "tests/support/temporary_folder.hpp"

namespace gpt {
namespace {

class GptTokenFiles : public testing::Test {
 protected:
  GptTokenFiles() {
    write_text(folder_ / "vocab.txt", "syncrun-gpt vocabulary 1\n");
    write_text(folder_ / "train.bin", std::string(40, 'a'));
    write_text(folder_ / "val.bin", std::string(20, 'b'));
  }
  std::string complaint(std::int64_t least_tokens) const {
    try {
      const TokenFiles files(folder_.path(), least_tokens);
    } catch (const demos::UsageError& error) {
      return error.what();
    }
    return "nothing";
  }

  TemporaryFolder folder_;
};

TEST_F(GptTokenFiles, AreMeasured) {
  const TokenFiles files(folder_.path(), 10);
  EXPECT_EQ(files.vocabulary().size(), 256);
  EXPECT_EQ(files.training().tokens, 20);
  EXPECT_EQ(files.held_out().tokens, 10);
  EXPECT_EQ(files.held_out().path, folder_ / "val.bin");
}

TEST_F(GptTokenFiles, AreRefusedIfTheyAreTooShortForTheContext) {
  EXPECT_EQ(complaint(11), "--data: expected 11 tokens of two bytes or more in " + folder_.at("val.bin") +
                               " (--block-size + 1), found 20 bytes");
}

TEST_F(GptTokenFiles, AreRefusedIfTheyEndWithinAToken) {
  write_text(folder_ / "train.bin", std::string(41, 'a'));
  EXPECT_NE(complaint(10).find("train.bin (--block-size + 1), found 41 bytes"), std::string::npos) << complaint(10);
}

TEST_F(GptTokenFiles, AreRefusedByNameIfOneIsMissing) {
  std::filesystem::remove(folder_ / "val.bin");
  EXPECT_NE(complaint(10).find("cannot read " + folder_.at("val.bin") + ": No such file"), std::string::npos);
}

}  // namespace
}  // namespace gpt
