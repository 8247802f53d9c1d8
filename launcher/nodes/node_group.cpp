#include "launcher/nodes/node_group.hpp"

#include <algorithm>
#include <utility>

#include "common/text/errors.hpp"

namespace syncrun::detail {

namespace {

// A nap is at most this part of the time that the waiter has waited so far.
constexpr int kNapPart = 32;
// The same if no rank here needs a message, and the workers compute on all cores. A look takes 12 us of a core.
constexpr int kNapPartWithoutNeed = 8;
constexpr std::chrono::microseconds kShortestNap{50};
constexpr Milliseconds kLongestNap{4};
/// How many messages one call of progress() handles at most.
constexpr int kMostMessages = 64;
/// How much longer a neighbour in the tree may be silent than a node may be for the master.
constexpr Milliseconds kMastersTurn{1000};
/// How often the thread of the master looks whether another thread still handles messages. Where the workers compute on
/// all cores, they lose the time of these looks, so there are fewer.
constexpr Milliseconds kLookForHelp{1};
constexpr Milliseconds kLookForHelpOnFullNodes{4};

/// "3.0"
std::string seconds_text(Milliseconds time) {
  const auto tenths = time.count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
}

/// True if nothing comes after a message of this kind.
bool is_last_word(MessageKind kind) noexcept { return kind == MessageKind::bye || kind == MessageKind::fault; }

}  // namespace

NodeGroup::NodeGroup(std::unique_ptr<Transport> transport, Limits limits)
    : transport_(std::move(transport)),
      limits_(limits),
      node_(transport_->node()),
      active_at_(Clock::now().time_since_epoch().count()) {
  for (int node = 0; node < transport_->nodes(); ++node) peers_.push_back(std::make_unique<Peer>());
  pulse_ = std::thread([this] { pulse(); });
}

NodeGroup::~NodeGroup() {
  {
    const std::lock_guard lock(pulse_lock_);
    is_over_ = true;
  }
  pulse_ends_.notify_all();
  if (pulse_.joinable()) pulse_.join();
}

template <class Visit>
void NodeGroup::for_each_partner(Visit&& visit) const {
  for (int node = 0; node < nodes(); ++node) {
    if (is_partner(node) && !is_lost(node)) visit(node);
  }
}

std::string NodeGroup::name_of(int node) const {
  const std::lock_guard lock(state_);
  const std::string number = "node " + std::to_string(node);
  return names_.empty() ? number : number + " (" + names_[static_cast<std::size_t>(node)] + ")";
}

std::vector<std::string> NodeGroup::names() const {
  const std::lock_guard lock(state_);
  return names_;
}

void NodeGroup::set_names(std::vector<std::string> names) {
  const std::lock_guard lock(state_);
  names_ = std::move(names);
}

// ---- messages -------------------------------------------------------------------------------------------------

void NodeGroup::use_tree(int from) {
  const std::lock_guard lock(dispatch_);
  if (tree_from() != 0 || nodes() < from) return;
  const NodeTree tree(nodes(), NodeTree::usual_fan_out(nodes()));
  if (is_master()) root_.store(&owned_root_.emplace(direct_post_, tree), std::memory_order_release);
  else neighbours_ = relay_.emplace(direct_post_, tree, node_).neighbours();
  std::erase(neighbours_, kMaster);
  tree_from_.store(from, std::memory_order_release);
}

void NodeGroup::send(int node, MessageWriter message) {
  if (tree_from() == 0 || !goes_along_tree(message.kind())) return send_directly(node, std::move(message));
  if (is_master()) root()->send(node, message.take());
  else relay_->send(message.take());
}

void NodeGroup::send_directly(int node, MessageWriter message) {
  if (is_lost(node)) return;
  note_activity();
  static_cast<void>(reach(node, [&] { return transport_->send(node, message.take()), Mailbox::Ticket{0}; }));
}

/// Lets the transport do something with a node. If it fails, the node is lost, and not the others.
template <class Action>
Mailbox::Ticket NodeGroup::reach(int node, Action&& action) {
  try {
    return action();
  } catch (const Error& error) {
    lose_unless_ended(node,
                      Error(ErrorKind::worker_lost,
                            name_of(node) + " cannot be reached: " + (node == kMaster ? "the master" : "its agent") +
                                " was killed, the machine is down, or the network is (" + error.what() + ")"));
    return 0;
  }
}

void NodeGroup::send(const Bundle& bundle) {
  if (root() != nullptr) return root()->send(bundle);
  for (const int node : bundle.nodes()) send_directly(node, MessageWriter(*bundle.message_of(node)));
}

void NodeGroup::send_to_all(const MessageWriter& message) {
  if (root() == nullptr || !goes_along_tree(message.kind())) {
    for_each_partner([&](int node) { send_directly(node, message); });
    return;
  }
  Bundle bundle;
  const Bundle::Piece piece = bundle.add_piece(MessageWriter(message).take());
  for_each_partner([&](int node) { bundle.add(node, {&piece, 1}); });
  send(bundle);
}

Mailbox::Ticket NodeGroup::send_bulk(int node, std::span<const std::byte> from) {
  if (is_lost(node)) return 0;
  note_activity();
  const Mailbox::Ticket ticket = reach(node, [&] { return transport_->send_bulk(node, from); });
  leaving_.store(ticket, std::memory_order_relaxed);
  return ticket;
}

Mailbox::Ticket NodeGroup::receive_bulk(int node, std::span<std::byte> to) {
  if (is_lost(node)) return 0;
  note_activity();
  return reach(node, [&] { return transport_->receive_bulk(node, to); });
}

/// If the transport has failed, nothing more is under way, and the silence of a node shows what has happened.
bool NodeGroup::is_over(Mailbox::Ticket ticket) {
  try {
    return transport_->is_over(ticket);
  } catch (const Error&) {
    return false;
  }
}

bool NodeGroup::progress() {
  looks_.fetch_add(1, std::memory_order_relaxed);
  return handle_messages();
}

/// Handles each message before it looks for the next one, because a look in vain takes longer than most messages do.
bool NodeGroup::handle_messages() {
  const std::lock_guard lock(dispatch_);
  bool did_something = dispatch();  // what came when there was no listener
  for (int messages = 0; messages < kMostMessages && collect(); ++messages) {
    did_something = true;
    dispatch();
  }
  if (relay_ && relay_->look(Clock::now())) did_something = true;
  if (listener_ != nullptr && listener_->look()) {
    note_activity();
    did_something = true;
  }
  return did_something;
}

/// Receives the next message. Signs of life are handled here, because they must not wait for a listener.
bool NodeGroup::collect() {
  {
    const std::lock_guard lock(arrivals_lock_);
    try {
      for (;;) {
        auto next = transport_->receive();
        if (!next) return false;
        peer(next->node).silent_ns.store(0, std::memory_order_relaxed);
        if (next->message.empty()) continue;
        const auto kind = static_cast<MessageKind>(next->message.front());
        if (kind == MessageKind::beat) continue;
        if (is_last_word(kind)) peer(next->node).has_ended.store(true, std::memory_order_release);
        arrivals_.push_back({next->node, std::move(next->message)});
        break;
      }
    } catch (const Error&) {
      // An engine may report a node that has died here, without its number. Its silence shows which one it is.
      return false;
    }
  }
  note_activity();
  return true;
}

bool NodeGroup::dispatch() {
  bool did_something = false;
  while (listener_ != nullptr) {
    Waiting next;
    {
      const std::lock_guard lock(arrivals_lock_);
      if (arrivals_.empty()) break;
      next = std::move(arrivals_.front());
      arrivals_.pop_front();
    }
    did_something = true;
    if (is_lost(next.node)) continue;
    try {
      take(next);
    } catch (const Error& error) {
      lose(next.node, error);
    }
  }
  return did_something;
}

void NodeGroup::take(Waiting& next) {
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
  if (relay_) take_as_relay(next.node, message);
  else if (root() != nullptr && message.kind() == MessageKind::reports)
    for_each_report(message, [this](int from, auto bytes) { take_report(from, bytes); });
  else listener_->on_message(next.node, message);
}

void NodeGroup::take_as_relay(int node, MessageReader& message) {
  switch (message.kind()) {
    case MessageKind::bundle:
      if (const auto own = relay_->take_bundle(message)) {
        MessageReader of_master(*own, name_of(kMaster));
        listener_->on_message(kMaster, of_master);
      }
      break;
    case MessageKind::reports: relay_->take_reports(message); break;
    case MessageKind::direct:
      has_heard_of_loss_.store(true, std::memory_order_release);
      relay_->end_tree();
      break;
    default: listener_->on_message(node, message);
  }
}

/// If the message cannot be handled, its sender is lost, and not the relay that has passed it on.
void NodeGroup::take_report(int node, std::span<const std::byte> bytes) {
  if (node <= kMaster || node >= nodes()) throw Error(ErrorKind::system, "a report came from an unknown node");
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
  {
    const std::lock_guard lock(state_);
    farewell_ = std::move(farewell);
    if (!peer(node).why) peer(node).why = why;
  }
  peer(node).is_lost.store(true, std::memory_order_release);
  if (listener_ != nullptr) listener_->on_node_lost(node, why);
}

void NodeGroup::listen(NodeListener* listener) {
  const std::lock_guard lock(dispatch_);
  listener_ = listener;
  if (listener == nullptr) return;
  for (int node = 0; node < nodes(); ++node) {
    if (const auto why = loss_of(node)) listener->on_node_lost(node, *why);
  }
}

// ---- losses ---------------------------------------------------------------------------------------------------

std::optional<Error> NodeGroup::loss_of(int node) const {
  const std::lock_guard lock(state_);
  return peer(node).why;
}

std::optional<NodeGroup::Farewell> NodeGroup::farewell() const {
  const std::lock_guard lock(state_);
  return farewell_;
}

void NodeGroup::set_verdict(std::string verdict) {
  const std::lock_guard lock(state_);
  verdict_ = std::move(verdict);
}

void NodeGroup::lose(int node, const Error& why) noexcept {
  {
    const std::lock_guard lock(state_);
    if (peer(node).why) return;
    peer(node).why = why;
  }
  peer(node).is_lost.store(true, std::memory_order_release);
  losses_.fetch_add(1, std::memory_order_release);
  transport_->abandon(node);
  end_tree();
  const std::lock_guard lock(dispatch_);
  if (listener_ != nullptr) listener_->on_node_lost(node, why);
}

/// In the master: the lost node may be a relay, and the session is over in any case.
void NodeGroup::end_tree() noexcept {
  if (root() == nullptr || !root()->end_tree()) return;
  for_each_partner([&](int node) { send_directly(node, MessageWriter(MessageKind::direct)); });
}

/// The last message of a node says why it is silent or gone. It has arrived, but perhaps nobody has handled it yet.
void NodeGroup::lose_unless_ended(int node, const Error& why) noexcept {
  if (!peer(node).has_ended.load(std::memory_order_acquire)) lose(node, why);
}

// ---- the thread that says that this node is alive ---------------------------------------------------------------

std::chrono::nanoseconds NodeGroup::nap(Need need) {
  // The engine sends the next part of bulk only when it is called.
  if (auto ticket = leaving_.load(std::memory_order_relaxed); ticket != 0) {
    if (!is_over(ticket)) return kShortestNap;
    leaving_.compare_exchange_strong(ticket, 0, std::memory_order_relaxed);
  }
  // In a tree, other nodes may wait for what this one passes on.
  const bool may_be_late = need == Need::none && is_full_.load(std::memory_order_relaxed) && tree_from() == 0;
  return std::clamp<std::chrono::nanoseconds>(quiet() / (may_be_late ? kNapPartWithoutNeed : kNapPart), kShortestNap,
                                              kLongestNap);
}

std::chrono::nanoseconds NodeGroup::quiet() const noexcept {
  const auto now = Clock::now().time_since_epoch().count();
  return std::chrono::nanoseconds(std::max<std::int64_t>(0, now - active_at_.load(std::memory_order_relaxed)));
}

void NodeGroup::beat() {
  const auto beat_to = [&](int node) {
    reach(node, [&] { return transport_->send(node, MessageWriter(MessageKind::beat).take()), Mailbox::Ticket{0}; });
  };
  for_each_partner(beat_to);
  if (tree_from() == 0) return;
  for (const int node : neighbours_) {
    if (!is_lost(node)) beat_to(node);
  }
}

/// In the master, this thread also handles messages, because the program may compute for a long time between two calls.
/// While another thread does that, this one only looks for signs of life: two threads would take turns with each other's
/// locks and cores. An agent handles messages only in its own thread: it starts processes because of them.
void NodeGroup::pulse() {
  WaitedTime waited(Clock::now());
  Clock::time_point next_beat{};
  std::uint64_t looks_seen = 0;
  std::unique_lock lock(pulse_lock_);
  while (!is_over_) {
    lock.unlock();
    const auto now = Clock::now();
    if (now >= next_beat) {
      next_beat = now + limits_.beat;
      beat();
    }
    const std::uint64_t looks = looks_.load(std::memory_order_relaxed);
    const bool has_help = looks != looks_seen;
    looks_seen = looks;
    std::chrono::nanoseconds limit = kLongestNap;
    if (!is_master()) {
      while (collect()) {
      }
    } else if (has_help) {
      limit = is_full_.load(std::memory_order_relaxed) ? kLookForHelpOnFullNodes : kLookForHelp;
    } else {
      handle_messages();
      limit = nap();
    }
    check_silence(waited.since_last_look(now));
    lock.lock();
    pulse_ends_.wait_for(lock, std::min<std::chrono::nanoseconds>(limit, limits_.beat), [this] { return is_over_; });
  }
}

/// How long nothing has come from the node. Pieces of a large message count, because a sign of life has to wait behind
/// them.
std::chrono::nanoseconds NodeGroup::silence_of(int node, std::chrono::nanoseconds waited) {
  if (const auto pieces = transport_->pieces_from(node); std::exchange(peer(node).pieces, pieces) != pieces)
    peer(node).silent_ns.store(0, std::memory_order_relaxed);
  return std::chrono::nanoseconds(peer(node).silent_ns.fetch_add(waited.count()) + waited.count());
}

/// Time in which this process was stopped does not count.
void NodeGroup::check_silence(Clock::duration waited) {
  if (tree_from() != 0) check_neighbours(waited);
  for_each_partner([&](int node) {
    if (silence_of(node, waited) < limits_.silence) return;
    lose_unless_ended(node, Error(ErrorKind::worker_lost,
                                  name_of(node) + " is silent for " + seconds_text(limits_.silence) +
                                      " s: " + (is_master() ? "its agent" : "the master") +
                                      " was killed or stopped, the machine is down, or the network is (--node-timeout "
                                      "sets another limit)"));
  });
}

/// A neighbour that is dead is silent for the master too, which then says so to all nodes. So this waits longer than the
/// master does.
void NodeGroup::check_neighbours(std::chrono::nanoseconds waited) {
  const auto limit = limits_.silence + kMastersTurn;
  for (const int node : neighbours_) {
    const bool is_silent = silence_of(node, waited) >= limit;
    if (!is_silent || has_heard_of_loss_.load(std::memory_order_acquire) || is_lost(kMaster)) continue;
    const Error silence(ErrorKind::worker_lost, "nothing is heard from " + name_of(node) +
                                                    ", its neighbour in the tree of nodes, for " + seconds_text(limit) +
                                                    " s, but the master hears from both: the network between them is "
                                                    "down (--node-timeout sets another limit)");
    const std::lock_guard lock(state_);
    if (!broken_link_) broken_link_ = peer(node).why.value_or(silence);
  }
}

std::optional<Error> NodeGroup::broken_link() const {
  if (tree_from() == 0) return std::nullopt;
  const std::lock_guard lock(state_);
  return broken_link_;
}

bool NodeGroup::leave(int exit_code, Milliseconds grace) noexcept {
  try {
    MessageWriter message(MessageKind::bye);
    message.put(static_cast<std::int32_t>(exit_code));
    {
      const std::lock_guard lock(state_);
      message.put_text(verdict_);
    }
    send_to_all(message);
    listen(nullptr);
  } catch (const std::exception&) {
    return false;
  }
  {
    const std::lock_guard lock(pulse_lock_);
    is_over_ = true;
  }
  pulse_ends_.notify_all();
  if (pulse_.joinable()) pulse_.join();
  return transport_->close(grace) && !has_lost_node();
}

}  // namespace syncrun::detail
