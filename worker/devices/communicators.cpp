#include "worker/devices/communicators.hpp"

namespace syncrun::detail::worker::devices {

Communicators::Communicators(const process::Attachment& attachment, os::SharedHeap& arena, comm::CpuComm& host,
                             WorkerDevice& device, comm::NodesComm* nodes)
    : host_(host),
      nodes_comm_(nodes),
      device_(device),
      is_on_host_(!device.parts().is_gpu()),
      from_host_(attachment.segment, arena, host, host, device.parts().memory) {
  if (nodes != nullptr) from_nodes_.emplace(attachment.segment, arena, *nodes, host, device.parts().memory);
}

comm::CommCore& Communicators::of(const protocol::CommandHead& command) {
  switch (command.comm.path()) {
    case protocol::CommPath::alone: return device_.solo();
    case protocol::CommPath::devices: return device_.comm(command);
    case protocol::CommPath::nodes:
    case protocol::CommPath::host: break;
  }
  return through_host(command);
}

/// The communicator of a CPU device is already in host memory.
comm::CommCore& Communicators::through_host(const protocol::CommandHead& command) noexcept {
  if (command.ranks.is_single()) return device_.solo();
  if (command.comm.spans_nodes()) return is_on_host_ ? *nodes_comm_ : *from_nodes_;
  return is_on_host_ ? host_ : from_host_;
}

}  // namespace syncrun::detail::worker::devices
