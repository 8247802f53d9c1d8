#pragma once

// all_reduce among nodes with several GPUs each, in three steps:
// 1. within each node, each GPU gets the sum of its part of the vector;
// 2. each GPU sums its part with the GPUs of the other nodes that have the same part;
// 3. within each node, all GPUs get all parts.
// So each value crosses the network between two nodes once in each direction, and all GPUs of a node use the network at the
// same time. From 256 KiB on, one ncclAllReduce of all ranks takes 1.2 to 2.2 times as long (docs/performance-notes.md).

#include <nccl.h>

#include <cstddef>
#include <optional>

#include "syncrun/dtype.hpp"
#include "worker/devices/cuda/equal_nodes.hpp"
#include "worker/devices/cuda/owners.hpp"

namespace syncrun::detail::worker::devices::cuda {

class ReductionByNode {
 public:
  /// Makes the communicators of the steps. All ranks of `all` call it, with nothing else in progress on `all`.
  ncclResult_t make(ncclComm_t all, const EqualNodes& nodes);
  /// Aborts these communicators and `all` at the same time. A kernel of one may wait on the device for a peer that does not
  /// come, and the abort of another would wait for the device.
  void abort_with(Communicator& all) noexcept;
  /// Whether the three steps are faster than one ncclAllReduce. The same on every rank. There is at least one element.
  bool is_faster(std::size_t elements, std::size_t bytes) const noexcept {
    return equal_nodes_ && NodeDivision::of(elements, bytes / elements, equal_nodes_->ranks_per_node).part != 0 &&
           (bytes <= kMostSmallBytes || bytes >= kLeastLargeBytes);
  }
  /// The communicator for which `op` of all_reduce is made.
  const Communicator& within() const noexcept { return within_; }
  /// Reduces in place. `op` is for the values of the ranks, and `op_of_parts` for those that `op` has combined.
  ncclResult_t all_reduce(void* values, std::size_t elements, DType dtype, ncclRedOp_t op, ncclRedOp_t op_of_parts,
                          StreamView stream) const;
  /// The first error that NCCL has seen since in one of the communicators.
  ncclResult_t async_error() const noexcept;

 private:
  // At 64 KiB, one ncclAllReduce was faster, as measured with two nodes of two H100s each. At 16 and 256 KiB it was slower.
  static constexpr std::size_t kMostSmallBytes = std::size_t{16} << 10U;
  static constexpr std::size_t kLeastLargeBytes = std::size_t{256} << 10U;

  std::optional<EqualNodes> equal_nodes_;  // empty if there are no communicators
  Communicator within_;
  Communicator between_;
};

}  // namespace syncrun::detail::worker::devices::cuda
