#pragma once

// The control block: the first part of the shared segment, through which the master and the workers communicate. It is
// plain memory that stays readable after the death of any process.
//
//   header | one slot per worker | inboxes of all workers | outboxes of each worker | pool of commands
//
// A command is in a slot of the pool. The master publishes it: it writes the number and the slot of the command into the
// inbox of each of its ranks. Each rank runs the commands of its inbox in their order, and no others. So the numbers of
// a rank's commands increase, but not by one.
//
//   slot free --publish--> in the inboxes of its ranks --done on all of them--> complete --collected--> slot free
//
// The place of a command in a rank's inbox is free again once the command has been collected.
//
// The master writes the header, the inboxes, and the commands before it publishes them. A worker writes its own slot and
// its own outboxes, from the thread that serves calls. There are these exceptions:
// - The watcher threads of the master write `lost` and `is_lost`.
// - Any worker may write `failed_comms` and Command::failed. The master writes `failed_comms` too.
// - The master writes `consumed`, and Command::spoiled of commands in flight.
// - `syncrun stacks` writes StacksRequest. It also reads the whole control block, as `syncrun top` does.
// - The master prepares each slot before a worker starts: it sets `device_kind` and `node`, and initialises `life`. After
//   a loss, it also resets the slot of the dead worker for the new one, and `released_ns` of all workers.

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/os/shared_heap.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/command.hpp"
#include "common/protocol/device_kinds.hpp"
#include "common/protocol/node_place.hpp"
#include "common/protocol/node_request.hpp"
#include "common/protocol/outcome.hpp"
#include "common/protocol/phase.hpp"
#include "common/text/fixed_text.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::protocol {

inline constexpr std::uint64_t kMagic = 0x53594e4352554e31;  // "SYNCRUN1"

enum class StartState : std::uint32_t { starting, ready, failed };

/// The purpose of a meeting of ranks: an operation of the user, or something that has to be set up before one. If ranks
/// meet for different purposes, they get an error.
struct MeetingPurpose {
  enum class Kind : std::uint8_t { operation, making_communicator, connecting_peers, first_transfer };
  Kind kind = Kind::operation;
  std::uint8_t detail = 0;  // connecting_peers: the step; first_transfer: the CollectiveKind
  std::int16_t root = 0;    // first_transfer
  friend bool operator==(const MeetingPurpose&, const MeetingPurpose&) = default;
};

/// What the caller of a collective says about it. Ranks with other labels get an error. They compare the hash, which is 0
/// without a label, and the text is for the message: its end, if it is too long.
struct CollectiveLabel {
  std::uint32_t hash = 0;
  std::array<char, 60> text{};
};

/// What a rank contributes to a collective. Each rank uses two in turn, because a fast rank may enter the next
/// collective before a slow rank has read the contribution to this one.
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
  bool maps = false;        // this rank maps the peers' values if all ranks do so
  CollectiveLabel label{};  // Meetings fills it in
};

/// A value with a key that a rank publishes for its peers (see Rendezvous).
inline constexpr std::size_t kRendezvousBytes = 128;
struct RendezvousSlot {
  std::atomic<std::uint64_t> key;  // 0 while there is no value, or the rank is writing one
  std::array<std::byte, kRendezvousBytes> value;
};

/// Room for the description of a device's hardware. Longer ones are cut.
inline constexpr std::size_t kHardwareBytes = 128;

inline constexpr std::uint64_t kLeft = ~std::uint64_t{0};

/// An entry of an inbox, as one word: the number of a command and its slot. 0 while the place has never been used.
class InboxEntry {
 public:
  constexpr explicit InboxEntry(std::uint64_t word) noexcept : word_(word) {}
  constexpr InboxEntry(std::uint64_t command, std::size_t slot) noexcept : word_(command << kSlotBits | slot) {}
  constexpr std::uint64_t word() const noexcept { return word_; }
  constexpr std::uint64_t command() const noexcept { return word_ >> kSlotBits; }
  constexpr std::size_t slot() const noexcept { return word_ & ((std::uint64_t{1} << kSlotBits) - 1); }

