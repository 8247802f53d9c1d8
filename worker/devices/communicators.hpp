#pragma once

// Finds the communicator of a command. The master has chosen it.

#include <optional>

#include "worker/comm/nodes_comm.hpp"
#include "worker/devices/host_comm.hpp"

namespace syncrun::detail {

/// The communicators of one rank.
class Communicators {
 public:
  /// `host` is the communicator in host memory. `arena` is this rank's part of the segment. `nodes` is the communicator
  /// in the host memory of several nodes, or null if the session has one node. All must outlive this object.
  Communicators(const Attachment& attachment, SharedHeap& arena, CpuComm& host, WorkerDevice& device,
                NodesComm* nodes = nullptr);

  /// The communicator of this command. This rank must be one of the command's ranks.
  CommCore& of(const CommandHead& command);
  /// The communicator of this command for a collective that goes through host memory whatever the devices are.
  CommCore& through_host(const CommandHead& command) noexcept;

 private:
  CommCore& host_;
  CommCore* nodes_;
  WorkerDevice& device_;
  // For a device whose memory is not host memory.
  HostComm from_host_;
  std::optional<HostComm> from_nodes_;
};

}  // namespace syncrun::detail
