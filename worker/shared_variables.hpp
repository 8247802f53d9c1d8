#pragma once

// This rank's copies of the session's shared variables, and what the master does with them.

#include <cstddef>
#include <functional>
#include <utility>

#include "common/command.hpp"
#include "common/variable_entry.hpp"
#include "worker/collectives.hpp"
#include "worker/device.hpp"

namespace syncrun::detail {

class VariableCopies {
 public:
  /// `peers`: the way through shared memory. `before_release`: called before the memory of a copy is given up, which recorded
  /// work may refer to.
  VariableCopies(const Attachment& attachment, Device& device, SharedHeap& arena, CpuComm& peers,
                 std::function<void()> before_release)
      : attachment_(attachment),
        device_(device),
        arena_(arena),
        peers_(peers),
        before_release_(std::move(before_release)) {}

  /// A collective that the master calls on variables. By all ranks.
  void run_collective(const CollectivePayload& command);
  /// Values between the master and copies; or new shapes; or the end of a variable.
  void run_transfer(const TransferPayload& command);

 private:
  void run_part(TransferDirection direction, const TransferSlot& part);
  void make_room(VariableCopy& copy, std::size_t bytes);
  void release(VariableCopy& copy) noexcept;

  const Attachment& attachment_;
  Device& device_;
  SharedHeap& arena_;
  CpuComm& peers_;
  std::function<void()> before_release_;
};

}  // namespace syncrun::detail