 private:
  static constexpr unsigned kSlotBits = 16;
  static_assert(kInboxSize * kMaxWorldSize < std::size_t{1} << kSlotBits);
  std::uint64_t word_;
};

/// The part of the control block that belongs to one worker. Each cache line is polled by one kind of waiter at most.
struct alignas(128) WorkerSlot {
  /// The last command that the worker has finished. The master polls it.
  std::atomic<std::uint64_t> done;

  alignas(128)
      std::atomic<std::uint64_t> consumed;  // the outputs of the rank's commands up to this one are no longer needed
  std::uint64_t received;                   // how many commands the rank had got before the worker started

  alignas(64) std::atomic<std::uint64_t> vote;  // peers poll this cache line
  /// The command whose collectives the worker is in, and how many steps it has taken in them. The step is kLeft once
  /// the worker has left the collectives. For each command, also after a failure, the worker clears the step before it
  /// writes the command.
  std::atomic<std::uint64_t> collective_command;
  std::atomic<std::uint64_t> collective_step;
  std::array<Contribution, 2> contributions;

  alignas(64) std::atomic<std::uint64_t> progress;  // command and phase; others read it after errors and in long waits
  /// The calls that the worker has finished, and how many rows it had in them. Only `syncrun top` reads them. They are in a
  /// cache line that the worker writes anyway.
  std::atomic<std::uint64_t> calls;
  std::atomic<std::uint64_t> rows;
  std::atomic<std::int64_t> released_ns;  // when the worker stopped waiting because of a loss (steady clock)
  /// A hash of the command's collectives that the worker has put on the stream of its GPU.
  std::atomic<std::uint64_t> plan;
  /// How far the worker has come in these collectives (CollectivePlan::Standing).
  std::atomic<std::uint64_t> plan_wait;
  RendezvousSlot rendezvous;
  std::atomic<std::int32_t> pid;       // 0 until the worker has begun, if a wrapper starts it
  std::atomic<std::uint32_t> is_lost;  // 1 from the loss of this worker until a new one takes the rank
  DeviceKind device_kind;              // of the rank's device
  std::int32_t predecessors;           // workers that had this rank before and were lost
  std::atomic<StartState> start;
  pthread_mutex_t life;                       // robust; a thread of the worker holds it as long as the worker lives
  std::array<char, kMessageBytes> reason;     // why the worker failed outside a call; may be empty
  std::array<char, kHardwareBytes> hardware;  // of the device, in words; the worker writes it before it is ready
  /// Whether devices of peers cannot copy from the memory of this one. The worker writes it before it is ready.
  bool is_closed_to_peers;
  std::int32_t node;  // the number of the rank's node
  /// If the rank is on another node: its first move for which this node has not sent the values yet. 0 if there is none.
  std::atomic<std::uint64_t> owed;
  std::atomic<std::uint64_t> memory_bytes;  // of the process; for `syncrun top`, if the rank is on another node
  NodeRequest exchange;                     // used in commands on several nodes
};

/// A worker that fails before it has a slot prints this and then the reason.
inline constexpr std::string_view kCannotStart = "syncrun worker: cannot start: ";

/// A request of `syncrun stacks` to a master that has workers on other nodes.
struct StacksRequest {
  std::atomic<std::uint32_t> wanted;   // the number of the last request
  std::atomic<std::uint32_t> answers;  // how many nodes have answered it
  std::atomic<std::uint64_t> file;  // to which the master appends the answers: the pid of `syncrun`, and a descriptor

