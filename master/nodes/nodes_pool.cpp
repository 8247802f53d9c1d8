#include "master/nodes/nodes_pool.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/os/environment.hpp"
#include "common/os/file_descriptor.hpp"
#include "common/text/errors.hpp"
#include "common/text/joined.hpp"
#include "master/devices/host_part.hpp"
#include "master/nodes/answers.hpp"
#include "master/nodes/node_cores.hpp"
#include "master/pool/worker_watcher.hpp"
#include "master/process/spawn.hpp"
#include "master/process/stuck_ranks.hpp"
#include "master/settings/last_line.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// How long an agent may take to find out how a worker has ended (await_child_end), or to end a session.
constexpr os::Milliseconds kEndLimit{12'000};

/// Collects the answers of all agents to one question. The program may have asked before, and given up because one node
/// has refused. The answers of the others to that question come now, and say nothing about this one.
class Gathering final : public Answers {
 public:
  Gathering(int nodes, std::uint64_t question)
      : question_(question), devices_(static_cast<std::size_t>(nodes)), cores_(static_cast<std::size_t>(nodes)) {}
  void on_message(int node, MessageReader& message) override {
    const bool is_answer = message.kind() == MessageKind::start_failed || message.kind() == MessageKind::devices;
    if (!is_answer || message.get<std::uint64_t>() != question_) return;
    if (message.kind() == MessageKind::start_failed) {
      const auto kind = message.get<ErrorKind>();
      fail(Error(kind, "node " + std::to_string(node) + ": " + message.get_text()));
    } else {
      cores_[static_cast<std::size_t>(node)] = message.get<NodeCores>();
      devices::ChosenDevices& devices = devices_[static_cast<std::size_t>(node)];
      devices.by_rank = message.get_list<devices::DeviceId>();
      for (auto names = message.get<std::size_t>(); names != 0; --names) {
        const auto rank = message.get<std::int32_t>();
        devices.names.push_back({message.get_text(), rank});
      }
    }
    if (first_missing() < 0) finish();
  }

  /// The first node that has not answered, or -1.
  int first_missing() const noexcept {
    for (std::size_t node = 1; node < devices_.size(); ++node) {
      if (devices_[node].by_rank.empty()) return static_cast<int>(node);
    }
    return -1;
  }
  const devices::ChosenDevices& devices_of(int node) const { return devices_[static_cast<std::size_t>(node)]; }
  const NodeCores& cores_of(int node) const { return cores_[static_cast<std::size_t>(node)]; }

 private:
  std::uint64_t question_;
  std::vector<devices::ChosenDevices> devices_;
  std::vector<NodeCores> cores_;
};

struct NameOnNode {
  std::string node;
  devices::DeviceName device;
};

/// If several nodes use a name, the node comes before it: "n1:left".
void add_names(settings::Settings& settings, const std::vector<NameOnNode>& names) {
  for (const auto& [node, device] : names) {
    const std::string& name = device.name;
    const auto same = [&name](const NameOnNode& other) { return other.device.name == name; };
    const bool is_unique = std::ranges::count_if(names, same) == 1;
    settings.device_names.push_back({is_unique ? name : node + ":" + name, device.rank});
  }
}

/// Throws Error (usage) if a list of devices names a host that is not a node of the job.
void check_hosts(const settings::Settings& settings, std::string_view list) {
  const auto& known = settings.node_names;
  for (const std::string& host : devices::hosts_in(list)) {
    if (std::ranges::find(known, host) != known.end()) continue;
    text::throw_usage("the list of devices " + detail::master::devices::quoted(list) + " names " +
                      detail::master::devices::quoted(host) + ", expected one of the nodes " + text::joined(known));
  }
}

}  // namespace

