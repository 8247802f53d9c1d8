#pragma once

// The matrix of phases and ways to fail: its cells, and what is looked at in each. A cell is a run of `syncrun` around a
// program whose worker of one rank fails in one phase in one way.

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/launcher/command_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {

struct Cell {
  std::string phase;
  std::string way;
  int rank = 0;
};
void PrintTo(const Cell& cell, std::ostream* out);
std::string name_of(const testing::TestParamInfo<Cell>& cell);
/// Every phase in every way on each of the ranks.
std::vector<Cell> cells_of(const std::vector<std::string>& phases, const std::vector<std::string>& ways,
                           const std::vector<int>& ranks);

/// What becomes of the session.
enum class Outcome : std::uint8_t {
  lost,      // the worker is gone: the session is over
  goes_on,   // an error of the call: the session is as good as before
  deadline,  // the worker hangs: the deadline of what it is in ends the session
  grace,     // the same while closing
  none,      // it was to end, and did
};
Outcome outcome_of(const Cell& cell);

/// An environment variable, for as long as it lives.
class Variable {
 public:
  Variable(std::string name, const std::string& value);
  ~Variable();
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
};

/// Where temporary files of a run go: a folder of its own, empty again when all is well.
class RunFolder {
 public:
  bool is_empty() const { return folder_.is_empty(); }

 private:
  TemporaryFolder folder_;
  Variable variable_{"TMPDIR", folder_.path().string()};
};

/// Nothing of the job is left: processes, entries of /dev/shm, temporary files.
void expect_nothing_left(const CommandRun& run, const RunFolder& folder);

/// The rest of the first line that starts so, if there is one.
std::optional<std::string> line_after(const std::string& text, const std::string& start);

/// For docs/reliability.md: what a cell of a table says.
void record(const std::string& table, const std::string& row, const std::string& column, const std::string& outcome,
            std::chrono::nanoseconds time = {});

/// Runs the cell on these devices ("cpu", "cuda"), and holds what it says and leaves against what it should.
void expect_cell(const Cell& cell, const std::string& device_kind, int world_size);

}  // namespace syncrun::test
