#pragma once

// Failures of calls that the program has not seen yet. A program sees a failure when a function throws it. Until then, a
// new call that depends on the failed one fails too.

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <vector>

namespace syncrun::detail::master::records {

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
  /// The failure of a call is in `result`, which the future of the call holds. If the program destroys the future without
  /// having seen the failure, the failure surfaces elsewhere. An empty `result` means that there is no future. If a
  /// program lets very many calls fail without ever looking, only the first failures are kept.
  void note_unfetched(const std::exception_ptr& error, const std::shared_ptr<const void>& result) {
    if (!result && std::count_if(unfetched_.begin(), unfetched_.end(), is_dropped) >= kMostDropped) return;
    unfetched_.push_back({error, result});
  }
  /// The first failure that the program has not seen and cannot fetch any more, because it has dropped the future. Null
  /// if there is none.
  std::exception_ptr dropped() const noexcept {
    const auto first = std::find_if(unfetched_.begin(), unfetched_.end(), is_dropped);
    return first != unfetched_.end() ? first->error : nullptr;
  }
  /// The same. The program sees this failure now.
  std::exception_ptr take_dropped() noexcept {
    const std::exception_ptr error = dropped();
    if (error) has_surfaced(error);
    return error;
  }
  /// The program has seen this failure. It need not surface again, and later calls are not affected.
  void has_surfaced(const std::exception_ptr& error) noexcept {
    std::erase_if(unfetched_, [&](const Unfetched& failure) { return failure.error == error; });
    for (const auto& known : failures_) {
      if (const auto failure = known.lock(); failure && failure->error == error) failure->is_seen = true;
    }
  }

 private:
  static constexpr std::ptrdiff_t kMostDropped = 64;

  /// A failure that is in the result of a future.
  struct Unfetched {
    std::exception_ptr error;
    std::weak_ptr<const void> result;
  };
  static bool is_dropped(const Unfetched& failure) noexcept { return failure.result.expired(); }

  std::vector<Unfetched> unfetched_;  // in the order in which they became known
  std::vector<std::weak_ptr<CallFailure>> failures_;
};

}  // namespace syncrun::detail::master::records
