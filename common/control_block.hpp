#pragma once

// The control block: the first part of the shared segment, where master and workers meet. Everything here is plain
// memory that stays readable after the death of any process.
//
//   header | one slot per worker | ring of commands | one outbox per command and worker
//
// Who writes what: the master writes the header and commands (before it publishes them); a worker writes its own slot
// and its own outboxes, from the thread that serves calls. Exceptions: `lost` is written by the master's watcher
// threads, `failed_call`, `failed_comm` and Command::failed by any worker; `failed_comm`, and the slot of a worker that is
// dead, by the master, before a new one takes it.

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/command.hpp"
#include "common/device_kinds.hpp"
#include "common/fixed_text.hpp"
#include "common/outcome.hpp"
#include "common/phase.hpp"
#include "common/shared_heap.hpp"
#include "common/wait.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

inline constexpr std::uint64_t kMagic = 0x53594e4352554e31;  // "SYNCRUN1"

enum class StartState : std::uint32_t { starting, ready, failed };

/// What ranks meet for: an operation of the user's, or something that has to be set up before one. Ranks that meet for
/// different purposes are told so.
struct MeetingPurpose {
  enum class Kind : std::uint8_t { operation, making_communicator, connecting_peers, first_transfer };
  Kind kind = Kind::operation;
  std::uint8_t detail = 0;  // connecting_peers: the step; first_transfer: the CollectiveKind
  std::int16_t root = 0;    // first_transfer
  friend bool operator==(const MeetingPurpose&, const MeetingPurpose&) = default;
};

/// What a rank brings to a collective. Two alternate, since a fast rank may enter the next before a slow one has read.
inline constexpr std::uint64_t kNotInSegment = ~std::uint64_t{0};
struct Contribution {
  std::uint64_t offset;  // of the values in the segment; kNotInSegment if they are elsewhere
  std::uint64_t elements;
  std::int64_t weight;     // rows, for avg
  std::uint64_t division;  // among the ranks, as Division::fingerprint
  CollectiveKind operation;
  DType dtype;
  Reduction reduction;
  std::int32_t root;
  MeetingPurpose purpose{};
};

/// What a rank has left for its peers (Rendezvous): a value under a key.
inline constexpr std::size_t kRendezvousBytes = 128;
struct RendezvousSlot {
  std::atomic<std::uint64_t> key;  // 0 while there is no value, and while one is being written
  std::array<std::byte, kRendezvousBytes> value;
};

inline constexpr std::uint64_t kLeft = ~std::uint64_t{0};

/// The words of one worker. Each line of the cache is polled by one kind of waiter, or by none.
struct alignas(128) WorkerSlot {
  /// The last command that is over; polled by the master. A new worker begins with the one after it.
  std::atomic<std::uint64_t> done;

  alignas(64) std::atomic<std::uint64_t> vote;  // this line is polled by peers
  /// The command whose collectives it is in, and how many steps it has taken there; kLeft once it has left them. Every
  /// command starts afresh, also after a failure: the step is cleared before the command is written.
  std::atomic<std::uint64_t> collective_command;
  std::atomic<std::uint64_t> collective_step;
  std::array<Contribution, 2> contributions;

  alignas(64) std::atomic<std::uint64_t> progress;  // command and phase; read when something went wrong, never polled
  std::atomic<std::int64_t> released_ns;            // when it stopped waiting because of a loss (steady clock)
  /// What it has put on its GPU's stream and waits for: a hash of a command's collectives, and a CollectivePlan's standing.
  std::atomic<std::uint64_t> plan;
  std::atomic<std::uint64_t> plan_wait;
  RendezvousSlot rendezvous;
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> is_lost;  // 1 from its loss until a new worker comes; written by the master's watchers
  DeviceKind device_kind;              // of the rank's device
  std::int32_t predecessors;           // workers that had this rank before and were lost
  std::atomic<StartState> start;
  pthread_mutex_t life;                    // robust; held by a thread of the worker as long as it lives
  std::array<char, kMessageBytes> reason;  // why it ended by itself, where it could say so
};

