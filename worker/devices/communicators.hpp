#pragma once

// Finds the communicator of a command. The master has chosen it.

#include <optional>

#include "worker/comm/nodes_comm.hpp"
#include "worker/devices/device.hpp"
#include "worker/devices/host_comm.hpp"

namespace syncrun::detail::worker::devices {

/// The communicators of one rank.
class Communicators {
 public:
  /// `host` is the communicator in host memory. `arena` is this rank's part of the segment. `nodes` is the communicator
  /// in the host memory of several nodes, or null if the session has one node. All must outlive this object.
  Communicators(const process::Attachment& attachment, os::SharedHeap& arena, comm::CpuComm& host, WorkerDevice& device,
                comm::NodesComm* nodes = nullptr);

  /// The communicator of this command. This rank must be one of the command's ranks.
  comm::CommCore& of(const protocol::CommandHead& command);
  /// The communicator of this command for a collective that goes through host memory whatever the devices are.
  comm::CommCore& through_host(const protocol::CommandHead& command) noexcept;

 private:
  comm::CommCore& host_;
  comm::CommCore* nodes_comm_;
  WorkerDevice& device_;
  const bool is_on_host_;
  // For a device whose memory is not host memory.
  HostComm from_host_;
  std::optional<HostComm> from_nodes_;
};

}  // namespace syncrun::detail::worker::devices
