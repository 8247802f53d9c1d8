#pragma once

// What the demos' command lines have in common: values that are checked, and messages that say what was expected.

#include <array>
#include <charconv>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace demos {

/// A command line that cannot be obeyed; the message says what was expected and what was got.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void refuse_option(std::string_view option, std::string_view expected, std::string_view got) {
  throw UsageError(std::string(option).append(": expected ").append(expected).append(", got '").append(got) + "'");
}

/// The whole of `text` as a number that `is_good`. Throws UsageError.
template <class Number, class Predicate>
Number parse_number(std::string_view option, std::string_view text, std::string_view expected, Predicate is_good) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !is_good(value)) refuse_option(option, expected, text);
  return value;
}

/// A whole number from 1 to `maximum`. Throws UsageError.
template <class Integer>
Integer parse_count(std::string_view option, std::string_view text, Integer maximum) {
  return parse_number<Integer>(option, text, "a whole number from 1 to " + std::to_string(maximum),
                               [maximum](Integer value) { return value >= 1 && value <= maximum; });
}

/// The meaning of `text` in a table of words. Throws UsageError.
template <class Meaning, std::size_t N>
Meaning parse_word(std::string_view option, std::string_view text,
                   const std::array<std::pair<std::string_view, Meaning>, N>& words) {
  std::string expected;
  for (const auto& [name, meaning] : words) {
    if (name == text) return meaning;
    const char* separator = expected.empty() ? "" : name == words.back().first ? " or " : ", ";
    expected.append(separator).append("'").append(name).append("'");
  }
  refuse_option(option, expected, text);
}

}  // namespace demos
