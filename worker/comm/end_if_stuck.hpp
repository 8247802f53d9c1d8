#pragma once

// Ends a worker that waits for a lost peer in a call that nothing can interrupt.

#include <chrono>
#include <condition_variable>
#include <thread>

#include "common/export_for_cuda.hpp"
#include "common/os/mutex.hpp"
#include "common/protocol/rank_set.hpp"
#include "worker/process/attachment.hpp"

namespace syncrun::detail::worker::comm {

/// While an object of this class lives, the thread that made it may be in such a call: NCCL connects GPUs, or CUDA waits
/// for a collective. If a peer dies meanwhile, the call may wait for it for ever. Where lost workers are replaced, the
/// session would then never go on. So a worker that is still in the call some time after the loss kills itself, and is
/// replaced too. Make the object before the last meeting of the ranks, which a failure interrupts: if a rank cannot make
/// it, no other rank enters the call.
class SYNCRUN_EXPORT_FOR_CUDA EndIfStuck {
 public:
  using Milliseconds = std::chrono::milliseconds;
  /// From the loss of a peer. NCCL connects the GPUs of a machine in less, so a worker that gets through in spite of the
  /// loss lives.
  static constexpr Milliseconds kLimit{5000};
  /// The survivors do not end all at once: the end of one may release the others.
  static constexpr Milliseconds kBetween{300};

  /// `ranks` are those that the call connects. Throws Error (system) if the thread that watches cannot be started.
  EndIfStuck(const process::Attachment& attachment, const protocol::RankSet& ranks, Milliseconds limit = kLimit);
  ~EndIfStuck();
  EndIfStuck(const EndIfStuck&) = delete;
  EndIfStuck& operator=(const EndIfStuck&) = delete;

 private:
  void watch();
  bool is_lost(int rank) const noexcept;
  /// A rank of the set that is lost, or -1.
  int lost_rank() const noexcept;
  /// How many survivors of the set have a lower rank than this one.
  int survivors_before() const noexcept;

  const process::Attachment& attachment_;
  const protocol::RankSet ranks_;
  const Milliseconds limit_;
  os::Mutex mutex_;
  std::condition_variable has_ended_;
  bool is_over_ SYNCRUN_GUARDED_BY(mutex_) = false;
  std::thread watcher_;  // not started if a loss ends the session
};

}  // namespace syncrun::detail::worker::comm
