#pragma once

// A rank's side of the memory that it shares with the master and its peers: its arena, what lies there for others, and
// how ranks wait for each other.

#include <memory>

#include "common/os/shared_heap.hpp"
#include "worker/comm/call_interruption.hpp"
#include "worker/comm/collectives.hpp"
#include "worker/comm/left_memory.hpp"
#include "worker/comm/meetings.hpp"
#include "worker/comm/nodes_comm.hpp"
#include "worker/comm/outgoing_memory.hpp"
#include "worker/comm/rendezvous.hpp"

namespace syncrun::detail::worker::comm {

struct HostSide {
  explicit HostSide(const process::Attachment& attachment);

  os::SharedHeap arena;
  OutgoingMemory outgoing;
  LeftMemory left_memory;
  CallInterruption interruption;
  Meetings meetings;
  SegmentRendezvous rendezvous;
  CpuComm peers;
  std::unique_ptr<NodesComm> nodes;  // null in a session on one node
};

}  // namespace syncrun::detail::worker::comm
