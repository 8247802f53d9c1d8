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
constexpr std::string_view kGpt2Format = "syncrun-gpt vocabulary 1 gpt2";

enum class Kind { kSpace, kLetter, kDigit, kOther };

Kind kind_of(char character, VocabularyKind vocabulary) {
  const auto byte = static_cast<unsigned char>(character);
  if (byte == ' ' || (byte >= '\t' && byte <= '\r')) return Kind::kSpace;
  if (vocabulary == VocabularyKind::kGpt2 && byte >= '0' && byte <= '9') return Kind::kDigit;
  const bool is_letter = (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || byte >= 0x80;
  return is_letter ? Kind::kLetter : Kind::kOther;
}

/// The length of the chunk that the text begins with, see CHUNK and gpt2_chunks() in tools/prepare_tokens.py. The text is
/// not empty.
std::size_t chunk_length(std::string_view text, VocabularyKind vocabulary) {
  const bool is_gpt2 = vocabulary == VocabularyKind::kGpt2;
  if (is_gpt2) {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (text.starts_with(ending)) return ending.size();
    }
  }
  const auto kind_at = [&](std::size_t place) { return kind_of(text[place], vocabulary); };
  std::size_t end = text.front() == ' ' && text.size() > 1 && kind_at(1) != Kind::kSpace ? 1 : 0;
  const Kind kind = kind_at(end++);
  if (kind == Kind::kSpace && !is_gpt2) return end;
  while (end < text.size() && kind_at(end) == kind) ++end;
  // In GPT-2, white space stays together, but the last character is for what follows.
  return kind == Kind::kSpace && end < text.size() && end > 1 ? end - 1 : end;
}

/// The bytes in the order of GPT-2's tokens: first those that are printable characters of Latin-1.
std::vector<unsigned char> gpt2_bytes() {
  std::vector<unsigned char> printable;
  std::vector<unsigned char> others;
  for (int byte = 0; byte < kBytes; ++byte) {
    const bool is_printable = (byte >= 33 && byte < 127) || (byte >= 161 && byte != 173);
    (is_printable ? printable : others).push_back(static_cast<unsigned char>(byte));
  }
  printable.insert(printable.end(), others.begin(), others.end());
  return printable;
}

[[noreturn]] void refuse(const std::filesystem::path& file, std::size_t line, const std::string& expected,
                         const std::string& found) {
  throw demos::UsageError(file.string() + ", line " + std::to_string(line) + ": expected " + expected + ", found '" +
                          found + "' (demos/gpt/tools/prepare_tokens.py makes this file)");
}

}  // namespace

Vocabulary Vocabulary::read(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!in) throw demos::UsageError("cannot read " + file.string() + ", which demos/gpt/tools/prepare_tokens.py makes");
  const bool has_line = static_cast<bool>(std::getline(in, line));
  const VocabularyKind kind = line == kGpt2Format ? VocabularyKind::kGpt2 : VocabularyKind::kOwn;
  if (!has_line || (kind == VocabularyKind::kOwn && line != kFormat))
    refuse(file, 1, "'" + std::string(kFormat) + "'", line);
  std::vector<Pair> pairs;
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
  return {kind, pairs};
}

Vocabulary::Vocabulary(const std::filesystem::path& file) : Vocabulary(read(file)) {}

Vocabulary::Vocabulary(VocabularyKind kind, const std::vector<Pair>& joined) : kind_(kind) {
  const std::vector<unsigned char> in_gpt2 = gpt2_bytes();
  for (std::int64_t token = 0; token < kBytes; ++token) {
    const auto place = static_cast<std::size_t>(token);
    const std::size_t byte = kind == VocabularyKind::kGpt2 ? in_gpt2[place] : place;
    of_bytes_[byte] = token;
    texts_.emplace_back(1, static_cast<char>(byte));
  }
  for (const Pair& pair : joined) {
    numbers_.emplace(pair, size());
    texts_.push_back(text_of(pair.first) + text_of(pair.second));
  }
  if (kind == VocabularyKind::kGpt2) texts_.emplace_back("<|endoftext|>");
}

std::vector<std::int64_t> Vocabulary::encode(std::string_view text) const {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> tokens;
  while (!text.empty()) {
    const std::string_view chunk = text.substr(0, chunk_length(text, kind_));
    text.remove_prefix(chunk.size());
    std::vector<std::int64_t> part;
    for (const char byte : chunk) part.push_back(of_bytes_[static_cast<unsigned char>(byte)]);
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
