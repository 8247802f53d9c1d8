#pragma once

// The library's own log lines: to standard error, by level. Handed to whoever logs; there is no global logger.

#include <spdlog/logger.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "syncrun/worker.hpp"

namespace syncrun::detail {

/// A logger that writes "[name] level: text" lines to standard error.
std::shared_ptr<spdlog::logger> make_logger(const std::string& name, LogLevel level);

spdlog::level::level_enum to_spdlog(LogLevel level) noexcept;
std::optional<LogLevel> parse_log_level(std::string_view text) noexcept;
std::string_view to_string(LogLevel level) noexcept;

}  // namespace syncrun::detail
