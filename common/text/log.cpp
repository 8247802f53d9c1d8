#include "common/text/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "common/text/time_text.hpp"
#include "common/text/visible_text.hpp"

namespace syncrun::detail::text {

namespace {
constexpr std::array<std::pair<std::string_view, LogLevel>, 6> kLevels{{{"trace", LogLevel::trace},
                                                                        {"debug", LogLevel::debug},
                                                                        {"info", LogLevel::info},
                                                                        {"warning", LogLevel::warning},
                                                                        {"error", LogLevel::error},
                                                                        {"off", LogLevel::off}}};
static_assert(kLevels.size() == static_cast<std::size_t>(LogLevel::off) + 1);

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
  SpdlogLogger(const std::string& name, LogLevel level, const char* pattern = "[%n] %l: %v")
      : logger_(name, std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger_.set_level(to_spdlog(level));
    logger_.set_pattern(pattern);
    logger_.flush_on(spdlog::level::trace);
  }
  void write(LogLevel level, std::string_view text) override { logger_.log(to_spdlog(level), "{}", text); }
  bool writes(LogLevel level) const { return logger_.should_log(to_spdlog(level)); }

 private:
  spdlog::logger logger_;
};

std::string json_line(std::string_view name, int rank, LogLevel level, std::string_view text) {
  std::string line = "{\"logger\":" + json_string(name);
  if (rank >= 0) line += ",\"rank\":" + std::to_string(rank);
  line.append(",\"level\":\"").append(to_string(level));
  line.append("\",\"time\":\"").append(utc_text(std::chrono::system_clock::now()));
  return line.append("\",\"message\":").append(json_string(text)).append("}");
}

class JsonLogger final : public Logger {
 public:
  JsonLogger(std::string name, int rank, LogLevel level)
      : name_(std::move(name)), rank_(rank), lines_(name_, level, "%v") {}
  void write(LogLevel level, std::string_view text) override {
    if (lines_.writes(level)) lines_.write(level, json_line(name_, rank_, level, text));
  }

 private:
  std::string name_;
  int rank_;
  SpdlogLogger lines_;
};

}  // namespace

bool log_is_json() noexcept {
  const char* const value = ::secure_getenv(kJsonLogVariable);
  const std::string_view text = value == nullptr ? "" : value;
  return text == "on" || text == "1";
}

std::string own_line(LogLevel level, std::string_view text) {
  if (log_is_json()) return json_line("syncrun", -1, level, text) + "\n";
  return "syncrun: " + text_for(STDERR_FILENO, with_indented_lines(text)) + "\n";
}

std::unique_ptr<Logger> make_logger(const std::string& name, LogLevel level, int rank) {
  if (log_is_json()) return std::make_unique<JsonLogger>(name, rank, level);
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

}  // namespace syncrun::detail::text
