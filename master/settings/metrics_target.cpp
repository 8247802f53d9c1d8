#include "master/settings/metrics_target.hpp"

#include <sys/un.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace syncrun::detail::master::settings {

namespace {

constexpr std::string_view kUnix = "unix:";
constexpr int kMostPort = 65535;
constexpr std::size_t kLongestSocketPath = sizeof(sockaddr_un{}.sun_path) - 1;

bool is_number(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::optional<MetricsTarget> parse_metrics_target(const std::string& text) {
  if (text.empty() || text.find('\0') != std::string::npos) return std::nullopt;
  if (text == "-") return MetricsTarget{MetricsTarget::Kind::file, "/dev/stderr"};
  if (text.starts_with(kUnix)) {
    std::string path = text.substr(kUnix.size());
    if (path.empty() || path.size() > kLongestSocketPath) return std::nullopt;
    return MetricsTarget{MetricsTarget::Kind::socket, std::move(path)};
  }
  if (!is_number(text)) return MetricsTarget{MetricsTarget::Kind::file, text};
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || port < 1 || port > kMostPort) return std::nullopt;
  return MetricsTarget{MetricsTarget::Kind::port, {}, port};
}

}  // namespace syncrun::detail::master::settings
