// Odd events that at first kill no process: the program closes descriptors that are not its own, output files are
// pipes, functions fork or call exec, the master is stopped. In bounded time, the job continues or an error names the
// event.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "tests/fault/matrix/matrix.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLimit = 5s;

struct Moment {
  std::string row;  // as in scripts/reliability.py
  bool has_syncrun;
};
void PrintTo(const Moment& moment, std::ostream* out) { *out << moment.row; }

class Odd : public testing::TestWithParam<Moment> {
 protected:
  /// Runs the program until it ends.
  void run(std::vector<std::string> options, const std::string& what, int exit_code = 1) {
    options.insert(options.begin(), {"-n", "3", "--quiet"});
    const std::vector<std::string> program{"20000", "2000", what};
    const bool has_syncrun = GetParam().has_syncrun;
    std::vector<std::string> arguments = program;
    if (has_syncrun) {
      arguments = options;
      arguments.emplace_back(SYNCRUN_MATRIX_PROGRAM);
      arguments.insert(arguments.end(), program.begin(), program.end());
    }
    run_.emplace(arguments, Start{}, has_syncrun ? "" : SYNCRUN_MATRIX_PROGRAM);
    EXPECT_EQ(run_->exit_code(), exit_code) << run_->errors();
    expect_nothing_left(*run_, folder_);
  }
  void record_moment(const std::string& row, const std::string& outcome, std::chrono::nanoseconds time) {
    EXPECT_LT(time, kLimit);
    record("odd", row, GetParam().has_syncrun ? "syncrun" : "alone", outcome, time);
  }
  void record_named(const std::string& row, std::chrono::nanoseconds time) { record_moment(row, "named", time); }
  /// The time from the odd event to the exception in the master.
  std::chrono::nanoseconds time_to_failure() {
    const std::string began = line_after(run_->output(), "began ").value_or("0");
    const std::string failed = line_after(run_->output(), "failed ").value_or("0");
    return std::chrono::nanoseconds(std::stoll(failed) - std::stoll(began));
  }

  void forked() {
    const Variable processes("SYNCRUN_NPROC_PER_NODE", "3");
    run({}, "fork", 0);
    EXPECT_THAT(run_->output(), HasSubstr("function|1|"));
    EXPECT_THAT(run_->output(), HasSubstr("a child that the function had forked, came back from it"));
    EXPECT_THAT(run_->output(), HasSubstr("done")) << "the next call gives the right result";
    record_moment("fork in a function", "goes on", time_to_failure());
  }
  void executed() {
    const Variable processes("SYNCRUN_NPROC_PER_NODE", "3");
    run({}, "exec");
    EXPECT_THAT(run_->errors(), HasSubstr("was lost in call 'exec' (phase function): called exec: its process runs "));
    record_named("exec in a function", time_to_failure());
  }
  void stopped() {
    const Variable processes("SYNCRUN_NPROC_PER_NODE", "3");
    run({}, "stopped", 0);
    EXPECT_THAT(run_->output(), HasSubstr("done"));
    record_moment("stopped master, call in flight", "goes on", std::chrono::nanoseconds(0));
  }

  void closed(const std::string& when) {
    const Variable processes("SYNCRUN_NPROC_PER_NODE", "3");
    run({}, "close-" + when);
    EXPECT_THAT(run_->errors(), HasSubstr("the program has closed file descriptors that Syncrun uses"));
    record_named("closed descriptors, " + when, time_to_failure());
  }
  void fifo(const std::string& option, const std::string& variable, const std::string& what) {
    // Not in the folder for temporary files of the run, because that must be empty at the end.
    const bool is_log = option == "--log-dir";
    const std::string folder = outside_.path().string();
    const std::string file = outside_ / (is_log ? "rank0.log" : "file");
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    const auto begin = Clock::now();
    {
      const Variable value(variable, is_log ? folder : file);
      const Variable processes("SYNCRUN_NPROC_PER_NODE", "3");
      run({option, is_log ? folder : file}, "");
    }
    const auto time = Clock::now() - begin;
    EXPECT_THAT(run_->last_error_line(), HasSubstr("cannot write the " + what));
    EXPECT_THAT(run_->last_error_line(), HasSubstr("found a pipe"));
    record_named("FIFO as " + (is_log ? "log" : what), time);
  }

 private:
  TemporaryFolder outside_;  // created before the run sets its own folder for temporary files
  RunFolder folder_;
  std::optional<CommandRun> run_;
};

TEST_P(Odd, IsNamedOrGoesOnInBoundedTime) {
  const std::string& row = GetParam().row;
  if (row == "closedIdle") closed("idle");
  else if (row == "closedCall") closed("call");
  else if (row == "fork") forked();
  else if (row == "exec") executed();
  else if (row == "stopped") stopped();
  else if (row == "fifoLog") fifo("--log-dir", "SYNCRUN_LOG_DIR", "log file");
  else if (row == "fifoProfile") fifo("--profile", "SYNCRUN_PROFILE", "profile");
  else fifo("--trace", "SYNCRUN_TRACE", "trace");
}

std::vector<Moment> moments() {
  std::vector<Moment> all;
  for (const char* row :
       {"fork", "exec", "stopped", "closedIdle", "closedCall", "fifoLog", "fifoProfile", "fifoTrace"}) {
    for (const bool has_syncrun : {false, true}) all.push_back({row, has_syncrun});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Of, Odd, testing::ValuesIn(moments()), [](const auto& test) {
  return test.param.row + (test.param.has_syncrun ? "_syncrun" : "_alone");
});

}  // namespace
}  // namespace syncrun::test
