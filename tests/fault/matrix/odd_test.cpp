// Odd moments, in which nobody dies at first: the program closes descriptors that are not its own, and files that are to be
// written are pipes. All of it ends by name, in bounded time.

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
  /// Runs the program to its end, which it comes to with exit code 1.
  void run(std::vector<std::string> options, const std::string& what) {
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
    EXPECT_EQ(run_->exit_code(), 1) << run_->errors();
    expect_nothing_left(*run_, folder_);
  }
  void record_named(const std::string& row, std::chrono::nanoseconds time) {
    EXPECT_LT(time, kLimit);
    record("odd", row, GetParam().has_syncrun ? "syncrun" : "alone", "named", time);
  }

  void closed(const std::string& when) {
    const Variable processes("SYNCRUN_NPROC_PER_NODE", "3");
    run({}, "close-" + when);
    const std::string closed = line_after(run_->output(), "closed ").value_or("0");
    const std::string failed = line_after(run_->output(), "failed ").value_or("0");
    EXPECT_THAT(run_->errors(), HasSubstr("the program has closed file descriptors that Syncrun uses"));
    record_named("closed descriptors, " + when, std::chrono::nanoseconds(std::stoll(failed) - std::stoll(closed)));
  }
  void fifo(const std::string& option, const std::string& variable, const std::string& what) {
    // Not in the run's own folder for temporary files, which has to be empty.
    std::string folder = outside_ + "syncrun-fifo-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    const bool is_log = option == "--log-dir";
    const std::string file = folder + (is_log ? "/rank0.log" : "/file");
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    const auto begin = Clock::now();
    {
      const Variable value(variable, is_log ? folder : file);
      const Variable processes("SYNCRUN_NPROC_PER_NODE", "3");
      run({option, is_log ? folder : file}, "");
    }
    const auto time = Clock::now() - begin;
    std::filesystem::remove_all(folder);
    EXPECT_THAT(run_->last_error_line(), HasSubstr("cannot write the " + what));
    EXPECT_THAT(run_->last_error_line(), HasSubstr("found a pipe"));
    record_named("FIFO as " + (is_log ? "log" : what), time);
  }

 private:
  const std::string outside_ = testing::TempDir();  // before the run has one of its own
  TemporaryFolder folder_;
  std::optional<CommandRun> run_;
};

TEST_P(Odd, EndsByNameInBoundedTime) {
  const std::string& row = GetParam().row;
  if (row == "closedIdle") closed("idle");
  else if (row == "closedCall") closed("call");
  else if (row == "fifoLog") fifo("--log-dir", "SYNCRUN_LOG_DIR", "log file");
  else if (row == "fifoProfile") fifo("--profile", "SYNCRUN_PROFILE", "profile");
  else fifo("--trace", "SYNCRUN_TRACE", "trace");
}

std::vector<Moment> moments() {
  std::vector<Moment> all;
  for (const char* row : {"closedIdle", "closedCall", "fifoLog", "fifoProfile", "fifoTrace"}) {
    for (const bool has_syncrun : {false, true}) all.push_back({row, has_syncrun});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Of, Odd, testing::ValuesIn(moments()), [](const auto& test) {
  return test.param.row + (test.param.has_syncrun ? "_syncrun" : "_alone");
});

}  // namespace
}  // namespace syncrun::test
