#pragma once

// How the next token of a generated text is chosen.

#include <cstdint>
#include <span>

namespace gpt {

struct SamplingOptions {
  double temperature = 0.8;  // 0: the most likely token
  std::int64_t top_k = 200;  // only among as many of the most likely tokens
};

/// Chooses a token by the scores of all tokens. The choice is a function of its arguments: `position` counts the tokens
/// that were generated so far. The master calls this.
std::int64_t choose_token(std::span<const float> scores, const SamplingOptions& options, std::uint64_t seed,
                          std::int64_t position);

}  // namespace gpt
