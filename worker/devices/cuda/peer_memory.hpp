#pragma once

// A buffer on every GPU of the session that all other ranks write to over NVLink. It is used for small all_reduces, and
// for averages that run in parallel with a body. NCCL does the other collectives.
//
//   none --connect(), by all ranks--> connected --call_off()--> called off --connect(), by all ranks--> connected
//    '--> out of reach: some GPUs have no NVLink between them, or a rank may not map a peer's memory

#include <array>
#include <cstdint>

#include "worker/devices/cuda/memory_pool.hpp"
#include "worker/devices/cuda/owners.hpp"
#include "worker/devices/cuda/peer_kernels.hpp"
#include "worker/devices/cuda/stream_meetings.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail::worker::devices::cuda {

class PeerMemory {
 public:
  /// The ranks exchange information through `device.host_comm`, and wait for each other in `device.rendezvous`. If there
  /// is too little memory on the device, `pool` returns what it does not use.
  PeerMemory(const DeviceContext& device, MemoryPool& pool)
      : attachment_(device.attachment),
        host_(device.host_comm),
        rendezvous_(device.rendezvous),
        limits_{device.interruption},
        meetings_(attachment_, host_),
        pool_(pool) {}
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// Called by all ranks, in a command with collectives, unless connected or out of reach. Afterwards the state is one
  /// of these two, the same on every rank. Throws Error (cuda), and what interrupts a meeting.
  void connect();
  /// If out of reach, frees the memory that was to be shared. Waits for the device.
  void give_up_memory() noexcept { close(); }
  bool is_connected() const noexcept { return state_ == State::connected; }
  bool is_out_of_reach() const noexcept { return state_ == State::out_of_reach; }
  /// See kernels::peer_all_reduce. Only while connected. Called for one operation after the other, in the same order on
  /// every rank.
  void all_reduce(const kernels::PeerReduction& what, cudaStream_t stream) const {
    kernels::peer_all_reduce(peers_, what, stream);
  }
  /// Whether average_by_copies is possible. The same on every rank. Only while connected.
  bool has_meetings() const noexcept { return has_meetings_; }
  /// Like all_reduce with avg, except for rounding, for sizes above kLeastShareBytes and up to kMostShareBytes. The
  /// copy engines move the values, so multiprocessors are used only for the addition. Values must begin at a multiple
  /// of 16 bytes. Throws Error (cuda).
  void average_by_copies(const kernels::PeerAverage& what, cudaStream_t stream) const;
  /// Called if a peer has been replaced by another process: all ranks must connect anew. Not while connected.
  void forget_peers() noexcept;
  /// Makes kernels and streams that wait for peers continue without them. The values that they leave are invalid.
  void call_off() noexcept;
  /// Called after call_off(), when no work is left on the streams.
  void end_release() noexcept { meetings_.end_release(); }

 private:
  enum class State : std::uint8_t { none, connected, called_off, out_of_reach };
  struct PeerInfo;

  PeerInfo make_info();
  cudaError_t allocate();
  bool allocate_own();
  bool open_all(const PeerInfo* infos) noexcept;
  void clear();
  void close_peers() noexcept;
  void close() noexcept;
  bool all_agree(bool own);
  void meet(std::uint8_t step);
  volatile int& called_off() const noexcept { return *static_cast<volatile int*>(called_off_.get()); }

  const process::Attachment& attachment_;
  comm::CpuComm& host_;
  comm::Rendezvous& rendezvous_;
  const process::WaitLimits limits_;  // for rendezvous_
  StreamMeetings meetings_;
  bool has_meetings_ = false;
  State state_ = State::none;
  GpuMemory own_;                                            // the memory that peers write to
  std::array<MappedGpuMemory, kernels::kMostPeers> theirs_;  // by rank; empty for this rank
  PinnedMemory called_off_;                                  // an int
  kernels::Peers peers_{};                                   // the addresses of all these memories, for kernels
  MemoryPool& pool_;
};

}  // namespace syncrun::detail::worker::devices::cuda
