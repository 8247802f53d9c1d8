#pragma once

// This process among the nodes of a job: sends and receives messages, says that it is alive, and notices nodes that no
// longer are.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/os/waited_time.hpp"
#include "common/protocol/control_block.hpp"
#include "launcher/nodes/messages.hpp"
#include "launcher/nodes/relay.hpp"
#include "launcher/nodes/transport.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

/// Gets the messages of other nodes, one at a time.
class NodeListener {
 public:
  virtual ~NodeListener() = default;
  NodeListener(const NodeListener&) = delete;
  NodeListener& operator=(const NodeListener&) = delete;
  /// A message of a kind that NodeGroup does not handle itself. May throw Error; the node is then lost.
  virtual void on_message(int node, MessageReader& message) = 0;
  /// Called whenever messages are handled. Does what it has to do for this node's workers meanwhile. Returns false if that
  /// is nothing. May not throw.
  virtual bool look() { return false; }
  /// The node left the job, is silent, or cannot continue. It is lost for good.
  virtual void on_node_lost(int node, const Error& why) noexcept = 0;

 protected:
  NodeListener() = default;
};

/// The master talks to all other nodes, which are agents. An agent talks to the master, and sends what the ranks of its
/// node exchange with others to the agents of these. A thread sends a sign of life a few times a second: the master to all
/// agents, and each of them to the master. A node of which nothing is heard for some time is lost. In a job of many nodes,
/// most messages go along a tree (relay.hpp), and neighbours in the tree also watch each other.
class NodeGroup {
 public:
  static constexpr int kMaster = 0;
  struct Limits {
    Milliseconds silence{3000};  // after which a node is lost
    Milliseconds beat{250};      // how often this node says that it is alive
  };

  /// `transport` is open.
  NodeGroup(std::unique_ptr<Transport> transport, Limits limits);
  ~NodeGroup();
  NodeGroup(const NodeGroup&) = delete;
  NodeGroup& operator=(const NodeGroup&) = delete;

  int node() const noexcept { return node_; }
  int nodes() const noexcept { return static_cast<int>(peers_.size()); }
  bool is_master() const noexcept { return node_ == kMaster; }
  std::string transport_name() const { return transport_->description(); }
  /// "n2 (node 1)". The number only, until the name is known.
  std::string name_of(int node) const;
  std::vector<std::string> names() const;
  void set_names(std::vector<std::string> names);

  /// Sends a message, along the tree if there is one and the message goes along it. Messages to nodes that are lost are
  /// dropped. Any thread; in an agent, one thread sends along the tree.
  void send(int node, MessageWriter message);
  void send_to_all(const MessageWriter& message);
  /// In the master: sends each node its message, along the tree if there is one.
  void send(const Bundle& bundle);
  /// Sends a message to the node itself, whatever its kind.
  void send_directly(int node, MessageWriter message);
  /// Messages go along a tree from now on, if the job has at least `from` nodes. All nodes give the same number. Once there
  /// is a tree, later calls change nothing. Called when no session is open.
  void use_tree(int from);
  /// From how many nodes on a job has a tree. Returns 0 if this job has no tree.
  int tree_from() const noexcept { return tree_from_.load(std::memory_order_acquire); }
  /// The master's end of the tree. Returns null in an agent, and if there is no tree.
  RelayRoot* root() noexcept { return root_.load(std::memory_order_acquire); }
  /// This agent's place in the tree. Returns null in the master, and if there is no tree.
  Relay* relay() noexcept { return relay_ ? &*relay_ : nullptr; }
  /// In an agent: why it cannot continue, if nothing is heard from a neighbour in the tree, and the master does not say
  /// that this node is lost. Then only the link between the two is broken, and nobody else notices.
  std::optional<Error> broken_link() const;
  /// True if messages may be lost that were sent along the tree, because a node is lost.
  bool has_broken_tree() noexcept { return root() != nullptr && !root()->has_tree(); }
  /// A number for the next question to other nodes, from 1. An answer repeats it: an answer to an earlier question, which
  /// nobody waits for any more, may come after this one was asked. One thread asks.
  std::uint64_t number_of_question() noexcept { return ++questions_; }
  /// As Mailbox has them.
  Mailbox::Ticket send_bulk(int node, std::span<const std::byte> from);
  Mailbox::Ticket receive_bulk(int node, std::span<std::byte> to);
  bool is_over(Mailbox::Ticket ticket);
  /// Receives messages and gives them to the listener. Returns false if there was none. Any thread. A thread that waits
  /// calls it often: the thread of this object leaves the messages to it then.
  bool progress();
  /// From now on, `listener` gets the messages (null: they wait). It also gets the nodes that are lost already. Waits until
  /// the listener before is no longer in use.
  void listen(NodeListener* listener);

