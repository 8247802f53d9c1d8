#include "master/nodes/node_session.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include "master/nodes/rank_messages.hpp"
#include "master/pool/worker_watcher.hpp"
#include "master/process/native_stack.hpp"
#include "master/process/spawn.hpp"
#include "master/process/stuck_ranks.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// How often the agent asks whether workers have ended.
constexpr os::Milliseconds kLookForMessagesEvery{5};
constexpr os::Milliseconds kProgressEvery{250};
/// The other nodes hear nothing of this one while it takes stacks.
constexpr os::Milliseconds kStacksLimit{500};
/// A lost worker that has not ended after this time has called exec, perhaps. WorkerPool::await_end finds out.
constexpr os::Milliseconds kSlowEnd{20};

}  // namespace

NodeSession::NodeSession(NodeGroup& group, const SessionStart& start, std::unique_ptr<pool::WorkerPool> pool)
    : group_(group),
      settings_(start.settings),
      pool_(std::move(pool)),
      place_(start.place),
      exchange_(group, pool_->control(), pool_->segment(), start.session, group.tree().from()),
      inbound_(pool_->inbound()),
      moves_(group, pool_->control(), pool_->segment(), inbound_, start.session),
      commands_(group, pool_->control(), pool_->segment(), &exchange_, &moves_, group.tree().relay()),
      queues_(group, pool_->segment(),
              [this, &start](const QueueStart& queue,
                             protocol::QueueBlock block) -> std::unique_ptr<queues::ProducerProcesses> {
                const std::string& name = start.settings.node_names[static_cast<std::size_t>(place_.node)];
                return std::make_unique<queues::LocalProducers>(queue.producers, name, block, pool_->segment(),
                                                                pool_->control().header().to_master);
              }),
      known_(static_cast<std::size_t>(start.place.local_size)) {
  protocol::ControlHeader& header = pool_->control().header();
  header.timelines_offset = start.timelines_offset;  // before the workers read it
  header.totals_offset = start.totals_offset;
  reserve_timelines(pool_->segment(), header);
  pool_->start();
}

NodeSession::~NodeSession() { end(); }

void NodeSession::take(int node, MessageReader& message) {
  switch (message.kind()) {
    case MessageKind::command:
    case MessageKind::spoil: commands_.take(message); break;
    case MessageKind::exchange:
    case MessageKind::abandon:
    case MessageKind::left:
    case MessageKind::vote:
    case MessageKind::verdict:
    case MessageKind::plans: exchange_.take(node, message); break;
    case MessageKind::supply:
    case MessageKind::values: moves_.take(node, message); break;
    case MessageKind::open_queue:
    case MessageKind::free_batches:
    case MessageKind::close_queue: queues_.take(message, protocol::pages_of(pool_->control().kinds_here())); break;
    case MessageKind::expect_ends: pool_->expect_ends(); break;
    case MessageKind::kill_all: pool_->kill_all(); break;
    case MessageKind::peer_lost: pool::note_loss(pool_->control(), take_peer_lost(message, pool_->control())); break;
    case MessageKind::replace: take_successors(message); break;
    case MessageKind::stacks: report_stacks(message.get<std::uint32_t>()); break;
    default: throw Error(ErrorKind::system, "an unexpected message from the master");
  }
}

bool NodeSession::report() {
  const bool has_reported = commands_.report();
  replace_lost_when_ready();
  const bool has_started = !are_watched_ && report_start();
  report_progress();
  const bool has_queue_news = queues_.report();
  const bool has_lost = report_losses() || has_queue_news;
  return report_ends() || has_lost || has_started || has_reported;
}

/// Tells the master how far the starts of the workers are.
bool NodeSession::report_start() {
  bool has_changed = false;
  bool are_ready = true;
  for (int local_rank = 0; local_rank < place_.local_size; ++local_rank) {
    const int rank = place_.rank(local_rank);
    const protocol::WorkerSlot& slot = pool_->control().worker(rank);
    Known& known = known_[static_cast<std::size_t>(local_rank)];
    const protocol::StartState start = slot.start.load(std::memory_order_seq_cst);
    are_ready = are_ready && start == protocol::StartState::ready;
    if (start == known.start && slot.pid.load() == known.pid) continue;
    known.start = start;
    known.pid = slot.pid.load();
    MessageWriter message(MessageKind::rank_state);
    put_rank_state(message, rank, slot);
    group_.send(kMasterNode, std::move(message));
    has_changed = true;
  }
  if (are_ready) watch_started();
  return has_changed;
}

