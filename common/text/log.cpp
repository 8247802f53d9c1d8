#include "common/text/log.hpp"

#include <spdlog/logger.h>
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

class SpdlogLogger final : public Logger {
 public:
  SpdlogLogger(const std::string& name, LogLevel level)
      : logger_(name, std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger_.set_level(to_spdlog(level));
    logger_.set_pattern("[%n] %l: %v");
    logger_.flush_on(spdlog::level::trace);
  }
  void write(LogLevel level, std::string_view text) override { logger_.log(to_spdlog(level), "{}", text); }

 private:
  spdlog::logger logger_;
};

}  // namespace

std::unique_ptr<Logger> make_logger(const std::string& name, LogLevel level) {
  return std::make_unique<SpdlogLogger>(name, level);
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
