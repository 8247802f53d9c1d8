#include "worker/comm/rendezvous.hpp"

#include <algorithm>
#include <string>

#include "common/text/errors.hpp"

namespace syncrun::detail::worker::comm {

void SegmentRendezvous::put(std::uint64_t key, std::span<const std::byte> value, const process::WaitLimits& limits) {
  protocol::RendezvousSlot& slot = attachment_.slot().rendezvous;
  if (value.size() > kMostBytes) {
    text::throw_usage("a rendezvous takes up to " + std::to_string(kMostBytes) + " bytes, got " +
                      std::to_string(value.size()));
  }
  limits.interruption.check();
  slot.key.store(0, std::memory_order_release);  // no peer may read the new value under the old key
  std::copy(value.begin(), value.end(), slot.value.begin());
  slot.key.store(key, std::memory_order_seq_cst);
  attachment_.control.header().to_peers.ring();
}

void SegmentRendezvous::get(int from, std::uint64_t key, std::span<std::byte> value,
                            const process::WaitLimits& limits) {
  const protocol::RendezvousSlot& slot = attachment_.control.worker(from).rendezvous;
  meetings_.await([&] { return slot.key.load(std::memory_order_seq_cst) == key; }, limits);
  std::copy_n(slot.value.begin(), value.size(), value.begin());
}

void SegmentRendezvous::barrier(protocol::MeetingPurpose purpose, const process::WaitLimits& limits) {
  protocol::Contribution nothing{};
  nothing.operation = protocol::CollectiveKind::barrier;
  nothing.dtype = DType::uint8;
  nothing.reduction = Reduction::sum;
  nothing.purpose = purpose;
  meetings_.meet(nothing, limits);
}

}  // namespace syncrun::detail::worker::comm
