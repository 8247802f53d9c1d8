#pragma once

// Chooses the communicator of a command by the ranks that run it.

#include "common/protocol/rank_kinds.hpp"
#include "worker/comm/host_comm.hpp"

namespace syncrun::detail {

/// The communicators of one rank. All ranks of a command choose in the same way (RankKinds::way_of), so their
/// communicators fit together.
class Communicators {
 public:
  /// `host` is the communicator in host memory. `arena` is this rank's part of the segment. All must outlive this
  /// object. Reads the kinds of the session's devices from the control block.
  Communicators(const Attachment& attachment, SharedHeap& arena, CpuComm& host, WorkerDevice& device);

  /// The communicator among these ranks. This rank must be one of them.
  CommCore& of(const RankSet& ranks) noexcept;
  /// The same, for a collective that goes through host memory whatever the devices are.
  CommCore& through_host(const RankSet& ranks) noexcept;
  /// How these ranks communicate.
  CommWay way_of(const RankSet& ranks) const noexcept { return kinds_.way_of(ranks); }

 private:
  WorkerDevice& device_;
  RankKinds kinds_;
  HostComm host_comm_;
};

}  // namespace syncrun::detail
