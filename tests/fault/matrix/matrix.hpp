#pragma once

// The matrix of phases and ways to fail: its cells, and the check of a cell. A cell is a run of `syncrun` with a
// program in which the worker of one rank fails, in one phase and in one way.

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/command_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {

struct Cell {
  std::string phase;
  std::string way;
  int rank = 0;
};
void PrintTo(const Cell& cell, std::ostream* out);
std::string name_of(const testing::TestParamInfo<Cell>& cell);
/// One cell for each combination of a phase, a way and a rank.
std::vector<Cell> cells_of(const std::vector<std::string>& phases, const std::vector<std::string>& ways,
                           const std::vector<int>& ranks);

/// What the failure does to the session.
enum class Outcome : std::uint8_t {
  lost,      // the worker is gone, so the session is over
  goes_on,   // the call throws an error, and the session can be used as before
  deadline,  // the worker hangs, and the deadline of the call or of the start ends the session
  grace,     // the worker hangs while closing, and the grace period ends the session
  none,      // the worker was about to end anyway
};
Outcome outcome_of(const Cell& cell);

/// Sets an environment variable for as long as the object lives.
class Variable {
 public:
  Variable(std::string name, const std::string& value);
  ~Variable();
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
};

/// A folder for the temporary files of a run. It is empty after a run that has cleaned up.
class RunFolder {
 public:
  bool is_empty() const { return folder_.is_empty(); }

 private:
  TemporaryFolder folder_;
  Variable variable_{"TMPDIR", folder_.path().string()};
};

/// Checks that nothing of the job is left: no processes, entries of /dev/shm or temporary files.
void expect_nothing_left(const CommandRun& run, const RunFolder& folder);

/// The first line that begins with `start`, without this beginning; empty if there is no such line.
std::optional<std::string> line_after(const std::string& text, const std::string& start);

/// Records the content of a cell in a table of docs/reliability.md.
void record(const std::string& table, const std::string& row, const std::string& column, const std::string& outcome,
            std::chrono::nanoseconds time = {});

/// Runs the cell on devices of this kind ("cpu", "cuda"). Checks its messages and that it leaves nothing behind.
void expect_cell(const Cell& cell, const std::string& device_kind, int world_size);

}  // namespace syncrun::test
