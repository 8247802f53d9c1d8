#pragma once

// Whether a session can be used by this process and by this thread, and why it can no longer be used.
//
//   starting --opened--> open --ended--> closed

#include <atomic>
#include <cstdint>
#include <optional>

#include "common/os/fork_guard.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::records {

class SessionState {
 public:
  /// Throws Error (usage) unless the session is open. The message says what ended the session.
  void check_open() const {
    if (!is_open()) [[unlikely]]
      throw_not_open();
  }
  bool is_open() const noexcept { return stage_ == Stage::open && is_here(); }
  /// False in a process that was forked from the process of the session.
  bool is_here() const noexcept { return fork_guard_.is_here(); }
  /// True if the session is open, or if it was open when this process was forked.
  bool was_opened() const noexcept { return stage_ == Stage::open; }
  bool is_closed() const noexcept { return stage_ == Stage::closed; }

  void open() noexcept { stage_ = Stage::open; }
  void end() noexcept { stage_ = Stage::closed; }
  /// The error that check_open() reports once the session is over.
  void set_cause(const std::optional<Error>& cause) { cause_ = cause; }

  /// Only one thread at a time is inside the session. Returns false if another thread is inside. Waits for a thread that
  /// only frees memory, because its program does not know that it is inside.
  bool enter() noexcept {
    User user = User::nobody;
    if (user_.compare_exchange_strong(user, User::call, std::memory_order_acquire)) [[likely]]
      return true;
    return user == User::release && enter_after_release();
  }
  void leave() noexcept { user_.store(User::nobody, std::memory_order_release); }
  /// The same for a thread that frees the memory of a handle. It must not wait for workers.
  bool enter_to_release() noexcept {
    User user = User::nobody;
    return user_.compare_exchange_strong(user, User::release, std::memory_order_acquire);
  }
  void leave_after_release() noexcept {
    leave();
    user_.notify_all();
  }

 private:
  enum class User : std::uint8_t { nobody, call, release };
  [[noreturn]] void throw_not_open() const;
  bool enter_after_release() noexcept;
  enum class Stage : std::uint8_t { starting, open, closed };

  os::ForkGuard fork_guard_;
  std::atomic<Stage> stage_ = Stage::starting;
  std::optional<Error> cause_;
  std::atomic<User> user_ = User::nobody;
};

}  // namespace syncrun::detail::master::records
