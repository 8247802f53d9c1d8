#pragma once

// Whether a session can be used by this process and by this thread, and why it can no longer be used.
//
//   starting --opened--> open --ended--> closed

#include <atomic>
#include <cstdint>
#include <optional>

#include "common/os/fork_guard.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

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

  /// Only one thread at a time is inside the session. Returns false if another thread is inside.
  bool enter() noexcept { return !busy_.test_and_set(std::memory_order_acquire); }
  void leave() noexcept { busy_.clear(std::memory_order_release); }

 private:
  [[noreturn]] void throw_not_open() const;
  enum class Stage : std::uint8_t { starting, open, closed };

  ForkGuard fork_guard_;
  std::atomic<Stage> stage_ = Stage::starting;
  std::optional<Error> cause_;
  std::atomic_flag busy_;
};

}  // namespace syncrun::detail
