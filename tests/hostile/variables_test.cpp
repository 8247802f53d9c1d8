// Variables of Syncrun that a user has set by accident, with a typing error, or for a program that has more
// privileges than they have.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "tests/hostile/surroundings.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Setting {
  std::string name;  // without SYNCRUN_
  std::string value;
};
using Settings = std::vector<Setting>;

void set_all(const Settings& settings) {
  for (const auto& [name, value] : settings) ::setenv(("SYNCRUN_" + name).c_str(), value.c_str(), 1);
}

OddRun run_with(const Settings& settings, Front front = Front::nothing) {
  return run_after([settings] { set_all(settings); }, front, {"add"});
}

// ---- internal ones ----------------------------------------------------------------------------------------------

/// Descriptors that a worker or helper might mistake for its own: 17 is a file, 18 is a socket of this process.
void open_foreign_descriptors() {
  std::array<int, 2> ends{};
  ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data());
  ::dup2(ends[0], 18);
  ::dup2(::open("/dev/null", O_RDWR), 17);
}

struct Accident {
  std::string name;
  Settings settings;  // besides the rank
  std::string words;
};
void PrintTo(const Accident& accident, std::ostream* out) { *out << accident.name; }

/// This process is the parent of the program and has a socket pair. By accident, no process can resemble a master more
/// closely.
const std::string kParent = std::to_string(::getpid());

class InternalVariables : public testing::TestWithParam<Accident> {};
INSTANTIATE_TEST_SUITE_P(
    Set, InternalVariables,
    testing::Values(Accident{"Role", {}, "SYNCRUN_MASTER_PID: expected a value from the master"},
                    Accident{"Init", {{"MASTER_PID", "1"}}, "SYNCRUN_SOCKET_FD: expected a value"},
                    Accident{"NoNumber",
                             {{"MASTER_PID", "me"}},
                             "SYNCRUN_MASTER_PID: expected a whole number from 0 to 2147483647, got 'me'"},
                    Accident{
                        "TooLarge",
                        {{"MASTER_PID", "99999999999999999999"}},
                        "SYNCRUN_MASTER_PID: expected a whole number from 0 to 2147483647, got '99999999999999999999'"},
                    Accident{"Closed",
                             {{"MASTER_PID", kParent}, {"SOCKET_FD", "16"}},
                             "SYNCRUN_SOCKET_FD: expected an open descriptor, of the socket of the process " + kParent +
                                 ", this one's master, got '16' (Bad file descriptor)"},
                    Accident{"File",
                             {{"MASTER_PID", kParent}, {"SOCKET_FD", "17"}},
                             "SYNCRUN_SOCKET_FD: expected the socket of the process " + kParent +
                                 ", this one's master, got '17', which is another file"},
                    Accident{"OtherSocket",
                             {{"MASTER_PID", kParent}, {"SOCKET_FD", "18"}},
                             "this one's master, got '18', which is another file"}),
    [](const auto& test) { return test.param.name; });

TEST_P(InternalVariables, ByAccidentAreNamedAndNobodyIsKilledAndSyncrunRemovesThem) {
  for (const char* role : {"WORKER_RANK", "HELPER"}) {
    Settings settings = GetParam().settings;
    settings.push_back({role, "0"});
    // The program leads a process group that contains another process, like the first process of a pipeline in a shell.
    Start start;
    start.in_child = [&] {
      open_foreign_descriptors();
      set_all(settings);
    };
    CommandRun run({"-c", "sleep 1000 & exec \"$0\" add", ODD_PROGRAM}, start, "/bin/sh");
    EXPECT_EQ(run.exit_code(), 1);
    EXPECT_THAT(run.errors(), HasSubstr(GetParam().words));
    EXPECT_THAT(run.errors(), HasSubstr("Only Syncrun sets its internal variables"));
    // The neighbour may just be executing `sleep`, and has no environment at that moment.
    EXPECT_TRUE(eventually([&] { return run.processes().size() == 1; })) << "its neighbour in the group lives";
    OddRun behind = run_with(settings, Front::syncrun);
    behind.expect_end(0);
    EXPECT_EQ(behind.output(), sum_of(1 << 20));
  }
}

