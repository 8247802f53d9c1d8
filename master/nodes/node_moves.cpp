#include "master/nodes/node_moves.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/arrays/extents.hpp"
#include "common/os/memory_limit.hpp"
#include "common/protocol/variable_entry.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// Reading the limit of memory takes longer than keeping fewer bytes does.
constexpr std::size_t kCheckedValuesBytes = std::size_t{1} << 20U;

/// Free memory of the heap still counts as used by this process.
void check_memory(os::SharedHeap& heap, std::size_t bytes, const char* what) {
  try {
    return os::check_memory_available(bytes, what);
  } catch (const Error&) {
    if (!heap.trim()) throw;
  }
  os::check_memory_available(bytes, what);
}

}  // namespace

// ---- commands -------------------------------------------------------------------------------------------------

/// The dependencies on commands of the source go with the order, because only the node of the source knows when they are
/// done, and whether they have failed.
void NodeMoves::order(std::size_t slot) {
  const protocol::Command& command = control_.command_in(slot);
  const auto* const move = std::get_if<protocol::MovePayload>(&command.payload);
  if (move == nullptr) return;
  const std::int32_t to = command.ranks.first();
  const std::int32_t source = control_.worker(move->from).node;
  if (source == control_.worker(to).node) return;
  Supply supply{command.id, slot, move->variable, move->from, to, {}};
  const auto* const first = segment_.at<const protocol::Dependency>(command.dependencies);
  std::copy_if(first, first + command.dependencies_count, std::back_inserter(supply.earlier),
               [&](const protocol::Dependency& earlier) { return earlier.rank == move->from; });
  if (source == control_.place().node) {
    const os::MutexLock lock(mutex_);
    supplies_.push_back(std::move(supply));
    note_owed(to);
    return;
  }
  MessageWriter message(MessageKind::supply, supply.id, supply.slot, supply.variable, supply.from, supply.to);
  message.put_list(std::span<const protocol::Dependency>(supply.earlier));
  sender_.send(source, message.take());
}

void NodeMoves::add(std::size_t slot) {
  const protocol::Command& command = control_.command_in(slot);
  const auto* const move = std::get_if<protocol::MovePayload>(&command.payload);
  if (move == nullptr || is_here(move->from) || !is_here(command.ranks.first())) return;
  const os::MutexLock lock(mutex_);
  Incoming& incoming = incoming_[command.id];
  incoming.slot = slot;
  incoming.rank = command.ranks.first();
  incoming.source = control_.worker(move->from).node;
  incoming.came_at = os::Clock::now();
  if (incoming.have_come) hand_over(command.id, incoming);
}

// ---- the node of the source -----------------------------------------------------------------------------------

void NodeMoves::take(int, MessageReader& message) {
  const os::MutexLock lock(mutex_);
  if (message.kind() == MessageKind::supply) take_supply(message);
  else take_values(message);
}

void NodeMoves::take_supply(MessageReader& message) {
  Supply supply{};
  message.get_to(supply.id, supply.slot, supply.variable, supply.from, supply.to);
  supply.earlier = message.get_list<protocol::Dependency>();
  if (!is_here(supply.from)) throw Error(ErrorKind::system, "values of a rank of another node were asked for");
  const auto has_slot = [&](std::uint64_t slot) { return slot < control_.slots(); };
  const bool are_known = has_slot(supply.slot) && supply.to >= 0 && supply.to < control_.world_size() &&
                         supply.variable <= segment_.bytes() - sizeof(protocol::VariableEntry) &&
                         std::ranges::all_of(supply.earlier, [&](const protocol::Dependency& earlier) {
                           return earlier.slot == protocol::Dependency::kOnlyReads || has_slot(earlier.slot);
                         });
  if (!are_known) {
    throw Error(ErrorKind::system, "values were asked for a move in slot " + std::to_string(supply.slot) + " to rank " +
                                       std::to_string(supply.to) + ", which does not exist");
  }
  const std::int32_t to = supply.to;
  supplies_.push_back(std::move(supply));
  note_owed(to);
  send_ready();
}

bool NodeMoves::is_ready(const Supply& supply) const noexcept {
  const std::uint64_t done = control_.worker(supply.from).done.load(std::memory_order_seq_cst);
  return std::ranges::all_of(supply.earlier,
                             [done](const protocol::Dependency& earlier) { return earlier.id <= done; });
}

/// On the master's node, the earlier command may have been collected, and its slot may contain another one. Then the
/// master has marked the move before.
bool NodeMoves::must_fail(const Supply& supply) const noexcept {
  const bool has_failed = std::ranges::any_of(supply.earlier, [this](const protocol::Dependency& earlier) {
    if (earlier.slot == protocol::Dependency::kOnlyReads) return false;
    return control_.command_in(earlier.slot).failed.load(std::memory_order_seq_cst) == earlier.id;
  });
  return has_failed || control_.command_in(supply.slot).spoiled.load(std::memory_order_seq_cst) == supply.id;
}

void NodeMoves::send_values(const Supply& supply) {
  auto& entry = *segment_.at<protocol::VariableEntry>(supply.variable);
  const protocol::VariableCopy& copy = entry.copies()[supply.from];
  const bool fails = must_fail(supply);
  const std::size_t bytes =
      fails ? 0 : arrays::elements_in({copy.extents.data(), entry.dimensions}) * size_of(entry.dtype);
  MessageWriter message(MessageKind::values, session_, supply.id, fails, copy.extents);
  message.reserve(bytes + 128);
  if (bytes != 0) message.put_bytes({segment_.at(copy.place), bytes});
  sender_.send(control_.worker(supply.to).node, message.take());
}