void gather_devices(NodeGroup& group, const SessionOptions& options, settings::Settings& settings) {
  const std::uint64_t number = group.number_of_question();
  Gathering answers(group.nodes(), number);
  group.use_tree(settings.tree_from);
  MessageWriter question(MessageKind::open, number, std::int32_t{settings.tree_from});
  question.put_text(options.devices);
  question.put_text(options.processes);
  group.send_to_all(question);
  if (!answers.await(group, settings.start_timeout)) {
    throw Error(ErrorKind::timeout, group.name_of(answers.first_missing()) + " has not named its devices within " +
                                        std::to_string(settings.start_timeout.count()) +
                                        " ms (--start-timeout or SessionOptions::start_timeout sets another limit)");
  }
  settings.nodes.clear();
  settings.node_names = group.names();
  settings.master_host = devices::own_host_name();
  int first_rank = 0;
  std::vector<NameOnNode> given;
  std::vector<NodeLoad> loads;
  const devices::ChosenDevices own{std::exchange(settings.devices, {}), std::exchange(settings.device_names, {})};
  for (int node = 0; node < group.nodes(); ++node) {
    const auto& [devices, names] = node == group.node() ? own : answers.devices_of(node);
    const std::string& host = settings.node_names[static_cast<std::size_t>(node)];
    for (const devices::DeviceName& name : names) given.push_back({host, {name.name, first_rank + name.rank}});
    settings.nodes.push_back({node, group.nodes(), first_rank, static_cast<std::int32_t>(devices.size())});
    settings.devices.insert(settings.devices.end(), devices.begin(), devices.end());
    loads.push_back({group.name_of(node), static_cast<int>(devices.size()),
                     node == group.node() ? own_cores() : answers.cores_of(node)});
    first_rank += static_cast<int>(devices.size());
  }
  settings.too_few_cores = describe_too_few_cores(loads);
  add_names(settings, given);
  check_hosts(settings, environment::get(environment::kDevices) != nullptr ? environment::get(environment::kDevices)
                                                                           : options.devices.c_str());
  if (settings.devices.size() <= static_cast<std::size_t>(protocol::kMaxWorldSize)) return;
  text::throw_usage("the nodes have " + std::to_string(settings.devices.size()) +
                    " devices together; a session has at most " + std::to_string(protocol::kMaxWorldSize) +
                    " ranks: choose fewer with --nproc-per-node or --devices");
}

// ---- start ----------------------------------------------------------------------------------------------------

NodesPool::NodesPool(NodeGroup& group, const settings::Settings& settings)
    : group_(group),
      settings_(settings),
      local_(settings, place()),
      session_(group.number_of_question()),
      awake_for_(NodesPool::wait_policy().awake_for),
      inbound_(local_.inbound()),
      told_losses_(settings.devices.size()),
      has_ended_(settings.nodes.size()) {
  share_memory(local_);
  group_.note_full(!control().header().spins);
  exchange_.emplace(group_, control(), segment(), session_, group_.tree().from());
  moves_.emplace(group_, control(), segment(), inbound_, session_);
  commands_.emplace(group_, control(), RemoteNodes::Memory{segment(), inbound_}, settings.nodes, &*exchange_, &*moves_,
                    group_.tree().root());
  queues_.emplace([this](const MessageWriter& message) { group_.send_to_all(message); }, *commands_,
                  control().header().to_master, settings.node_names);
}

/// Rows may still be under way to a node that is lost, and the transport reads them from the memory.
NodesPool::~NodesPool() {
  NodesPool::end();
  if (group_.has_lost_node()) keep_memory();
}

void NodesPool::start() {
  was_started_ = true;
  group_.listen(this);
  send_start();
  local_.start();
}

SessionStart NodesPool::start_of(const protocol::NodePlace& node) const {
  const protocol::ControlHeader& header = control().header();
  return {settings_, node, segment().bytes(), session_, header.timelines_offset, header.totals_offset};
}

/// Only the places of the nodes differ.
void NodesPool::send_start() {
  Bundle bundle(0, 2);
  MessageWriter same;
  put_session_settings(same, start_of(place()));
  const Bundle::Piece settings_piece = bundle.add_piece(same.take());
  for (const protocol::NodePlace& node : settings_.nodes) {
    if (node.node == group_.node()) continue;
    MessageWriter own(MessageKind::start, node);
    bundle.add(node.node, std::array{bundle.add_piece(own.take()), settings_piece});
  }
  group_.send(bundle);
}

