#include "common/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <utility>

namespace syncrun::detail {

namespace {
constexpr std::array<std::pair<std::string_view, LogLevel>, 6> kLevels{{{"trace", LogLevel::trace},
                                                                        {"debug", LogLevel::debug},
                                                                        {"info", LogLevel::info},
                                                                        {"warning", LogLevel::warning},
                                                                        {"error", LogLevel::error},
                                                                        {"off", LogLevel::off}}};
}

std::shared_ptr<spdlog::logger> make_logger(const std::string& name, LogLevel level) {
  auto logger = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(to_spdlog(level));
  logger->set_pattern("[%n] %l: %v");
  logger->flush_on(spdlog::level::trace);
  return logger;
}

spdlog::level::level_enum to_spdlog(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::trace: return spdlog::level::trace;
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
    case LogLevel::off: return spdlog::level::off;
  }
  return spdlog::level::warn;
}

std::optional<LogLevel> parse_log_level(std::string_view text) noexcept {
  for (const auto& [name, level] : kLevels) {
    if (name == text) return level;
  }
  return std::nullopt;
}

std::string_view to_string(LogLevel level) noexcept {
  for (const auto& [name, candidate] : kLevels) {
    if (candidate == level) return name;
  }
  return "warning";
}

}  // namespace syncrun::detail
