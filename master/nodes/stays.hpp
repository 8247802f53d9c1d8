#pragma once

// How often a carrier looks for the message that a rank waits for, in place of giving the core to the ranks.

#include <cstdint>

namespace syncrun::detail::master::nodes {

/// Stays that pay continue. If nothing came during the stays of four waits, the other carrier may need this core. Then only
/// every 32nd wait has stays.
class Stays {
 public:
  static constexpr int kInEachWait = 4;
  static constexpr int kWaitsInVain = 4;
  static constexpr std::uint64_t kTryEvery = 32;

  /// Whether to stay now. `answers` is how many waits were over before this one.
  bool begin(std::uint64_t answers) noexcept {
    if (answers != wait_) {
      if (stays_ != 0 && waits_left_ != 0) --waits_left_;
      wait_ = answers;
      stays_ = 0;
    }
    if (stays_ == kInEachWait || (waits_left_ == 0 && wait_ % kTryEvery != 0)) return false;
    ++stays_;
    return true;
  }
  /// The answer came during the stay.
  void note_answer() noexcept {
    waits_left_ = kWaitsInVain;
    stays_ = 0;
  }

 private:
  std::uint64_t wait_ = 0;
  int stays_ = 0;  // in this wait, all in vain
  int waits_left_ = kWaitsInVain;
};

}  // namespace syncrun::detail::master::nodes
