#include "worker/comm/communicators.hpp"

#include <utility>

#include "worker/devices/device.hpp"

namespace syncrun::detail {

Communicators::Communicators(const Attachment& attachment, SharedHeap& arena, CpuComm& host, WorkerDevice& device,
                             std::unique_ptr<NodesComm> nodes)
    : host_(host), device_(device), host_comm_(attachment.segment, arena, host, device), nodes_(std::move(nodes)) {}

CommCore& Communicators::of(const CommandHead& command) {
  switch (command.comm.path()) {
    case CommPath::alone: return device_.solo();
    case CommPath::devices: return device_.comm(command);
    case CommPath::nodes: return *nodes_;
    case CommPath::host: break;
  }
  return through_host(command.ranks);
}

/// The communicator of a CPU device is already in host memory.
CommCore& Communicators::through_host(const RankSet& ranks) noexcept {
  if (ranks.is_single()) return device_.solo();
  if (device_.gpu() == nullptr) return host_;
  return host_comm_;
}

}  // namespace syncrun::detail
