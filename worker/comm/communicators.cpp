#include "worker/comm/communicators.hpp"

#include "worker/devices/device.hpp"

namespace syncrun::detail {

Communicators::Communicators(const Attachment& attachment, SharedHeap& arena, CpuComm& host, WorkerDevice& device)
    : device_(device), host_comm_(attachment.segment, arena, host, device) {
  for (int rank = 0; rank < attachment.world_size; ++rank) kinds_.add(attachment.control.worker(rank).device_kind);
}

CommCore& Communicators::of(const RankSet& ranks) noexcept {
  switch (way_of(ranks)) {
    case CommWay::alone: return device_.solo();
    case CommWay::devices: return device_.comm();
    case CommWay::host: break;
  }
  return through_host(ranks);
}

/// The communicator of a CPU device is already in host memory.
CommCore& Communicators::through_host(const RankSet& ranks) noexcept {
  if (ranks.is_single()) return device_.solo();
  return device_.gpu() == nullptr ? device_.comm() : host_comm_;
}

}  // namespace syncrun::detail
