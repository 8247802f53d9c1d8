#include "master/inspect/top.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <thread>

#include "common/text/errors.hpp"
#include "common/text/numbers.hpp"
#include "master/inspect/gpu_use.hpp"
#include "master/inspect/words.hpp"

namespace syncrun::detail::master::inspect {

namespace {

using Clock = std::chrono::steady_clock;
using Cells = std::vector<std::string>;

constexpr std::size_t kLongestCall = 32;
constexpr std::string_view kUnknown = "-";

/// How often to see which ranks work. With 64 ranks, 50 times per second, and a table per second, take 0.4 % of a core.
constexpr std::chrono::milliseconds kLongestSample{20};
constexpr std::chrono::milliseconds kShortestSample{5};
constexpr int kFewestSamples = 20;

/// "950", "12.3k", "4.0M"
std::string short_number(double number) {
  if (number < 0) return std::string(kUnknown);
  constexpr double kStep = 1000;
  constexpr std::string_view kUnits = "kMGT";
  if (number < kStep) return text::fixed_text(number, number < 10 && number != std::floor(number) ? 1 : 0);
  std::size_t unit = 0;
  number /= kStep;
  while (number >= kStep && unit + 1 < kUnits.size()) {
    number /= kStep;
    ++unit;
  }
  return text::fixed_text(number, 1) + kUnits[unit];
}

std::string bytes_text(std::uint64_t bytes) {
  return bytes == 0 ? std::string(kUnknown) : short_number(static_cast<double>(bytes)) + "B";
}

std::string percent_text(int percent) { return percent < 0 ? std::string(kUnknown) : std::to_string(percent) + "%"; }

std::string shortened(const std::string& text) {
  return text.size() <= kLongestCall ? text : text.substr(0, kLongestCall - 3) + "...";
}

/// All but the columns with words are aligned to the right.
struct Column {
  const char* title;
  bool has_words;
};
constexpr std::array kColumns{Column{"rank", false},   Column{"node", false},    Column{"pid", false},
                              Column{"device", true},  Column{"phase", true},    Column{"call", true},
                              Column{"busy", false},   Column{"calls/s", false}, Column{"rows/s", false},
                              Column{"memory", false}, Column{"GPU", false}};
constexpr std::size_t kNodeColumn = 1;

Cells cells_of(const TopRow& row) {
  const RankView& view = row.view;
  return {std::to_string(view.rank),
          std::to_string(view.node),
          view.pid == 0 ? std::string(kUnknown) : std::to_string(view.pid),
          view.device,
          view.phase,
          view.call.empty() ? std::string(kUnknown) : shortened(view.call),
          percent_text(row.busy_percent),
          short_number(row.calls_per_second),
          short_number(row.rows_per_second),
          bytes_text(view.memory_bytes),
          percent_text(row.gpu_percent)};
}

/// The ranks run the same calls, so the calls are not added up. The rows are.
Cells total_of(const std::vector<TopRow>& rows) {
  double rows_per_second = -1;
  std::uint64_t bytes = 0;
  for (const TopRow& row : rows) {
    if (row.rows_per_second >= 0) rows_per_second = std::max(rows_per_second, 0.0) + row.rows_per_second;
    bytes += row.view.memory_bytes;
  }
  return {"all", "", "", "", "", "", "", "", short_number(rows_per_second), bytes_text(bytes), ""};
}

std::string line_of(const Cells& cells, const std::array<std::size_t, kColumns.size()>& widths, bool has_nodes) {
  std::string line;
  for (std::size_t i = 0; i < kColumns.size(); ++i) {
    if (i == kNodeColumn && !has_nodes) continue;
    const std::string space(widths[i] - std::min(widths[i], cells[i].size()), ' ');
    line += (line.empty() ? "" : "  ") + (kColumns[i].has_words ? cells[i] + space : space + cells[i]);
  }
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

/// Looks many times until `end`, and returns for each rank in how many percent of the looks it worked. The times are random,
/// or calls that take as long as the time between two looks would be seen in the same phase each time.
std::vector<int> watch_until(Clock::time_point end, const SessionView& session) {
  const auto usual =
      std::clamp<Clock::duration>((end - Clock::now()) / kFewestSamples, kShortestSample, kLongestSample);
  std::minstd_rand random(static_cast<unsigned>(::getpid()));
  std::uniform_int_distribution<Clock::rep> wait(usual.count() / 2, usual.count() * 3 / 2);
  std::vector<int> busy;
  int samples = 0;
  for (bool is_last = false; !is_last; ++samples) {
    const auto next = Clock::now() + Clock::duration(wait(random));
    is_last = next >= end;
    std::this_thread::sleep_until(std::min(next, end));
    const std::vector<bool> now = session.are_busy();
    busy.resize(now.size());
    for (std::size_t i = 0; i < now.size(); ++i) busy[i] += now[i] ? 1 : 0;
  }
  for (int& each : busy) each = (each * 100 + samples / 2) / samples;
  return busy;
}

}  // namespace

std::string table_of(const std::vector<TopRow>& rows, bool has_nodes, std::size_t columns) {
  std::vector<Cells> table(1);
  for (const Column& column : kColumns) table.front().emplace_back(column.title);
  for (const TopRow& row : rows) table.push_back(cells_of(row));
  table.push_back(total_of(rows));
  std::array<std::size_t, kColumns.size()> widths{};
  for (const Cells& cells : table) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string text;
  for (const Cells& cells : table) {
    const std::string line = line_of(cells, widths, has_nodes);
    text += (columns == 0 ? line : line.substr(0, columns)) + "\n";
  }
  return text;
}

std::vector<TopRow> rows_between(const std::vector<RankView>& before, const std::vector<RankView>& after,
                                 std::chrono::duration<double> time) {
  std::vector<TopRow> rows;
  for (std::size_t i = 0; i < after.size(); ++i) {
    TopRow row{.view = after[i]};
    const bool is_same = i < before.size() && before[i].pid == after[i].pid && before[i].calls <= after[i].calls;
    if (is_same && time.count() > 0) {
      row.calls_per_second = static_cast<double>(after[i].calls - before[i].calls) / time.count();
      row.rows_per_second = static_cast<double>(after[i].rows - before[i].rows) / time.count();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

int show_top(std::span<char* const> words) {
  constexpr std::array<std::string_view, 3> kOptions{"--pid", "--once", "--interval"};
  const Words options = read_words("top", words, kOptions);
  if (!options.others.empty())
    text::throw_usage("syncrun top: expected options only, got '" + options.others.front() + "'");
  const RunningJob job = choose_job(options.pid);
  SessionView session(job);
  GpuUse gpus;
  const bool is_on_terminal = ::isatty(STDOUT_FILENO) != 0;
  auto before = session.look();
  auto looked_at = Clock::now();
  for (;;) {
    const std::vector<int> busy = watch_until(looked_at + options.interval, session);
    if (!session.is_running()) break;
    auto after = session.look();
    const auto now = Clock::now();
    gpus.look();
    auto rows = rows_between(before, after, now - looked_at);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      TopRow& row = rows[i];
      if (row.view.is_here) row.busy_percent = busy[i];
      if (row.view.is_here && gpus.is_known())
        row.gpu_percent =
            gpus.percent_of(row.view.pid, row.view.device, variable_of(row.view.pid, "CUDA_VISIBLE_DEVICES"));
    }
    winsize size{};
    const bool has_size = is_on_terminal && !options.is_once && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    const std::string table = table_of(rows, session.place().has_others(), has_size ? size.ws_col : 0);
    // Moves the cursor to the corner, and clears what is below. So the table does not flicker.
    const char* const start = has_size ? "\x1b[H\x1b[J" : "";
    const int written = std::printf("%s%s (pid %d)\n%s%s", start, job.command.c_str(), static_cast<int>(job.master),
                                    table.c_str(), has_size || options.is_once ? "" : "\n");
    if (written < 0 || std::fflush(stdout) != 0) return 1;
    if (options.is_once) return 0;
    before = std::move(after);
    looked_at = now;
  }
  std::puts("the job has ended");
  return 0;
}

}  // namespace syncrun::detail::master::inspect
