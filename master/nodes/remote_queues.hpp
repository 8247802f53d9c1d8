#pragma once

// Producers on other nodes, as the master sees them. Of each queue that has some, the master keeps a copy of the block of
// each other node. Agents report what their producers do, and this writes it to the copies.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/os/mutex.hpp"
#include "common/protocol/node_place.hpp"
#include "master/nodes/messages.hpp"
#include "master/nodes/queue_messages.hpp"
#include "master/nodes/remote_nodes.hpp"
#include "master/queues/batch_turns.hpp"

namespace syncrun::detail::master::nodes {

/// The producers of one queue on other nodes. One thread handles messages about them. The thread that uses the queue
/// calls the rest.
class RemoteQueue final : public queues::FreedBatches {
 public:
  RemoteQueue(std::uint64_t number, const protocol::QueueLayout& layout, std::size_t nodes);

  std::uint64_t number() const noexcept { return number_; }
  /// The copies of the blocks of the other nodes: node n at n - 1.
  std::vector<protocol::QueueBlock> blocks() const;
  /// A batch is free again. The other nodes are told of it later (RemoteQueues::look).
  void add(int batch) noexcept override;

  /// A node on which a producer has not started yet. Empty if all have.
  struct Starting {
    int node;
    int producer;
  };
  std::optional<Starting> first_starting() const noexcept;
  /// True if a node is lost. The session is over then.
  bool is_node_lost() const noexcept { return is_node_lost_.load(std::memory_order_seq_cst); }
  /// True if a producer was lost, or could not be started.
  bool has_trouble() const noexcept { return trouble_.load(std::memory_order_seq_cst) != Trouble::none; }
  /// True if a producer could not be started, or the first one that was lost had not begun its function.
  bool has_failed_start() const noexcept { return trouble_.load(std::memory_order_seq_cst) == Trouble::start; }
  struct Loss {
    int node;
    ProducerLoss producer;
  };
  /// The first producer that was lost.
  std::optional<Loss> first_loss() const;
  struct FailedStart {
    int node;
    Error error;
  };
  /// The first node that could not start its producers.
  std::optional<FailedStart> failed_start() const;
  /// -1 if it is not known.
  int pid(int node, int producer) const;
  /// True once no process of the queue is left on other nodes.
  bool have_ended() const noexcept { return running_.load(std::memory_order_seq_cst) == 0; }
  /// Returns the first node on which a process of the queue still runs. Returns -1 if all have ended.
  int first_running() const;
  /// The first producer that did not end in order.
  std::optional<Loss> first_bad_end() const;
  /// True if the memory of the queue may still be in use on a node.
  bool is_left() const;

 private:
  friend class RemoteQueues;
  struct Node {
    std::vector<std::byte> memory;
    protocol::QueueBlock block;
  };
  enum class Trouble : std::uint8_t { none, later, start };
  static std::size_t index_of(int node) noexcept { return static_cast<std::size_t>(node) - 1; }
  void take(int node, MessageReader& message);
  void note_end(int node, bool is_left);
  std::vector<std::int32_t> take_freed();

  std::uint64_t number_;
  std::size_t batches_;
  std::vector<Node> by_node_;
  std::atomic<Trouble> trouble_ = Trouble::none;
  std::atomic<bool> is_node_lost_ = false;
  std::atomic<bool> has_freed_ = false;
  std::atomic<int> running_;
  mutable os::Mutex mutex_;
  /// What agents have said about the processes of the queue on one node.
  struct Processes {
    std::vector<int> pids;  // by producer
    bool have_ended = false;
  };
  std::vector<Processes> processes_ SYNCRUN_GUARDED_BY(mutex_);  // in the order of by_node_
  std::vector<std::int32_t> freed_ SYNCRUN_GUARDED_BY(mutex_);
  std::optional<Loss> loss_ SYNCRUN_GUARDED_BY(mutex_);
  std::optional<Loss> bad_end_ SYNCRUN_GUARDED_BY(mutex_);
  std::optional<FailedStart> failed_start_ SYNCRUN_GUARDED_BY(mutex_);
  bool is_left_ SYNCRUN_GUARDED_BY(mutex_) = false;
};

class RemoteQueues {
 public:
  /// Sends a message to all other nodes. Throws Error (system).
  using SendToAll = std::function<void(const MessageWriter& message)>;

  /// `names` are those of all nodes. Refers to `nodes` and `to_master` as long as it lives.
  RemoteQueues(SendToAll send_to_all, RemoteNodes& nodes, os::Doorbell& to_master, std::vector<std::string> names)
      : send_to_all_(std::move(send_to_all)), remote_nodes_(nodes), to_master_(to_master), names_(std::move(names)) {}

  const std::string& name_of(int node) const { return names_[static_cast<std::size_t>(node)]; }
  /// Starts the producers of a queue on all other nodes, and does not wait. Sets the number of the queue. Called by the
  /// thread that publishes commands. Throws Error (system).
  std::shared_ptr<RemoteQueue> open(QueueStart start);
  /// Lets the producers of a queue end on all other nodes, and does not wait. Errors of the transport are ignored: a lost
  /// node is noticed anyway.
  void end(const RemoteQueue& queue, QueueEnd how) noexcept;
  /// The queue is over, and the program drops it.
  void forget(const RemoteQueue& queue) noexcept;

  /// Handles a message of the kinds queue_news, queue_failed, producer_lost and queue_ended. Throws Error (system).
  void take(int node, MessageReader& message);
  /// Tells the other nodes of free batches. One thread at a time. Returns false if no batch is free.
  bool look();
  /// The node is lost, and with it all processes there.
  void lose(int node) noexcept;

 private:
  std::shared_ptr<RemoteQueue> find(std::uint64_t number);

  SendToAll send_to_all_;
  RemoteNodes& remote_nodes_;
  os::Doorbell& to_master_;
  std::vector<std::string> names_;
  std::atomic<bool> has_queues_ = false;
  os::Mutex mutex_;
  std::uint64_t last_ SYNCRUN_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::shared_ptr<RemoteQueue>> queues_ SYNCRUN_GUARDED_BY(mutex_);
};

}  // namespace syncrun::detail::master::nodes
