#include "worker/comm/host_side.hpp"

#include "worker/comm/node_staging.hpp"

namespace syncrun::detail::worker::comm {

namespace {

os::SharedHeap own_arena(const process::Attachment& attachment) {
  const protocol::ControlBlock& control = attachment.control;
  const std::size_t reserved = NodeStaging::reserved_bytes(attachment.place);
  // GPUs of other ranks copy from this rank's arena, and pin its pages.
  return {attachment.segment, control.arena_at(attachment.rank) + reserved, control.header().arena_bytes - reserved,
          protocol::pages_of(control.kinds_here())};
}

/// How ranks wait for each other. The master sleeps meanwhile, if this is the only node. On several nodes, the master and
/// the agents carry what the ranks exchange. If they have no core of their own, ranks must not stay awake for long.
os::WaitPolicy policy_of_meetings(const protocol::ControlHeader& header) noexcept {
  os::WaitPolicy policy = header.workers_spin ? os::WaitPolicy::spinning() : os::WaitPolicy::yielding();
  if (header.place.has_others() && !header.spins) policy.awake_for = os::WaitPolicy::yielding().awake_for;
  return policy;
}

}  // namespace

HostSide::HostSide(const process::Attachment& attachment)
    : arena(own_arena(attachment)),
      outgoing(arena, attachment.slot().consumed),
      left_memory(attachment, arena),
      interruption(attachment, &left_memory),
      meetings(attachment, policy_of_meetings(attachment.control.header())),
      rendezvous(attachment, meetings),
      peers(attachment, meetings, interruption),
      nodes(attachment.place.has_others() ? std::make_unique<NodesComm>(attachment, meetings, peers, interruption)
                                          : nullptr) {
  if (attachment.slot().predecessors != 0) arena.note_used_before();
}

}  // namespace syncrun::detail::worker::comm