/// What a worker prints before the reason, where there is no slot yet to write it to.
inline constexpr std::string_view kCannotStart = "syncrun worker: cannot start: ";

struct ControlHeader {
  std::uint64_t magic;
  std::uint32_t world_size;
  std::uint64_t heap_offset;
  std::uint64_t heap_bytes;
  std::uint64_t arenas_offset;
  std::uint64_t arena_bytes;  // of each rank
  std::uint64_t seed;
  std::uint64_t timelines_offset;  // of one Timeline per rank; 0: no profile is wanted
  bool spins;                      // there is a core for each of them
  bool workers_spin;               // there is one for each worker, at least
  bool respawns;                   // a loss is a failure of the calls in flight, and a new worker takes the rank
  std::uint32_t build_id_bytes;
  std::array<std::uint8_t, 32> build_id;  // of the master's image

  alignas(64) std::atomic<std::uint64_t> published;  // the last command the workers may run; polled by them
  alignas(64) std::atomic<std::uint64_t> consumed;   // outputs of commands up to here are no longer needed
  alignas(64) std::atomic<std::uint64_t> lost;       // 1 + rank of the first worker lost; 0 as long as all is well
  std::atomic<std::uint64_t> failed_call;            // the first failed command that the master has not acknowledged
  std::atomic<std::uint64_t>
      acknowledged;                        // the master knows of failures up to here: what is left of these shares them
  std::atomic<std::uint64_t> failed_comm;  // the last command after which GPU communicators are to be made anew
  std::atomic<std::uint64_t> replacements;  // of lost workers: what was shared with them is to be shared anew
  Doorbell to_workers;                      // published, lost
  Doorbell to_master;                       // done, start, lost
  Doorbell to_peers;                        // vote, collective, Command::failed, lost
};

/// What happens to freed pages of memory that these devices use. GPUs pin pages, so theirs are kept.
inline SharedHeap::Pages pages_of(DeviceKinds kinds) noexcept {
  return kinds.has(DeviceKind::cuda) ? SharedHeap::Pages::kept : SharedHeap::Pages::returned;
}

/// Finds the parts of a control block at `base`. The layout follows from the world size alone.
class ControlBlock {
 public:
  ControlBlock() = default;
  ControlBlock(std::byte* base, int world_size) noexcept : base_(base), world_size_(world_size) {}

  static std::size_t bytes(int world_size) noexcept {
    return commands_at(world_size) +
           kRingSize * (sizeof(Command) + sizeof(Outbox) * static_cast<std::size_t>(world_size));
  }

  int world_size() const noexcept { return world_size_; }
  ControlHeader& header() const noexcept { return *reinterpret_cast<ControlHeader*>(base_); }
  WorkerSlot& worker(int rank) const noexcept {
    return *reinterpret_cast<WorkerSlot*>(base_ + workers_at() + sizeof(WorkerSlot) * static_cast<std::size_t>(rank));
  }
  Command& command(std::uint64_t id) const noexcept {
    return *reinterpret_cast<Command*>(base_ + commands_at(world_size_) + sizeof(Command) * (id % kRingSize));
  }
  Outbox& outbox(std::uint64_t id, int rank) const noexcept {
    return *reinterpret_cast<Outbox*>(
        base_ + commands_at(world_size_) + sizeof(Command) * kRingSize +
        sizeof(Outbox) * ((id % kRingSize) * static_cast<std::size_t>(world_size_) + static_cast<std::size_t>(rank)));
  }

 private:
  static constexpr std::size_t align(std::size_t bytes) noexcept { return (bytes + 127) / 128 * 128; }
  static constexpr std::size_t workers_at() noexcept { return align(sizeof(ControlHeader)); }
  static constexpr std::size_t commands_at(int world_size) noexcept {
    return align(workers_at() + sizeof(WorkerSlot) * static_cast<std::size_t>(world_size));
  }
  std::byte* base_ = nullptr;
  int world_size_ = 0;
};

}  // namespace syncrun::detail
