#include "tests/fault/matrix/matrix.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "tests/fault/leak_check.hpp"
#include "tests/support/slowdown.hpp"

namespace syncrun::test {

using testing::HasSubstr;
using namespace std::chrono_literals;

namespace {

// The deadline for a worker that hangs. Within it, the other workers must come to where they wait, even if other
// programs use the machine. On GPUs, they also create their first communicator within it.
constexpr auto kDeadline = kSlowdown * 3000ms;
constexpr auto kGpuDeadline = 4000ms;
constexpr auto kPatience = 20000ms;
// The longest time from the fault to the exception in the master, in addition to the deadline.
constexpr auto kErrorLimit = 5000ms;

bool is_start(const std::string& phase) { return phase == "spawn" || phase == "attach" || phase == "device"; }
bool is_of_call(const Cell& cell) { return !is_start(cell.phase) && cell.phase != "idle" && cell.phase != "close"; }
bool is_of_body(const Cell& cell) { return is_of_call(cell) && cell.phase != "dependencies"; }
bool hangs(const Cell& cell) { return cell.way == "stop" || cell.way == "loop"; }
bool throws(const Cell& cell) {
  return cell.way == "exception" || cell.way == "number" || cell.way == "memory" || cell.way == "shared";
}

/// The first call of the program starts children. The second goes through every phase but `dependencies`. The program
/// makes calls of its own for this phase, and each rank is in it once.
std::string fault_of(const Cell& cell) {
  std::string fault = "rank=" + std::to_string(cell.rank) + ",phase=" + cell.phase + ",way=" + cell.way;
  if (is_of_body(cell)) fault += ",call=2";
  if (cell.phase == "idle") fault += ",call=1";
  return fault;
}

std::string in_words(const std::string& way) {
  static const std::map<std::string, std::string> kWords{
      {"kill", "killed by SIGKILL (Killed)"},
      {"segv", "killed by SIGSEGV (Segmentation fault)"},
      {"exit0", "exited with code 0"},
      {"exit3", "exited with code 3"},
      {"exception", "injected fault: exception on rank"},
      {"number", "an exception that is not a std::exception"},
      {"memory", "std::bad_alloc"},
      {"shared", "requires 4096 bytes of shared memory"},
  };
  const auto found = kWords.find(way);
  return found == kWords.end() ? "" : found->second;
}

/// What the program prints about the error that it has caught.
struct Report {
  std::chrono::nanoseconds at{};
  std::vector<std::string> fields;  // kind, rank, pid, device, call, phase, cause
  enum Field : std::uint8_t { kKind, kRank, kPid, kDevice, kCall, kPhase, kCause };
  const std::string& operator[](Field field) const { return fields.at(field); }
};

std::optional<Report> report_in(const std::string& output) {
  const auto line = line_after(output, "failed ");
  if (!line) return std::nullopt;
  Report report;
  report.at = std::chrono::nanoseconds(std::stoll(*line));
  std::istringstream rest(line->substr(line->find(' ') + 1));
  for (std::string field; std::getline(rest, field, '|');) report.fields.push_back(field);
  report.fields.resize(7);
  return report;
}

/// The time at which the worker failed, as the worker itself has printed it.
std::optional<std::chrono::nanoseconds> time_of_fault(const std::string& errors) {
  const auto words = line_after(errors.substr(std::min(errors.find("injected fault: "), errors.size())), "injected ");
  const auto at = words ? words->rfind(" at ") : std::string::npos;
  if (at == std::string::npos) return std::nullopt;
  return std::chrono::nanoseconds(std::stoll(words->substr(at + 4)));
}

std::string kind_of(const Cell& cell) {
  switch (outcome_of(cell)) {
    case Outcome::lost:
    case Outcome::grace: return "worker lost";
    case Outcome::deadline: return "timeout";
    case Outcome::goes_on: return cell.way == "shared" || cell.phase == "reduction" ? "system" : "function";
    case Outcome::none: break;
  }
  return "";
}

/// The part of the verdict before the cause: the call and the phase.
std::string place_of(const Cell& cell) {
  if (is_start(cell.phase)) return "(phase " + cell.phase;
  if (cell.phase == "idle") return "(idle)";
  if (cell.phase == "close") return "while closing (phase close)";
  return "in call 'work' (phase " + cell.phase + ")";
}

/// The verdict's first line names rank, device, pid, call, phase and cause.
void expect_verdict(const Cell& cell, const std::string& verdict, const std::string& who, const std::string& limit) {
  EXPECT_THAT(verdict, HasSubstr(who));
  switch (outcome_of(cell)) {
    case Outcome::deadline:
      EXPECT_THAT(verdict, HasSubstr(who + " is in phase " + cell.phase));
      EXPECT_THAT(
          verdict,
          HasSubstr((is_start(cell.phase) ? "did not start within " : "call 'work' did not finish within ") + limit));
      if (cell.way == "stop") {
        EXPECT_THAT(verdict, HasSubstr(cell.phase + ", stopped by SIGSTOP"));
      }
      return;
    case Outcome::grace:
      EXPECT_THAT(verdict, HasSubstr(place_of(cell) + ": did not end within " + limit + " and was killed"));
      if (cell.way == "stop") {
        EXPECT_THAT(verdict, HasSubstr("stopped by SIGSTOP"));
      }
      return;
    default: EXPECT_THAT(verdict, HasSubstr(place_of(cell))); EXPECT_THAT(verdict, HasSubstr(in_words(cell.way)));
  }
}

void expect_report(const Cell& cell, const Report& report, const std::string& device) {
  EXPECT_EQ(report[Report::kPhase], cell.phase);
  EXPECT_EQ(report[Report::kKind], kind_of(cell));
  EXPECT_EQ(report[Report::kDevice], device);
  EXPECT_EQ(report[Report::kRank], std::to_string(cell.rank));
  const bool has_call = is_of_call(cell) || (cell.phase == "idle" && hangs(cell));
  EXPECT_EQ(report[Report::kCall], has_call ? "work" : "");
}

/// Checks that the last output of the worker was printed. If the worker is gone, the verdict also repeats it.
void expect_last_words(const Cell& cell, const std::string& errors) {
  const std::string words = "[rank " + std::to_string(cell.rank) + "] injected fault: " + cell.way;
  EXPECT_THAT(errors, HasSubstr(words));
  if (outcome_of(cell) == Outcome::lost) {
    EXPECT_THAT(errors, HasSubstr("\n  " + words));
  }
}

std::string outcome_in_words(Outcome outcome) {
  switch (outcome) {
    case Outcome::lost: return "named";
    case Outcome::goes_on: return "goes on";
    case Outcome::deadline: return "deadline";
    case Outcome::grace: return "grace";
    case Outcome::none: return "ends: the worker is supposed to end here, with this exit code";
  }
  return "";
}

}  // namespace

void record(const std::string& table, const std::string& row, const std::string& column, const std::string& outcome,
            std::chrono::nanoseconds time) {
  testing::Test::RecordProperty("table", table);
  testing::Test::RecordProperty("row", row);
  testing::Test::RecordProperty("column", column);
  testing::Test::RecordProperty("outcome", outcome);
  if (time.count() != 0) testing::Test::RecordProperty("time_us", std::to_string(time.count() / 1000));
}

void PrintTo(const Cell& cell, std::ostream* out) { *out << cell.phase << " " << cell.way << " on rank " << cell.rank; }

std::string name_of(const testing::TestParamInfo<Cell>& cell) {
  return cell.param.phase + "_" + cell.param.way + "_rank" + std::to_string(cell.param.rank);
}

std::vector<Cell> cells_of(const std::vector<std::string>& phases, const std::vector<std::string>& ways,
                           const std::vector<int>& ranks) {
  std::vector<Cell> cells;
  for (const auto& phase : phases) {
    for (const auto& way : ways) {
      for (const int rank : ranks) cells.push_back({phase, way, rank});
    }
  }
  return cells;
}

Outcome outcome_of(const Cell& cell) {
  if (cell.phase == "close" && cell.way == "exit0") return Outcome::none;
  if (hangs(cell)) return cell.phase == "close" ? Outcome::grace : Outcome::deadline;
  return throws(cell) && is_of_body(cell) ? Outcome::goes_on : Outcome::lost;
}

Variable::Variable(std::string name, const std::string& value) : name_(std::move(name)) {
  ::setenv(name_.c_str(), value.c_str(), 1);
}
Variable::~Variable() { ::unsetenv(name_.c_str()); }

void expect_nothing_left(const CommandRun& run, const RunFolder& folder) {
  EXPECT_TRUE(run.nothing_remains()) << "processes of the job remain";
  EXPECT_TRUE(folder.is_empty()) << "temporary files remain";
  EXPECT_EQ(named_shared_memory(), std::set<std::string>()) << "named shared memory remains";
}

std::optional<std::string> line_after(const std::string& text, const std::string& start) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(start)) return line.substr(start.size());
  }
  return std::nullopt;
}

