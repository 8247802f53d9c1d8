#pragma once

// The control block: the first part of the shared segment, where master and workers meet. Everything here is plain
// memory that stays readable after the death of any process.
//
//   header | one slot per worker | ring of commands | one outbox per command and worker
//
// Who writes what: the master writes the header and commands (before it publishes them); a worker writes its own slot
// and its own outboxes, from the thread that serves calls. Exceptions: `lost` is written by the master's watcher
// threads, `failed_call`, `failed_comm` and Command::failed by any worker, `comm_id` by rank 0; the slot of a worker that
// is dead by the master, before a new one takes it.

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/shared_heap.hpp"
#include "common/wait.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

inline constexpr std::uint64_t kMagic = 0x53594e4352554e31;  // "SYNCRUN1"
inline constexpr std::uint64_t kRingSize = 32;               // calls in flight
inline constexpr int kMaxWorldSize = 1024;
inline constexpr std::size_t kInlineBytes = 1024;
inline constexpr std::size_t kMessageBytes = 2048;

/// What a worker is doing. Kept in the low byte of its progress word, beside the command it is doing it for. Command 0
/// is starting up.
enum class Phase : std::uint8_t {
  spawn,         // from fork until it has the segment, and can say where it is
  attach,        // becoming one of the session
  device,        // initialising its device
  communicator,  // making a communicator with its peers (GPUs)
  inputs,        // taking its rows
  function,      // in the user's code
  collective,    // in a collective, called by the user's code or by the master
  vote,          // waiting for its peers to return
  reduction,     // reducing outputs, committing updates
  close,         // ending
  idle,          // waiting for the next command
};

std::string_view to_string(Phase phase) noexcept;

constexpr std::uint64_t progress_word(std::uint64_t command, Phase phase) noexcept {
  return (command << 8U) | static_cast<std::uint64_t>(phase);
}
constexpr std::uint64_t command_of(std::uint64_t progress) noexcept { return progress >> 8U; }
constexpr Phase phase_of(std::uint64_t progress) noexcept { return static_cast<Phase>(progress & 0xffU); }

/// How a rank's function ended, in the low byte of its vote word beside the command.
enum class Vote : std::uint8_t { none, ok, failed };
constexpr std::uint64_t vote_word(std::uint64_t command, Vote vote) noexcept {
  return (command << 8U) | static_cast<std::uint64_t>(vote);
}

enum class CollectiveKind : std::uint8_t {
  barrier,
  all_reduce,
  reduce,
  reduce_scatter,
  broadcast,
  all_gather,
  gather,
  scatter
};
enum class StartState : std::uint32_t { starting, ready, failed };

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
  /// What it has put on its GPU's stream and waits for: a hash of a command's collectives, and a Standing.
  std::atomic<std::uint64_t> plan;
  std::atomic<std::uint64_t> plan_wait;
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> is_lost;  // 1 from its loss until a new worker comes; written by the master's watchers
  std::int32_t predecessors;           // workers that had this rank before and were lost
  std::atomic<StartState> start;
  pthread_mutex_t life;                    // robust; held by a thread of the worker as long as it lives
  std::array<char, kMessageBytes> reason;  // why it ended by itself, where it could say so
};

/// What a worker prints before the reason, where there is no slot yet to write it to.
inline constexpr std::string_view kCannotStart = "syncrun worker: cannot start: ";

enum class CommandKind : std::uint8_t { call, construct, destroy, collective, transfer, unpin, unmap, close };

/// Which rows: as in Rows, with the list in the segment.
struct RowsSlot {
  Rows::Kind kind;
  std::int64_t begin;
  std::int64_t end;      // list: number of indices, begin is 0
  std::uint64_t offset;  // list: of int64 indices
  std::int64_t count() const noexcept { return end - begin; }
};

