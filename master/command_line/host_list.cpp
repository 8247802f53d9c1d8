#include "master/command_line/host_list.hpp"

#include <wordexp.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <string_view>

#include "common/text/errors.hpp"

namespace syncrun::detail::master::command_line {

namespace {

/// A name that no engine takes for an option or for a list of its own.
bool is_host(std::string_view name) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_';
  };
  return !name.empty() && name.front() != '-' && std::all_of(name.begin(), name.end(), is_plain);
}

void add_host(std::vector<std::string>& hosts, const std::string& where, const std::string& host) {
  if (!is_host(host)) {
    text::throw_usage(where + ": expected the name of a host, got '" + host +
                      "' (one syncrun runs on each host, and -n says how many workers)");
  }
  if (std::find(hosts.begin(), hosts.end(), host) != hosts.end())
    text::throw_usage(where + ": expected each host once, got '" + host + "' twice");
  hosts.push_back(host);
}

}  // namespace

std::vector<std::string> hosts_in_list(const std::string& option, const std::string& list) {
  std::vector<std::string> hosts;
  std::size_t begin = 0;
  for (bool is_last = false; !is_last;) {
    const auto end = std::min(list.find(',', begin), list.size());
    is_last = end == list.size();
    add_host(hosts, option, list.substr(begin, end - begin));
    begin = end + 1;
  }
  return hosts;
}

std::vector<std::string> hosts_in_file(const std::string& option, const std::string& path) {
  std::ifstream file(path);
  if (!file) text::throw_usage(option + ": expected a file that can be read, got '" + path + "'");
  std::vector<std::string> hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const auto begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    const auto end = line.find_first_of(" \t\r:#", begin);
    add_host(hosts, option + " " + path + ", line " + std::to_string(number), line.substr(begin, end - begin));
  }
  if (hosts.empty()) text::throw_usage(option + ": expected at least one host, found none in '" + path + "'");
  return hosts;
}

std::vector<std::string> words_for_launcher(const std::string& option, const std::string& line) {
  wordexp_t found{};
  if (::wordexp(line.c_str(), &found, WRDE_NOCMD) != 0)
    text::throw_usage(option + ": expected words as in a shell, got '" + line + "'");
  std::vector<std::string> words(found.we_wordv, found.we_wordv + found.we_wordc);
  ::wordfree(&found);
  return words;
}

}  // namespace syncrun::detail::master::command_line