/// Watches all workers at the start of the session, and later those that have replaced others.
void NodeSession::watch_started() {
  are_watched_ = true;
  if (!std::exchange(was_started_, true)) return pool_->watch();
  for (int local_rank = 0; local_rank < place_.local_size; ++local_rank) {
    Known& known = known_[static_cast<std::size_t>(local_rank)];
    if (std::exchange(known.is_successor, false)) pool_->watch(place_.rank(local_rank));
  }
}

// ---- replacement ----------------------------------------------------------------------------------------------

/// All survivors are done with all commands, on all nodes.
void NodeSession::take_successors(MessageReader& message) {
  successors_ = detail::master::nodes::take_successors(message, pool_->control());
  if (successors_.empty()) return;
  const std::uint64_t last = successors_.front().last;
  commands_.forget_unfinished();
  exchange_.forget(last);
  if (Relay* const relay = group_.tree().relay()) relay->forget(last);
  moves_.forget(last);
  replace_lost_when_ready();
}

/// Rows of a command that was given up go to memory that the master may use for something else afterwards. So this waits
/// until they have come. Only the node of a lost rank can have such rows. The others do not wait, because their next command
/// may come at once.
void NodeSession::replace_lost_when_ready() {
  if (!successors_.empty() && !commands_.awaits_rows()) replace_lost();
}

void NodeSession::replace_lost() {
  const auto successors = std::exchange(successors_, {});
  std::string problem = prepare_places(successors);
  // Workers that this wakes look at the slots, and see which peers are new.
  pool::forget_peers(pool_->control(), successors.front().last);
  try {
    if (problem.empty()) pool_->replace(successors);
  } catch (const Error& error) {
    problem = error.what();
  }
  if (problem.empty()) return;
  for (const pool::Successor& successor : successors) {
    if (place_.has(successor.rank)) report_failed_start(successor.rank, problem);
  }
}

/// Makes the places of lost workers of this node free for new ones. Returns why that is not possible, or an empty text.
std::string NodeSession::prepare_places(const std::vector<pool::Successor>& successors) {
  for (const pool::Successor& successor : successors) {
    if (!place_.has(successor.rank)) continue;
    if (!pool_->reap(successor.rank)) return "rank " + std::to_string(successor.rank) + " cannot be killed";
    pool::prepare_slot(pool_->control(), successor);
    known_[static_cast<std::size_t>(place_.local_rank(successor.rank))] = {.is_successor = true};
    are_watched_ = false;
  }
  return {};
}

/// The master waits for the start of this worker, and then for its end. But there is no process.
void NodeSession::report_failed_start(int rank, const std::string& why) {
  protocol::WorkerSlot& slot = pool_->control().worker(rank);
  text::put_text(slot.reason, why);
  slot.start.store(protocol::StartState::failed, std::memory_order_seq_cst);
  known_[static_cast<std::size_t>(place_.local_rank(rank))].has_ended = true;
  are_watched_ = false;  // so that the state is reported
  MessageWriter message(MessageKind::rank_end);
  put_rank_end(message, rank, slot, {{std::nullopt, "was not started"}, {}});
  group_.send(kMasterNode, std::move(message));
}

// ---- reports --------------------------------------------------------------------------------------------------

/// Tells the master from time to time where busy workers are. It needs this if a deadline passes. No deadline passes while
/// a worker is debugged, so the master must also hear when the debugger has left.
void NodeSession::report_progress() {
  if (!commands_.is_busy() && !was_debugged_) return;
  const auto now = os::Clock::now();
  if (now < next_progress_) return;
  next_progress_ = now + kProgressEvery;
  was_debugged_ = false;
  MessageWriter message(MessageKind::progress);
  for (int local_rank = 0; local_rank < place_.local_size; ++local_rank) {
    const int rank = place_.rank(local_rank);
    const RankProgress progress{rank, pool_->stop_signal(rank), pool_->tracer(rank)};
    was_debugged_ = was_debugged_ || progress.tracer != 0;
    put_progress(message, progress, pool_->control().worker(rank));
    commands_.put_timeline(message, rank);
  }
  group_.send(kMasterNode, std::move(message));
}

