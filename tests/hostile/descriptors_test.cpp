// A program that closes descriptors it has not opened. It gets an error that names this within a limit. The files of
// the program may then get the same numbers: Syncrun neither reads nor writes nor closes them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/hostile/surroundings.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The message then names the descriptor that was noticed first.
constexpr const char* kName = "system: the program has closed file descriptors that Syncrun uses (";
constexpr const char* kText = "this is the program's own";
/// The longest time from closing to the error, in ms. The limits of the program are 10 s.
constexpr int kLimitMs = 4500;

class Closing {
 public:
  Closing(Front front, const std::string& scene, const std::string& how) {
    write_text(file_, kText);
    std::vector<std::string> arguments{scene, how, file_};
    if (front == Front::syncrun) arguments.insert(arguments.begin(), CLOSING_PROGRAM);
    run_.emplace(arguments, Start{}, front == Front::syncrun ? "" : CLOSING_PROGRAM);
  }
  CommandRun& run() { return *run_; }

  /// Checks that the program got this error in time.
  void expect_named(const std::string& name = kName) {
    EXPECT_EQ(run().exit_code(), 0) << run().errors();
    const std::string output = run().output();
    const auto at = output.find("named ");
    ASSERT_NE(at, std::string::npos) << output << run().errors();
    EXPECT_LT(std::atoi(output.c_str() + at + 6), kLimitMs) << output;
    EXPECT_THAT(output.substr(at), HasSubstr(name));
    EXPECT_THAT(output.substr(at), HasSubstr("close only those that the program has opened itself"));
    expect_own_kept();
  }
  void expect_own_kept() {
    EXPECT_THAT(run().output(), Not(HasSubstr("a pipe has")));
    const auto at = run().output().find("kept ");
    ASSERT_NE(at, std::string::npos) << run().output() << run().errors();
    int kept = -1;
    int all = -2;
    EXPECT_EQ(std::sscanf(run().output().c_str() + at, "kept %d of %d", &kept, &all), 2);
    EXPECT_EQ(kept, all);
    EXPECT_EQ(text_of(file_), kText);
    EXPECT_TRUE(run().nothing_remains());
  }

 private:
  TemporaryFolder folder_;
  std::string file_ = folder_.at("own");
  std::optional<CommandRun> run_;
};

class ClosedDescriptors : public testing::TestWithParam<std::tuple<Front, std::string, std::string>> {};
INSTANTIATE_TEST_SUITE_P(Of, ClosedDescriptors,
                         testing::Combine(testing::Values(Front::nothing, Front::syncrun),
                                          testing::Values("idle", "call", "end", "queue", "task"),
                                          testing::Values("all", "reused")),
                         [](const auto& test) {
                           return to_string(std::get<0>(test.param)) + "_" + std::get<1>(test.param) + "_" +
                                  std::get<2>(test.param);
                         });

TEST_P(ClosedDescriptors, AreNamedInTimeAndNobodyElsesAreTouched) {
  const auto& [front, scene, how] = GetParam();
  Closing(front, scene, how).expect_named(scene == "task" ? "system: the program has closed file descriptors" : kName);
}

/// The shared memory, two ends of a socket, and for each of two workers a pidfd, a socket and two pipes.
constexpr int kDescriptors = 11;

class OneClosedDescriptor : public testing::TestWithParam<int> {};
TEST_P(OneClosedDescriptor, EndsTheSessionByNameToo) {
  for (const char* scene : {"idle", "call"}) {
    Closing closing(Front::nothing, scene, std::to_string(GetParam()));
    closing.expect_named();
    EXPECT_THAT(closing.run().output(), HasSubstr(std::to_string(kDescriptors) + " to close")) << "add the new ones";
  }
}
INSTANTIATE_TEST_SUITE_P(Of, OneClosedDescriptor, testing::Range(0, kDescriptors));

TEST(ClosedDescriptorsOfAWorker, LeaveItsCallsAsTheyAre) {
  Closing closing(Front::syncrun, "body", "all");
  EXPECT_EQ(closing.run().exit_code(), 0) << closing.run().errors();
  closing.expect_own_kept();
  EXPECT_THAT(closing.run().output(),
              AllOf(HasSubstr("sum 2"), HasSubstr("failed in call 'large'"), HasSubstr("has closed file descriptors"),
                    HasSubstr("(the shared memory)"), HasSubstr("fine")));
}

/// When a stopped process continues, the kernel restarts system calls that wait. Here the descriptors of such a call
/// are closed.
TEST(ClosedDescriptorsOfAWorker, LeaveItAloneWhenItIsStoppedAndGoesOnAndEndItWithTheMaster) {
  for (const bool is_stopped : {false, true}) {
    ::setenv("CLOSING_HOLDS", "1", 1);
    Closing closing(Front::nothing, "body", "all");
    ::unsetenv("CLOSING_HOLDS");
    ASSERT_TRUE(closing.run().prints("ready")) << closing.run().errors();
    std::vector<pid_t> workers = closing.run().processes();
    std::erase(workers, closing.run().pid());
    ASSERT_FALSE(workers.empty());
    if (is_stopped) {
      for (const pid_t worker : workers) ::kill(worker, SIGSTOP);
      for (const pid_t worker : workers) EXPECT_TRUE(eventually([&] { return state_of(worker) == 'T'; }));
      for (const pid_t worker : workers) ::kill(worker, SIGCONT);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    for (const pid_t worker : workers) EXPECT_NE(state_of(worker), '-') << "it has ended itself";
    closing.run().send(SIGKILL);
    closing.run().expect_end(1000 + SIGKILL);
  }
}

}  // namespace
}  // namespace syncrun::test