bool NodeMoves::send_ready() {
  bool has_sent = false;
  for (std::size_t i = 0; i < supplies_.size();) {
    if (!is_ready(supplies_[i])) {
      ++i;
      continue;
    }
    send_values(supplies_[i]);
    const std::int32_t to = supplies_[i].to;
    supplies_.erase(supplies_.begin() + static_cast<std::ptrdiff_t>(i));
    note_owed(to);
    has_sent = true;
  }
  if (has_sent) control_.header().to_master.ring();
  return has_sent;
}

/// Supplies to a rank are in the order of their numbers.
void NodeMoves::note_owed(std::int32_t to) {
  const auto first = std::ranges::find(supplies_, to, &Supply::to);
  control_.worker(to).owed.store(first == supplies_.end() ? 0 : first->id, std::memory_order_seq_cst);
}

// ---- the node of the destination ------------------------------------------------------------------------------

/// The values may come before the command does.
void NodeMoves::take_values(MessageReader& message) {
  if (message.get<std::uint64_t>() != session_) return;
  const auto id = message.get<std::uint64_t>();
  if (id <= forgotten_) return;
  Incoming& incoming = incoming_[id];
  incoming.have_come = true;
  message.get_to(incoming.has_failed, incoming.extents);
  keep(incoming, message.rest());
  if (incoming.slot) hand_over(id, incoming);
}

/// If there is no memory, only the move fails. Its worker says why.
void NodeMoves::keep(Incoming& incoming, std::span<const std::byte> values) {
  incoming.bytes = values.size();
  if (values.empty()) return;
  constexpr const char* kWhat = "values from another node";
  try {
    if (values.size() >= kCheckedValuesBytes) check_memory(inbound_, values.size(), kWhat);
    incoming.offset = inbound_.allocate(values.size(), os::SharedHeap::Contents::any, kWhat);
    std::memcpy(segment_.at(incoming.offset), values.data(), values.size());
  } catch (const Error&) {
    incoming.offset = protocol::Command::kNoMemory;
  }
}

/// The rank copies as many bytes as the extents say.
void NodeMoves::check_size(const protocol::Command& command, const Incoming& incoming) const {
  if (incoming.has_failed) return;
  const auto& entry = *segment_.at<const protocol::VariableEntry>(command.as<protocol::MovePayload>().variable);
  const std::span extents(incoming.extents.data(), entry.dimensions);
  std::size_t expected = 0;
  try {
    expected = arrays::checked_bytes(entry.dtype, extents);
  } catch (const Error& error) {
    throw Error(ErrorKind::system, std::string("values of a node: ") + error.what());
  }
  if (incoming.bytes == expected) return;
  throw Error(ErrorKind::system, "values of a node have another size: expected " + std::to_string(expected) +
                                     " bytes, got " + std::to_string(incoming.bytes));
}

void NodeMoves::hand_over(std::uint64_t id, const Incoming& incoming) {
  protocol::Command& command = control_.command_in(*incoming.slot);
  check_size(command, incoming);
  command.arguments[0].offset = incoming.offset;
  command.arguments[0].extents = incoming.extents;
  if (incoming.has_failed) command.spoiled.store(id, std::memory_order_seq_cst);
  command.arrived.store(id, std::memory_order_seq_cst);
  control_.header().to_master.ring();
}

bool NodeMoves::look() {
  const os::MutexLock lock(mutex_);
  const bool has_freed = free_taken();
  note_waits();
  return send_ready() || has_freed;
}

/// The worker of the source may still be busy. Its node answers all the same.
void NodeMoves::note_waits() {
  for (const auto& [id, incoming] : incoming_) {
    const bool waits = incoming.slot && !incoming.have_come;
    if (waits && os::Clock::now() - incoming.came_at > Sender::kWatchAfter) sender_.note_wait_for(incoming.source);
  }
}

/// Frees the memory of values that their ranks have copied.
bool NodeMoves::free_taken() {
  return std::erase_if(incoming_, [this](const auto& one) SYNCRUN_REQUIRES(mutex_) {
           const auto& [id, incoming] = one;
           if (!incoming.slot || !incoming.have_come) return false;
           if (control_.worker(incoming.rank).done.load(std::memory_order_seq_cst) < id) return false;
           free_memory(incoming);
           return true;
         }) != 0;
}

void NodeMoves::free_memory(const Incoming& incoming) noexcept {
  const bool has_memory = incoming.offset != 0 && incoming.offset != protocol::Command::kNoMemory;
  if (has_memory) inbound_.free(incoming.offset, os::SharedHeap::Giveback::later);
}

/// The slots of these moves may be used again. So values that come late must not be handed over.
void NodeMoves::forget(std::uint64_t last) {
  const os::MutexLock lock(mutex_);
  forgotten_ = last;
  std::erase_if(supplies_, [last](const Supply& supply) { return supply.id <= last; });
  for (int rank = 0; rank < control_.world_size(); ++rank) note_owed(rank);
  std::erase_if(incoming_, [this, last](const auto& one) SYNCRUN_REQUIRES(mutex_) {
    if (one.first > last) return false;
    free_memory(one.second);
    return true;
  });
}

bool NodeMoves::has_news() const {
  const os::MutexLock lock(mutex_);
  return std::ranges::any_of(supplies_, [this](const Supply& supply) { return is_ready(supply); });
}

}  // namespace syncrun::detail::master::nodes