  /// Why a node is lost. Empty if it is not.
  std::optional<Error> loss_of(int node) const;
  bool is_lost(int node) const noexcept { return peer(node).is_lost.load(std::memory_order_acquire); }
  bool has_lost_node() const noexcept { return losses_.load(std::memory_order_acquire) != 0; }
  /// The node is lost for this reason. Nothing more comes from it.
  void lose(int node, const Error& why) noexcept;
  /// What the master has said at its end.
  struct Farewell {
    int exit_code = 0;
    std::string verdict;  // why the program has failed; may be empty
  };
  std::optional<Farewell> farewell() const;
  /// What leave() says to the other nodes about the reason.
  void set_verdict(std::string verdict);
  /// Sends messages and bulk to other nodes. Nothing is received from it: the listener gets that.
  Mailbox& post() noexcept { return post_; }
  /// Whether a rank of this node may wait for a message. Otherwise messages may be handled later.
  enum class Need { likely, none };
  /// How long the caller may sleep before its next progress(): short if messages came or went a short time ago, or if bulk
  /// is leaving. If there is no need, and each look takes time of the workers, it is longer.
  std::chrono::nanoseconds nap(Need need = Need::likely);
  /// Whether the workers of this node need all of its cores.
  void note_full(bool is_full) noexcept { is_full_.store(is_full, std::memory_order_relaxed); }
  /// The time since the last message, or since the listener has done something for its workers.
  std::chrono::nanoseconds quiet() const noexcept;

  /// Takes leave of the other nodes and ends the transport. Returns false if it did not end in order: the process then
  /// ends with _exit().
  bool leave(int exit_code, Milliseconds grace) noexcept;

 private:
  class Post final : public Mailbox {
   public:
    enum class Way { along_tree, direct };
    Post(NodeGroup& group, Way way) : group_(group), way_(way) {}
    void send(int node, std::vector<std::byte> message) override {
      if (way_ == Way::direct) group_.send_directly(node, MessageWriter(std::move(message)));
      else group_.send(node, MessageWriter(std::move(message)));
    }
    std::optional<Received> receive() override { return std::nullopt; }
    Ticket send_bulk(int node, std::span<const std::byte> from) override { return group_.send_bulk(node, from); }
    Ticket receive_bulk(int node, std::span<std::byte> to) override { return group_.receive_bulk(node, to); }
    bool is_over(Ticket ticket) override { return group_.is_over(ticket); }

   private:
    NodeGroup& group_;
    Way way_;
  };
  struct Peer {
    std::atomic<bool> is_lost = false;
    std::atomic<bool> has_ended = false;      // its last message, `bye` or `fault`, has arrived
    std::optional<Error> why;                 // under state_
    std::atomic<std::int64_t> silent_ns = 0;  // since the last message
    std::uint64_t pieces = 0;                 // that had arrived at the last look; the thread of signs of life uses it
  };
  struct Waiting {
    int node;
    std::vector<std::byte> message;
  };
  const Peer& peer(int node) const noexcept { return *peers_[static_cast<std::size_t>(node)]; }
  Peer& peer(int node) noexcept { return *peers_[static_cast<std::size_t>(node)]; }
  bool is_partner(int node) const noexcept { return node != node_ && (is_master() || node == kMaster); }
  template <class Visit>
  void for_each_partner(Visit&& visit) const;
  template <class Action>
  Mailbox::Ticket reach(int node, Action&& action);
  bool handle_messages();
  bool collect();
  bool dispatch();
  void take(Waiting& next);
  void take_as_relay(int node, MessageReader& message);
  void take_report(int node, std::span<const std::byte> bytes);
  void end_tree() noexcept;
  std::chrono::nanoseconds silence_of(int node, std::chrono::nanoseconds waited);
  void check_neighbours(std::chrono::nanoseconds waited);
  void take_leave(int node, Farewell farewell);
  void lose_unless_ended(int node, const Error& why) noexcept;
  void note_activity() noexcept {
    active_at_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }
  void beat();
  void pulse();
  void check_silence(Clock::duration waited);

  std::unique_ptr<Transport> transport_;
  Post post_{*this, Post::Way::along_tree};
  Post direct_post_{*this, Post::Way::direct};
  Limits limits_;
  int node_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by node; this node's is not used
  mutable std::mutex state_;                  // of names_, farewell_, broken_link_ and Peer::why
  std::vector<std::string> names_;
  std::optional<Farewell> farewell_;
  std::string verdict_;
  std::uint64_t questions_ = 0;
  std::atomic<int> losses_ = 0;
  std::atomic<std::int64_t> active_at_;       // when a message came or went that was not only a sign of life
  std::atomic<bool> is_full_ = false;         // the workers need all cores
  std::atomic<std::uint64_t> looks_ = 0;      // calls of progress()
  std::atomic<Mailbox::Ticket> leaving_ = 0;  // the last bulk that was sent; 0 if it is known to be over

  // The tree. It is made once, and stays. In an agent, only the thread that handles messages uses it.
  std::optional<RelayRoot> owned_root_;
  std::optional<Relay> relay_;
  std::atomic<RelayRoot*> root_ = nullptr;
  std::vector<int> neighbours_;                  // in an agent: other agents; set before tree_from_
  std::optional<Error> broken_link_;             // under state_
  std::atomic<bool> has_heard_of_loss_ = false;  // the master has ended the tree
  std::atomic<int> tree_from_ = 0;

  std::mutex arrivals_lock_;
  std::deque<Waiting> arrivals_;
  std::recursive_mutex dispatch_;  // of listener_, and while it is in use
  NodeListener* listener_ = nullptr;

  std::mutex pulse_lock_;
  std::condition_variable pulse_ends_;
  bool is_over_ = false;
  std::thread pulse_;
};

/// Ranks that compute need no message until they return or meet others. They ring then. If the program waits for a call on
/// other nodes only, while all ranks here compute, it may hear of the end a little later.
inline NodeGroup::Need need_of(const ControlBlock& control) noexcept {
  return all_compute_here(control) ? NodeGroup::Need::none : NodeGroup::Need::likely;
}

}  // namespace syncrun::detail
