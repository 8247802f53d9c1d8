#pragma once

// The windows of tokens that a model learns from and is evaluated on. They are functions of numbers only, so they do not
// depend on the number of workers, and a resumed run continues with the same ones.

#include <cstdint>
#include <vector>

namespace gpt {

/// A text of `tokens` tokens, from which windows of `length` tokens are taken.
struct WindowRange {
  std::int64_t tokens = 0;
  std::int64_t length = 0;
};

/// The first tokens of the windows of a training step: `count` random ones. Every place in the text is equally likely.
std::vector<std::int64_t> random_windows(const WindowRange& range, std::int64_t count, std::uint64_t seed,
                                         std::int64_t step);

/// The first tokens of windows for an evaluation: at most `most`, in equal distances. Without a limit (0), the windows
/// cover the text: each begins with the last token of the one before it, because a window predicts all but its first
/// token. What remains at the end of the text is shorter than a window, and is left out.
std::vector<std::int64_t> spread_windows(const WindowRange& range, std::int64_t most);

}  // namespace gpt
