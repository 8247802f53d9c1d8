#include "worker/loop/inbox.hpp"

#include <algorithm>
#include <span>
#include <variant>

#include "worker/comm/call_interruption.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun::detail::worker::loop {

Inbox::Inbox(const process::Attachment& attachment, devices::WorkerDevice& device) noexcept
    : attachment_(attachment),
      header_(attachment.control.header()),
      device_(device),
      policy_(header_.spins ? os::WaitPolicy::spinning() : os::WaitPolicy::yielding()),
      replacements_(header_.replacements.load(std::memory_order_acquire)),
      received_(attachment.slot().received),
      current_(attachment.slot().done.load(std::memory_order_acquire)) {}

protocol::Command* Inbox::await_command() {
  os::Patience endless{os::Milliseconds(0)};
  const auto& place = next();
  protocol::InboxEntry entry{0};
  const auto published = [&] {
    entry = protocol::InboxEntry(place.load(std::memory_order_seq_cst));
    return entry.command() > current_;
  };
  const auto has_news = [&] {
    return header_.respawns ? has_new_peers() : header_.lost.load(std::memory_order_seq_cst) != 0;
  };
  for (;;) {
    const os::Woken woken = os::wait_until(header_.to_workers, policy_, endless, published, has_news);
    if (policy_.has_yielded) process::note_long_wait();
    if (header_.respawns && has_new_peers()) [[unlikely]] {
      replacements_ = header_.replacements.load(std::memory_order_acquire);
      device_.forget_replaced_peers();
    }
    if (woken == os::Woken::ready) break;
    if (!header_.respawns) return nullptr;
  }
  current_ = entry.command();
  ++received_;
  return &attachment_.control.command_in(entry.slot());
}

/// If workers are replaced: whether a worker of this command was lost, so that the command cannot be completed.
bool Inbox::has_lost_a_rank(const protocol::Command& command) const noexcept {
  if (!header_.respawns || header_.lost.load(std::memory_order_acquire) == 0) return false;
  // These only free something, and need no peer.
  const bool frees = command.kind == protocol::CommandKind::destroy || command.kind == protocol::CommandKind::unmap ||
                     command.kind == protocol::CommandKind::free;
  if (frees) return false;
  const auto* const move = std::get_if<protocol::MovePayload>(&command.payload);
  if (move != nullptr && attachment_.control.worker(move->from).is_lost.load(std::memory_order_seq_cst) != 0)
    return true;
  return std::any_of(command.ranks.begin(), command.ranks.end(), [this](int rank) {
    return attachment_.control.worker(rank).is_lost.load(std::memory_order_seq_cst) != 0;
  });
}

/// Waits until other ranks are done with the commands that must come before this one. These commands are earlier ones,
/// and a rank runs its commands in order, so the wait ends. The values of a move from another node come when the rank
/// there is done, so its node waits for that rank. Throws SessionLost if such a rank was lost.
void Inbox::await_earlier(const protocol::Command& command) {
  const auto* const first = attachment_.segment.at<const protocol::Dependency>(command.dependencies);
  const std::optional<int> source = source_on_other_node(command);
  for (const protocol::Dependency& earlier : std::span(first, command.dependencies_count)) {
    if (earlier.rank == protocol::Dependency::kOwnRank || earlier.rank == source) continue;
    const auto is_done = [&] { return is_over(earlier); };
    if (!is_done()) await_others(is_done, attachment_.control.worker(earlier.rank));
  }
}

/// If the command is a move from another node, waits until the values have come.
void Inbox::await_values(const protocol::Command& command) {
  if (!source_on_other_node(command)) return;
  const auto have_come = [&] { return command.arrived.load(std::memory_order_seq_cst) == current_; };
  if (!have_come()) await_others(have_come, attachment_.control.worker(command.as<protocol::MovePayload>().from));
}

/// `other` is the rank for which this one waits.
template <class Ready>
void Inbox::await_others(Ready&& ready, const protocol::WorkerSlot& other) {
  attachment_.enter(current_, protocol::Phase::dependencies);
  const auto is_lost = [&] {
    if (header_.lost.load(std::memory_order_seq_cst) == 0) return false;
    return !header_.respawns || other.is_lost.load(std::memory_order_seq_cst) != 0;
  };
  os::Patience endless{os::Milliseconds(0)};
  // A worker that is done with a command rings the bell of the master, and so do those who carry values between nodes.
  if (os::wait_until(header_.to_master, policy_, endless, ready, is_lost) != os::Woken::ready)
    comm::raise_session_lost(attachment_);
}

/// Whether a command of another rank no longer uses what this rank has. Only the master's node knows what ranks of other
/// nodes have done. The other nodes need not know: such a command reads a copy, and this node itself sends the values.
bool Inbox::is_over(const protocol::Dependency& earlier) const noexcept {
  const protocol::WorkerSlot& other = attachment_.control.worker(earlier.rank);
  if (attachment_.place.has(earlier.rank) || attachment_.place.node == 0)
    return other.done.load(std::memory_order_seq_cst) >= earlier.id;
  const std::uint64_t owed = other.owed.load(std::memory_order_seq_cst);
  return owed == 0 || owed > earlier.id;
}

/// The source of a move, if it is on another node.
std::optional<int> Inbox::source_on_other_node(const protocol::Command& command) const noexcept {
  const auto* const move = std::get_if<protocol::MovePayload>(&command.payload);
  if (move == nullptr || attachment_.place.has(move->from)) return std::nullopt;
  return move->from;
}

bool Inbox::are_earlier_done(const protocol::Command& command) const noexcept {
  const auto* const first = attachment_.segment.at<const protocol::Dependency>(command.dependencies);
  return std::all_of(first, first + command.dependencies_count, [this](const protocol::Dependency& earlier) {
    return earlier.rank == protocol::Dependency::kOwnRank || is_over(earlier);
  });
}

/// Whether a command on which this one depends has failed on any rank so far. The slot of such a command may contain
/// another one by now. Then the master has collected it, and before that it has set `spoiled` if it failed.
bool Inbox::depends_on_a_failure(const protocol::Command& command) const noexcept {
  if (command.dependencies_count == 0) return false;
  const auto* const first = attachment_.segment.at<const protocol::Dependency>(command.dependencies);
  const bool has_failed =
      std::any_of(first, first + command.dependencies_count, [this](const protocol::Dependency& earlier) {
        if (earlier.slot == protocol::Dependency::kOnlyReads) return false;
        return attachment_.control.command_in(earlier.slot).failed.load(std::memory_order_seq_cst) == earlier.id;
      });
  return has_failed || command.spoiled.load(std::memory_order_seq_cst) == command.id;
}

}  // namespace syncrun::detail::worker::loop