struct ArgumentSlot {
  ArgumentKind kind;
  DType dtype;
  Reduction reduction;
  std::uint8_t dimensions;
  bool is_minibatch;                                 // data: its rows are those of the batch
  std::uint64_t offset;                              // data and values: of the bytes; variables: of the VariableEntry
  std::uint64_t bytes;                               // values: of one
  std::uint64_t file;                                // data: offset of the FileEntry; 0: it is in the segment
  std::array<std::int64_t, kMaxDimensions> extents;  // data
};

/// A part of a transfer between the segment and one rank's copy of a variable.
struct TransferSlot {
  std::uint64_t variable;  // offset of the VariableEntry
  std::uint64_t offset;    // in the segment; 0: only the shape changes
  std::array<std::int64_t, kMaxDimensions> extents;
  bool takes_part;
  bool is_zero;  // no values come: it is filled with zeros
};
enum class TransferDirection : std::uint8_t { to_variable, from_variable };

/// One variable of a collective that the master calls.
struct CollectiveSlot {
  std::uint64_t variable;  // offset of the VariableEntry
  std::uint64_t lengths;   // all_gather, reduce_scatter: offset of the elements of each rank's part
  std::uint64_t to;  // reduce_scatter: offset in the segment where the whole result goes, instead of the copies; or 0
  std::array<std::int64_t, kMaxDimensions>
      extents;  // of the copies afterwards; reduce_scatter: of all of them together
};

struct alignas(64) Command {
  std::uint64_t id;
  CommandKind kind;
  std::int32_t target;  // a rank, or -1 for all
  bool has_comm;
  bool wants_vote;  // updates to commit: wait for every rank's vote
  bool is_first;    // its function has not come through yet on all of these workers: libraries may load what it needs
  std::uint8_t arguments_count;
  std::uint8_t outputs_count;
  std::uint32_t wanted_outputs;  // a bit for each: the others are neither moved nor reduced
  std::uint64_t function;        // call, construct: offset of the FunctionEntry
  std::uint64_t object;          // id, 0 for none; unmap: of the file
  std::int64_t rows;             // of the call; -1 where nothing has rows
  std::int64_t slices;
  RowsSlot batch;
  RowsSlot batch_s;               // the same for all ranks
  std::uint64_t batch_s_by_rank;  // offset of one RowsSlot per rank, or 0
  bool rows_are_local;            // no scattered argument: rows are those of the sliced ones
  std::int64_t timeout_ms;

  std::uint32_t variables_count;  // collective, transfer
  std::uint64_t transfers;        // transfer: offset of one TransferSlot per variable and rank
  std::uint64_t collectives;      // collective: offset of one CollectiveSlot per variable
  TransferDirection direction;
  CollectiveKind collective;
  Route route;
  Reduction reduction;
  std::int32_t root;

  std::array<OutputType, kMaxOutputs> outputs;
  std::array<ArgumentSlot, kMaxArguments> arguments;
  alignas(16) std::array<std::byte, kInlineBytes> bytes;
  /// Id of the command once a rank's function has failed: peers in a collective give up.
  alignas(64) std::atomic<std::uint64_t> failed;
};

struct OutputSlot {
  std::uint64_t offset;
  std::array<std::int64_t, kMaxDimensions> extents;
  alignas(8) std::array<std::byte, 8> scalar;
};

/// What one rank has to say about one command. Valid when its vote is in.
struct alignas(64) Outbox {
  Vote vote;
  bool is_empty;    // had no rows: contributes nothing
  bool is_fatal;    // failed so that the worker's device cannot be used any more
  bool is_large;    // some outputs are large enough to be reduced among the workers
  bool is_reduced;  // outputs were reduced among the workers: rank order's first holds the result
  ErrorKind error_kind;
  std::int32_t native_code;
  std::int64_t rows;
  std::uint64_t collective_steps;  // taken in this command; valid once the rank has left its collectives
  std::int64_t failed_ns;          // when it failed: the first failure is the one reported
  Phase failed_phase;
  std::array<OutputSlot, kMaxOutputs> outputs;
  std::array<char, kMessageBytes> message;
};

