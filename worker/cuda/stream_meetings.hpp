#pragma once

// Meetings of streams of different processes, without a multiprocessor: each writes a word in the peers' pages of shared
// memory, and waits for the words in its own.

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "worker/collectives.hpp"
#include "worker/cuda/owners.hpp"

namespace syncrun::detail {

/// For this rank's stream, one meeting after the other, the same ones on every rank: those of step 0 and of step 1 in turn.
///
///   closed --open()--> open --release()--> nobody waits any more --end_release()--> open, once all ranks have called clear()
class StreamMeetings {
 public:
  static constexpr int kSteps = 2;

  explicit StreamMeetings(CpuComm& host) : host_(host) {}
  ~StreamMeetings() { close(); }
  StreamMeetings(const StreamMeetings&) = delete;
  StreamMeetings& operator=(const StreamMeetings&) = delete;

  /// False where the driver cannot do it, the pages cannot be registered, or there is no thread to be had. Waits for the
  /// device.
  bool open() noexcept;
  void close() noexcept;
  /// Open; can be captured. What is on the stream comes before what the peers' streams have behind the meeting, and the
  /// reverse. A word is used again in the next meeting of its step: a peer writes it then only if this rank's stream was in
  /// the meeting between, and so has cleared it. Throws Error (cuda).
  void meet(int step, cudaStream_t stream) const;
  /// While no peer's stream can be in a meeting.
  void clear() noexcept;
  /// Of a call that failed: whoever waits here goes on, again and again, as peers that are late may still write.
  void release() noexcept { set_releasing(true); }
  /// When nothing is left on the streams.
  void end_release() noexcept { set_releasing(false); }

 private:
  using BatchMemOp = CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);

  bool register_pages();
  bool is_able() const;
  void set_releasing(bool releasing) noexcept;
  void release_while_wanted(const std::stop_token& stop);
  /// Those of this rank that are used.
  std::span<std::uint32_t> own_words() const noexcept;
  CUdeviceptr word(int at, int step, int from) const noexcept;

  CpuComm& host_;
  BatchMemOp batch_mem_op_ = nullptr;
  std::vector<CUdeviceptr> pages_;  // by rank, as the device sees them
  std::vector<RegisteredPages> registered_;
  std::mutex mutex_;  // held while words are set
  std::condition_variable_any wanted_;
  bool is_releasing_ = false;
  std::jthread releaser_;  // from open to close: a failure is no time to start one
};

}  // namespace syncrun::detail
