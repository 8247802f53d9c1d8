// How a program is found, what may happen to its file while it runs, and files that are not programs.

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/hostile/surroundings.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void make_executable(const std::string& file) {
  fs::permissions(file, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec, fs::perm_options::add);
}

void expect_sum(CommandRun& run) {
  EXPECT_EQ(run.exit_code(), 0) << run.errors();
  EXPECT_EQ(run.output(), sum_of(1 << 20));
}

/// A folder with a copy of the program that has the name "a program". It is the current folder of the child.
class Program : public testing::Test {
 protected:
  Program() {
    fs::copy_file(ODD_PROGRAM, copy_);
    start_.in_child = [this] {
      require(::chdir(folder_.path().c_str()) == 0);
      ::setenv("PATH", (folder_.path().string() + ":/usr/bin:/bin").c_str(), 1);
    };
  }
  std::string file(const std::string& name, const std::string& text) const {
    write_text(folder_.at(name), text);
    make_executable(folder_.at(name));
    return "./" + name;
  }
  void expect_cannot(const std::string& program, int code, const std::string& words) const {
    CommandRun run({program}, start_);
    run.expect_end(code);
    EXPECT_THAT(run.last_error_line(), HasSubstr(words));
    EXPECT_THAT(run.last_error_line(), HasSubstr(program));
  }

  TemporaryFolder folder_;
  std::string copy_ = folder_.at("a program");
  Start start_;
};

TEST_F(Program, WhoseLibraryTheLoaderDoesNotFindIsToldHowItDoes) {
  if (!can_mount()) GTEST_SKIP() << "this machine lets nobody mount over a folder";
  const auto build = fs::path(SYNCRUN_COMMAND).parent_path().parent_path();
  start_.in_child = [&] { mount_over(build / "lib"); };
  CommandRun run({ODD_PROGRAM, "add"}, start_);
  EXPECT_EQ(run.exit_code(), 127);
  EXPECT_THAT(run.errors(), HasSubstr("error while loading shared libraries: libsyncrun.so.")) << "the loader's line";
  EXPECT_THAT(run.last_error_line(), HasSubstr("ended (exited with code 127) before its main"));
  EXPECT_THAT(run.last_error_line(), HasSubstr("If it is libsyncrun.so.0"));
  EXPECT_THAT(run.last_error_line(), HasSubstr("LD_LIBRARY_PATH="));
}

TEST_F(Program, IsFoundByItsPathInThePathThroughLinksAndByAScript) {
  fs::create_symlink("a program", folder_.at("link"));
  fs::create_hard_link(copy_, folder_.at("second name"));
  for (const std::string name : {"./a program", "a program", "./link", "link", "second name", "../*"}) {
    const std::string path = name == "../*" ? "../" + folder_.path().filename().string() + "/link" : name;
    CommandRun run({path, "add"}, start_);
    expect_sum(run);
  }
  CommandRun run({file("script", "#!/bin/sh\nexec './a program' \"$@\"\n"), "add"}, start_);
  expect_sum(run);
}

class FileThatGoes : public Program, public testing::WithParamInterface<Front> {
 protected:
  /// Changes the file of the program after the program has started and before it starts its workers.
  void expect_works_after(const std::function<void()>& change) {
    const Arguments late{"late", folder_.at("go")};
    Arguments behind{copy_};
    behind.insert(behind.end(), late.begin(), late.end());
    const bool is_alone = GetParam() == Front::nothing;
    CommandRun run(is_alone ? late : behind, {}, is_alone ? copy_ : "");
    ASSERT_TRUE(run.prints("ready")) << run.errors();
    change();
    write_text(folder_.at("go"), "");
    EXPECT_EQ(run.exit_code(), 0) << run.errors();
    EXPECT_EQ(run.output(), "ready\n1048576\n");
  }
};
INSTANTIATE_ON_BOTH_FRONTS(FileThatGoes);

TEST_P(FileThatGoes, OrIsReplacedWhileTheProgramRunsIsNotMissed) {
  expect_works_after([this] { fs::remove(copy_); });
  fs::copy_file(ODD_PROGRAM, copy_);
  fs::remove(folder_.at("go"));
  expect_works_after([this] {
    write_text(folder_.at("new"), "#!/bin/false\n");
    make_executable(folder_.at("new"));
    fs::rename(folder_.at("new"), copy_);
  });
}

TEST_F(Program, ThatIsNoneIsRefused) {
  fs::permissions(copy_, fs::perms::owner_read);
  expect_cannot("./a program", 126, "expected a program that can be executed, got: Permission denied");
  expect_cannot("./missing", 127, "program not found");
  expect_cannot("missing", 127, "program not found in PATH");
  expect_cannot(folder_.path(), 126, "expected a program that can be executed, got: Is a directory");
}

TEST_F(Program, ThatCannotBeExecutedHereIsRefused) {
  const std::string words = "Exec format error (neither a program for this machine nor a script that begins with #!)";
  std::string image = text_of(ODD_PROGRAM);
  image.at(offsetof(Elf64_Ehdr, e_machine)) = static_cast<char>(0x16);  // s390
  for (const std::string& text : {std::string(), std::string("echo hello\n"), std::string("\177ELF and so on"), image})
    expect_cannot(file("file", text), 126, words);
  expect_cannot(file("script", "#!/there/is/no/such/shell\n"), 126,
                "No such file or directory (the file is there: the interpreter or loader that it names is not)");
}

TEST_F(Program, ThatIsCutOffEndsWithAReason) {
  CommandRun run({file("cut", text_of(ODD_PROGRAM).substr(0, 4000))}, start_);
  EXPECT_NE(run.exit_code(), 0);
  EXPECT_THAT(run.errors(), HasSubstr("./cut"));
  EXPECT_TRUE(run.nothing_remains());
}

}  // namespace
}  // namespace syncrun::test