// ---- messages -------------------------------------------------------------------------------------------------

void NodesPool::on_message(int node, MessageReader& message) {
  switch (message.kind()) {
    case MessageKind::done: commands_->take_done(message); break;
    case MessageKind::exchange:
    case MessageKind::abandon:
    case MessageKind::left:
    case MessageKind::vote:
    case MessageKind::verdict:
    case MessageKind::plans: exchange_->take(node, message); break;
    case MessageKind::values: moves_->take(node, message); break;
    case MessageKind::rank_state:
      take_rank_state(message, control());
      control().header().to_master.ring();
      break;
    case MessageKind::progress:
      while (!message.is_at_end()) {
        const RankProgress progress = take_progress(message, control());
        commands_->take_timeline(message, progress.rank);
        const os::MutexLock lock(mutex_);
        progress_[progress.rank] = progress;
      }
      break;
    case MessageKind::rank_lost: {
      const int rank = take_rank_lost(message, control());
      commands_->take_timeline(message, rank);
      pool::note_loss(control(), rank);
      break;
    }
    case MessageKind::rank_end: {
      RankEnd end;
      const int rank = take_rank_end(message, control(), end);
      const os::MutexLock lock(mutex_);
      ends_[rank] = std::move(end);
      break;
    }
    case MessageKind::rank_stacks: pass_on_stacks(message); break;
    case MessageKind::queue_news:
    case MessageKind::queue_failed:
    case MessageKind::producer_lost:
    case MessageKind::queue_ended: queues_->take(node, message); break;
    case MessageKind::start_failed: {
      static_cast<void>(message.get<std::uint64_t>());
      const auto kind = message.get<ErrorKind>();
      note_fault(node, Error(kind, group_.name_of(node) + ": " + message.get_text()));
      break;
    }
    case MessageKind::ended: {
      const os::MutexLock lock(mutex_);
      has_ended_[static_cast<std::size_t>(node)] = true;
      break;
    }
    default: throw Error(ErrorKind::system, "an unexpected message from " + group_.name_of(node));
  }
}

/// What was sent along the tree may be lost. So what the agents need for the end is sent again.
void NodesPool::on_node_lost(int node, const Error& why) noexcept {
  note_fault(node, why);
  if (!group_.tree().is_broken()) return;
  for (const MessageKind kind : {MessageKind::expect_ends, MessageKind::kill_all, MessageKind::end}) {
    if (was_told(kind)) send_to_agents(kind);
  }
}

/// All ranks of the node are lost, and the reason is not in them. The program hears of it in its next call. The engine may
/// end the job before that, so `syncrun` gets the reason at once.
void NodesPool::note_fault(int node, const Error& why) noexcept {
  settings::report_details(why);
  settings::report_last_line(why.what());
  {
    const os::MutexLock lock(mutex_);
    if (!fault_) fault_ = why;
    has_ended_[static_cast<std::size_t>(node)] = true;
  }
  queues_->lose(node);
  const protocol::NodePlace& there = settings_.nodes[static_cast<std::size_t>(node)];
  for (int local_rank = 0; local_rank < there.local_size; ++local_rank)
    pool::note_loss(control(), there.rank(local_rank));
}

bool NodesPool::look() {
  const bool has_told = tell_losses();
  const bool has_replaced = tell_successors();
  const bool has_exchanged = exchange_->look();
  const bool has_freed = queues_->look();
  ask_for_stacks();
  return moves_->look() || has_exchanged || has_told || has_replaced || has_freed;
}

// ---- stacks ---------------------------------------------------------------------------------------------------

/// `syncrun stacks` cannot look at processes of other nodes, so their agents do it.
void NodesPool::ask_for_stacks() {
  const std::uint32_t wanted = control().header().stacks.wanted.load(std::memory_order_acquire);
  if (std::exchange(asked_for_stacks_, wanted) != wanted)
    group_.send_to_all(MessageWriter(MessageKind::stacks, wanted));
}

