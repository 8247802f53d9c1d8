#include "master/nodes/node_group.hpp"

#include <algorithm>
#include <utility>

#include "common/os/waited_time.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// How many messages one call of progress() handles at most.
constexpr int kMostMessages = 64;
/// How many messages are received before signs of life are given and missed again.
constexpr int kMostLooks = 64;
/// How often the thread of the master looks whether another thread still handles messages. Where the workers compute on
/// all cores, they lose the time of these looks, so there are fewer.
constexpr os::Milliseconds kLookForHelp{1};
constexpr os::Milliseconds kLookForHelpOnFullNodes{4};
/// How often the master looks for signs of life. Mostly, other threads have received them.
constexpr os::Milliseconds kLookForSigns{50};

}  // namespace

NodeGroup::NodeGroup(std::unique_ptr<Transport> transport, Limits limits)
    : transport_(std::move(transport)),
      node_(transport_->node()),
      known_(transport_->nodes()),
      signs_(*transport_, known_, limits),
      pulse_([this](os::StoppableThread& self) { pulse(self); }) {
  if (is_master()) help_.emplace([this](os::StoppableThread& self) { help(self); });
}

template <class Visit>
void NodeGroup::for_each_partner(Visit&& visit) const {
  for (int node = 0; node < nodes(); ++node) {
    if (is_partner(node) && !is_lost(node)) visit(node);
  }
}

// ---- messages -------------------------------------------------------------------------------------------------

void NodeGroup::use_tree(int from) {
  const os::MutexLock lock(dispatch_);
  tree_.use(from, node_, nodes(), *this);
}

void NodeGroup::send(int node, MessageWriter message) {
  const bool has_tree = tree_.from() != 0 && !tree_.is_broken();
  if (!has_tree || !goes_along_tree(message.kind())) return send_directly(node, std::move(message));
  if (is_master()) tree_.root()->send(node, message.take());
  else tree_.relay()->send(message.take());
}

void NodeGroup::send_directly(int node, MessageWriter message) {
  if (is_lost(node)) return;
  activity_.note();
  static_cast<void>(reach(node, [&] { return transport_->send(node, message.take()), Ticket{0}; }));
}

/// Lets the transport do something with a node. If it fails, the node is lost, and not the others.
template <class Action>
NodeGroup::Ticket NodeGroup::reach(int node, Action&& action) {
  try {
    return action();
  } catch (const Error& error) {
    lose_unless_ended(
        node, Error(ErrorKind::worker_lost,
                    name_of(node) + " cannot be reached: " + (node == kMasterNode ? "the master" : "its agent") +
                        " was killed, the machine is down, or the network is (" + error.what() + ")"));
    return 0;
  }
}

void NodeGroup::send(const Bundle& bundle) {
  if (tree_.root() != nullptr) return tree_.root()->send(bundle);
  for (const int node : bundle.nodes()) send_directly(node, MessageWriter(*bundle.message_of(node)));
}

void NodeGroup::send_to_all(const MessageWriter& message) {
  if (tree_.root() == nullptr || !goes_along_tree(message.kind())) {
    for_each_partner([&](int node) { send_directly(node, message); });
    return;
  }
  Bundle bundle;
  const Bundle::Piece piece = bundle.add_piece(MessageWriter(message).take());
  for_each_partner([&](int node) { bundle.add(node, {&piece, 1}); });
  send(bundle);
}

NodeGroup::Ticket NodeGroup::send_bulk(int node, std::span<const std::byte> from) {
  if (is_lost(node)) return 0;
  activity_.note();
  const Ticket ticket = reach(node, [&] { return transport_->send_bulk(node, from); });
  leaving_.store(ticket, std::memory_order_relaxed);
  return ticket;
}

NodeGroup::Ticket NodeGroup::receive_bulk(int node, std::span<std::byte> to) {
  if (is_lost(node)) return 0;
  activity_.note();
  return reach(node, [&] { return transport_->receive_bulk(node, to); });
}

/// If the transport has failed, nothing more is under way, and the silence of a node shows what has happened.
bool NodeGroup::is_over(Ticket ticket) {
  try {
    return transport_->is_over(ticket);
  } catch (const Error&) {
    return false;
  }
}

bool NodeGroup::progress() {
  activity_.note_look();
  return handle_messages();
}

/// What the ranks here want to send leaves first, because each look for messages in vain takes microseconds.
bool NodeGroup::handle_messages() {
  const os::MutexLock lock(dispatch_);
  bool did_something = look_here();
  if (take_arrivals() || stay_for_answer()) {
    did_something = true;
    look_here();
  }
  if (Relay* const relay = tree_.relay(); relay != nullptr && relay->look(os::Clock::now())) did_something = true;
  return did_something;
}

bool NodeGroup::look_here() {
  if (listener_ == nullptr || !listener_->look()) return false;
  activity_.note();
  return true;
}

