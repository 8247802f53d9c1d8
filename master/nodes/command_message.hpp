#pragma once

// How a command, and what a rank reports about it, travel between nodes. An offset is the same on all nodes, and so are
// the number of a slot and the places in inboxes. So the agent writes everything to where the master has it.

#include <cstdint>
#include <functional>
#include <span>

#include "common/os/heap_log.hpp"
#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "master/nodes/messages.hpp"
#include "master/nodes/row_mirror.hpp"

namespace syncrun::detail::master::nodes {

// ---- commands: from the master to an agent

/// Adds the changes of the heap from number `from` on, with the contents of what was written.
void put_heap_changes(MessageWriter& to, const os::Segment& segment, const os::HeapLog& log, std::uint64_t from);
/// Repeats these changes. `pages` says whether the pages of what was freed go back to the system. They must not if a GPU
/// of this node may have pinned them. Throws Error (system) if there is too little memory.
void apply_heap_changes(MessageReader& from, const os::Segment& segment, os::SharedHeap::Pages pages);

/// Whether these rows travel as bulk, after the message, and not in it.
inline bool is_bulk(const SegmentRange& rows) noexcept { return rows.count() >= std::uint64_t{64} << 10U; }
/// Adds rows. Those that travel as bulk are only named.
void put_rows(MessageWriter& to, const os::Segment& segment, std::span<const SegmentRange> rows);
/// Writes the rows to their places. Calls `receive` with the place of rows that come as bulk, in order. Throws Error
/// (system).
void take_rows(MessageReader& from, const os::Segment& segment,
               const std::function<void(std::span<std::byte> bulk)>& receive);

/// Adds the command in a slot: what is the same for all nodes.
void put_command_of_all(MessageWriter& to, const protocol::ControlBlock& control, const os::Segment& segment,
                        std::size_t slot);
/// Adds its places in the inboxes of the ranks of a node.
void put_places(MessageWriter& to, const protocol::ControlBlock& control, std::size_t slot,
                const protocol::NodePlace& node);
/// Adds both.
void put_command(MessageWriter& to, const protocol::ControlBlock& control, const os::Segment& segment, std::size_t slot,
                 const protocol::NodePlace& node);
/// Writes the command into its slot, but not into the inboxes. Returns the slot. Throws Error (system) if a number is out of
/// range.
std::size_t take_command(MessageReader& from, const protocol::ControlBlock& control, const os::Segment& segment);

// ---- reports: from an agent to the master

/// Adds what a rank has reported about a command: its outbox, the arrays that the master needs, and what a transfer has
/// done to its copies of variables. `reduced` is the outbox with the outputs that the workers of the node have
/// reduced. Null if this report does not bring them.
void put_report(MessageWriter& to, const os::Segment& segment, const protocol::Command& command, int rank,
                const protocol::Outbox& outbox, const protocol::Outbox* reduced);
/// Writes the report to the outbox, to the descriptions of copies, and to where the master wants the values of a
/// transfer. `place_for(bytes)` returns the offset of memory for an array. If
/// it returns 0, the array is dropped.
void take_report(MessageReader& from, const os::Segment& segment, const protocol::Command& command, int rank,
                 protocol::Outbox& outbox, const std::function<std::uint64_t(std::size_t bytes)>& place_for);

}  // namespace syncrun::detail::master::nodes
