#pragma once

// Odd environments for programs under test: what a child does to itself before it becomes the program, and whether this
// machine lets it.

#include <sys/resource.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/launcher/command_run.hpp"

namespace syncrun::test {

/// What stands before the program on the command line.
enum class Front : std::uint8_t { nothing, syncrun };
std::string to_string(Front front);

using Arguments = std::vector<std::string>;

/// The program `odd_program` (odd_program.cpp), with two workers unless SYNCRUN_NPROC_PER_NODE says otherwise.
class OddRun : public CommandRun {
 public:
  OddRun(Front front, const Arguments& arguments, Start start = {});
};
/// The same with something done in the child before.
inline OddRun run_after(std::function<void()> in_child, Front front, const Arguments& arguments) {
  Start start;
  start.in_child = std::move(in_child);
  return {front, arguments, std::move(start)};
}

/// What `odd_program add BYTES` prints.
std::string sum_of(long long bytes);

// ---- for children: what fails ends them with code 99 ------------------------------------------------------------

/// Of soft and hard limit, so that nobody raises it again.
void limit(int resource, rlim_t value);
/// Mounts a file system in memory over a folder, in a mount namespace of the child's own. Options as for mount(8).
void mount_over(const std::string& folder, const std::string& options = "", unsigned long flags = 0);
/// Another user, without any privilege.
void become_user(uid_t user);
void require(bool succeeded);

// ---- whether they can -------------------------------------------------------------------------------------------

/// Whether a child can do it.
bool succeeds(const std::function<void()>& in_child);
bool can_mount();
/// Whether a child that becomes another user may still run the program.
bool can_become_users();

/// Two users that nobody is.
uid_t first_stranger();
uid_t second_stranger();

}  // namespace syncrun::test
