#include "master/nodes/node_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// The room for what comes before the bytes of a block in a message.
constexpr std::size_t kHeaderBytes = 64;
/// How often a node tells the others how far its GPUs have come in the collectives of a command. A command that takes less
/// time has no cost from this.
constexpr os::Milliseconds kTellPlansEvery{250};
/// How many nodes of a command are watched at once. When one of them has sent what is missing, another one is watched.
constexpr int kMostWatched = 16;

}  // namespace

// ---- commands -------------------------------------------------------------------------------------------------

void NodeExchange::add(std::size_t slot) {
  const protocol::Command& command = control_.command_in(slot);
  if (!protocol::meets_across_nodes(command.comm) || (!command.has_comm && !command.wants_vote)) return;
  Open open;
  open.id = command.id;
  open.slot = slot;
  open.wants_vote = command.wants_vote;
  bool is_here = false;
  for (const int rank : command.ranks) {
    const int node = control_.worker(rank).node;
    if (!open.parts.empty() && open.parts.back().node == node) continue;
    if (node == control_.place().node) {
      open.own = open.parts.size();
      is_here = true;
    }
    Part& part = open.parts.emplace_back();
    part.node = node;
    part.leader = rank;
  }
  if (!is_here) return;
  open.came_at = os::Clock::now();
  open.is_on_gpus = command.comm.path() == protocol::CommPath::devices;
  if (open.is_on_gpus) open.next_plans = open.came_at + kTellPlansEvery;
  const os::MutexLock lock(mutex_);
  last_added_ = open.id;
  Open& added = open_.emplace_back(std::move(open));
  open_count_.store(open_.size(), std::memory_order_release);
  begin_vote_tree(added);
  const auto early = early_.find(added.id);
  if (early == early_.end()) return;
  for (MessageBefore& one : early->second) {
    MessageReader message(one.bytes, "node " + std::to_string(one.node));
    static_cast<void>(message.get<std::uint64_t>());  // the session
    static_cast<void>(message.get<std::uint64_t>());  // the command
    if (!take_along_vote_tree(added.id, one.node, message)) take_for(added, one.node, message);
  }
  early_.erase(early);
}

/// True if this holds for each rank of the command on this node.
template <class Visit>
bool NodeExchange::all_here(const Open& open, Visit&& visit) const {
  const auto ranks = control_.place().ranks_of(control_.command_in(open.slot).ranks);
  return std::all_of(ranks.begin(), ranks.end(), visit);
}

bool NodeExchange::is_over_here(const Open& open) const noexcept {
  return all_here(open,
                  [&](int rank) { return control_.worker(rank).done.load(std::memory_order_seq_cst) >= open.id; });
}

/// Afterwards, the leader asks for no more exchanges of the command.
bool NodeExchange::leader_has_left(const Open& open) const noexcept {
  const protocol::WorkerSlot& leader = control_.worker(open.parts[open.own].leader);
  return leader.exchange.left.load(std::memory_order_seq_cst) >= open.id ||
         leader.done.load(std::memory_order_seq_cst) >= open.id;
}

/// The leader waits no more for what it has asked this node to watch.
bool NodeExchange::is_withdrawn(const Open& open) const noexcept {
  if (!open.pending || open.pending->kind != protocol::NodeRequest::Kind::watch) return false;
  const protocol::NodeRequest& request = control_.worker(open.parts[open.own].leader).exchange;
  return request.withdrawn.load(std::memory_order_seq_cst) >= open.pending->number;
}

/// A leader with connections of its own counts its exchanges itself. If all ranks of all nodes have finished the command, the
/// number does not matter.
std::uint64_t NodeExchange::exchanges_of_leader(const Open& open) const noexcept {
  const protocol::Command* const command = command_of(open);
  if (command == nullptr || !command->comm.is_linked()) return open.exchanges;
  return control_.outbox(*command, open.parts[open.own].leader).exchanges;
}

void NodeExchange::forget(std::uint64_t last) {
  const os::MutexLock lock(mutex_);
  std::erase_if(open_, [last](const Open& open) { return open.id <= last; });
  open_count_.store(open_.size(), std::memory_order_release);
  vote_trees_.erase(vote_trees_.begin(), vote_trees_.upper_bound(last));
  const protocol::NodePlace& here = control_.place();
  for (int local_rank = 0; local_rank < here.local_size; ++local_rank) {
    protocol::NodeRequest& request = control_.worker(here.rank(local_rank)).exchange;
    request.taken.store(request.asked.load(std::memory_order_seq_cst), std::memory_order_seq_cst);
  }
}

