#include "master/nodes/rank_messages.hpp"

#include "master/process/resident_memory.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// All nodes have the same world size.
int checked(std::int32_t rank, const protocol::ControlBlock& control) {
  if (rank >= 0 && rank < control.world_size()) return rank;
  throw Error(ErrorKind::system, "a message about rank " + std::to_string(rank) + " came, but there are only " +
                                     std::to_string(control.world_size()));
}

/// The rank at the beginning of a message.
int take_rank(MessageReader& from, const protocol::ControlBlock& control) {
  return checked(from.get<std::int32_t>(), control);
}

auto fields_of_end(auto& end) {
  return std::tie(end.end.wait_status, end.end.cause, end.last_stderr, end.end.crash.lines, end.end.crash.problem);
}

}  // namespace

void put_rank_state(MessageWriter& to, int rank, const protocol::WorkerSlot& slot) {
  to.put(static_cast<std::int32_t>(rank), slot.start.load(std::memory_order_seq_cst));
  to.put(slot.pid.load(), slot.reason, slot.hardware, slot.is_closed_to_peers);
}

int take_rank_state(MessageReader& from, const protocol::ControlBlock& control) {
  const int rank = take_rank(from, control);
  protocol::WorkerSlot& slot = control.worker(rank);
  const auto start = from.get<protocol::StartState>();
  slot.pid.store(from.get<std::int32_t>());
  from.get_to(slot.reason, slot.hardware, slot.is_closed_to_peers);
  slot.start.store(start, std::memory_order_seq_cst);
  return rank;
}

void put_progress(MessageWriter& to, const RankProgress& progress, const protocol::WorkerSlot& slot) {
  to.put(static_cast<std::int32_t>(progress.rank), slot.progress.load(std::memory_order_acquire));
  to.put(slot.collective_command.load(std::memory_order_acquire));
  to.put(slot.collective_step.load(std::memory_order_acquire));
  to.put(slot.calls.load(std::memory_order_relaxed), slot.rows.load(std::memory_order_relaxed));
  to.put(process::resident_bytes(slot.pid.load()));
  to.put(static_cast<std::int32_t>(progress.stop_signal), static_cast<std::int32_t>(progress.tracer));
}

RankProgress take_progress(MessageReader& from, const protocol::ControlBlock& control) {
  const int rank = take_rank(from, control);
  protocol::WorkerSlot& slot = control.worker(rank);
  slot.progress.store(from.get<std::uint64_t>(), std::memory_order_release);
  slot.collective_command.store(from.get<std::uint64_t>(), std::memory_order_release);
  slot.collective_step.store(from.get<std::uint64_t>(), std::memory_order_release);
  slot.calls.store(from.get<std::uint64_t>(), std::memory_order_relaxed);
  slot.rows.store(from.get<std::uint64_t>(), std::memory_order_relaxed);
  slot.memory_bytes.store(from.get<std::uint64_t>(), std::memory_order_relaxed);
  const int stop_signal = from.get<std::int32_t>();
  return {rank, stop_signal, from.get<std::int32_t>()};
}

void put_rank_lost(MessageWriter& to, int rank, const protocol::WorkerSlot& slot) {
  to.put(static_cast<std::int32_t>(rank), slot.progress.load(std::memory_order_acquire));
}

int take_rank_lost(MessageReader& from, const protocol::ControlBlock& control) {
  const int rank = take_rank(from, control);
  control.worker(rank).progress.store(from.get<std::uint64_t>(), std::memory_order_release);
  return rank;
}

void put_peer_lost(MessageWriter& to, int rank) { to.put(static_cast<std::int32_t>(rank)); }

int take_peer_lost(MessageReader& from, const protocol::ControlBlock& control) { return take_rank(from, control); }

void put_successors(MessageWriter& to, const std::vector<pool::Successor>& successors) {
  to.put_list(std::span(successors));
}

std::vector<pool::Successor> take_successors(MessageReader& from, const protocol::ControlBlock& control) {
  auto successors = from.get_list<pool::Successor>();
  for (const pool::Successor& successor : successors) static_cast<void>(checked(successor.rank, control));
  return successors;
}

void put_rank_end(MessageWriter& to, int rank, const protocol::WorkerSlot& slot, const RankEnd& end) {
  to.put(static_cast<std::int32_t>(rank), slot.progress.load(std::memory_order_acquire), slot.reason);
  to.put_fields(fields_of_end(end));
}

int take_rank_end(MessageReader& from, const protocol::ControlBlock& control, RankEnd& end) {
  const int rank = take_rank(from, control);
  protocol::WorkerSlot& slot = control.worker(rank);
  slot.progress.store(from.get<std::uint64_t>(), std::memory_order_release);
  from.get_to(slot.reason);
  from.get_fields(fields_of_end(end));
  return rank;
}

}  // namespace syncrun::detail::master::nodes
