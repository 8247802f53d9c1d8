#pragma once

// The records that the handles of the public API refer to.

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/arrays/row_range.hpp"
#include "common/protocol/device_kinds.hpp"
#include "common/protocol/rank_set.hpp"
#include "master/records/assigned_ranks.hpp"
#include "master/records/settled.hpp"
#include "master/records/value_state.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/shared.hpp"

namespace syncrun::detail {

struct ObjectHistory;

}  // namespace syncrun::detail

namespace syncrun::detail::master::data {

class FileRecord;

}  // namespace syncrun::detail::master::data

namespace syncrun::detail::master::records {

struct CallFailure;

/// A call that wrote something, and failed.
struct WriteFailure {
  protocol::RankSet ranks;  // that ran the call
  std::shared_ptr<CallFailure> failure;
};

/// A command of one rank that copies from another rank's copy.
struct CopyRead {
  std::uint64_t command;
  int rank;    // that runs the command
  int source;  // whose copy it reads
};

/// The calls that wrote a variable or an object last.
struct WriteLog {
  std::vector<std::uint64_t> calls;    // some may no longer be in flight
  std::vector<WriteFailure> failures;  // of those that were collected
  std::vector<CopyRead> copies;        // made since the last write; some may no longer be in flight
  // The program has given new values after this command. So failures of it, and of earlier ones, no longer matter here.
  std::uint64_t replaced_after = 0;
};

/// True if a body may write to an argument of this kind.
constexpr bool is_written(ArgumentKind kind) noexcept {
  return kind == ArgumentKind::local || kind == ArgumentKind::update;
}

/// True if the argument is a shared variable or a Value.
constexpr bool is_variable(ArgumentKind kind) noexcept {
  return is_written(kind) || kind == ArgumentKind::local_read || kind == ArgumentKind::sliced;
}

struct DataRecord {
  std::shared_ptr<session::SessionCore> session;
  std::string name;  // may be empty
  DType dtype{};
  std::uint8_t dimensions = 0;
  Extents extents{};
  std::uint64_t offset = 0;  // in the segment; meaningless while capacity_bytes is 0
  std::size_t capacity_bytes = 0;
  // set if the values are in a mapped file: read only, and no memory of the segment is used
  std::shared_ptr<data::FileRecord> file;
  // set if the memory is a batch of a queue: the queue gets it back when the last owner releases this
  std::shared_ptr<void> lease;
  bool is_open_for_writing = false;
  // by node: the only rows that are there, if the producers of each node have filled only its own, or each node has a file
  // of its own. Else empty
  std::vector<arrays::RowRange> rows_on_nodes;

  ~DataRecord();
};

struct VariableRecord {
  std::shared_ptr<session::SessionCore> session;
  std::uint64_t entry = 0;  // offset of the VariableEntry
  std::string name;
  DType dtype{};
  std::uint8_t dimensions = 0;
  Known<CopyFacts> copies;     // of a Shared; the shape of a Value is ValueState::extents
  bool is_replicated = false;  // the master last made all copies equal, so a new worker can get its copy from a peer
  // The copies are shares of the state of a train step. The weights of ranks do not change these shares, because the
  // ranks also divide the gradient equally.
  bool has_equal_shares = false;
  std::int64_t layout = 0;  // how often its elements got another meaning. Train steps of an older layout do not fit
  WriteLog writes;
  std::unique_ptr<ValueState> value;  // if the variable is a Value, else null

  /// A command has failed that should have made this Value, or should have brought a copy.
  void note_unfinished(Destination to, std::uint64_t command, const std::exception_ptr& error) noexcept {
    if (command <= writes.replaced_after) return;
    if (value) return value->note_unfinished(to, command, error);
    const auto rank = static_cast<std::size_t>(to.rank().value());
    copies.change().assigned.remove(rank);
    copies.change().extents[rank] = {};
  }
  /// The shape of the copy on this rank.
  const Extents& extents_on(const Settled& settled, std::size_t rank) const {
    const CopyFacts& facts = copies(settled);
    return value ? value->extents : facts.extents[rank];
  }
  ~VariableRecord();
};

struct ObjectRecord {
  std::shared_ptr<session::SessionCore> session;
  std::uint64_t id = 0;
  // A new worker needs these to make the object again.
  std::string name;
  std::uint64_t constructor = 0;  // offset of the FunctionEntry
  std::vector<std::byte> arguments;
  WriteLog writes;                         // from the construction on
  std::exception_ptr failure;              // of the construction: there is no object
  std::shared_ptr<ObjectHistory> history;  // see detail::history_of
  std::vector<int> renewed;                // ranks that have a new object since they were taken last

  ~ObjectRecord();
};

enum class BodyState : std::uint8_t { missing, present, replayable };

struct FunctionRecord {
  std::shared_ptr<session::SessionCore> session;
  SignatureInfo signature;
  std::string name;
  std::uint64_t entry = 0;  // offset of the FunctionEntry
  std::shared_ptr<ObjectRecord> object;
  std::array<BodyState, kDeviceKinds> bodies{};  // by DeviceKind
  protocol::DeviceKinds kinds;                   // the kinds of devices that it has bodies for
  bool has_updates = false;
  bool writes_object = false;           // it is a method that is not const
  bool keeps_outputs = false;           // an output stays on the device
  std::uint32_t written_by_update = 0;  // see Body
  /// The number of replacements (CommandDispatcher::replacements) when the function last succeeded on all ranks. Empty: it
  /// never has.
  std::optional<std::uint64_t> came_through_after;

  ~FunctionRecord();
};

}  // namespace syncrun::detail::master::records
