#pragma once

// Calls the option parsers of the demos as their main() does.

#include <sstream>
#include <string>
#include <vector>

#include "demos/common/usage_error.hpp"

namespace demos::testing {

/// The words of a text, which spaces separate.
inline std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// What `parse_options` returns for these arguments.
template <typename Parse>
auto parse(Parse parse_options, std::vector<std::string> words) {
  words.insert(words.begin(), "program");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return parse_options(static_cast<int>(words.size()), argv.data());
}

/// The message of the error that `parse_options` throws.
template <typename Parse>
std::string complaint(Parse parse_options, const std::vector<std::string>& words) {
  try {
    parse(parse_options, words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace demos::testing