/// The socket belongs to the parent, but the file for the shared memory does not.
TEST(InternalVariables, OfAnotherFileForTheSharedMemoryAreNamed) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const Settings settings{{"WORKER_RANK", "0"}, {"MASTER_PID", kParent}, {"SOCKET_FD", "18"},
                          {"DEVICE", "cpu0"},   {"SEGMENT_FD", "17"},    {"SEGMENT_BYTES", "1073741824"}};
  OddRun run = run_after(
      [&] {
        open_foreign_descriptors();
        ::dup2(ends[0], 18);
        set_all(settings);
      },
      Front::nothing, {"add"});
  EXPECT_EQ(run.exit_code(), 1);
  EXPECT_THAT(run.errors(),
              HasSubstr("SYNCRUN_SEGMENT_FD: expected the shared memory of the master's session, got '17', "
                        "which is another file"));
  ::close(ends[0]);
  ::close(ends[1]);
}

// ---- public ones ------------------------------------------------------------------------------------------------

class PublicVariables : public OnBothFronts {};
INSTANTIATE_ON_BOTH_FRONTS(PublicVariables);

TEST_P(PublicVariables, WithBadValuesAreNamedWithValueAndExpectation) {
  for (const auto& [name, value] :
       Settings{{"TIMEOUT", "soon"},       {"TIMEOUT", "nan"},         {"TIMEOUT", "1e99"},
                {"START_TIMEOUT", "-1"},   {"LOG_LEVEL", "loud"},      {"METRICS", "0"},
                {"RESERVE_BYTES", "much"}, {"RESERVE_BYTES", "0"},     {"MEMORY_CHECK", "no"},
                {"NODE_TIMEOUT", "0.4"},   {"TREE_FROM", "1"},         {"BIND_TO", "slot"},
                {"TAG", "maybe"},          {"TIMESTAMPS", "2"},        {"JSON_LOG", "yes"},
                {"ONLY_RANK", "x"},        {"LOG_SIZE", "much"},       {"WRAP", "x:env"},
                {"QUIET", "no"},           {"REPORT_BINDINGS", "yes"}, {"DUMP_SHARED", "all"},
                {"DEVICES", "gpx0"},       {"NPROC_PER_NODE", "many"}, {"NODE_LINKS", "eth0.of.this.host"}}) {
    OddRun run = run_with({{name, value}}, GetParam());
    run.expect_end(1);
    for (const std::string& words : {"SYNCRUN_" + name, std::string("expected "), "'" + value + "'"})
      EXPECT_THAT(run.last_error_line(), HasSubstr(words));
  }
}

TEST(PublicVariablesThatAreSwitches, MayBeOff) {
  OddRun off = run_with({{"QUIET", "off"}, {"REPORT_BINDINGS", "0"}}, Front::syncrun);
  off.expect_end(0);
  EXPECT_THAT(off.errors(), HasSubstr("rank 0 on cpu0, rank 1 on cpu1\n"));
  EXPECT_THAT(off.errors(), Not(HasSubstr("rank 0 on cpu0: core")));
  OddRun on = run_with({{"QUIET", "1"}, {"REPORT_BINDINGS", "on"}}, Front::syncrun);
  on.expect_end(0);
  EXPECT_THAT(on.errors(), HasSubstr("rank 0 on cpu0: core"));
  EXPECT_THAT(on.errors(), Not(HasSubstr("rank 0 on cpu0, rank 1 on cpu1\n")));
}

TEST(PublicVariableOfRestarts, WithABadValueIsNamedUnlessSyncrunReplacesIt) {
  for (const std::string value : {"often", "-1", "1.5"}) {
    OddRun run = run_with({{"RESTART", value}});
    run.expect_end(1);
    EXPECT_THAT(run.last_error_line(), HasSubstr("SYNCRUN_RESTART: expected a whole number from 0"));
    EXPECT_THAT(run.last_error_line(), HasSubstr("'" + value + "'"));
    OddRun restarted = run_with({{"RESTART", value}}, Front::syncrun);
    EXPECT_EQ(restarted.exit_code(), 0) << restarted.errors();
  }
}

// ---- programs with raised privileges ----------------------------------------------------------------------------

/// A copy of odd_program in a folder that all users may write to.
class PrivilegedCopy {
 public:
  PrivilegedCopy() : path_(folder_.at("privileged")) { std::filesystem::copy_file(ODD_PROGRAM, path_); }
  const std::string& path() const { return path_; }
  const TemporaryFolder& folder() const { return folder_; }

  bool set_user_id() const { return ::chmod(path_.c_str(), 04755) == 0; }
  bool set_group_id() const { return ::chmod(path_.c_str(), 02755) == 0; }
  /// Does the same as setcap cap_sys_nice+ep.
  bool set_capability() const {
    vfs_cap_data capabilities{};
    capabilities.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE;
    capabilities.data[0].permitted = 1U << CAP_SYS_NICE;
    return ::chmod(path_.c_str(), 0755) == 0 &&
           ::setxattr(path_.c_str(), "security.capability", &capabilities, XATTR_CAPS_SZ_2, 0) == 0;
  }
  /// Whether the system gives these privileges to another user. Some file systems and containers do not.
  bool raises_privileges() const {
    CommandRun run({"privileged"}, {.in_child = [] { become_user(first_stranger()); }}, path_);
    return run.exit_code() == 0 && run.output() == "yes\n";
  }

