#include "master/command_line/task_report.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <random>

#include "common/os/environment.hpp"
#include "common/protocol/supervisor_link.hpp"
#include "master/devices/host_part.hpp"
#include "master/nodes/engine.hpp"

namespace syncrun::detail::master::command_line {

namespace {

/// In the order of TaskReport::Kind.
constexpr std::array<std::string_view, 3> kKindNames{"began", "asked", "ended"};

constexpr std::string_view kDigits = "0123456789abcdef";

bool is_plain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_';
}

/// Other characters than letters and digits, as %XX.
std::string as_word(std::string_view text) {
  std::string word;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_plain(c)) word += c;
    else word.append("%").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
  }
  return word;
}

std::optional<std::string> from_word(std::string_view word) {
  std::string text;
  while (!word.empty()) {
    if (word.front() != '%') {
      if (!is_plain(word.front())) return std::nullopt;
      text += word.front();
      word.remove_prefix(1);
      continue;
    }
    const auto high = word.size() < 3 ? std::string_view::npos : kDigits.find(word[1]);
    const auto low = word.size() < 3 ? std::string_view::npos : kDigits.find(word[2]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    text += static_cast<char>(high << 4 | low);
    word.remove_prefix(3);
  }
  return text;
}

}  // namespace

std::string report_line(const std::string& token, const TaskReport& report) {
  protocol::FailureDetails fields{{"kind", std::string(kKindNames[static_cast<std::size_t>(report.kind)])},
                                  {"task", std::to_string(report.task)},
                                  {"host", report.host},
                                  {"job", report.job}};
  if (report.kind == TaskReport::Kind::ended) {
    fields.insert(fields.end(), {{"code", std::to_string(report.exit_code)},
                                 {"message", report.message},
                                 {"restart", report.may_restart ? "1" : "0"},
                                 {"asked", report.was_asked ? "1" : "0"},
                                 {"started", report.was_started ? "1" : "0"},
                                 {"stay", std::to_string(report.stay.count())}});
  }
  return std::string(kLaunchedMark) + token + " " + as_word(protocol::encoded(fields)) + "\n";
}

std::optional<TaskReport> report_in(std::string_view line, const std::string& token) {
  const std::string mark = std::string(kLaunchedMark) + token + " ";
  const auto at = line.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view word = line.substr(at + mark.size());
  const auto end = std::ranges::find_if(word, [](char c) { return !is_plain(c) && c != '%'; });
  const auto text = from_word(word.substr(0, static_cast<std::size_t>(end - word.begin())));
  if (!text) return std::nullopt;
  const protocol::FailureDetails fields = protocol::decoded_details(*text);
  const auto field = [&](std::string_view name) {
    const auto found = std::ranges::find_if(fields, [name](const auto& each) { return each.first == name; });
    return found == fields.end() ? std::string() : found->second;
  };
  const auto number = [&](std::string_view name) {
    const std::string value = field(name);
    int result = -1;
    std::from_chars(value.data(), value.data() + value.size(), result);
    return result;
  };
  const auto kind = std::ranges::find(kKindNames, field("kind")) - kKindNames.begin();
  if (kind == static_cast<std::ptrdiff_t>(kKindNames.size())) return std::nullopt;
  TaskReport report{
      .kind = static_cast<TaskReport::Kind>(kind), .task = number("task"), .host = field("host"), .job = field("job")};
  if (report.task < 0) return std::nullopt;
  if (report.kind != TaskReport::Kind::ended) return report;
  report.exit_code = number("code");
  report.message = field("message");
  report.may_restart = number("restart") == 1;
  report.was_asked = number("asked") == 1;
  report.was_started = number("started") == 1;
  report.stay = std::chrono::milliseconds(std::max(0, number("stay")));
  if (report.exit_code < 0) return std::nullopt;
  return report;
}

std::string make_token() {
  std::random_device device;
  std::string token;
  for (int i = 0; i < 16; ++i) token += kDigits[device() & 15];
  return token;
}

TaskReporter::TaskReporter(const std::string& token) : token_(token) {
  own_.host = devices::own_host_name();
  const nodes::Engine engine = nodes::find_engine(environment::get);
  own_.task = engine.task;
  own_.job = engine.job;
  if (engine.kind == nodes::EngineKind::open_mpi) relay_.emplace(token_, engine.task);
  write(own_);
}

void TaskReporter::write(const TaskReport& report) const {
  const std::string line = report_line(token_, report);
  if (relay_) relay_->report(line);
  else write_fully(STDERR_FILENO, line);
}

void TaskReporter::asked() const {
  TaskReport report = own_;
  report.kind = TaskReport::Kind::asked;
  pollfd stream{STDERR_FILENO, POLLOUT, 0};
  if (relay_ || ::poll(&stream, 1, 0) == 1) write(report);
}

void TaskReporter::ended(const Conclusion& conclusion, std::chrono::milliseconds stay) const {
  TaskReport report = own_;
  report.kind = TaskReport::Kind::ended;
  report.exit_code = conclusion.exit_code;
  report.message = conclusion.message;
  report.may_restart = conclusion.may_be_started_again;
  report.was_asked = conclusion.was_asked;
  report.was_started = conclusion.was_started;
  report.stay = stay;
  write(report);
}

}  // namespace syncrun::detail::master::command_line
