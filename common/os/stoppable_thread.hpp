#pragma once

// A thread that another thread can end.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <thread>
#include <utility>

#include "common/os/mutex.hpp"
#include "common/os/threads.hpp"

namespace syncrun::detail::os {

class StoppableThread {
 public:
  /// Calls `run(*this)` in a new thread. It ends soon after nap() has returned true. Throws Error (system) if the system
  /// refuses another thread.
  explicit StoppableThread(std::function<void(StoppableThread&)> run)
      : thread_(start_thread([this, run = std::move(run)] { run(*this); })) {}
  ~StoppableThread() { stop(); }
  StoppableThread(const StoppableThread&) = delete;
  StoppableThread& operator=(const StoppableThread&) = delete;

  /// Called by the new thread: waits for so long. Returns true, at once, if the thread has to end.
  bool nap(std::chrono::nanoseconds time) {
    UniqueLock lock(mutex_);
    return changed_.wait_for(lock, time, [this]() SYNCRUN_REQUIRES(mutex_) { return is_over_; });
  }
  /// Waits until the thread has ended. Does nothing if it was called before.
  void stop() {
    {
      const MutexLock lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  Mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ SYNCRUN_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last, so that the others exist when it begins
};

}  // namespace syncrun::detail::os
