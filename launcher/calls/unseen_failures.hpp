#pragma once

// Failures of calls that the program has not seen yet. A program sees a failure when a function throws it. Until then, a
// new call that depends on the failed one fails too.

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace syncrun::detail {

/// The failure of a call, as remembered by what the call wrote.
struct CallFailure {
  std::exception_ptr error;
  bool is_seen = false;
};

class UnseenFailures {
 public:
  /// A call has failed. The result is shared by everything that the call wrote.
  std::shared_ptr<CallFailure> note(const std::exception_ptr& error) {
    std::erase_if(failures_, [](const auto& known) { return known.expired(); });
    auto failure = std::make_shared<CallFailure>(CallFailure{error});
    failures_.push_back(failure);
    return failure;
  }
  /// The first failure that only dropped futures have received.
  const std::exception_ptr& dropped() const noexcept { return dropped_; }
  void note_dropped(const std::exception_ptr& error) noexcept {
    if (!dropped_) dropped_ = error;
  }
  std::exception_ptr take_dropped() noexcept {
    const std::exception_ptr error = std::exchange(dropped_, nullptr);
    if (error) has_surfaced(error);
    return error;
  }
  /// The program has seen this failure. It need not surface again, and later calls are not affected.
  void has_surfaced(const std::exception_ptr& error) noexcept {
    if (dropped_ == error) dropped_ = nullptr;
    for (const auto& known : failures_) {
      if (const auto failure = known.lock(); failure && failure->error == error) failure->is_seen = true;
    }
  }

 private:
  std::exception_ptr dropped_;
  std::vector<std::weak_ptr<CallFailure>> failures_;
};

}  // namespace syncrun::detail