  /// One word, so that the master never reads a part of one request and a part of another.
  static constexpr std::uint64_t file_of(int pid, int fd) noexcept {
    return static_cast<std::uint64_t>(pid) << 32U | static_cast<std::uint32_t>(fd);
  }
  std::string path() const {
    const std::uint64_t of = file.load(std::memory_order_acquire);
    return "/proc/" + std::to_string(of >> 32U) + "/fd/" + std::to_string(static_cast<std::uint32_t>(of));
  }
};

struct ControlHeader {
  std::uint64_t magic;
  std::uint32_t world_size;
  std::uint32_t layout;  // kLayout of the library
  NodePlace place;       // of this node; a worker's slot is at its rank on all nodes
  std::uint64_t heap_offset;
  std::uint64_t heap_bytes;
  std::uint64_t arenas_offset;
  std::uint64_t arena_bytes;  // of each rank of this node
  std::uint64_t seed;
  std::uint64_t timelines_offset;  // of one Timeline per rank; 0 if no profile or trace was requested
  std::uint64_t totals_offset;     // of one RankTotals per rank; 0 if no metrics were requested
  bool spins;                      // there is a core for the master and for every worker
  bool workers_spin;               // there is a core for every worker
  bool respawns;                   // if a worker is lost, the calls in flight fail and a new worker takes the rank
  std::uint32_t build_id_bytes;
  std::array<std::uint8_t, 32> build_id;  // of the master's image

  alignas(64) std::atomic<std::uint64_t> lost;  // 1 + rank of the first worker that was lost; 0 if none was
  /// How often lost workers were replaced. After a change, workers have to share their memory with their peers again.
  std::atomic<std::uint64_t> replacements;
  StacksRequest stacks;
  os::Doorbell to_workers;  // rung after changes of: inboxes, lost, replacements
  os::Doorbell to_master;   // done, start, lost, NodeRequest::asked and left, owed, Command::arrived
  os::Doorbell to_peers;    // vote, collective_step, Command::failed, lost, NodeRequest::taken and answered
  /// By CommChoice::index: the last command after which the ranks of this communicator of GPUs have to make a new one.
  alignas(64) std::array<std::atomic<std::uint64_t>, CommChoice::kMostComms> failed_comms;

  std::atomic<std::uint64_t>& failed_comm(CommChoice comm) noexcept {
    return failed_comms[static_cast<std::size_t>(comm.index())];
  }
};

/// Differs between libraries whose control blocks differ. `syncrun` may be of another version than the program's library.
inline constexpr std::uint32_t kLayout = static_cast<std::uint32_t>(
    ((sizeof(ControlHeader) * 131 + sizeof(WorkerSlot)) * 131 + sizeof(Command)) * 131 + offsetof(WorkerSlot, calls));

/// Whether a heap that these devices use returns freed pages. GPUs pin pages, so it keeps them if there is a GPU.
inline os::SharedHeap::Pages pages_of(DeviceKinds kinds) noexcept {
  return kinds.has(DeviceKind::cuda) ? os::SharedHeap::Pages::kept : os::SharedHeap::Pages::returned;
}

/// Finds the parts of a control block at `base`. Only the world size determines the layout.
class ControlBlock {
 public:
  ControlBlock() = default;
  ControlBlock(std::byte* base, int world_size) noexcept
      : base_(base),
        inboxes_(base + inboxes_at(world_size)),
        outboxes_(reinterpret_cast<Outbox*>(base + outboxes_at(world_size))),
        commands_(reinterpret_cast<Command*>(base + commands_at(world_size))),
        inbox_row_bytes_(inbox_row_bytes(world_size)),
        world_size_(world_size) {}

  static std::size_t bytes(int world_size) noexcept {
    return commands_at(world_size) + sizeof(Command) * slots_of(world_size);
  }