/// Handles each message before it looks for the next one, because a look in vain takes longer than most messages do. Once a
/// rank has what it waits for, this returns, because it may need the core.
bool NodeGroup::take_arrivals() {
  const std::uint64_t answered = answers();
  bool did_something = dispatch();  // what came when there was no listener, or what another thread has received
  for (int messages = 0; messages < kMostMessages && answers() == answered && arrivals_.collect(); ++messages) {
    did_something = true;
    dispatch();
  }
  return did_something;
}

/// Looks for messages for up to kStay if a rank waits for one. Only on a full node: there, giving the core to the ranks and
/// getting it back takes about as long as the message. Returns true as soon as there was something to do.
bool NodeGroup::stay_for_answer() {
  if (!activity_.is_full() || listener_ == nullptr || !listener_->awaits_messages()) return false;
  const std::uint64_t answered = answers();
  if (!stays_.begin(answered)) return false;
  const auto end = os::Clock::now() + kStay;
  while (os::Clock::now() < end) {
    const bool did_something = take_arrivals() || look_here();
    if (answers() != answered) stays_.note_answer();
    if (did_something) return true;
  }
  return false;
}

bool NodeGroup::dispatch() {
  bool did_something = false;
  while (listener_ != nullptr) {
    if (tell_losses()) did_something = true;
    auto next = arrivals_.next();
    if (!next) break;
    did_something = true;
    if (is_lost(next->node)) continue;
    try {
      take(*next);
    } catch (const Error& error) {
      lose(next->node, error);
    }
  }
  return did_something;
}

void NodeGroup::take(Transport::Arrival& next) {
  MessageReader message(next.message, name_of(next.node));
  if (message.kind() == MessageKind::fault) {
    const auto kind = message.get<ErrorKind>();
    throw Error(kind, name_of(next.node) + ": " + message.get_text());
  }
  if (message.kind() == MessageKind::bye) {
    const auto code = message.get<std::int32_t>();
    take_leave(next.node, {code, message.get_text()});
    return;
  }
  if (tree_.relay() != nullptr) take_as_relay(next.node, message);
  else if (tree_.root() != nullptr && message.kind() == MessageKind::reports)
    for_each_report(message, [this](int from, auto bytes) { take_report(from, bytes); });
  else listener_->on_message(next.node, message);
}

void NodeGroup::take_as_relay(int node, MessageReader& message) {
  switch (message.kind()) {
    case MessageKind::bundle:
      if (const auto own = tree_.relay()->take_bundle(message)) {
        MessageReader of_master(*own, name_of(kMasterNode));
        listener_->on_message(kMasterNode, of_master);
      }
      break;
    case MessageKind::reports: tree_.relay()->take_reports(message); break;
    case MessageKind::direct: tree_.end(); break;
    default: listener_->on_message(node, message);
  }
}

/// If the message cannot be handled, its sender is lost, and not the relay that has passed it on.
void NodeGroup::take_report(int node, std::span<const std::byte> bytes) {
  if (node <= kMasterNode || node >= nodes()) throw Error(ErrorKind::system, "a report came from an unknown node");
  // The caller holds it too, but clang does not know that for_each_report calls this at once.
  const os::MutexLock lock(dispatch_);
  if (is_lost(node) || listener_ == nullptr) return;
  try {
    MessageReader message(bytes, name_of(node));
    listener_->on_message(node, message);
  } catch (const Error& error) {
    lose(node, error);
  }
}

/// The node waits for the others to end the transport together. So it is not abandoned.
void NodeGroup::take_leave(int node, Farewell farewell) {
  const Error why(ErrorKind::worker_lost,
                  name_of(node) + " has left the job (exit code " + std::to_string(farewell.exit_code) + ")");
  known_.take_leave(node, std::move(farewell), why);
  has_untold_loss_.store(true);
}

void NodeGroup::listen(NodeListener* listener) {
  const os::MutexLock lock(dispatch_);
  listener_ = listener;
  if (listener == nullptr) return;
  told_losses_.assign(static_cast<std::size_t>(nodes()), false);
  has_untold_loss_.store(true);
  tell_losses();
}

// ---- losses ---------------------------------------------------------------------------------------------------

/// Does not wait for the listener. It may have gigabytes to copy, and the thread that says that this node is alive comes here
/// too.
void NodeGroup::lose(int node, const Error& why) noexcept {
  if (!known_.lose(node, why)) return;
  transport_->abandon(node);
  end_tree();
  has_untold_loss_.store(true);
}

bool NodeGroup::tell_losses() noexcept {
  if (!has_untold_loss_.load() || !has_untold_loss_.exchange(false)) return false;
  for (int node = 0; node < nodes(); ++node) {
    const auto why = told_losses_[static_cast<std::size_t>(node)] ? std::nullopt : loss_of(node);
    if (!why) continue;
    told_losses_[static_cast<std::size_t>(node)] = true;
    listener_->on_node_lost(node, *why);
  }
  return true;
}