// ---- what happens here ----------------------------------------------------------------------------------------

bool NodeExchange::look() {
  if (open_count_.load(std::memory_order_acquire) == 0) return false;
  const os::MutexLock lock(mutex_);
  bool did_something = false;
  for (auto open = open_.begin(); open != open_.end();) {
    const bool is_over = is_over_here(*open);  // what was asked for before that is seen below
    did_something = look_at(*open) || did_something;
    if (!did_something && os::Clock::now() - open->came_at > Sender::kWatchAfter) note_waits(*open);
    open = is_over ? open_.erase(open) : open + 1;
  }
  open_count_.store(open_.size(), std::memory_order_release);
  return did_something;
}

bool NodeExchange::has_news() const {
  if (open_count_.load(std::memory_order_acquire) == 0) return false;
  const os::MutexLock lock(mutex_);
  return std::ranges::any_of(open_, [this](const Open& open) {
    const protocol::NodeRequest& request = control_.worker(open.parts[open.own].leader).exchange;
    const bool has_failed = control_.command_in(open.slot).failed.load(std::memory_order_seq_cst) == open.id;
    return request.asked.load(std::memory_order_seq_cst) != request.taken.load(std::memory_order_relaxed) ||
           is_withdrawn(open) || (!open.has_told_failure && has_failed) ||
           (!open.has_told_left && leader_has_left(open)) || (!open.has_told_vote && vote_here(open)) ||
           is_over_here(open);
  });
}

bool NodeExchange::awaits_messages() const {
  if (open_count_.load(std::memory_order_acquire) == 0) return false;
  const os::MutexLock lock(mutex_);
  return std::ranges::any_of(open_, [](const Open& open) {
    return open.pending && open.pending->kind == protocol::NodeRequest::Kind::exchange;
  });
}

/// The order matters. A rank fails before it leaves, so the others hear of the failure first. And what a leader has asked
/// for before it left counts.
bool NodeExchange::look_at(Open& open) {
  const bool has_left = leader_has_left(open);
  bool did_something = take_request(open);
  if (is_withdrawn(open)) open.pending.reset();
  did_something = tell_failure(open) || did_something;
  did_something = tell_vote(open) || did_something;
  did_something = tell_plans(open) || did_something;
  if (has_left && !std::exchange(open.has_told_left, true)) {
    open.pending.reset();
    send_to_others(open, message_about(open.id, MessageKind::left, exchanges_of_leader(open)));
    did_something = true;
  }
  return answer(open) || did_something;
}

void NodeExchange::send_to_others(const Open& open, const MessageWriter& message) {
  for (std::size_t part = 0; part < open.parts.size(); ++part) {
    if (part != open.own) sender_.send(open.parts[part].node, MessageWriter(message).take());
  }
}

bool NodeExchange::tell_failure(Open& open) {
  if (open.has_told_failure || control_.command_in(open.slot).failed.load(std::memory_order_seq_cst) != open.id)
    return false;
  open.has_told_failure = true;
  send_to_others(open, message_about(open.id, MessageKind::abandon));
  return true;
}

/// A request that the leader has given up stays unanswered.
bool NodeExchange::take_request(Open& open) {
  protocol::NodeRequest& request = control_.worker(open.parts[open.own].leader).exchange;
  const std::uint64_t number = request.asked.load(std::memory_order_seq_cst);
  if (number == request.taken.load(std::memory_order_relaxed) || request.command != open.id) return false;
  const auto* const blocks = segment_.at<const protocol::NodeBlock>(request.blocks);
  open.pending = Pending{number, request.step, request.kind, {blocks, blocks + open.parts.size()}};
  open.exchanges = request.step + 1;
  const bool is_watch = request.kind == protocol::NodeRequest::Kind::watch;
  for (std::size_t part = 0; part < open.parts.size(); ++part) {
    open.parts[part].has_come = part == open.own || (is_watch && blocks[part].to_bytes == 0);
    open.parts[part].come_bytes = 0;
  }
  if (!is_watch) send_blocks(open);
  request.taken.store(number, std::memory_order_seq_cst);
  control_.header().to_peers.ring();
  use_early(open);
  return true;
}

/// A piece is what one message carries without delay. All nodes get the first pieces of their blocks before one of them gets its second piece.
void NodeExchange::send_blocks(const Open& open) {
  const auto& blocks = open.pending->blocks;
  const std::size_t piece_bytes = sender_.prompt_bytes();
  bool has_more = true;
  for (std::size_t at = 0; has_more; at += piece_bytes) {
    has_more = false;
    for (std::size_t part = 0; part < blocks.size(); ++part) {
      if (part == open.own || (at != 0 && at >= blocks[part].from_bytes)) continue;
      send_piece(open, part, at, std::min(piece_bytes, blocks[part].from_bytes - at));
      has_more = has_more || at + piece_bytes < blocks[part].from_bytes;
    }
  }
}

