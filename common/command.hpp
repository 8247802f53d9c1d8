#pragma once

// What the master asks of the workers: a header, a payload by kind, and room for a call's arguments.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "common/rank_set.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/options.hpp"

namespace syncrun::detail {

inline constexpr std::uint64_t kRingSize = 32;  // commands in flight
inline constexpr std::size_t kInlineBytes = 1024;

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

enum class CommandKind : std::uint8_t { call, construct, destroy, collective, transfer, unpin, unmap, close };

/// Which rows: as in Rows, with the list in the segment.
struct RowsSlot {
  Rows::Kind kind = Rows::Kind::all;
  std::int64_t begin = 0;
  std::int64_t end = 0;      // list: number of indices, begin is 0
  std::uint64_t offset = 0;  // list: of int64 indices
  std::int64_t count() const noexcept { return end - begin; }
};

struct ArgumentSlot {
  ArgumentKind kind{};
  DType dtype{};
  Reduction reduction{};
  std::uint8_t dimensions = 0;
  bool is_minibatch = false;                           // data: its rows are those of the batch
  std::uint64_t offset = 0;                            // data and values: of the bytes; variables: of the VariableEntry
  std::uint64_t bytes = 0;                             // values: of one
  std::uint64_t file = 0;                              // data: offset of the FileEntry; 0: it is in the segment
  std::array<std::int64_t, kMaxDimensions> extents{};  // data
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

/// What every command has, besides its ranks. Written by the master before it publishes the command.
struct CommandHeader {
  std::uint64_t id = 0;
  CommandKind kind = CommandKind::call;
  bool has_comm = false;
  bool wants_vote = false;      // updates to commit: wait for every rank's vote
  std::int64_t timeout_ms = 0;  // 0: none
};

/// A function on rows (call), or the making of a replicated object (construct). Its arguments and outputs are in the
/// Command, as many as are counted here.
struct CallPayload {
  std::uint64_t function = 0;   // offset of the FunctionEntry
  std::uint64_t object = 0;     // id of the replicated object, 0 for none
  bool is_first = false;        // it has not come through yet on all of these workers: libraries may load what it needs
  bool rows_are_local = false;  // no scattered argument: rows are those of the sliced ones
  std::uint8_t arguments_count = 0;
  std::uint8_t outputs_count = 0;
  std::uint32_t wanted_outputs = kAllOutputs;  // a bit for each: the others are neither moved nor reduced
  std::int64_t rows = -1;                      // of the call; -1 where nothing has rows
  std::int64_t slices = 1;
  RowsSlot batch;
  RowsSlot batch_s;                   // the same for all ranks
  std::uint64_t batch_s_by_rank = 0;  // offset of one RowsSlot per rank, or 0
};

/// The end of a replicated object.
struct DestroyPayload {
  std::uint64_t object = 0;  // its id
};

/// A collective on shared variables that the master calls.
struct CollectivePayload {
  CollectiveKind collective = CollectiveKind::barrier;
  Route route{};
  Reduction reduction{};
  std::int32_t root = 0;
  std::uint32_t variables_count = 0;
  std::uint64_t variables = 0;  // offset of one CollectiveSlot per variable
};

/// Values to copies of shared variables, or from them.
struct TransferPayload {
  TransferDirection direction{};
  std::uint32_t variables_count = 0;
  std::uint64_t parts = 0;  // offset of one TransferSlot per variable and rank
};

/// Free pages of the heap are no longer kept in a GPU's reach.
struct UnpinPayload {};

/// A file that is mapped no more.
struct UnmapPayload {
  std::uint64_t file = 0;  // its id
};

struct ClosePayload {};

/// One slot of the ring. A payload comes into being with its fields as above; what belongs to another kind cannot be read.
struct alignas(64) Command : CommandHeader {
  using Payload = std::variant<ClosePayload, CallPayload, DestroyPayload, CollectivePayload, TransferPayload,
                               UnpinPayload, UnmapPayload>;

  /// Master: makes it a command of this kind.
  template <class P>
  P& begin(CommandKind new_kind) noexcept {
    kind = new_kind;
    return payload.template emplace<P>();
  }
  /// Throws std::bad_variant_access if it is of another kind.
  template <class P>
  const P& as() const {
    return std::get<P>(payload);
  }
  const CallPayload& call() const { return as<CallPayload>(); }

  Payload payload;
  RankSet
      ranks;  // who runs it; the others pass it. Behind the payload: workers then read three lines of the cache, not five
  // The next three are used by calls only.
  std::array<OutputType, kMaxOutputs> outputs;
  std::array<ArgumentSlot, kMaxArguments> arguments;
  alignas(16) std::array<std::byte, kInlineBytes> bytes;  // of small values
  /// Id of the command once a rank's function has failed: peers in a collective give up.
  alignas(64) std::atomic<std::uint64_t> failed;
};

}  // namespace syncrun::detail
