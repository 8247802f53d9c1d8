#pragma once

// This process among the nodes of a job: sends and receives messages, says that it is alive, and notices nodes that no
// longer are.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/os/mutex.hpp"
#include "common/os/stoppable_thread.hpp"
#include "common/protocol/control_block.hpp"
#include "master/nodes/activity.hpp"
#include "master/nodes/arrivals.hpp"
#include "master/nodes/known_nodes.hpp"
#include "master/nodes/messages.hpp"
#include "master/nodes/signs_of_life.hpp"
#include "master/nodes/stays.hpp"
#include "master/nodes/transport.hpp"
#include "master/nodes/tree_place.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

/// Gets the messages of other nodes, one at a time.
class NodeListener {
 public:
  virtual ~NodeListener() = default;
  NodeListener(const NodeListener&) = delete;
  NodeListener& operator=(const NodeListener&) = delete;
  /// A message of a kind that NodeGroup does not handle itself. May throw Error; the node is then lost.
  virtual void on_message(int node, MessageReader& message) = 0;
  /// Called before messages are handled, and again afterwards if there were any. Does what it has to do for this node's
  /// workers meanwhile. Returns false if that is nothing. May not throw.
  virtual bool look() { return false; }
  /// Whether a rank of this node waits for what other nodes send in a collective. The message comes within microseconds if
  /// they have reached the same exchange.
  virtual bool awaits_messages() const { return false; }
  /// How many such waits are over. Grows when a rank gets what it waits for.
  virtual std::uint64_t answers() const { return 0; }
  /// The node left the job, is silent, or cannot continue. It is lost for good.
  virtual void on_node_lost(int node, const Error& why) noexcept = 0;

 protected:
  NodeListener() = default;
};

/// The master talks to all other nodes, which are agents. An agent talks to the master, and sends what the ranks of its
/// node exchange with others to the agents of these. A thread sends a sign of life a few times a second: the master to all
/// agents, and each of them to the master. A node of which nothing is heard for some time is lost. An agent asks another
/// one for signs of life while its ranks wait for something from there. In a job of many nodes, most messages go along a
/// tree (relay.hpp), and neighbours in the tree also watch each other.
class NodeGroup final : public Mailbox {
 public:
  using Limits = SignsOfLife::Limits;
  using Need = Activity::Need;

  /// `transport` is open.
  NodeGroup(std::unique_ptr<Transport> transport, Limits limits);

  int node() const noexcept { return node_; }
  int nodes() const noexcept { return known_.count(); }
  bool is_master() const noexcept { return node_ == kMasterNode; }
  std::string transport_name() const { return transport_->description(); }
  // As KnownNodes has them.
  std::string name_of(int node) const { return known_.name_of(node); }
  std::vector<std::string> names() const { return known_.names(); }
  void set_names(std::vector<std::string> names) { known_.set_names(std::move(names)); }
  std::optional<Error> loss_of(int node) const { return known_.loss_of(node); }
  bool is_lost(int node) const noexcept { return known_.is_lost(node); }
  bool has_lost_node() const noexcept { return known_.has_lost_node(); }
  std::optional<Error> broken_link() const { return known_.broken_link(); }
  std::optional<Farewell> farewell() const { return known_.farewell(); }
  void set_verdict(std::string verdict) { known_.set_verdict(std::move(verdict)); }