void NodeExchange::send_piece(const Open& open, std::size_t part, std::size_t at, std::size_t bytes) {
  const protocol::NodeBlock& block = open.pending->blocks[part];
  MessageWriter message(MessageKind::exchange);
  message.reserve(bytes + kHeaderBytes);
  message.put(session_, open.id, open.pending->step, block.from_bytes);
  message.put_bytes({segment_.at(block.from) + at, bytes});
  sender_.send(open.parts[part].node, message.take());
}

// ---- what comes from other nodes ------------------------------------------------------------------------------

/// A node can be ahead of the master's command, and behind: then the ranks here have finished it.
void NodeExchange::take(int node, MessageReader& message) {
  if (message.get<std::uint64_t>() != session_) return;
  const auto id = message.get<std::uint64_t>();
  const os::MutexLock lock(mutex_);
  if (take_along_vote_tree(id, node, message)) return;
  const auto open = std::ranges::find(open_, id, &Open::id);
  if (open != open_.end()) take_for(*open, node, message);
  else if (id > last_added_) early_[id].push_back({node, message.keep()});
}

void NodeExchange::take_for(Open& open, int node, MessageReader& message) {
  const auto part = std::ranges::find(open.parts, node, &Part::node);
  if (part == open.parts.end()) throw Error(ErrorKind::system, "a message came about a command of other nodes");
  switch (message.kind()) {
    case MessageKind::exchange: take_block(open, *part, message); break;
    case MessageKind::left: part->left_after = message.get<std::uint64_t>(); break;
    case MessageKind::vote:
      part->vote = message.get<protocol::Vote>();
      note_votes(open);
      break;
    case MessageKind::verdict: break;  // there is no tree, or it is over
    case MessageKind::plans: return take_plans(node, message);
    case MessageKind::abandon:
      open.has_told_failure = true;  // the sender tells all nodes
      note_failure(open);
      break;
    default: throw Error(ErrorKind::system, "an unexpected message about a command");
  }
  answer(open);
}

/// The command, or null if its ranks here have finished it and the next one has come to its slot.
protocol::Command* NodeExchange::command_of(const Open& open) const noexcept {
  protocol::Command& command = control_.command_in(open.slot);
  return command.id == open.id ? &command : nullptr;
}

void NodeExchange::note_failure(const Open& open) {
  if (protocol::Command* const command = command_of(open)) command->failed.store(open.id, std::memory_order_seq_cst);
  control_.header().to_peers.ring();
}

/// The pieces of a block come in order.
void NodeExchange::take_block(Open& open, Part& part, MessageReader& message) {
  const auto step = message.get<std::uint64_t>();
  const auto block_bytes = message.get<std::uint64_t>();
  const auto index = static_cast<std::size_t>(&part - open.parts.data());
  const bool is_awaited = open.pending && open.pending->step == step && !part.has_come && !leader_has_left(open);
  if (is_awaited) return put(open, index, block_bytes, message.rest());
  std::vector<std::byte> whole = message.keep();
  part.early.push_back({step, block_bytes, std::move(whole), message.rest()});
}

/// Copies a piece of a block from another node to the place that the leader has named.
void NodeExchange::put(Open& open, std::size_t index, std::size_t block_bytes, std::span<const std::byte> bytes) {
  const protocol::NodeBlock& block = open.pending->blocks[index];
  Part& part = open.parts[index];
  if (block_bytes > block.to_bytes || part.come_bytes + bytes.size() > block_bytes)
    throw Error(ErrorKind::system, "a block of an exchange is too large");
  if (!bytes.empty()) std::memcpy(segment_.at(block.to) + part.come_bytes, bytes.data(), bytes.size());
  part.come_bytes += bytes.size();
  part.has_come = part.come_bytes == block_bytes;
}

/// Does the same with pieces that came before the request. If the leader has left, its memory may be in use again, so
/// nothing is copied.
void NodeExchange::use_early(Open& open) {
  if (!open.pending || leader_has_left(open)) return;
  if (open.pending->kind == protocol::NodeRequest::Kind::watch) return;
  for (std::size_t i = 0; i < open.parts.size(); ++i) {
    auto& early = open.parts[i].early;
    for (; !early.empty() && early.front().step == open.pending->step; early.pop_front())
      put(open, i, early.front().block_bytes, early.front().bytes);
  }
}