/// Answers `syncrun stacks` on the first node.
void NodeSession::report_stacks(std::uint32_t request) {
  std::vector<RankState> states;
  std::vector<int> pids;
  for (int local_rank = 0; local_rank < place_.local_size; ++local_rank) {
    RankState state;
    state.rank = place_.rank(local_rank);
    state.pid = pool_->pid(state.rank);
    state.device = settings::device_name(settings_, state.rank);
    const protocol::WorkerSlot& slot = pool_->control().worker(state.rank);
    state.phase = protocol::to_string(protocol::phase_of(slot.progress.load(std::memory_order_acquire)));
    state.stop_signal = pool_->stop_signal(state.rank);
    state.tracer = pool_->tracer(state.rank);
    state.takes_part = true;
    pids.push_back(state.pid);
    states.push_back(std::move(state));
  }
  process::put_stacks(states, process::native_stacks(pids, kStacksLimit));
  MessageWriter message(MessageKind::rank_stacks, request);
  message.put_text(process::report_of(states));
  group_.send(kMasterNode, std::move(message));
}

/// Tells the master about lost workers. The first one comes first: its peers end when they see its loss, and the master
/// names the rank of which it hears first. It may also be one of another node.
bool NodeSession::report_losses() {
  const std::uint64_t first = pool_->control().header().lost.load(std::memory_order_seq_cst);
  if (first == 0) return false;
  const int rank = static_cast<int>(first) - 1;
  bool has_reported = place_.has(rank) && report_loss(place_.local_rank(rank));
  for (int local_rank = 0; local_rank < place_.local_size; ++local_rank) {
    has_reported = report_loss(local_rank) || has_reported;
  }
  return has_reported;
}

bool NodeSession::report_loss(int local_rank) {
  Known& known = known_[static_cast<std::size_t>(local_rank)];
  const int rank = place_.rank(local_rank);
  const protocol::WorkerSlot& slot = pool_->control().worker(rank);
  if (known.is_lost || slot.is_lost.load(std::memory_order_seq_cst) == 0) return false;
  known.is_lost = true;
  known.lost_at = os::Clock::now();
  commands_
      .report_all();  // what the worker had finished counts, and the master ends the session when it hears of the loss
  MessageWriter message(MessageKind::rank_lost);
  put_rank_lost(message, rank, slot);
  commands_.put_timeline(message, rank);
  group_.send(kMasterNode, std::move(message));
  return true;
}

/// Tells the master about workers that have ended. A worker may end between a look at its loss and this. Its loss is then
/// told next time.
bool NodeSession::report_ends() {
  bool has_reported = false;
  const bool shall_look = os::Clock::now() >= next_look_;
  if (shall_look) next_look_ = os::Clock::now() + kLookForMessagesEvery;
  for (int local_rank = 0; local_rank < place_.local_size; ++local_rank) {
    const Known& known = known_[static_cast<std::size_t>(local_rank)];
    if (known.has_ended) continue;
    if (known.is_lost || shall_look) has_reported = report_end(local_rank) || has_reported;
  }
  return has_reported;
}

bool NodeSession::report_end(int local_rank) {
  Known& known = known_[static_cast<std::size_t>(local_rank)];
  const int rank = place_.rank(local_rank);
  const bool is_slow = known.is_lost && os::Clock::now() - known.lost_at > kSlowEnd;
  if (!pool_->end_status(rank) && !is_slow) return false;
  known.has_ended = true;
  RankEnd end{pool_->await_end(rank), pool_->last_stderr(rank)};
  if (end.end.cause == process::describe_status(SIGKILL)) end.end.cause += pool_->describe_kill();
  MessageWriter message(MessageKind::rank_end);
  put_rank_end(message, rank, pool_->control().worker(rank), end);
  group_.send(kMasterNode, std::move(message));
  return true;
}

void NodeSession::sleep() {
  if (commands_.awaits_rows()) return os::yield_core();
  const std::chrono::nanoseconds limit = group_.nap(need_of(pool_->control()));
  os::Doorbell& bell = pool_->control().header().to_master;
  const std::uint32_t seen = bell.rings.load(std::memory_order_seq_cst);
  bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (!commands_.has_news() && !exchange_.has_news() && !moves_.has_news() && !queues_.has_news())
    bell.sleep(seen, limit);
  bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace syncrun::detail::master::nodes
