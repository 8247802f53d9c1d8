#pragma once

// Memory of every GPU of the session that all the others write to, over NVLink: what small all_reduces go through, and what
// is averaged beside a body. NCCL does the rest.
//
//   none --connect(), by all ranks--> connected --call_off()--> called off --connect(), by all ranks--> connected
//    '--> out of reach: somewhere no NVLink, or no leave to map a peer's memory

#include <array>
#include <cstdint>
#include <functional>
#include <utility>

#include "worker/collectives.hpp"
#include "worker/cuda/owners.hpp"
#include "worker/cuda/peer_kernels.hpp"
#include "worker/cuda/stream_meetings.hpp"
#include "worker/rendezvous.hpp"

namespace syncrun::detail {

class PeerMemory {
 public:
  /// `host`: what the ranks tell each other goes that way. `rendezvous`: where they meet.
  PeerMemory(CpuComm& host, Rendezvous& rendezvous, const Interruption& interruption)
      : host_(host), rendezvous_(rendezvous), limits_{interruption}, meetings_(host) {}
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// `make_room`: called where there is not enough memory on the device.
  void use(std::function<void()> make_room) { make_room_ = std::move(make_room); }

  /// Called by all ranks, in a command with collectives, unless connected or out of reach: afterwards it is one of these,
  /// the same on every rank. Throws Error (cuda), and what interrupts a meeting.
  void connect();
  /// Out of reach: what was meant to be shared. Waits for the device.
  void give_up_memory() noexcept { close(); }
  bool is_connected() const noexcept { return state_ == State::connected; }
  bool is_out_of_reach() const noexcept { return state_ == State::out_of_reach; }
  /// See kernels::peer_all_reduce. Connected; one at a time, in the same order on every rank.
  void all_reduce(const kernels::PeerReduction& what, cudaStream_t stream) const {
    kernels::peer_all_reduce(peers_, what, stream);
  }
  /// Whether average_by_copies can be done. Connected; the same on every rank.
  bool has_meetings() const noexcept { return has_meetings_; }
  /// The same as all_reduce by avg, but for the rounding, from kLeastShareBytes to kMostShareBytes, by the copy engines:
  /// multiprocessors only add up. Values begin at a multiple of 16 bytes. Throws Error (cuda).
  void average_by_copies(const kernels::PeerAverage& what, cudaStream_t stream) const;
  /// One of them is another process now: all are to connect anew. Not while connected.
  void forget_peers() noexcept;
  /// Kernels and streams that wait for peers go on without them; what they leave in the values means nothing.
  void call_off() noexcept;
  /// After that, when nothing is left on the streams.
  void end_release() noexcept { meetings_.end_release(); }

 private:
  enum class State : std::uint8_t { none, connected, called_off, out_of_reach };
  struct Card;

  Card make_card();
  cudaError_t allocate();
  bool allocate_own();
  bool open_all(const Card* cards) noexcept;
  void clear();
  void close_peers() noexcept;
  void close() noexcept;
  bool all_agree(bool own);
  void meet(std::uint8_t step);
  volatile int& called_off() const noexcept { return *static_cast<volatile int*>(called_off_.get()); }

  CpuComm& host_;
  Rendezvous& rendezvous_;
  const WaitLimits limits_;  // of a rendezvous
  StreamMeetings meetings_;
  bool has_meetings_ = false;
  State state_ = State::none;
  DeviceMemory own_;                                            // that peers write to
  std::array<MappedDeviceMemory, kernels::kMostPeers> theirs_;  // by rank; of this rank nothing
  PinnedMemory called_off_;                                     // an int
  kernels::Peers peers_{};                                      // the addresses of all these, for kernels
  std::function<void()> make_room_;
};

}  // namespace syncrun::detail
