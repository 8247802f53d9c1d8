#pragma once

// What the handles of the public API refer to.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/device_kinds.hpp"
#include "common/rank_set.hpp"
#include "launcher/assigned_ranks.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/shared.hpp"

namespace syncrun::detail {

class FileRecord;

struct DataRecord {
  std::shared_ptr<SessionCore> session;
  std::string name;  // may be empty
  DType dtype{};
  std::uint8_t dimensions = 0;
  Extents extents{};
  std::uint64_t offset = 0;  // in the segment; meaningless while capacity_bytes is 0
  std::size_t capacity_bytes = 0;
  std::shared_ptr<FileRecord> file;  // it is mapped from one, and can only be read: no memory of the segment is its own
  std::shared_ptr<void> lease;       // the memory is a batch's of a queue, and returns there with this
  std::uint64_t last_use = 0;        // the last command that reads it
  bool is_open_for_writing = false;

  ~DataRecord();
};

struct VariableRecord {
  std::shared_ptr<SessionCore> session;
  std::uint64_t entry = 0;  // offset of the VariableEntry
  std::string name;
  DType dtype{};
  std::uint8_t dimensions = 0;
  std::vector<Extents> extents;  // by rank
  AssignedRanks assigned;        // the ranks whose copy a call may use
  bool is_replicated = false;    // the master has last made all copies equal: a peer's will do for a new worker

  ~VariableRecord();
};

struct ObjectRecord {
  std::shared_ptr<SessionCore> session;
  std::uint64_t id = 0;
  // What it was made of: a new worker has to make it again.
  std::string name;
  std::uint64_t constructor = 0;  // offset of the FunctionEntry
  std::vector<std::byte> arguments;

  ~ObjectRecord();
};

/// On these ranks. Throws what the constructor did.
void construct_object(const ObjectRecord& object, const RankSet& ranks);

enum class BodyState : std::uint8_t { missing, present, replayable };

struct FunctionRecord {
  std::shared_ptr<SessionCore> session;
  SignatureInfo signature;
  std::string name;
  std::uint64_t entry = 0;  // offset of the FunctionEntry
  std::shared_ptr<ObjectRecord> object;
  std::array<BodyState, 2> bodies{};  // by DeviceKind
  DeviceKinds kinds;                  // that it has bodies for
  bool has_updates = false;
  /// How many workers had been replaced when it last came through on all ranks; nothing: it never has.
  std::optional<std::uint64_t> came_through_after;

  ~FunctionRecord();
};

}  // namespace syncrun::detail
