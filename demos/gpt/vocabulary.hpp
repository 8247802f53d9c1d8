#pragma once

// Vocabulary: turns text into tokens, and tokens into text. tools/prepare_tokens.py makes its file.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpt {

/// Tokens 0 to 255 are the bytes. Each further token joins two others (byte pair encoding).
class Vocabulary {
 public:
  /// The bytes only.
  Vocabulary() : Vocabulary(std::vector<Pair>()) {}
  /// Reads a vocab.txt. Throws UsageError if it cannot be read or is damaged.
  explicit Vocabulary(const std::filesystem::path& file);

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(texts_.size()); }
  /// The tokens of a text, the same as those of tools/prepare_tokens.py.
  std::vector<std::int64_t> encode(std::string_view text) const;
  /// The bytes that a token stands for. The token must be in the vocabulary.
  const std::string& text_of(std::int64_t token) const { return texts_.at(static_cast<std::size_t>(token)); }

 private:
  using Pair = std::pair<std::int64_t, std::int64_t>;
  explicit Vocabulary(const std::vector<Pair>& joined);

  std::map<Pair, std::int64_t> numbers_;  // of the tokens that join two others
  std::vector<std::string> texts_;
};

}  // namespace gpt