/// An address in a loaded image, as any process running the same image can find it again.
struct ImageAddress {
  std::uint64_t offset;
  std::uint32_t build_id_bytes;
  std::array<std::uint8_t, 32> build_id;
  std::array<char, 512> path;
};

struct BodyEntry {
  bool is_member;
  bool is_relocated;  // `pointer` is an address in an image; else words are taken as they are
  ImageAddress thunk;
  ImageAddress pointer;
  std::array<std::uint64_t, 2> words;
  std::uint64_t bucket_bytes;  // of a train step
};

/// A replicated function as the workers find it; in the master's heap.
struct FunctionEntry {
  std::uint64_t id;
  std::array<BodyEntry, 2> bodies;  // by DeviceKind
};

/// A rank's copy of a shared variable. Written by its worker only, outside calls that use it.
struct VariableCopy {
  std::uint64_t place;  // as the rank's device names its memory (Device::place_of); of no use to others
  std::uint64_t capacity_bytes;
  std::array<std::int64_t, kMaxDimensions> extents;
};

/// A shared variable as the workers find it; in the master's heap, followed by one VariableCopy and one TransferSlot per
/// rank (of the transfer that frees it: giving memory back must not need any).
struct VariableEntry {
  std::uint64_t id;
  DType dtype;
  std::uint8_t dimensions;
  bool is_freed;
  VariableCopy* copies() noexcept { return reinterpret_cast<VariableCopy*>(this + 1); }
  TransferSlot* last_transfer(int world_size) noexcept {
    return reinterpret_cast<TransferSlot*>(copies() + world_size);
  }
  static constexpr std::size_t bytes(int world_size) noexcept {
    return sizeof(VariableEntry) + (sizeof(VariableCopy) + sizeof(TransferSlot)) * static_cast<std::size_t>(world_size);
  }
};

/// How the ranks of a GPU communicator find each other; written by rank 0.
struct CommId {
  std::array<std::byte, 128> bytes;
  std::atomic<std::uint64_t> command;  // that it is made in
};

struct ControlHeader {
  std::uint64_t magic;
  std::uint32_t world_size;
  std::uint64_t heap_offset;
  std::uint64_t heap_bytes;
  std::uint64_t arenas_offset;
  std::uint64_t arena_bytes;  // of each rank
  std::uint64_t seed;
  std::uint64_t timelines_offset;  // of one Timeline per rank; 0: no profile is wanted
  DeviceKind device_kind;
  bool spins;         // there is a core for each of them
  bool workers_spin;  // there is one for each worker, at least
  bool respawns;      // a loss is a failure of the calls in flight, and a new worker takes the rank
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
  CommId comm_id;
  Doorbell to_workers;  // published, lost
  Doorbell to_master;   // done, start, lost
  Doorbell to_peers;    // vote, collective, Command::failed, lost
};

/// GPUs pin the pages they use.
constexpr SharedHeap::Pages pages_of(DeviceKind kind) noexcept {
  return kind == DeviceKind::cpu ? SharedHeap::Pages::returned : SharedHeap::Pages::kept;
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

/// Copies text into a fixed field, cut if need be, always terminated.
template <std::size_t N>
void put_text(std::array<char, N>& field, std::string_view text) noexcept {
  const std::size_t count = text.size() < N - 1 ? text.size() : N - 1;
  for (std::size_t i = 0; i < count; ++i) field[i] = text[i];
  field[count] = '\0';
}
/// Reads a field that another process wrote and may have left unterminated.
template <std::size_t N>
std::string_view get_text(const std::array<char, N>& field) noexcept {
  std::size_t count = 0;
  while (count < N && field[count] != '\0') ++count;
  return {field.data(), count};
}

}  // namespace syncrun::detail
