#pragma once

// Odd environments for programs under test: what a child does to itself before it executes the program, and whether
// this machine allows it.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/command_run.hpp"

namespace syncrun::test {

/// The command in front of the program on the command line.
enum class Front : std::uint8_t { nothing, syncrun };
std::string to_string(Front front);

using Arguments = std::vector<std::string>;

/// A run of the program `odd_program` (odd_program.cpp). It has two workers unless SYNCRUN_NPROC_PER_NODE says
/// otherwise.
class OddRun : public CommandRun {
 public:
  OddRun(Front front, const Arguments& arguments, const Start& start = {});
};
/// The same run. The child first calls `in_child`.
inline OddRun run_after(std::function<void()> in_child, Front front, const Arguments& arguments) {
  Start start;
  start.in_child = std::move(in_child);
  return {front, arguments, start};
}

/// What `odd_program add BYTES` prints with two workers.
std::string sum_of(long long bytes);

/// A test with the program alone and behind `syncrun`.
class OnBothFronts : public testing::TestWithParam<Front> {
 protected:
  /// Expects that the program works in a child that has called this first.
  void expect_works_after(const std::function<void()>& in_child, const Arguments& arguments = {"add"},
                          const std::string& output = sum_of(1 << 20)) const {
    OddRun run = run_after(in_child, GetParam(), arguments);
    run.expect_end(0);
    EXPECT_EQ(run.output(), output);
  }
};
#define INSTANTIATE_ON_BOTH_FRONTS(suite)                                                   \
  INSTANTIATE_TEST_SUITE_P(Program, suite, testing::Values(Front::nothing, Front::syncrun), \
                           [](const auto& test) { return to_string(test.param); })

// ---- for children: if a call fails, the child ends with code 99 -------------------------------------------------

/// Sets the soft and the hard limit, so that no process can raise the soft limit again.
void limit(int resource, rlim_t value);
/// Mounts a tmpfs over a folder, in a mount namespace of the child's own. The options are those of mount(8).
void mount_over(const std::string& folder, const std::string& options = "", unsigned long flags = 0);
/// Changes to another user and group, without any privilege.
void become_user(uid_t user);
void require(bool succeeded);

// ---- what children can do -----------------------------------------------------------------------------------------

/// Whether a child can call this without an error.
bool succeeds(const std::function<void()>& in_child);
bool can_mount();
/// Whether a child can become another user and then still execute the program.
bool can_become_users();

/// The ids of two users that do not exist on this machine.
uid_t first_stranger();
uid_t second_stranger();

}  // namespace syncrun::test
