#include "common/os/environment.hpp"

#include <sys/auxv.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/text/errors.hpp"

namespace syncrun::detail::environment {

bool is_privileged() noexcept { return ::getauxval(AT_SECURE) != 0; }

const char* get(const char* name) noexcept { return ::secure_getenv(name); }

std::optional<bool> switch_in(const char* name) {
  const char* const value = get(name);
  const std::string_view text = value == nullptr ? "" : value;
  if (text.empty()) return std::nullopt;
  if (text == "on" || text == "1") return true;
  if (text == "off" || text == "0") return false;
  throw_bad_value(name, value, "on or off");
}

std::optional<std::int64_t> whole_number(const char* text) noexcept {
  std::int64_t number = 0;
  const char* const end = text + std::strlen(text);
  const auto [stopped, code] = std::from_chars(text, end, number);
  if (code != std::errc() || stopped != end) return std::nullopt;
  return number;
}

void throw_bad_value(const char* name, const std::string& value, const std::string& expected) {
  text::throw_usage(std::string(name) + ": expected " + expected + ", got '" + value + "'");
}

}  // namespace syncrun::detail::environment