/// Answers the pending request once all blocks are there, or once a block will never come. The carrier does not hear of blocks
/// that come over connections. So a request to watch has its answer as soon as one block will never come.
bool NodeExchange::answer(Open& open) {
  if (!open.pending || leader_has_left(open)) return false;
  protocol::NodeRequest& request = control_.worker(open.parts[open.own].leader).exchange;
  const bool is_watch = open.pending->kind == protocol::NodeRequest::Kind::watch;
  std::int32_t left_rank_plus_one = 0;
  for (const Part& part : open.parts) {
    if (part.has_come) continue;
    const bool has_left = part.left_after && *part.left_after <= open.pending->step;
    if (!has_left && !is_watch) return false;
    if (has_left && left_rank_plus_one == 0) left_rank_plus_one = part.leader + 1;
  }
  if (left_rank_plus_one == 0 && is_watch) return false;
  request.left_rank_plus_one = left_rank_plus_one;
  request.answered.store(open.pending->number, std::memory_order_seq_cst);
  open.pending.reset();
  answers_.fetch_add(1, std::memory_order_relaxed);
  control_.header().to_peers.ring();
  return true;
}

// ---- votes ----------------------------------------------------------------------------------------------------

/// If lost workers are replaced: the rank was lost before it voted.
bool NodeExchange::is_out(int rank, std::uint64_t id) const noexcept {
  const protocol::WorkerSlot& slot = control_.worker(rank);
  return control_.header().respawns && slot.is_lost.load(std::memory_order_seq_cst) != 0 &&
         slot.vote.load(std::memory_order_seq_cst) < protocol::vote_word(id, protocol::Vote::none);
}

/// How the ranks of this node have voted together. Empty if one has not voted yet, or if nobody waits for votes. A rank that
/// was lost before it voted counts as one that failed. So all nodes come to the same result.
std::optional<protocol::Vote> NodeExchange::vote_here(const Open& open) const noexcept {
  if (!open.wants_vote) return std::nullopt;
  const protocol::Command* const command = command_of(open);
  if (command == nullptr)
    return protocol::Vote::failed;  // the ranks here have skipped it, and do not wait for the result
  bool ok = true;
  const bool are_all_in = all_here(open, [&](int rank) {
    const bool has_voted = control_.worker(rank).vote.load(std::memory_order_seq_cst) >=
                           protocol::vote_word(open.id, protocol::Vote::none);
    ok = ok && has_voted && control_.outbox(*command, rank).cast == protocol::Vote::ok;
    return has_voted || is_out(rank, open.id);
  });
  if (!are_all_in) return std::nullopt;
  return ok ? protocol::Vote::ok : protocol::Vote::failed;
}

bool NodeExchange::tell_vote(Open& open) {
  if (open.has_told_vote) return false;
  const auto vote = vote_here(open);
  if (!vote) return false;
  open.has_told_vote = true;
  if (tell_vote_along_tree(open, *vote)) return true;
  send_to_others(open, message_about(open.id, MessageKind::vote, *vote));
  return true;
}

void NodeExchange::note_votes(Open& open) {
  bool ok = true;
  for (std::size_t part = 0; part < open.parts.size(); ++part) {
    if (part == open.own) continue;
    if (open.parts[part].vote == protocol::Vote::none) return;
    ok = ok && open.parts[part].vote == protocol::Vote::ok;
  }
  note_verdict(open, ok ? protocol::Vote::ok : protocol::Vote::failed);
}

void NodeExchange::note_verdict(const Open& open, protocol::Vote verdict) {
  protocol::Command* const command = command_of(open);
  if (command == nullptr) return;
  command->vote_of_others.store(protocol::vote_word(open.id, verdict), std::memory_order_seq_cst);
  control_.header().to_peers.ring();
}

// ---- votes along a tree ---------------------------------------------------------------------------------------

void NodeExchange::begin_vote_tree(const Open& open) {
  if (tree_from_ == 0 || open.parts.size() < static_cast<std::size_t>(tree_from_)) return;
  if (!open.wants_vote) return;
  std::vector<int> nodes;
  for (const Part& part : open.parts) nodes.push_back(part.node);
  vote_trees_.emplace(open.id, VoteTree(nodes, open.own));
}

bool NodeExchange::tell_vote_along_tree(const Open& open, protocol::Vote vote) {
  const auto tree = vote_trees_.find(open.id);
  if (tree == vote_trees_.end()) return false;
  tree->second.note(open.parts[open.own].node, vote);
  pass_on_votes(open.id, tree->second);
  return true;
}