  int world_size() const noexcept { return world_size_; }
  ControlHeader& header() const noexcept { return *reinterpret_cast<ControlHeader*>(base_); }
  /// The node of this process, and the ranks that it has.
  const NodePlace& place() const noexcept { return header().place; }
  WorkerSlot& worker(int rank) const noexcept {
    return *reinterpret_cast<WorkerSlot*>(base_ + workers_at() + sizeof(WorkerSlot) * static_cast<std::size_t>(rank));
  }
  /// The kinds of the devices of this node.
  DeviceKinds kinds_here() const noexcept {
    DeviceKinds kinds;
    const NodePlace& here = place();
    for (int rank = here.first_rank; rank < here.first_rank + here.local_size; ++rank)
      kinds.add(worker(rank).device_kind);
    return kinds;
  }
  /// The offset of the arena of a rank of this node.
  std::uint64_t arena_at(int rank) const noexcept {
    const auto local_rank = static_cast<std::uint64_t>(place().local_rank(rank));
    return header().arenas_offset + header().arena_bytes * local_rank;
  }
  /// A place of a rank's inbox, as an InboxEntry. The master writes it, and the worker polls the next one. The entries
  /// of all ranks for one place are together. So a command for all ranks is mostly in one cache line, which workers
  /// that share a core fetch once.
  std::atomic<std::uint64_t>& inbox(int rank, std::size_t place) const noexcept {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(inboxes_ + place * inbox_row_bytes_)[rank];
  }
  /// The number of slots: enough for as many commands as fit into all inboxes, and one more.
  std::size_t slots() const noexcept { return slots_of(world_size_); }
  Command& command_in(std::size_t slot) const noexcept { return commands_[slot]; }
  /// The outbox that belongs to a place of a rank's inbox.
  Outbox& outbox_at(int rank, std::size_t place) const noexcept {
    return outboxes_[static_cast<std::size_t>(rank) * kInboxSize + place];
  }
  /// Where a rank of the command reports about it. A worker does not need this for its own outbox, and saves itself the
  /// cache line of the places.
  Outbox& outbox(const Command& command, int rank) const noexcept {
    return outbox_at(rank, command.places[static_cast<std::size_t>(rank)]);
  }

 private:
  static constexpr std::size_t align(std::size_t bytes) noexcept { return (bytes + 127) / 128 * 128; }
  static constexpr std::size_t workers_at() noexcept { return align(sizeof(ControlHeader)); }
  static constexpr std::size_t slots_of(int world_size) noexcept {
    return places_of(world_size) + 1;  // one for a command that the master is still writing
  }
  static constexpr std::size_t places_of(int world_size) noexcept {
    return kInboxSize * static_cast<std::size_t>(world_size);
  }
  static constexpr std::size_t inbox_row_bytes(int world_size) noexcept {
    return align(sizeof(std::uint64_t) * static_cast<std::size_t>(world_size));
  }
  static constexpr std::size_t inboxes_at(int world_size) noexcept {
    return align(workers_at() + sizeof(WorkerSlot) * static_cast<std::size_t>(world_size));
  }
  static constexpr std::size_t outboxes_at(int world_size) noexcept {
    return inboxes_at(world_size) + kInboxSize * inbox_row_bytes(world_size);
  }
  static constexpr std::size_t commands_at(int world_size) noexcept {
    return align(outboxes_at(world_size) + sizeof(Outbox) * places_of(world_size));
  }
  std::byte* base_ = nullptr;
  std::byte* inboxes_ = nullptr;
  Outbox* outboxes_ = nullptr;
  Command* commands_ = nullptr;
  std::size_t inbox_row_bytes_ = 0;
  int world_size_ = 0;
};

/// Whether all ranks of this node are in the user's code. Then none of them waits for anything.
inline bool all_compute_here(const ControlBlock& control) noexcept {
  const NodePlace& here = control.place();
  for (int local_rank = 0; local_rank < here.local_size; ++local_rank) {
    const WorkerSlot& slot = control.worker(here.rank(local_rank));
    if (phase_of(slot.progress.load(std::memory_order_relaxed)) != Phase::function) return false;
  }
  return true;
}

}  // namespace syncrun::detail::protocol
