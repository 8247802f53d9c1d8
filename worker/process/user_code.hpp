#pragma once

// User code that runs in a worker, a producer or a task may fork. A child that returns from the user code or calls the
// library would be a second copy of the process that serves. It would write to the same shared memory and answer the
// same calls. The code here ends such a child before it touches anything. The process that serves learns of it.
//
//   watch_user_code      is called once, when the process has become a worker or a helper
//   UserCode             surrounds every section of user code. After it, only the process that serves continues
//   end_if_forked        is called in every library function that user code calls and that touches shared state
//   throw_if_child_came  is called after user code. It turns what happened into the failure of the call
//
// A fork is detected with a page that the kernel clears in the child (ForkGuard). The check costs one load. A child of
// vfork shares this page and runs in the memory of its parent. The parent cannot continue after such a child has come
// back, so both are ended.

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

#include "common/os/fork_guard.hpp"
#include "common/protocol/control_block.hpp"

namespace syncrun::detail::worker::process {

/// The exit code of a child that came back from user code or called the library.
inline constexpr int kChildCameBack = 70;

/// What a child did that only the process that serves may do.
enum class ChildAct : std::uint8_t { came_back, called_library };

/// The state of this process; null as long as the process does not serve. It is not a member of a worker, because a
/// child must be recognised everywhere, also in destructors, which have no access to a worker.
struct UserCodeWatch;
extern UserCodeWatch* user_code_watch;

/// Called once, by the thread that will serve. `who` names the process in messages, for example "rank 1 (cpu1)".
/// `reason` is the text in which the master reads why this process ended, or null. Throws Error (system).
void watch_user_code(std::string who, std::array<char, protocol::kMessageBytes>* reason);

/// A worker calls this with the command whose code runs next. So the report about a child says whether this call or an
/// earlier one forked it.
void note_command(std::uint64_t command) noexcept;
/// The process that serves calls this after a long wait, so that the wait does not count as time of the user code that
/// comes next. If that code then takes little time, no system call is needed to find out whether it has called vfork
/// (see kTicksOfAFork).
void note_long_wait() noexcept;

bool is_forked_child() noexcept;
[[noreturn]] void end_child(ChildAct act) noexcept;

/// Ends this process if it is a child that user code has forked. Does nothing in other processes. If a destructor calls
/// this while an exception unwinds the child's stack, the child counts as coming back from user code.
inline void end_if_forked() noexcept {
  if (user_code_watch != nullptr && is_forked_child()) [[unlikely]]
    end_child(std::uncaught_exceptions() > 0 ? ChildAct::came_back : ChildAct::called_library);
}

/// A section of user code on the thread that serves.
class UserCode {
 public:
  UserCode() = default;
  /// If this process is a forked child, ends it. Otherwise, if the code has forked children that still run this
  /// program, waits up to 100 ms until they end, call exec or come back. A busy machine prolongs this.
  ~UserCode();
  UserCode(const UserCode&) = delete;
  UserCode& operator=(const UserCode&) = delete;
};

/// Throws Error (function) if a child has come back or called the library since the last call of this function.
void throw_if_child_came();
/// Forgets such children. Called if another failure has already been reported.
void forget_children_that_came() noexcept;

}  // namespace syncrun::detail::worker::process
