#pragma once

// Vocabulary: turns text into tokens, and tokens into text. tools/prepare_tokens.py makes its file.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpt {

/// Which tokens are the bytes, and how a text is divided before tokens are joined.
enum class VocabularyKind {
  kOwn,  // the bytes are in their order, and words stay together
  kGpt2  // as in GPT-2. A last token ends a document
};

/// Tokens 0 to 255 are the bytes. Each further token joins two others (byte pair encoding).
class Vocabulary {
 public:
  /// The bytes only.
  Vocabulary() : Vocabulary(VocabularyKind::kOwn, {}) {}
  /// Reads a vocab.txt. Throws UsageError if it cannot be read or is damaged.
  explicit Vocabulary(const std::filesystem::path& file);

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(texts_.size()); }
  /// The tokens of a text, the same as those of tools/prepare_tokens.py. With GPT-2's vocabulary, this holds for ASCII:
  /// other characters count as letters.
  std::vector<std::int64_t> encode(std::string_view text) const;
  /// The bytes that a token stands for. The token must be in the vocabulary.
  const std::string& text_of(std::int64_t token) const { return texts_.at(static_cast<std::size_t>(token)); }

 private:
  using Pair = std::pair<std::int64_t, std::int64_t>;
  Vocabulary(VocabularyKind kind, const std::vector<Pair>& joined);
  static Vocabulary read(const std::filesystem::path& file);

  VocabularyKind kind_;
  std::array<std::int64_t, 256> of_bytes_{};  // the token of each byte
  std::map<Pair, std::int64_t> numbers_;      // of the tokens that join two others
  std::vector<std::string> texts_;
};

}  // namespace gpt
