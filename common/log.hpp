#pragma once

// The library's own log lines: to standard error, by level. Handed to whoever logs; there is no global logger.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "syncrun/worker.hpp"

namespace syncrun::detail {

/// Writes "[name] level: text" lines to standard error, those of its level and above. Any thread.
class Logger {
 public:
  Logger() = default;
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;
  virtual ~Logger() = default;

  virtual void write(LogLevel level, std::string_view text) = 0;
  void debug(std::string_view text) { write(LogLevel::debug, text); }
  void info(std::string_view text) { write(LogLevel::info, text); }
  void warn(std::string_view text) { write(LogLevel::warning, text); }
  void error(std::string_view text) { write(LogLevel::error, text); }
};

/// The one there is. What it is made with stays in log.cpp: spdlog's headers would take longer to compile than most files
/// that log a line.
std::unique_ptr<Logger> make_logger(const std::string& name, LogLevel level);

std::optional<LogLevel> parse_log_level(std::string_view text) noexcept;
std::string_view to_string(LogLevel level) noexcept;

}  // namespace syncrun::detail
