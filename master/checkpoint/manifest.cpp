#include "master/checkpoint/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>

#include "common/text/errors.hpp"

namespace syncrun::detail::master::checkpoint {

namespace {

constexpr std::string_view kFirstLine = "syncrun checkpoint 1";
constexpr std::string_view kFirstLineWithParts = "syncrun checkpoint 2";
constexpr std::string_view kLastLine = "end";
constexpr std::size_t kLongestName = 100;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), is_name_character);
}

bool is_folder_id(std::string_view id) {
  constexpr std::size_t kLongestId = 64;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return !id.empty() && id.size() <= kLongestId && std::all_of(id.begin(), id.end(), is_digit);
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
    const std::string_view first = next_line();
    has_parts_ = first == kFirstLineWithParts;
    if (first != kFirstLine && !has_parts_)
      fail("'" + std::string(kFirstLine) + "' or '" + std::string(kFirstLineWithParts) + "'");
    Manifest manifest;
    if (has_parts_) manifest.folder_id = read_folder_id();
    while (next_line() != kLastLine) {
      const std::string_view kind = next_word();
      if (kind == "array") read_array(manifest);
      else if (kind == "value") read_value(manifest);
      else if (kind == "part" && has_parts_) read_part(manifest);
      else fail(has_parts_ ? "array, part, value or end" : "array, value or end");
    }
    if (!text_.empty()) fail("nothing after 'end'");
    if (has_parts_ && !manifest.has_parts()) fail("an array with parts");
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

  std::string read_folder_id() {
    next_line();
    if (next_word() != "id" || !is_folder_id(rest_)) fail("the id of the folder");
    return std::string(rest_);
  }

  void read_array(Manifest& manifest) {
    std::string name = read_name(arrays_);
    manifest.arrays.push_back({std::move(name), read_placement(), {}});
    rows_ = 0;
  }

  void read_value(Manifest& manifest) {
    std::string name = read_name(values_);
    manifest.values.emplace_back(std::move(name), unescaped(rest_));
  }

  /// A part of the last array.
  void read_part(Manifest& manifest) {
    if (manifest.arrays.empty()) fail("a part only of an array");
    const std::string_view text = next_word();
    ManifestPart part;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), part.rows);
    const bool is_number = error == std::errc{} && stop == text.data() + text.size() && part.rows > 0;
    if (!is_number || __builtin_add_overflow(rows_, part.rows, &rows_)) fail("a number of rows");
    part.node = unescaped(rest_);
    manifest.arrays.back().parts.push_back(std::move(part));
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
    text::throw_usage("expected " + expected + " in line " + std::to_string(number_) + ", found '" +
                      std::string(found.substr(0, std::min(found.find('\n'), kShown))) + "'");
  }

  std::string_view text_;
  std::string_view line_;
  std::string_view rest_;
  std::size_t number_ = 0;
  bool has_parts_ = false;
  std::int64_t rows_ = 0;  // in the parts of the last array
  std::set<std::string, std::less<>> arrays_;
  std::set<std::string, std::less<>> values_;
};

void check_name_is_new(std::string_view name, std::set<std::string_view>& taken) {
  check_name(name);
  if (!taken.insert(name).second)
    text::throw_usage("a checkpoint has each name once, got '" + std::string(name) + "' twice");
}

void check_names(const Manifest& manifest) {
  std::set<std::string_view> arrays, values;
  for (const ManifestArray& array : manifest.arrays) check_name_is_new(array.name, arrays);
  for (const auto& [name, text] : manifest.values) check_name_is_new(name, values);
}

}  // namespace

bool Manifest::has_parts() const noexcept {
  return std::any_of(arrays.begin(), arrays.end(), [](const ManifestArray& array) { return !array.parts.empty(); });
}

std::string file_of(std::string_view name) { return std::string(name) + ".npy"; }

std::string file_of_part(std::string_view name, std::size_t part) {
  return std::string(name) + "@" + std::to_string(part) + ".npy";
}

void check_name(std::string_view name) {
  if (is_name(name)) return;
  text::throw_usage("a name in a checkpoint is up to " + std::to_string(kLongestName) +
                    " letters, digits, '_', '-' and '.', and does not begin with '.'; got '" + std::string(name) + "'");
}

std::string to_text(const Manifest& manifest) {
  check_names(manifest);
  const bool has_parts = manifest.has_parts();
  std::string text(has_parts ? kFirstLineWithParts : kFirstLine);
  text += '\n';
  if (has_parts) text += "id " + manifest.folder_id + "\n";
  for (const ManifestArray& array : manifest.arrays) {
    text += "array " + array.name + (array.placement == Placement::scattered ? " scattered\n" : " replicated\n");
    for (const ManifestPart& part : array.parts)
      text += "part " + std::to_string(part.rows) + " " + escaped(part.node) + "\n";
  }
  for (const auto& [name, value] : manifest.values) text += "value " + name + " " + escaped(value) + "\n";
  text += std::string(kLastLine) + "\n";
  if (text.size() > kLongestManifest) {
    text::throw_usage("the values of a checkpoint are at most " + std::to_string(kLongestManifest) + " bytes, got " +
                      std::to_string(text.size()) + ": longer ones are arrays");
  }
  return text;
}

Manifest parse_manifest(std::string_view text) { return ManifestText(text).read(); }

}  // namespace syncrun::detail::master::checkpoint
