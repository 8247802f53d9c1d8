#include "worker/devices/communicators.hpp"

#include "worker/devices/device.hpp"

namespace syncrun::detail {

Communicators::Communicators(const Attachment& attachment, SharedHeap& arena, CpuComm& host, WorkerDevice& device,
                             NodesComm* nodes)
    : host_(host),
      nodes_(nodes),
      device_(device),
      from_host_(
          attachment.segment, arena, host, [&host] { host.reclaim_buffers(); }, device) {
  if (nodes != nullptr)
    from_nodes_.emplace(
        attachment.segment, arena, *nodes, [&host] { host.reclaim_buffers(); }, device);
}

CommCore& Communicators::of(const CommandHead& command) {
  switch (command.comm.path()) {
    case CommPath::alone: return device_.solo();
    case CommPath::devices: return device_.comm(command);
    case CommPath::nodes:
    case CommPath::host: break;
  }
  return through_host(command);
}

/// The communicator of a CPU device is already in host memory.
CommCore& Communicators::through_host(const CommandHead& command) noexcept {
  if (command.ranks.is_single()) return device_.solo();
  const bool is_on_host = device_.gpu() == nullptr;
  if (command.comm.spans_nodes()) return is_on_host ? *nodes_ : *from_nodes_;
  return is_on_host ? host_ : from_host_;
}

}  // namespace syncrun::detail
