#include "master/command_line/environment_file.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::master::command_line {

namespace {

bool is_variable_name(std::string_view name) noexcept {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::ranges::all_of(name, fits);
}

}  // namespace

std::string set_environment(const std::string& option, const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (!is_variable_name(name)) text::throw_usage(option + ": expected NAME=VALUE, got '" + text + "'");
  const auto is_own = [&name](const char* own) { return name == own; };
  if (std::ranges::any_of(environment::kInternal, is_own) || is_own(environment::kSupervisorFd)) {
    text::throw_usage(option + ": expected a variable of the program, got " + name + ", which Syncrun sets itself");
  }
  if (equals != std::string::npos) {
    ::setenv(name.c_str(), text.c_str() + equals + 1, 1);
  } else if (std::getenv(name.c_str()) == nullptr) {
    text::throw_usage(option + ": expected a variable that is set, or NAME=VALUE; " + name + " is not set");
  }
  return name;
}

std::vector<std::pair<std::string, std::string>> set_environment_from_file(const std::string& option,
                                                                           const std::string& path) {
  std::error_code ignored;
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path, ignored))
    text::throw_usage(option + ": expected a file of lines NAME=VALUE, but " + path + " cannot be read");
  std::vector<std::pair<std::string, std::string>> names;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    const std::string place = path + ", line " + std::to_string(number);
    names.emplace_back(set_environment(option + ": " + place, line), place);
  }
  return names;
}

}  // namespace syncrun::detail::master::command_line
