#pragma once

// When something last happened between this node and the others, and so how long a thread may nap that waits for them.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/os/wait.hpp"

namespace syncrun::detail::master::nodes {

/// Any thread may call any function.
class Activity {
 public:
  static constexpr std::chrono::microseconds kShortestNap{50};
  static constexpr os::Milliseconds kLongestNap{4};
  /// Whether a rank of this node may wait for a message. Otherwise messages may be handled later.
  enum class Need { likely, none };

  /// A message came or went that was not only a sign of life, or the listener has done something for its workers.
  void note() noexcept { active_at_.store(now(), std::memory_order_relaxed); }
  /// The time since then.
  std::chrono::nanoseconds quiet() const noexcept {
    return std::chrono::nanoseconds(std::max<std::int64_t>(0, now() - active_at_.load(std::memory_order_relaxed)));
  }
  /// Whether the workers of this node need all of its cores.
  void note_full(bool is_full) noexcept { is_full_.store(is_full, std::memory_order_relaxed); }
  bool is_full() const noexcept { return is_full_.load(std::memory_order_relaxed); }
  /// Short if something happened a short time ago. If there is no need, and each look takes time of the workers, it is
  /// longer.
  std::chrono::nanoseconds nap(Need need) const noexcept {
    const int part = need == Need::none && is_full() ? kNapPartWithoutNeed : kNapPart;
    return std::clamp<std::chrono::nanoseconds>(quiet() / part, kShortestNap, kLongestNap);
  }
  /// A thread that waits looks for messages.
  void note_look() noexcept { looks_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t looks() const noexcept { return looks_.load(std::memory_order_relaxed); }

 private:
  // A nap is at most this part of the time that the waiter has waited so far.
  static constexpr int kNapPart = 32;
  // The same if no rank here needs a message, and the workers compute on all cores. A look takes 12 us of a core.
  static constexpr int kNapPartWithoutNeed = 8;
  static std::int64_t now() noexcept { return os::Clock::now().time_since_epoch().count(); }

  std::atomic<std::int64_t> active_at_ = now();
  std::atomic<bool> is_full_ = false;
  std::atomic<std::uint64_t> looks_ = 0;
};

}  // namespace syncrun::detail::master::nodes
