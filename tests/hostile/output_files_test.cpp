// Output files that are symbolic links, which the program does not follow, and files that exist. tests/fault/matrix has
// pipes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/hostile/surroundings.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

struct Output {
  std::string option;
  std::string variable;
  std::string what;
};
void PrintTo(const Output& output, std::ostream* out) { *out << output.option; }

class OutputTo : public testing::TestWithParam<std::tuple<Front, Output>> {
 protected:
  std::string output() const { return std::get<Output>(GetParam()).option; }
  /// The file that the program will open.
  std::string file() const { return folder_.at(output() == "log-dir" ? "rank1.log" : "file"); }
  /// Runs a program that writes to the file. Returns the last line of its standard error.
  std::string last_line(int exit_code) const {
    const std::string value = output() == "log-dir" ? folder_.path().string() : file();
    const std::string& variable = std::get<Output>(GetParam()).variable;
    const bool has_syncrun = std::get<Front>(GetParam()) == Front::syncrun;
    std::vector<std::string> arguments{"add"};
    if (has_syncrun) arguments = {"--quiet", "--" + output(), value, ODD_PROGRAM, "add"};
    else ::setenv(variable.c_str(), value.c_str(), 1);
    CommandRun run(arguments, {}, has_syncrun ? "" : ODD_PROGRAM);
    ::unsetenv(variable.c_str());
    run.expect_end(exit_code);
    return run.last_error_line();
  }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Program, OutputTo,
                         testing::Combine(testing::Values(Front::nothing, Front::syncrun),
                                          testing::Values(Output{"log-dir", "SYNCRUN_LOG_DIR", "the log file"},
                                                          Output{"profile", "SYNCRUN_PROFILE", "the profile"},
                                                          Output{"trace", "SYNCRUN_TRACE", "the trace"})),
                         [](const auto& test) {
                           const std::string option = std::get<1>(test.param).option;
                           return to_string(std::get<0>(test.param)) + "_" + option.substr(0, option.find('-'));
                         });

TEST_P(OutputTo, ASymbolicLinkIsRefusedAndItsTargetStays) {
  write_text(folder_.at("precious"), "precious");
  ASSERT_EQ(::symlink(folder_.at("precious").c_str(), file().c_str()), 0);
  EXPECT_THAT(last_line(1),
              testing::StartsWith("syncrun: cannot write " + std::get<Output>(GetParam()).what + " " + file() +
                                  ": expected a file or a character device, found a symbolic link"));
  EXPECT_EQ(text_of(folder_.at("precious")), "precious");
}

TEST_P(OutputTo, AFileThatIsThereIsWrittenAnew) {
  write_text(file(), "of the run before");
  last_line(0);
  EXPECT_THAT(text_of(file()), testing::Not(HasSubstr("of the run before")));
}

// ---- a locale with a decimal comma ---------------------------------------------------------------------------------

TEST(DecimalComma, ChangesNeitherOptionsNorTheTrace) {
  const TemporaryFolder folder;
  const std::string make = "localedef -i de_DE -f UTF-8 " + folder.at("de_DE.UTF-8") + " 2>/dev/null";
  if (std::system(make.c_str()) != 0) GTEST_SKIP() << "no German locale can be made here (packages locales, libc-bin)";
  Start start;
  start.in_child = [&] {
    ::setenv("LOCPATH", folder.path().c_str(), 1);
    ::setenv("LC_ALL", "de_DE.UTF-8", 1);
  };
  const std::string trace = folder.at("trace.json");
  CommandRun run({"--timeout", "120.5", "--node-timeout", "2.5", "--trace", trace, ODD_PROGRAM, "locale"}, start);
  EXPECT_EQ(run.exit_code(), 0) << run.errors();
  EXPECT_EQ(run.output(), "0,5 1048576\n") << "the program does follow the locale";
  const std::string check = "python3 -c 'import json; json.load(open(\"" + trace + "\", encoding=\"utf-8\"))'";
  EXPECT_EQ(std::system(check.c_str()), 0) << text_of(trace);
}

}  // namespace
}  // namespace syncrun::test
