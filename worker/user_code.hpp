#pragma once

// Code of the user's that runs in a worker, a producer or a task may fork. A child that comes back from it, or calls the
// library, would be a second copy of the process that serves: it would write to the same shared memory and answer the same
// calls. Such a child is ended here, before it touches anything, and the process that serves learns of it.
//
//   watch_user_code      once, when the process has become a worker or a helper
//   UserCode             around every stretch of the user's code: at its end, only the process that serves goes on
//   end_if_forked        in every library function that user code calls and that touches what is shared
//   throw_if_child_came  after user code: what happened becomes the failure of the call
//
// A fork is noticed by a page that the kernel clears in the child (ForkGuard): one load. A child of vfork shares that page
// and runs in the memory of its parent, which cannot go on either once the child has come back: both are ended.

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

#include "common/control_block.hpp"
#include "common/fork_guard.hpp"

namespace syncrun::detail {

/// The exit code of a child that came back from user code.
inline constexpr int kChildCameBack = 70;

/// What a child did that only the process that serves may do.
enum class ChildAct : std::uint8_t { came_back, called_library };

/// Of this process: null as long as it does not serve. Not a member of anything: a child is recognised wherever it comes to,
/// also in destructors, which have no worker at hand.
struct UserCodeWatch;
extern UserCodeWatch* user_code_watch;

/// `who` is for messages: "rank 1 (cpu1)". `reason`: where the master reads why this process ended, or null. Called once, by
/// the thread that will serve. Throws Error (system).
void watch_user_code(std::string who, std::array<char, kMessageBytes>* reason);

/// Of a worker: the command whose code runs now, so that a child that comes late is told from one of this call.
void note_command(std::uint64_t command) noexcept;

bool is_forked_child() noexcept;
[[noreturn]] void end_child(ChildAct act) noexcept;

/// Ends a child that was forked by user code. Does nothing in the process that serves, nor in one that does not serve. A
/// destructor that calls this while an exception unwinds the child's stack is on the way back from the user's code.
inline void end_if_forked() noexcept {
  if (user_code_watch != nullptr && is_forked_child()) [[unlikely]]
    end_child(std::uncaught_exceptions() > 0 ? ChildAct::came_back : ChildAct::called_library);
}

/// A stretch of the user's code on the thread that serves.
class UserCode {
 public:
  UserCode() = default;
  /// Ends a child that comes to it. If the code has forked children that still run this program, waits up to 100 ms for
  /// them to end, to call exec or to come back.
  ~UserCode();
  UserCode(const UserCode&) = delete;
  UserCode& operator=(const UserCode&) = delete;
};

/// Throws Error (function) if a child came back since this was last asked.
void throw_if_child_came();
/// For where another failure is reported already.
void forget_children_that_came() noexcept;

}  // namespace syncrun::detail
