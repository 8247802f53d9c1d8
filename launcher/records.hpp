#pragma once

// What the handles of the public API refer to.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "syncrun/detail/call.hpp"
#include "syncrun/shared.hpp"

namespace syncrun::detail {

struct DataRecord {
  std::shared_ptr<SessionCore> session;
  std::string name;  // may be empty
  DType dtype{};
  std::uint8_t dimensions = 0;
  Extents extents{};
  std::uint64_t offset = 0;  // in the segment; meaningless while capacity_bytes is 0
  std::size_t capacity_bytes = 0;
  std::shared_ptr<void> lease;  // the memory is a batch's of a queue, and returns there with this
  std::uint64_t last_use = 0;   // the last command that reads it
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
  bool has_shape = false;        // values were given to it, be it none

  ~VariableRecord();
};

struct ObjectRecord {
  std::shared_ptr<SessionCore> session;
  std::uint64_t id = 0;

  ~ObjectRecord();
};

enum class BodyState : std::uint8_t { missing, present, replayable };

struct FunctionRecord {
  std::shared_ptr<SessionCore> session;
  SignatureInfo signature;
  std::string name;
  std::uint64_t entry = 0;  // offset of the FunctionEntry
  std::shared_ptr<ObjectRecord> object;
  std::array<BodyState, 2> bodies{};  // by DeviceKind
  bool has_body = false;              // for the session's kind of device
  bool has_updates = false;

  ~FunctionRecord();
};

}  // namespace syncrun::detail
