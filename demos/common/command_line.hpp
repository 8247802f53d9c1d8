#pragma once

// Reads the command lines of the demos with CLI11. It checks the values of options, and its messages say what was
// expected. CLI11's header takes seconds to compile, so only the options.cpp of each demo includes this header.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "demos/common/usage_error.hpp"

namespace demos {

[[noreturn]] inline void refuse_option(std::string_view option, std::string_view expected, std::string_view got) {
  throw UsageError(std::string(option).append(": expected ").append(expected).append(", got '").append(got) + "'");
}

// ---- values: each function returns a parser. A parser takes the name of an option and the text of its value. It
// returns the value that the text stands for, or throws UsageError.

/// Accepts a text that is a number for which `is_good` returns true. CLI11's own conversions would also accept
/// hexadecimal and octal numbers.
template <class Number, class Predicate>
auto number(const std::string& expected, Predicate is_good) {
  return [=](std::string_view option, std::string_view text) {
    Number value{};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc{} || stop != end || !is_good(value)) refuse_option(option, expected, text);
    return value;
  };
}

/// Accepts a whole number in a range that includes both ends.
template <class Integer>
auto whole_number(Integer from, Integer to) {
  return number<Integer>("a whole number from " + std::to_string(from) + " to " + std::to_string(to),
                         [=](Integer value) { return value >= from && value <= to; });
}

inline auto any_seed() {
  return number<std::uint64_t>("a whole number from 0 to 2^64 - 1", [](std::uint64_t) { return true; });
}

inline auto from_zero_below_one() {
  return number<double>("a number from 0 to below 1", [](double value) { return value >= 0 && value < 1; });
}

/// Accepts a word of this table. The table must outlive the parser.
template <class Meaning, std::size_t N>
auto one_of(const std::array<std::pair<std::string_view, Meaning>, N>& words) {
  return [&words](std::string_view option, std::string_view text) {
    std::string expected;
    for (const auto& [name, meaning] : words) {
      if (name == text) return meaning;
      const char* separator = expected.empty() ? "" : name == words.back().first ? " or " : ", ";
      expected.append(separator).append("'").append(name).append("'");
    }
    refuse_option(option, expected, text);
  };
}

/// Accepts any text except an empty one.
inline auto nonempty(const char* expected) {
  return [=](std::string_view option, std::string_view text) {
    if (text.empty()) refuse_option(option, expected, text);
    return std::string(text);
  };
}

// ---- options

/// Adds an option with a value. The parser calls `set` with the text of the value as soon as it reads it. If an option
/// is given several times, all values are checked and the last one is used. `placeholder` stands for the value in
/// --help.
inline void add_option(CLI::App& app, const std::string& name, const char* placeholder,
                       std::function<void(const std::string&)> set, const char* help) {
  CLI::callback_t call_set = [set = std::move(set)](const CLI::results_t& texts) {
    set(texts.front());
    return true;
  };
  app.add_option(name, std::move(call_set), help)->type_name(placeholder)->trigger_on_parse();
}

/// Adds an option whose value is parsed into `target`.
template <class T, class Parser>
void add_option(CLI::App& app, const std::string& name, const char* placeholder, T& target, Parser parse,
                const char* help) {
  add_option(
      app, name, placeholder, [=, &target](const std::string& text) { target = parse(name, text); }, help);
}

/// Adds an option without a value: if it is given, `target` becomes `value`.
template <class T>
void add_flag(CLI::App& app, const char* name, T& target, T value, const char* help) {
  app.add_flag_callback(
         name, [=, &target] { target = value; }, help)

      ->trigger_on_parse();
}

/// Adds --help, at the end of the list.
inline void add_help(CLI::App& app) {
  app.set_help_flag();  // remove CLI11's own, which is first in the list and also accepts -h
  app.add_flag_callback(
         "--help", [] { throw CLI::CallForHelp(); }, "print this text")
      ->trigger_on_parse();
}

// ---- programs

/// Reads the command line and sets the targets of the options of `app`. Returns false if --help was given. Throws
/// UsageError.
inline bool parse_command_line(CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::size_t equals = std::min(word.find('='), word.size());
    const CLI::Option* option = app.get_option_no_throw(std::string(word.substr(0, equals)));
    words.emplace_back(word.substr(0, option == nullptr ? word.size() : equals));
    if (option == nullptr || equals == word.size()) continue;
    // For `--name=value`, CLI11 would replace an empty value by the next word. It would also accept `true` as the value
    // of an option without a value.
    words.emplace_back(word.substr(equals + 1));
    if (option->get_expected_max() == 0) refuse_option(option->get_name(), "no value", words.back());
  }
  app.allow_extras();  // the code below refuses them, with messages of our own
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp&) {
    return false;
  } catch (const CLI::ArgumentMismatch&) {
    throw UsageError(words.back() + ": expected a value, got none");
  }
  for (const std::string& word : app.remaining()) {
    if (word == "--") continue;
    const bool is_option = word.size() > 1 && word.front() == '-';
    refuse_option("options", is_option ? "one of those that --help lists" : "no other arguments", word);
  }
  return true;
}

/// The text that --help prints: the description of `app`, then its options, with lines of at most 120 characters. It is
/// the same with every version of CLI11. CLI11's own formatter does not break lines.
inline std::string help_of(const CLI::App& app) {
  constexpr std::size_t kHelpColumn = 24;
  constexpr std::size_t kMostCharacters = 120;
  std::string text = app.get_description();
  for (const CLI::Option* option : app.get_options()) {
    std::string line = "  " + option->get_name();
    if (!option->get_type_name().empty()) line += " " + option->get_type_name();
    if (line.size() >= kHelpColumn) text += std::exchange(line, "") + "\n";
    line.resize(kHelpColumn - 1, ' ');
    std::istringstream words(option->get_description());
    for (std::string word; words >> word; line += " " + word) {
      if (line.size() + 1 + word.size() <= kMostCharacters) continue;
      text += std::exchange(line, std::string(kHelpColumn - 1, ' ')) + "\n";
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace demos
