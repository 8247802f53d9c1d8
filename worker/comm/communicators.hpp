#pragma once

// Finds the communicator of a command. The master has chosen it.

#include <memory>

#include "worker/comm/host_comm.hpp"
#include "worker/comm/nodes_comm.hpp"

namespace syncrun::detail {

/// The communicators of one rank.
class Communicators {
 public:
  /// `host` is the communicator in host memory. `arena` is this rank's part of the segment. All must outlive this
  /// object. `nodes` is null if the session has one node.
  Communicators(const Attachment& attachment, SharedHeap& arena, CpuComm& host, WorkerDevice& device,
                std::unique_ptr<NodesComm> nodes = nullptr);

  /// The communicator of this command. This rank must be one of the command's ranks.
  CommCore& of(const CommandHead& command);
  /// The communicator of these ranks for a collective that goes through host memory whatever the devices are.
  CommCore& through_host(const RankSet& ranks) noexcept;

 private:
  CpuComm& host_;
  WorkerDevice& device_;
  HostComm host_comm_;  // for a device whose memory is not host memory
  std::unique_ptr<NodesComm> nodes_;
};

}  // namespace syncrun::detail