/// An answer to an earlier request is dropped: nobody waits for it any more. If the file cannot be written, `syncrun stacks`
/// waits in vain for a limited time.
void NodesPool::pass_on_stacks(MessageReader& message) {
  protocol::StacksRequest& request = control().header().stacks;
  if (message.get<std::uint32_t>() != request.wanted.load(std::memory_order_acquire)) return;
  const std::string stacks = message.get_text();
  const os::KeptDescriptor file(os::FileDescriptor(::open(request.path().c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)));
  if (file.is_intact() && ::write(file.get(), stacks.data(), stacks.size()) == static_cast<ssize_t>(stacks.size()))
    request.answers.fetch_add(1, std::memory_order_release);
}

// ---- replacement ----------------------------------------------------------------------------------------------

/// If lost workers are replaced, their peers on all nodes must learn of the loss: they continue, and do not wait for them.
/// Otherwise the session ends.
bool NodesPool::tell_losses() {
  const protocol::ControlHeader& header = control().header();
  if (!header.respawns || header.lost.load(std::memory_order_seq_cst) == 0) return false;
  bool has_told = false;
  for (int rank = 0; rank < world_size(); ++rank) {
    const bool is_lost = control().worker(rank).is_lost.load(std::memory_order_seq_cst) != 0;
    if (!is_lost || told_losses_[static_cast<std::size_t>(rank)]) continue;
    told_losses_[static_cast<std::size_t>(rank)] = has_told = true;
    MessageWriter message(MessageKind::peer_lost);
    put_peer_lost(message, rank);
    Bundle bundle;
    const Bundle::Piece piece = bundle.add_piece(message.take());
    for (const protocol::NodePlace& node : settings_.nodes) {
      if (node.node != group_.node() && !node.has(rank)) bundle.add(node.node, {&piece, 1});
    }
    group_.send(bundle);
  }
  return has_told;
}

/// The same thread tells of losses and of successors. So no node hears of a loss after the rank has got its successor.
bool NodesPool::tell_successors() {
  if (!has_successors_.load(std::memory_order_acquire)) return false;
  has_successors_.store(false, std::memory_order_relaxed);
  std::vector<pool::Successor> successors;
  {
    const os::MutexLock lock(mutex_);
    successors.swap(successors_);
  }
  exchange_->forget(successors.front().last);
  moves_->forget(successors.front().last);
  for (const pool::Successor& successor : successors) told_losses_[static_cast<std::size_t>(successor.rank)] = false;
  MessageWriter message(MessageKind::replace);
  put_successors(message, successors);
  group_.send_to_all(message);
  return true;
}

bool NodesPool::reap(int rank) {
  if (place().has(rank)) return local_.reap(rank);
  if (const auto failure = watch_failure()) throw Error(*failure);
  return await_end(rank).wait_status.has_value();
}

/// The losses are forgotten before the other nodes start successors, because these may be lost too.
void NodesPool::replace(const std::vector<pool::Successor>& successors) {
  local_.forget_losses(successors);
  {
    const os::MutexLock lock(mutex_);
    for (const pool::Successor& successor : successors) {
      ends_.erase(successor.rank);
      progress_.erase(successor.rank);
    }
    successors_ = successors;
  }
  has_successors_.store(!successors.empty(), std::memory_order_release);
  group_.progress();  // calls look()
  local_.start_successors(successors);
}

// ---- processes ------------------------------------------------------------------------------------------------

void NodesPool::send_to_agents(MessageKind kind) noexcept {
  told_.fetch_or(bit_of(kind), std::memory_order_seq_cst);  // before the look whether there is a tree
  try {
    group_.send_to_all(MessageWriter(kind));
  } catch (const std::exception&) {
    // The transport has failed. Then the agents notice that nothing comes from this node any more.
  }
}

