#include "common/text/visible_text.hpp"

#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace syncrun::detail::text {

namespace {

struct Character {
  std::size_t bytes;  // 0 if the text does not begin with UTF-8
  std::uint32_t code;
};

/// The first character of a text, which must not be empty. Follows RFC 3629: overlong forms and surrogates are not
/// UTF-8.
Character first_of(std::string_view text) noexcept {
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(text[at]); };
  if (byte(0) < 0x80) return {1, byte(0)};
  const std::size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < bytes) return {0, 0};
  std::uint32_t code = byte(0) & (0xffU >> (bytes + 1));
  for (std::size_t at = 1; at < bytes; ++at) {
    if ((byte(at) & 0xc0U) != 0x80) return {0, 0};
    code = code << 6U | (byte(at) & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kLeast[bytes] || code > 0x10ffff || is_surrogate ? Character{0, 0} : Character{bytes, code};
}

void append_hexadecimal(std::string& to, std::uint32_t byte) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "\\x%02x", static_cast<unsigned>(byte));
  to += text.data();
}

}  // namespace

std::string visible(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const auto [bytes, code] = first_of(text);
    const std::size_t taken = bytes == 0 ? 1 : bytes;
    if (bytes == 0) {
      append_hexadecimal(shown, static_cast<std::uint8_t>(text.front()));
    } else if ((code < 0x20 && code != '\n' && code != '\t') || code == 0x7f) {
      shown += '^';
      shown += static_cast<char>(code ^ 0x40U);
    } else if (code >= 0x80 && code < 0xa0) {
      append_hexadecimal(shown, code);
    } else {
      shown.append(text.substr(0, bytes));
    }
    text.remove_prefix(taken);
  }
  return shown;
}

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  quoted.reserve(text.size() + 2);
  while (!text.empty()) {
    const auto [bytes, code] = first_of(text);
    const std::size_t taken = bytes == 0 ? 1 : bytes;
    if (bytes == 0) {
      quoted += "\xef\xbf\xbd";
    } else if (code == '"' || code == '\\') {
      quoted.append("\\").append(text.substr(0, 1));
    } else if (code == '\n') {
      quoted += "\\n";
    } else if (code < 0x20 || (code >= 0x7f && code < 0xa0)) {  // JSON allows the latter, but terminals obey them
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(code));
      quoted += escape.data();
    } else {
      quoted.append(text.substr(0, bytes));
    }
    text.remove_prefix(taken);
  }
  return quoted += '"';
}

std::string json_escaped(std::string_view text) {
  const std::string quoted = json_string(text);
  return quoted.substr(1, quoted.size() - 2);
}

std::string with_indented_lines(std::string_view text) {
  std::string indented;
  indented.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    indented += text[i];
    const bool goes_on = text[i] == '\n' && i + 1 < text.size();
    if (goes_on && !text.substr(i + 1).starts_with("  ")) indented += "  ";
  }
  return indented;
}

std::string text_for(int fd, std::string_view text) { return ::isatty(fd) == 1 ? visible(text) : std::string(text); }

}  // namespace syncrun::detail::text
