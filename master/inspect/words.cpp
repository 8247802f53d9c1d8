#include "master/inspect/words.hpp"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <string_view>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "common/text/joined.hpp"
#include "common/text/numbers.hpp"

namespace syncrun::detail::master::inspect {

namespace {

int process_in(const std::string& text) {
  const auto pid = environment::whole_number(text.c_str());
  if (pid && *pid > 0 && *pid <= INT_MAX) return static_cast<int>(*pid);
  text::throw_usage("--pid: expected a process id, got '" + text + "'");
}

std::chrono::milliseconds interval_in(const std::string& text) {
  constexpr double kShortest = 0.1;
  constexpr double kLongest = 3600;
  const auto seconds = text::parse_number(text);
  if (seconds && *seconds >= kShortest && *seconds <= kLongest)
    return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
  text::throw_usage("--interval: expected seconds from 0.1 to 3600, got '" + text + "'");
}

}  // namespace

Words read_words(const std::string& command, std::span<char* const> words, std::span<const std::string_view> options) {
  Words read;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i];
    if (word == "--") {
      read.others.insert(read.others.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
      break;
    }
    if (!word.starts_with('-')) {
      read.others.push_back(word);
      continue;
    }
    const std::string name = word.substr(0, word.find('='));
    if (std::find(options.begin(), options.end(), name) == options.end()) {
      text::throw_usage("syncrun " + command + ": expected one of " + text::joined(options) + "; got '" + word + "'");
    }
    if (name == "--once") {
      read.is_once = true;
      continue;
    }
    const bool has_value = name.size() != word.size();
    if (!has_value && i + 1 == words.size())
      text::throw_usage("option " + name + ": expected a value after it, got none");
    const std::string value = has_value ? word.substr(name.size() + 1) : words[++i];
    if (name == "--pid") read.pid = process_in(value);
    else read.interval = interval_in(value);
  }
  return read;
}

}  // namespace syncrun::detail::master::inspect
