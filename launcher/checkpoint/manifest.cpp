#include "launcher/checkpoint/manifest.hpp"

#include <algorithm>
#include <functional>
#include <set>

#include "common/text/errors.hpp"

namespace syncrun::detail {

namespace {

constexpr std::string_view kFirstLine = "syncrun checkpoint 1";
constexpr std::string_view kLastLine = "end";
constexpr std::size_t kLongestName = 100;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), is_name_character);
}

std::string escaped(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c == '\\') line += "\\\\";
    else if (c == '\n') line += "\\n";
    else line += c;
  }
  return line;
}

/// Reads a manifest line by line.
class ManifestText {
 public:
  explicit ManifestText(std::string_view text) : text_(text) {}

  Manifest read() {
    if (next_line() != kFirstLine) fail("'" + std::string(kFirstLine) + "'");
    Manifest manifest;
    while (next_line() != kLastLine) {
      const std::string_view kind = next_word();
      if (kind != "array" && kind != "value") fail("array, value or end");
      std::string name = read_name(kind == "array" ? arrays_ : values_);
      if (kind == "array") manifest.arrays.emplace_back(std::move(name), read_placement());
      else manifest.values.emplace_back(std::move(name), unescaped(rest_));
    }
    if (!text_.empty()) fail("nothing after 'end'");
    return manifest;
  }

 private:
  std::string_view next_line() {
    ++number_;
    const std::size_t end = text_.find('\n');
    if (end == std::string_view::npos) fail("a whole line");
    line_ = rest_ = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return line_;
  }

  /// The text up to the next space. Removes the word and the space.
  std::string_view next_word() {
    const std::size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return word;
  }

  std::string read_name(std::set<std::string, std::less<>>& taken) {
    const std::string name(next_word());
    if (!is_name(name)) fail("a name");
    if (!taken.insert(name).second) fail("each name once");
    return name;
  }

  Placement read_placement() {
    if (rest_ == "replicated") return Placement::replicated;
    if (rest_ == "scattered") return Placement::scattered;
    fail("replicated or scattered");
  }

  std::string unescaped(std::string_view line) const {
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] != '\\') {
        text += line[i];
        continue;
      }
      const char next = ++i < line.size() ? line[i] : '\0';
      if (next != '\\' && next != 'n') fail("\\\\ or \\n");
      text += next == 'n' ? '\n' : next;
    }
    return text;
  }

  [[noreturn]] void fail(const std::string& expected) const {
    constexpr std::size_t kShown = 60;
    const std::string_view found = line_.empty() ? text_ : line_;
    throw_usage("expected " + expected + " in line " + std::to_string(number_) + ", found '" +
                std::string(found.substr(0, std::min(found.find('\n'), kShown))) + "'");
  }

  std::string_view text_;
  std::string_view line_;
  std::string_view rest_;
  std::size_t number_ = 0;
  std::set<std::string, std::less<>> arrays_;
  std::set<std::string, std::less<>> values_;
};

template <class Items>
void check_names(const Items& items) {
  std::set<std::string_view> taken;
  for (const auto& item : items) {
    check_name(item.first);
    if (!taken.insert(item.first).second)
      throw_usage("a checkpoint has each name once, got '" + item.first + "' twice");
  }
}

}  // namespace

void check_name(std::string_view name) {
  if (is_name(name)) return;
  throw_usage("a name in a checkpoint is up to " + std::to_string(kLongestName) +
              " letters, digits, '_', '-' and '.', and does not begin with '.'; got '" + std::string(name) + "'");
}

std::string to_text(const Manifest& manifest) {
  check_names(manifest.arrays);
  check_names(manifest.values);
  std::string text = std::string(kFirstLine) + "\n";
  for (const auto& [name, placement] : manifest.arrays) {
    text += "array " + name + (placement == Placement::scattered ? " scattered\n" : " replicated\n");
  }
  for (const auto& [name, value] : manifest.values) text += "value " + name + " " + escaped(value) + "\n";
  text += std::string(kLastLine) + "\n";
  if (text.size() > kLongestManifest) {
    throw_usage("the values of a checkpoint are at most " + std::to_string(kLongestManifest) + " bytes, got " +
                std::to_string(text.size()) + ": longer ones are arrays");
  }
  return text;
}

Manifest parse_manifest(std::string_view text) { return ManifestText(text).read(); }

}  // namespace syncrun::detail
