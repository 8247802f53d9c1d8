#pragma once

// The log lines of the library and of `syncrun`, as text or as JSON. Code that logs gets the logger as an argument:
// there is no global one.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "syncrun/worker.hpp"

namespace syncrun::detail::text {

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

/// `syncrun --json-log` sets it to "on". Then each log line is an object of JSON. All processes of a job inherit it.
inline constexpr const char* kJsonLogVariable = "SYNCRUN_JSON_LOG";
bool log_is_json() noexcept;
/// True if the text begins with a log line in JSON.
inline bool is_json_log_line(std::string_view text) noexcept { return text.starts_with("{\"logger\":\""); }

/// A line of Syncrun itself for standard error, with its newline: "syncrun: text", or JSON. If the text has more lines,
/// they are indented. On a terminal, its control characters are visible.
std::string own_line(LogLevel level, std::string_view text);

/// Makes a logger. Lines in JSON name the rank, unless it is -1. The implementation is in log.cpp, because spdlog's headers
/// take longer to compile than most files that log a line.
std::unique_ptr<Logger> make_logger(const std::string& name, LogLevel level, int rank = -1);

std::optional<LogLevel> parse_log_level(std::string_view text) noexcept;
std::string_view to_string(LogLevel level) noexcept;

}  // namespace syncrun::detail::text
