#include "common/os/environment.hpp"

#include <sys/auxv.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/text/errors.hpp"

namespace syncrun::detail::environment {

bool is_privileged() noexcept { return ::getauxval(AT_SECURE) != 0; }

namespace {

using Taken = std::array<std::optional<std::string>, kOfOneJob.size()>;

Taken& taken_options() {
  static auto* const taken = new Taken;  // never destroyed, since destructors of the program may open a session
  return *taken;
}

}  // namespace

void take_options_of_job() {
  for (std::size_t i = 0; i < kOfOneJob.size(); ++i) {
    const char* const value = ::secure_getenv(kOfOneJob[i]);
    if (value == nullptr) continue;
    taken_options()[i] = value;
    ::unsetenv(kOfOneJob[i]);
  }
}

const char* get(const char* name) noexcept {
  if (const char* const value = ::secure_getenv(name)) return value;
  for (std::size_t i = 0; i < kOfOneJob.size(); ++i) {
    if (const auto& taken = taken_options()[i]; taken && std::strcmp(kOfOneJob[i], name) == 0) return taken->c_str();
  }
  return nullptr;
}

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