void NodesPool::end() noexcept {
  if (was_started_ && local_.is_here()) {
    was_started_ = false;
    send_to_agents(MessageKind::end);
    local_.stop();  // the workers of all nodes end at the same time
    const auto have_ended = [this] {
      const os::MutexLock lock(mutex_);
      return std::all_of(has_ended_.begin() + 1, has_ended_.end(), [](bool ended) { return ended; });
    };
    const auto has_ended = [this](int node) {
      const os::MutexLock lock(mutex_);
      return has_ended_[static_cast<std::size_t>(node)];
    };
    if (!group_.await(kEndLimit, have_ended)) {
      for (int node = 1; node < group_.nodes(); ++node) {
        if (has_ended(node)) continue;
        group_.lose(node, Error(ErrorKind::timeout, group_.name_of(node) + " did not end its part of the session"));
      }
    }
    group_.listen(nullptr);
  }
  local_.end();
}

std::optional<RankEnd> NodesPool::known_end(int rank) const {
  const os::MutexLock lock(mutex_);
  const auto found = ends_.find(rank);
  return found == ends_.end() ? std::nullopt : std::optional(found->second);
}

process::ChildEnd NodesPool::await_end(int rank) {
  if (place().has(rank)) return local_.await_end(rank);
  const auto& nodes = settings_.nodes;
  const auto there = std::ranges::find_if(nodes, [rank](const protocol::NodePlace& node) { return node.has(rank); });
  const auto is_known = [&] {
    return known_end(rank).has_value() || group_.is_lost(there->node) || group_.tree().is_broken();
  };
  static_cast<void>(group_.await(kEndLimit, is_known));
  if (const auto known = known_end(rank)) return known->end;
  return {std::nullopt, "its node has not said how it ended"};
}

std::optional<int> NodesPool::end_status(int rank) {
  if (place().has(rank)) return local_.end_status(rank);
  group_.progress();
  const auto known = known_end(rank);
  return known ? known->end.wait_status : std::nullopt;
}

bool NodesPool::await_all_ends(os::Milliseconds limit) {
  const auto begin = os::Clock::now();
  if (!local_.await_all_ends(limit)) return false;
  const auto have_ended = [this] {
    const os::MutexLock lock(mutex_);
    return fault_.has_value() ||
           ends_.size() + static_cast<std::size_t>(place().local_size) == static_cast<std::size_t>(world_size());
  };
  const auto left = limit - std::chrono::duration_cast<os::Milliseconds>(os::Clock::now() - begin);
  return group_.await(std::max(left, os::Milliseconds(1)), have_ended);
}

int NodesPool::stop_signal(int rank) const {
  return place().has(rank) ? local_.stop_signal(rank) : last_progress(rank).stop_signal;
}

int NodesPool::tracer(int rank) const { return place().has(rank) ? local_.tracer(rank) : last_progress(rank).tracer; }

/// Agents report only about busy workers. Before the first report of a rank, neither a signal nor a tracer is known.
RankProgress NodesPool::last_progress(int rank) const {
  const os::MutexLock lock(mutex_);
  const auto found = progress_.find(rank);
  return found == progress_.end() ? RankProgress{rank, 0, 0} : found->second;
}

bool NodesPool::is_debugged() const {
  if (local_.is_debugged()) return true;
  const os::MutexLock lock(mutex_);
  return std::ranges::any_of(progress_, [](const auto& known) { return known.second.tracer != 0; });
}

/// Only processes of this machine can be looked at.
void NodesPool::take_stacks(std::vector<RankState>& states) {
  std::vector<RankState> here;
  for (const RankState& state : states) {
    if (place().has(state.rank)) here.push_back(state);
  }
  local_.take_stacks(here);
  for (RankState& state : here) states[static_cast<std::size_t>(state.rank)] = std::move(state);
}

std::vector<std::string> NodesPool::last_stderr(int rank) {
  if (place().has(rank)) return local_.last_stderr(rank);
  const auto known = known_end(rank);
  return known ? known->last_stderr : std::vector<std::string>();
}

std::optional<Error> NodesPool::watch_failure() const {
  {
    const os::MutexLock lock(mutex_);
    if (fault_) return fault_;
  }
  return local_.watch_failure();
}

}  // namespace syncrun::detail::master::nodes
