#pragma once

// Ends a worker that waits for a lost peer in a call that nothing can interrupt.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "common/export_for_cuda.hpp"
#include "common/protocol/rank_set.hpp"
#include "worker/place/attachment.hpp"

namespace syncrun::detail {

/// While an object of this class lives, the thread that made it is in such a call, in which NCCL connects GPUs. If a peer
/// dies meanwhile, NCCL may wait for it for ever. Where lost workers are replaced, the session would then never go on. So
/// a worker that is still in the call some time after the loss kills itself, and is replaced too.
class SYNCRUN_EXPORT_FOR_CUDA EndIfStuck {
 public:
  using Milliseconds = std::chrono::milliseconds;
  /// From the loss of a peer. NCCL connects the GPUs of a machine in less, so a worker that gets through in spite of the
  /// loss lives.
  static constexpr Milliseconds kLimit{5000};

  /// `ranks` are those that the call connects. Throws Error (system) if the thread that watches cannot be started.
  EndIfStuck(const Attachment& attachment, const RankSet& ranks, Milliseconds limit = kLimit);
  ~EndIfStuck();
  EndIfStuck(const EndIfStuck&) = delete;
  EndIfStuck& operator=(const EndIfStuck&) = delete;

 private:
  void watch();
  /// A rank of the set that is lost, or -1.
  int lost_rank() const noexcept;

  const Attachment& attachment_;
  const RankSet ranks_;
  const Milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable has_ended_;
  bool is_over_ = false;
  std::thread watcher_;  // not started if a loss ends the session
};

}  // namespace syncrun::detail
