#pragma once

// Where metrics go: the value of --metrics, SYNCRUN_METRICS and SessionOptions::metrics.

#include <cstdint>
#include <optional>
#include <string>

namespace syncrun::detail::master::settings {

struct MetricsTarget {
  enum class Kind : std::uint8_t { file, socket, port };
  Kind kind = Kind::file;
  std::string path{};  // of the file or the socket
  int port = 0;        // of the loopback interface
};

/// What a target has to be, for messages.
inline constexpr const char* kMetricsTargetText = "a file, unix:PATH or a port from 1 to 65535";

/// Empty if the text is not a target. A text of digits is a port. "-" is standard error.
std::optional<MetricsTarget> parse_metrics_target(const std::string& text);

}  // namespace syncrun::detail::master::settings
