#include "common/os/environment.hpp"

#include <sys/auxv.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

#include "common/text/errors.hpp"

namespace syncrun::detail::environment {

bool is_privileged() noexcept { return ::getauxval(AT_SECURE) != 0; }

bool is_in_valgrind() noexcept {
  const char* const preloaded = std::getenv("LD_PRELOAD");
  return preloaded != nullptr && std::strstr(preloaded, "/vgpreload_") != nullptr;
}

const char* get(const char* name) noexcept { return ::secure_getenv(name); }

namespace {

std::string_view text_of(const char* name) noexcept {
  const char* const value = get(name);
  return value == nullptr ? "" : value;
}

/// " NAME=HASH" for an option that is set, with a hash of its value.
std::string mark_of(const char* name) {
  return " " + std::string(name) + "=" + std::to_string(std::hash<std::string_view>()(text_of(name))) + " ";
}

std::string own_pid() { return std::to_string(::getpid()); }

}  // namespace

void drop_options_of_another_job() {
  const std::string owner(text_of(kOptionsOf));
  if (owner.empty() || owner.starts_with(own_pid() + " ")) return;
  // One with another value was set since then. Other threads may read the environment: to replace a value does not move
  // the others, as unsetenv(3) would.
  for (const char* const name : kOfOneJob) {
    if (owner.find(mark_of(name)) != std::string::npos) ::setenv(name, "", 1);
  }
  ::setenv(kOptionsOf, "", 1);
}

void take_options_of_job() {
  drop_options_of_another_job();
  std::string marks;
  for (const char* const name : kOfOneJob) {
    if (!text_of(name).empty()) marks += mark_of(name);
  }
  if (!marks.empty()) ::setenv(kOptionsOf, (own_pid() + " " + marks).c_str(), 1);
}

std::optional<bool> switch_in(const char* name) {
  const std::string_view text = text_of(name);
  if (text.empty()) return std::nullopt;
  if (text == "on" || text == "1") return true;
  if (text == "off" || text == "0") return false;
  throw_bad_value(name, std::string(text), "on or off");
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
