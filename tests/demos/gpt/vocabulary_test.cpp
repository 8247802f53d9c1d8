#include "demos/gpt/vocabulary.hpp"

#include <gtest/gtest.h>

#include <string>

#include "demos/common/usage_error.hpp"
#include "tests/support/temporary_folder.hpp"

namespace gpt {
namespace {

/// A vocabulary with these lines after the first one.
Vocabulary vocabulary_of(const std::string& lines, const std::string& first = "syncrun-gpt vocabulary 1\n") {
  const TemporaryFolder folder;
  write_text(folder / "vocab.txt", first + lines);
  return Vocabulary(folder / "vocab.txt");
}

TEST(GptVocabulary, HasTheBytesOnly) {
  const Vocabulary bytes;
  EXPECT_EQ(bytes.size(), 256);
  EXPECT_EQ(bytes.encode("a\xff\n"), (std::vector<std::int64_t>{97, 255, 10}));
  EXPECT_EQ(bytes.text_of(65), "A");
}

// th = 256, the = 257, " the" = 258
const std::string kThe = "116 104\n256 101\n32 257\n";

TEST(GptVocabulary, JoinsPairsInTheOrderInWhichTheyWereLearnt) {
  const Vocabulary vocabulary = vocabulary_of(kThe);
  EXPECT_EQ(vocabulary.size(), 259);
  EXPECT_EQ(vocabulary.text_of(258), " the");
  EXPECT_EQ(vocabulary.encode("the then"), (std::vector<std::int64_t>{257, 258, 'n'}));
  EXPECT_EQ(vocabulary.encode("thh"), (std::vector<std::int64_t>{256, 'h'}));
  // "aaa" is joined from the left.
  EXPECT_EQ(vocabulary_of("97 97\n").encode("aaaaa"), (std::vector<std::int64_t>{256, 256, 'a'}));
}

TEST(GptVocabulary, OfGpt2HasItsOrderOfBytesAndItsChunks) {
  // he = 256, the = 257, " the" = 258, !! = 259, two spaces = 260, 12 = 261, as prepare_tokens_test.py has them
  const Vocabulary vocabulary =
      vocabulary_of("71 68\n83 256\n220 257\n0 0\n220 220\n16 17\n", "syncrun-gpt vocabulary 1 gpt2\n");
  EXPECT_EQ(vocabulary.size(), 256 + 6 + 1);
  EXPECT_EQ(vocabulary.text_of(262), "<|endoftext|>");
  EXPECT_EQ(vocabulary.text_of(258), " the");
  EXPECT_EQ(vocabulary.encode("the!!! the"), (std::vector<std::int64_t>{257, 259, 0, 258}));
  EXPECT_EQ(vocabulary.encode("A   the\n\n"), (std::vector<std::int64_t>{32, 260, 258, 198, 198}));
  EXPECT_EQ(vocabulary.encode("12the's"), (std::vector<std::int64_t>{261, 257, 6, 82}));
}

TEST(GptVocabulary, IsRefusedIfItsFileIsDamaged) {
  const auto complaint = [](const std::string& lines, const std::string& first = "syncrun-gpt vocabulary 1\n") {
    try {
      vocabulary_of(lines, first);
    } catch (const demos::UsageError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const auto expect = [](const std::string& got, const std::string& part) {
    EXPECT_NE(got.find(part), std::string::npos) << got;
  };
  expect(complaint("", "something else\n"), "line 1: expected 'syncrun-gpt vocabulary 1', found 'something else'");
  expect(complaint("1 2\n3\n"), "line 3: expected two tokens below 257, found '3'");
  expect(complaint("1 256\n"), "line 2: expected two tokens below 256, found '1 256'");
  expect(complaint("1 -2\n"), "line 2: expected two tokens below 256");
  expect(complaint("1 2 3\n"), "line 2: expected two tokens below 256, found '1 2 3'");
  EXPECT_THROW(Vocabulary("/nowhere/vocab.txt"), demos::UsageError);
}

}  // namespace
}  // namespace gpt