/// In the master: the lost node may be a relay, and the session is over in any case.
void NodeGroup::end_tree() noexcept {
  if (tree_.root() == nullptr || !tree_.root()->end_tree()) return;
  for_each_partner([&](int node) { send_directly(node, MessageWriter(MessageKind::direct)); });
}

/// The last message of a node says why it is silent or gone. It has arrived, but perhaps nobody has handled it yet.
void NodeGroup::lose_unless_ended(int node, const Error& why) noexcept {
  if (!known_.has_ended(node)) lose(node, why);
}

// ---- the threads of this object -----------------------------------------------------------------------------------

std::chrono::nanoseconds NodeGroup::nap(Need need) {
  // The engine sends the next part of bulk only when it is called.
  if (auto ticket = leaving_.load(std::memory_order_relaxed); ticket != 0) {
    if (!is_over(ticket)) return Activity::kShortestNap;
    leaving_.compare_exchange_strong(ticket, 0, std::memory_order_relaxed);
  }
  if (transport_->has_parts_under_way()) return Activity::kShortestNap;
  // In a tree, other nodes may wait for what this one passes on.
  return activity_.nap(tree_.from() == 0 ? need : Need::likely);
}

void NodeGroup::send_sign(int node, MessageKind kind) {
  if (!is_lost(node)) reach(node, [&] { return transport_->send(node, MessageWriter(kind).take()), Ticket{0}; });
}

void NodeGroup::beat() {
  for_each_partner([&](int node) { send_sign(node, MessageKind::beat); });
  for (const int node : tree_.neighbours()) send_sign(node, MessageKind::beat);
  for (int node = 0; node < nodes(); ++node) {
    if (signs_.is_awaited(node)) send_sign(node, MessageKind::ping);
  }
}

void NodeGroup::answer_pings() {
  for (int node = 0; node < nodes(); ++node) {
    if (signs_.take_ping(node)) send_sign(node, MessageKind::beat);
  }
}

/// Handles no messages, because that may take long: there may be gigabytes to copy. It only looks for signs of life.
void NodeGroup::pulse(os::StoppableThread& self) {
  os::WaitedTime waited(os::Clock::now());
  os::Clock::time_point next_beat{};
  const os::Milliseconds limit = std::min(is_master() ? kLookForSigns : Activity::kLongestNap, signs_.beat());
  while (!self.nap(limit)) {
    const auto now = os::Clock::now();
    if (now >= next_beat) {
      next_beat = now + signs_.beat();
      beat();
    }
    answer_pings();
    for (int looks = 0; looks < kMostLooks && arrivals_.collect(); ++looks) {
    }
    check_silence(waited.since_last_look(now));
  }
}

/// In the master, a thread handles messages if no other one does: the program may compute for a long time between two
/// calls. While another thread does that, this one waits: two threads would take turns with each other's locks and cores.
/// An agent handles messages only in its own thread: it starts processes because of them.
void NodeGroup::help(os::StoppableThread& self) {
  std::uint64_t looks_seen = 0;
  std::chrono::nanoseconds limit{0};
  while (!self.nap(limit)) {
    const std::uint64_t looks = activity_.looks();
    if (std::exchange(looks_seen, looks) != looks) {
      limit = activity_.is_full() ? kLookForHelpOnFullNodes : kLookForHelp;
    } else {
      for (int turns = 0; turns < kMostMessages && handle_messages(); ++turns) os::yield_core();
      limit = nap();
    }
  }
}

void NodeGroup::check_silence(std::chrono::nanoseconds waited) {
  if (!is_master() && !tree_.has_ended()) check_silence_of_peers(waited);
  for_each_partner([&](int node) {
    if (const auto silence = signs_.silence_of(node, waited)) lose_unless_ended(node, *silence);
  });
}

/// A peer that is not awaited may be silent. Its silence counts only from the next wait on.
void NodeGroup::check_silence_of_peers(std::chrono::nanoseconds waited) {
  const auto neighbours = tree_.neighbours();
  for (int node = kMasterNode + 1; node < nodes(); ++node) {
    if (node == node_) continue;
    const bool is_neighbour = std::find(neighbours.begin(), neighbours.end(), node) != neighbours.end();
    if (!is_neighbour && !signs_.is_awaited(node)) {
      signs_.note_message(node);
      continue;
    }
    const auto silence = signs_.silence_of_peer(node, waited);
    if (silence && !is_lost(kMasterNode)) known_.note_broken_link(loss_of(node).value_or(*silence));
  }
}

bool NodeGroup::leave(int exit_code, os::Milliseconds grace) noexcept {
  try {
    MessageWriter message(MessageKind::bye, static_cast<std::int32_t>(exit_code));
    message.put_text(known_.verdict());
    send_to_all(message);
    listen(nullptr);
  } catch (const std::exception&) {
    return false;
  }
  help_.reset();
  pulse_.stop();
  return transport_->close(grace) && !has_lost_node();
}

}  // namespace syncrun::detail::master::nodes
