#pragma once

// The log lines of the library. Code that logs gets the logger as an argument: there is no global one.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "syncrun/worker.hpp"

namespace syncrun::detail {

/// Writes lines of the form "[name] level: text" to standard error, if they have the logger's level or a higher one.
/// Any thread.
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

/// Makes a logger. The implementation is in log.cpp, because spdlog's headers take longer to compile than most files
/// that log a line.
std::unique_ptr<Logger> make_logger(const std::string& name, LogLevel level);

std::optional<LogLevel> parse_log_level(std::string_view text) noexcept;
std::string_view to_string(LogLevel level) noexcept;

}  // namespace syncrun::detail
