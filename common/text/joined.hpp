#pragma once

// Lists of words in messages.

#include <functional>
#include <string>
#include <string_view>

namespace syncrun::detail::text {

/// "a, b, c". `word(each)` is the word of an element.
template <class Elements, class Word = std::identity>
std::string joined(const Elements& elements, std::string_view between = ", ", Word&& word = {}) {
  std::string text;
  for (const auto& each : elements) text.append(text.empty() ? "" : between).append(std::invoke(word, each));
  return text;
}

}  // namespace syncrun::detail::text