/// Returns false if the message is of another kind, or if there is no tree for the command.
bool NodeExchange::take_along_vote_tree(std::uint64_t id, int node, MessageReader& message) {
  const bool is_verdict = message.kind() == MessageKind::verdict;
  if (!is_verdict && message.kind() != MessageKind::vote) return false;
  const auto tree = vote_trees_.find(id);
  if (tree == vote_trees_.end()) return false;
  const auto vote = message.get<protocol::Vote>();
  if (is_verdict) {
    announce(id, tree->second, vote);
  } else {
    tree->second.note(node, vote);
    pass_on_votes(id, tree->second);
  }
  return true;
}

/// Once all nodes of the branch have voted, their parent gets one vote for all of them.
void NodeExchange::pass_on_votes(std::uint64_t id, VoteTree& tree) {
  const auto result = tree.result();
  if (!result) return;
  if (!tree.parent()) return announce(id, tree, *result);
  sender_.send(*tree.parent(), message_about(id, MessageKind::vote, *result).take());
}

/// The children come first, because the ranks here may be done with the command soon. The tree is gone afterwards.
void NodeExchange::announce(std::uint64_t id, const VoteTree& tree, protocol::Vote verdict) {
  for (const int child : tree.children()) sender_.send(child, message_about(id, MessageKind::verdict, verdict).take());
  vote_trees_.erase(id);
  const auto open = std::ranges::find(open_, id, &Open::id);
  if (open != open_.end()) note_verdict(*open, verdict);
}

// ---- waits ----------------------------------------------------------------------------------------------------

void NodeExchange::note_waits(const Open& open) {
  int watched = 0;
  const auto watch = [&](int node) {
    if (watched++ < kMostWatched) sender_.note_wait_for(node);
  };
  const auto tree = vote_trees_.find(open.id);
  const bool waits_for_votes = open.wants_vote && open.has_told_vote;
  for (std::size_t part = 0; part < open.parts.size(); ++part) {
    const Part& other = open.parts[part];
    const bool owes_vote = waits_for_votes && tree == vote_trees_.end() && other.vote == protocol::Vote::none;
    if (part != open.own && ((open.pending && !other.has_come) || owes_vote)) watch(other.node);
  }
  if (!waits_for_votes || tree == vote_trees_.end()) return;
  if (tree->second.parent()) watch(*tree->second.parent());
  for (const int child : tree->second.children()) watch(child);
}

// ---- GPUs -----------------------------------------------------------------------------------------------------

/// The ranks compare (CollectivePlan::check_peers). So this node only writes into its control block what it hears of the
/// ranks of other nodes.
bool NodeExchange::tell_plans(Open& open) {
  if (!open.is_on_gpus) return false;
  const auto now = os::Clock::now();
  if (now < open.next_plans) return false;
  open.next_plans = now + kTellPlansEvery;
  std::vector<RankPlan> plans = plans_here(open);
  if (plans == open.told_plans) return false;
  MessageWriter message = message_about(open.id, MessageKind::plans);
  message.put_list(std::span<const RankPlan>(plans));
  send_to_others(open, message);
  open.told_plans = std::move(plans);
  return true;
}

/// A rank that has just changed its plan comes next time.
std::vector<NodeExchange::RankPlan> NodeExchange::plans_here(const Open& open) const {
  std::vector<RankPlan> plans;
  all_here(open, [&](int rank) {
    const protocol::WorkerSlot& slot = control_.worker(rank);
    const std::uint64_t standing = slot.plan_wait.load(std::memory_order_acquire);
    const std::uint64_t hash = slot.plan.load(std::memory_order_acquire);
    if (slot.plan_wait.load(std::memory_order_acquire) == standing) plans.push_back({rank, hash, standing});
    return true;
  });
  return plans;
}

void NodeExchange::take_plans(int node, MessageReader& message) {
  for (const RankPlan& plan : message.get_list<RankPlan>()) {
    const bool is_known = plan.rank >= 0 && plan.rank < control_.world_size();
    if (!is_known || control_.worker(plan.rank).node != node)
      throw Error(ErrorKind::system, "a plan came for a rank of another node");
    protocol::WorkerSlot& slot = control_.worker(plan.rank);
    slot.plan_wait.store(0, std::memory_order_seq_cst);  // so that a hash is only read with its own standing
    slot.plan.store(plan.hash, std::memory_order_seq_cst);
    slot.plan_wait.store(plan.standing, std::memory_order_seq_cst);
  }
}

}  // namespace syncrun::detail::master::nodes
