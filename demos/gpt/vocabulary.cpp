#include "demos/gpt/vocabulary.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "demos/common/usage_error.hpp"

namespace gpt {
namespace {

constexpr std::int64_t kBytes = 256;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 16;
constexpr std::string_view kFormat = "syncrun-gpt vocabulary 1";

enum class Kind { kSpace, kLetter, kOther };

Kind kind_of(char character) {
  const auto byte = static_cast<unsigned char>(character);
  if (byte == ' ' || (byte >= '\t' && byte <= '\r')) return Kind::kSpace;
  const bool is_letter = (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || byte >= 0x80;
  return is_letter ? Kind::kLetter : Kind::kOther;
}

/// The length of the chunk that the text begins with, see CHUNK in tools/prepare_tokens.py. The text is not empty.
std::size_t chunk_length(std::string_view text) {
  std::size_t end = text.front() == ' ' && text.size() > 1 && kind_of(text[1]) != Kind::kSpace ? 1 : 0;
  const Kind kind = kind_of(text[end++]);
  if (kind == Kind::kSpace) return end;
  while (end < text.size() && kind_of(text[end]) == kind) ++end;
  return end;
}

[[noreturn]] void refuse(const std::filesystem::path& file, std::size_t line, const std::string& expected,
                         const std::string& found) {
  throw demos::UsageError(file.string() + ", line " + std::to_string(line) + ": expected " + expected + ", found '" +
                          found + "' (demos/gpt/tools/prepare_tokens.py makes this file)");
}

std::vector<std::pair<std::int64_t, std::int64_t>> read_pairs(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!in) throw demos::UsageError("cannot read " + file.string() + ", which demos/gpt/tools/prepare_tokens.py makes");
  if (!std::getline(in, line) || line != kFormat) refuse(file, 1, "'" + std::string(kFormat) + "'", line);
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
  while (std::getline(in, line)) {
    const std::int64_t known = kBytes + static_cast<std::int64_t>(pairs.size());
    std::istringstream words(line);
    std::int64_t first = -1;
    std::int64_t second = -1;
    std::string rest;
    const bool is_pair = static_cast<bool>(words >> first >> second) && !(words >> rest);
    if (!is_pair || std::min(first, second) < 0 || std::max(first, second) >= known || known == kMostTokens) {
      refuse(file, pairs.size() + 2, "two tokens below " + std::to_string(std::min(known, kMostTokens)), line);
    }
    pairs.emplace_back(first, second);
  }
  return pairs;
}

}  // namespace

Vocabulary::Vocabulary(const std::filesystem::path& file) : Vocabulary(read_pairs(file)) {}

Vocabulary::Vocabulary(const std::vector<Pair>& joined) {
  for (std::int64_t byte = 0; byte < kBytes; ++byte) texts_.emplace_back(1, static_cast<char>(byte));
  for (const Pair& pair : joined) {
    numbers_.emplace(pair, size());
    texts_.push_back(text_of(pair.first) + text_of(pair.second));
  }
}

std::vector<std::int64_t> Vocabulary::encode(std::string_view text) const {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> tokens;
  while (!text.empty()) {
    const std::string_view chunk = text.substr(0, chunk_length(text));
    text.remove_prefix(chunk.size());
    std::vector<std::int64_t> part;
    for (const char byte : chunk) part.push_back(static_cast<unsigned char>(byte));
    const auto number_at = [&](std::size_t i) {
      const auto found = numbers_.find({part[i], part[i + 1]});
      return found == numbers_.end() ? kNone : found->second;
    };
    for (;;) {  // joins all occurrences of the pair that was learnt first, as long as there is one
      std::int64_t number = kNone;
      for (std::size_t i = 0; i + 1 < part.size(); ++i) number = std::min(number, number_at(i));
      if (number == kNone) break;
      for (std::size_t i = 0; i + 1 < part.size(); ++i) {
        if (number_at(i) != number) continue;
        part[i] = number;
        part.erase(part.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
    tokens.insert(tokens.end(), part.begin(), part.end());
  }
  return tokens;
}

}  // namespace gpt