  CommandRun run_by_stranger(const std::function<void()>& in_child) const {
    return CommandRun({"add"},
                      {.in_child =
                           [&] {
                             become_user(first_stranger());
                             in_child();
                           }},
                      path_);
  }

 private:
  TemporaryFolder folder_{TemporaryFolder::Access::everyone};
  std::string path_;
};

enum class Means : std::uint8_t { user, group, capability };

class RaisedPrivileges : public testing::TestWithParam<Means> {
 protected:
  void SetUp() override {
    if (!can_become_users()) GTEST_SKIP() << "only root can make such a program and become another user";
    if (!is_given(GetParam()) || !copy_.raises_privileges()) {
      GTEST_SKIP() << "this system does not raise the privileges of programs";
    }
  }
  bool is_given(Means means) const {
    switch (means) {
      case Means::user: return copy_.set_user_id();
      case Means::group: return copy_.set_group_id();
      case Means::capability: return copy_.set_capability();
    }
    return false;
  }
  PrivilegedCopy copy_;
};
INSTANTIATE_TEST_SUITE_P(By, RaisedPrivileges, testing::Values(Means::user, Means::group, Means::capability),
                         [](const auto& test) {
                           return test.param == Means::user    ? "SetUserId"
                                  : test.param == Means::group ? "SetGroupId"
                                                               : "FileCapability";
                         });

TEST_P(RaisedPrivileges, WriteNothingWhereTheUserSaysAndTakeNoNamesOfDevices) {
  const std::string trace = copy_.folder().at("trace");
  const std::string profile = copy_.folder().at("profile");
  const std::string logs = copy_.folder().at("logs");
  CommandRun run = copy_.run_by_stranger([&] {
    ::unsetenv("SYNCRUN_NPROC_PER_NODE");  // or the contexts would be ignored in any program
    set_all({{"TRACE", trace},
             {"PROFILE", profile},
             {"LOG_DIR", logs},
             {"TIMEOUT", "bad"},
             {"RESERVE_BYTES", "bad"},
             {"CONTEXTS", "bad"}});
  });
  run.exit_code();
  for (const char* name : {"SYNCRUN_TIMEOUT", "SYNCRUN_CONTEXTS"})
    EXPECT_THAT(run.errors(), Not(HasSubstr(name))) << "it is not even read";
  EXPECT_TRUE(run.nothing_remains());
  for (const auto& file : {trace, profile, logs}) EXPECT_FALSE(std::filesystem::exists(file)) << file;
}

TEST_P(RaisedPrivileges, OfAUserOrGroupWorkWithWorkersAndOfAFileAreRefusedThem) {
  CommandRun run = copy_.run_by_stranger([] {});
  if (GetParam() == Means::capability) {  // a worker cannot distinguish its master from another process
    EXPECT_EQ(run.exit_code(), 1);
    EXPECT_THAT(run.errors(), HasSubstr("with file capabilities it cannot have workers, producers or tasks"));
  } else {
    EXPECT_EQ(run.exit_code(), 0) << run.errors();
    EXPECT_THAT(run.output(), HasSubstr("workers add up 1048576\n"));
  }
  EXPECT_TRUE(run.nothing_remains());
}

/// Another user acts as the master, with a child and a socket.
TEST_P(RaisedPrivileges, DoNotObeyAStrangerWhoPlaysTheMaster) {
  CommandRun run = copy_.run_by_stranger([] {
    std::array<int, 2> ends{};
    require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
    const std::string master = std::to_string(::getpid());
    const pid_t child = ::fork();
    require(child >= 0);
    if (child != 0) {
      int status = 0;
      require(::waitpid(child, &status, 0) == child && WIFEXITED(status));
      ::_exit(WEXITSTATUS(status));
    }
    set_all({{"WORKER_RANK", "0"}, {"MASTER_PID", master}, {"SOCKET_FD", std::to_string(ends[1])}});
  });
  run.expect_end(1);
  EXPECT_THAT(run.errors(), HasSubstr("a program with raised privileges (set-user-ID, set-group-ID, file capabilities) "
                                      "ignores SYNCRUN_WORKER_RANK"));
}

}  // namespace
}  // namespace syncrun::test
