#pragma once

// This rank's copies of the session's shared variables, and what the master can request for them.

#include <cstddef>
#include <functional>
#include <utility>

#include "common/protocol/command.hpp"
#include "common/protocol/variable_entry.hpp"
#include "worker/comm/communicators.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail {

class VariableCopies {
 public:
  /// `before_release` is called before the memory of a copy is freed, because recorded work may refer to it.
  VariableCopies(const Attachment& attachment, WorkerDevice& device, Communicators& comms,
                 std::function<void()> before_release)
      : attachment_(attachment), device_(device), comms_(comms), before_release_(std::move(before_release)) {}

  /// Runs a collective that the master calls on variables. Called by all of `ranks`, the ranks of the command.
  void run_collective(const CollectivePayload& command, const RankSet& ranks);
  /// Copies values between the master and the copies, gives copies a new shape, or frees the copies of a variable.
  void run_transfer(const TransferPayload& command);

 private:
  void run_part(TransferDirection direction, const TransferSlot& part);
  void make_room(VariableCopy& copy, std::size_t bytes);
  void release(VariableCopy& copy) noexcept;

  const Attachment& attachment_;
  WorkerDevice& device_;
  Communicators& comms_;
  std::function<void()> before_release_;
};

}  // namespace syncrun::detail