  /// Sends a message, along the tree if there is one and the message goes along it. Messages to nodes that are lost are
  /// dropped. Any thread; in an agent, one thread sends along the tree.
  void send(int node, MessageWriter message);
  void send(int node, std::vector<std::byte> message) override { send(node, MessageWriter(std::move(message))); }
  void send_to_all(const MessageWriter& message);
  /// In the master: sends each node its message, along the tree if there is one.
  void send(const Bundle& bundle);
  /// Sends a message to the node itself, whatever its kind.
  void send_directly(int node, MessageWriter message);
  /// Messages go along a tree from now on, if the job has at least `from` nodes. All nodes give the same number. Called when
  /// no session is open.
  void use_tree(int from);
  TreePlace& tree() noexcept { return tree_; }
  /// A number for the next question to other nodes, from 1. An answer repeats it: an answer to an earlier question, which
  /// nobody waits for any more, may come after this one was asked. One thread asks.
  std::uint64_t number_of_question() noexcept { return ++questions_; }
  std::size_t prompt_bytes() const noexcept override { return transport_->prompt_bytes(); }
  void note_wait_for(int node) noexcept override {
    if (!is_partner(node) && node != node_) signs_.note_wait_for(node);
  }
  Ticket send_bulk(int node, std::span<const std::byte> from) override;
  Ticket receive_bulk(int node, std::span<std::byte> to) override;
  bool is_over(Ticket ticket) override;
  /// Sends what the ranks here ask for, and gives the listener the messages that have arrived. Ends early when a rank gets
  /// what it waits for. Returns false if there was nothing to do. Takes up to 10 us (kStay) on a full node. Any thread may
  /// call it. A thread that waits for other nodes calls it often. Meanwhile, the threads of this object handle no messages.
  bool progress();
  /// Waits until `ready()` is true, and lets messages arrive meanwhile. Returns false when the limit is over.
  template <class Ready>
  bool await(os::Milliseconds limit, Ready&& ready) {
    os::Patience patience(limit);
    while (!ready()) {
      if (progress()) continue;
      if (patience.is_over()) return ready();
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(nap(), os::Milliseconds(1)));
    }
    return true;
  }
  /// From now on, `listener` gets the messages (null: they wait). It also gets the nodes that are lost already. Waits until
  /// the listener before is no longer in use.
  void listen(NodeListener* listener);

  /// The node is lost for this reason. Nothing more comes from it. The listener hears of it when messages are handled.
  void lose(int node, const Error& why) noexcept;
  /// How long the caller may sleep before its next progress(): as Activity::nap(), and short while bulk is leaving.
  std::chrono::nanoseconds nap(Need need = Need::likely);
  /// As Activity has them.
  void note_full(bool is_full) noexcept { activity_.note_full(is_full); }
  std::chrono::nanoseconds quiet() const noexcept { return activity_.quiet(); }

  /// Takes leave of the other nodes and ends the transport. Returns false if it did not end in order: the process then
  /// ends with _exit().
  bool leave(int exit_code, os::Milliseconds grace) noexcept;

 private:
  /// How long a stay is. A switch to the ranks and back takes 4 us.
  static constexpr std::chrono::microseconds kStay{10};
  bool is_partner(int node) const noexcept { return node != node_ && (is_master() || node == kMasterNode); }
  template <class Visit>
  void for_each_partner(Visit&& visit) const;
  template <class Action>
  Ticket reach(int node, Action&& action);
  bool handle_messages();
  bool look_here() SYNCRUN_REQUIRES(dispatch_);
  std::uint64_t answers() const SYNCRUN_REQUIRES(dispatch_) { return listener_ == nullptr ? 0 : listener_->answers(); }
  bool take_arrivals() SYNCRUN_REQUIRES(dispatch_);
  bool stay_for_answer() SYNCRUN_REQUIRES(dispatch_);
  bool dispatch() SYNCRUN_REQUIRES(dispatch_);
  void take(Transport::Arrival& next) SYNCRUN_REQUIRES(dispatch_);
  void take_as_relay(int node, MessageReader& message) SYNCRUN_REQUIRES(dispatch_);
  void take_report(int node, std::span<const std::byte> bytes);
  void end_tree() noexcept;
  bool tell_losses() noexcept SYNCRUN_REQUIRES(dispatch_);
  void take_leave(int node, Farewell farewell) SYNCRUN_REQUIRES(dispatch_);
  void lose_unless_ended(int node, const Error& why) noexcept;
  void send_sign(int node, MessageKind kind);
  void beat();
  void answer_pings();
  void pulse(os::StoppableThread& self);
  void help(os::StoppableThread& self);
  void check_silence(std::chrono::nanoseconds waited);
  void check_silence_of_peers(std::chrono::nanoseconds waited);

  std::unique_ptr<Transport> transport_;
  int node_;
  KnownNodes known_;
  SignsOfLife signs_;
  Activity activity_;
  Arrivals arrivals_{*transport_, known_, signs_, activity_};
  TreePlace tree_;
  std::uint64_t questions_ = 0;
  std::atomic<Ticket> leaving_ = 0;  // the last bulk that was sent; 0 if it is known to be over
  os::RecursiveMutex dispatch_;      // also while the listener is in use, which may call this object
  NodeListener* listener_ SYNCRUN_GUARDED_BY(dispatch_) SYNCRUN_PT_GUARDED_BY(dispatch_) = nullptr;
  Stays stays_ SYNCRUN_GUARDED_BY(dispatch_);
  std::atomic<bool> has_untold_loss_ = false;
  std::vector<bool> told_losses_ SYNCRUN_GUARDED_BY(dispatch_);  // by node: the listener has heard of its loss
  // last, because they use the others
  os::StoppableThread pulse_;
  std::optional<os::StoppableThread> help_;  // in the master
};

/// Ranks that compute need no message until they return or meet others. They ring then. If the program waits for a call on
/// other nodes only, while all ranks here compute, it may hear of the end a little later.
inline Activity::Need need_of(const protocol::ControlBlock& control) noexcept {
  return protocol::all_compute_here(control) ? Activity::Need::none : Activity::Need::likely;
}

}  // namespace syncrun::detail::master::nodes