void expect_cell(const Cell& cell, const std::string& device_kind, int world_size) {
  const Outcome outcome = outcome_of(cell);
  const std::string device = device_kind + std::to_string(cell.rank);
  std::string devices;
  for (int rank = 0; rank < world_size; ++rank) {
    devices += (rank == 0 ? "" : ",") + device_kind + std::to_string(rank);
  }
  const auto deadline = !hangs(cell) ? kPatience : device_kind == "cuda" ? kGpuDeadline : kDeadline;
  const std::string limit_ms = std::to_string(deadline.count());
  const Variable fault("SYNCRUN_FAULT", fault_of(cell));
  const RunFolder folder;
  const std::string start_limit = std::to_string((is_start(cell.phase) ? deadline : kPatience) / 1s);
  const std::string calls = cell.phase == "dependencies" ? cell.phase : "";
  CommandRun run({"--devices", devices, "--quiet", "--start-timeout", start_limit, SYNCRUN_MATRIX_PROGRAM, limit_ms,
                  limit_ms, calls});
  EXPECT_EQ(run.exit_code(), outcome == Outcome::none ? 0 : 1) << run.errors();
  expect_nothing_left(run, folder);

  const std::string output = run.output();
  const std::string errors = run.errors();
  SCOPED_TRACE(errors);
  const auto struck = time_of_fault(errors);
  ASSERT_TRUE(struck.has_value()) << "the worker has not come to its fault";
  expect_last_words(cell, errors);
  if (outcome == Outcome::none) return record(device_kind, cell.phase, cell.way, outcome_in_words(outcome));

  const auto report = report_in(output);
  ASSERT_TRUE(report.has_value()) << output;
  expect_report(cell, *report, device);
  const auto time = report->at - *struck;
  EXPECT_LT(time, kErrorLimit + (hangs(cell) ? deadline : 0ms));
  std::string pid = (*report)[Report::kPid];
  if (const auto ready = line_after(output, "ready ")) {
    std::istringstream pids(*ready);
    for (int rank = 0; rank <= cell.rank; ++rank) pids >> pid;
    EXPECT_EQ((*report)[Report::kPid], pid);
  }
  const auto verdict = line_after(errors, "syncrun: ");
  ASSERT_TRUE(verdict.has_value());
  expect_verdict(cell, *verdict, "rank " + std::to_string(cell.rank) + " (" + device + ", pid " + pid + ")",
                 limit_ms + " ms");
  EXPECT_EQ(line_after(output, "usable").has_value(), outcome == Outcome::goes_on)
      << "whether the next call of the session gives the right result";
  record(device_kind, cell.phase, cell.way, outcome_in_words(outcome), time);
}

}  // namespace syncrun::test
