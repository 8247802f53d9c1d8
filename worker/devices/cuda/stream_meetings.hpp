#pragma once

// Lets streams of different processes wait for each other without using a multiprocessor. Each stream writes a word in
// the pages of its peers in shared memory, and waits for the words in its own page.

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "common/os/mutex.hpp"
#include "worker/comm/collectives.hpp"
#include "worker/devices/cuda/owners.hpp"

namespace syncrun::detail::worker::devices::cuda {

/// The meetings of this rank's stream, one after the other, the same ones on every rank. Meetings of step 0 and of step
/// 1 alternate.
///
///   closed --open()--> open --release()--> no stream waits --end_release()--> open, once all ranks have called clear()
class StreamMeetings {
 public:
  static constexpr int kSteps = 2;

  StreamMeetings(const process::Attachment& attachment, const comm::CpuComm& host)
      : attachment_(attachment), host_(host) {}
  ~StreamMeetings() { close(); }
  StreamMeetings(const StreamMeetings&) = delete;
  StreamMeetings& operator=(const StreamMeetings&) = delete;

  /// Returns false if the driver does not support this, the pages cannot be registered, or no thread can be started.
  /// Waits for the device.
  bool open() noexcept;
  void close() noexcept;
  /// Adds a meeting to the stream. Work before the meeting on any rank's stream comes before work after the meeting on
  /// all ranks' streams. A word is used again in the next meeting of the same step. A peer writes it again only after
  /// this rank's stream was in the meeting between these two, and so has cleared the word. Must be open. Can be
  /// captured. Throws Error (cuda).
  void meet(int step, cudaStream_t stream) const;
  /// Resets the words. Only while no peer's stream can be in a meeting.
  void clear() noexcept;
  /// Called after a call failed. Streams that wait here continue. The words are set repeatedly, because late peers may
  /// still write them.
  void release() noexcept { set_releasing(true); }
  /// Called when no work is left on the streams.
  void end_release() noexcept { set_releasing(false); }

 private:
  using BatchMemOp = CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);

  bool register_pages();
  bool is_able() const;
  void set_releasing(bool releasing) noexcept;
  void release_while_wanted(const std::stop_token& stop);
  /// The words of this rank that are in use.
  std::span<std::uint32_t> own_words() const noexcept;
  CUdeviceptr word(int at, int step, int from) const noexcept;

  const process::Attachment& attachment_;  // words are by rank of the session: the thread sets them in any command
  const comm::CpuComm& host_;
  BatchMemOp batch_mem_op_ = nullptr;
  std::vector<CUdeviceptr> pages_;  // by rank; addresses on the device
  std::vector<RegisteredPages> registered_;
  os::Mutex mutex_;  // also held while words are set
  std::condition_variable_any wanted_;
  bool is_releasing_ SYNCRUN_GUARDED_BY(mutex_) = false;
  std::jthread releaser_;  // runs from open to close, because starting a thread after a failure could fail too
};

}  // namespace syncrun::detail::worker::devices::cuda
