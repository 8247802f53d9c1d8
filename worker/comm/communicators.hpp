#pragma once

// Finds the communicator of a command. The master has chosen it.

#include "worker/comm/host_comm.hpp"

namespace syncrun::detail {

/// The communicators of one rank.
class Communicators {
 public:
  /// `host` is the communicator in host memory. `arena` is this rank's part of the segment. All must outlive this
  /// object.
  Communicators(const Attachment& attachment, SharedHeap& arena, CpuComm& host, WorkerDevice& device);

  /// The communicator of this command. This rank must be one of the command's ranks.
  CommCore& of(const CommandHead& command);
  /// The communicator of these ranks for a collective that goes through host memory whatever the devices are.
  CommCore& through_host(const RankSet& ranks) noexcept;

 private:
  CpuComm& host_;
  WorkerDevice& device_;
  HostComm host_comm_;  // for a device whose memory is not host memory
};

}  // namespace syncrun::detail
