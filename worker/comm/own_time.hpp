#pragma once

// How long a rank works on its rows in a measured call (Session::balance).
//
//   begin --> pause (in a collective) --> resume --> ... --> end

#include <chrono>

namespace syncrun::detail::worker::comm {

/// The time between begin() and end(), without the time between pause() and resume(). Outside of a measured call, pause
/// and resume do nothing. For the thread that serves calls.
class OwnTime {
 public:
  void begin() noexcept {
    total_ = {};
    since_ = Clock::now();
    is_running_ = true;
  }
  void pause() noexcept {
    if (is_running_) [[unlikely]]
      total_ += Clock::now() - since_;
  }
  void resume() noexcept {
    if (is_running_) [[unlikely]]
      since_ = Clock::now();
  }
  /// Call it also after a failure, when the time has no meaning.
  std::chrono::nanoseconds end() noexcept {
    pause();
    is_running_ = false;
    return total_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool is_running_ = false;
  Clock::time_point since_;
  std::chrono::nanoseconds total_{};
};

}  // namespace syncrun::detail::worker::comm
