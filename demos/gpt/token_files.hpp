#pragma once

// The folder of tokens that the program learns from.

#include <cstdint>
#include <filesystem>

#include "demos/gpt/vocabulary.hpp"

namespace gpt {

/// A file of tokens: uint16, without a header.
struct TokenFile {
  std::filesystem::path path;
  std::int64_t tokens = 0;
};

class TokenFiles {
 public:
  /// Reads the vocabulary in the folder, and the lengths of train.bin and val.bin. Throws UsageError if a file is missing
  /// or damaged, or has fewer than `least_tokens` tokens.
  TokenFiles(const std::filesystem::path& folder, std::int64_t least_tokens);

  const Vocabulary& vocabulary() const noexcept { return vocabulary_; }
  const TokenFile& training() const noexcept { return training_; }
  const TokenFile& held_out() const noexcept { return held_out_; }

 private:
  Vocabulary vocabulary_;
  TokenFile training_;
  TokenFile held_out_;
};

}  // namespace gpt
