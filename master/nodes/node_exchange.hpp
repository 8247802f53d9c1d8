#pragma once

// Carries what the ranks of a command exchange with those of other nodes: in collectives (NodeRequest), and for votes. It
// also tells the other nodes of a command when it fails here, and when this node takes no more part in its collectives. If
// GPUs take long in a command, it tells the other nodes how far they are, because NCCL would not notice that they disagree.
// Each node has one: in the agent, or in the master. Nodes send to each other directly.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/os/mutex.hpp"
#include "common/os/segment.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/control_block.hpp"
#include "master/nodes/mailbox.hpp"
#include "master/nodes/messages.hpp"
#include "master/nodes/vote_tree.hpp"

namespace syncrun::detail::master::nodes {

/// Its threads exclude each other, because the master's program and its thread of signs of life both use it.
class NodeExchange {
 public:
  /// `control` and `segment` are those of this node. `session` is the same on all nodes, and different for each session of
  /// a job. Commands on at least `tree_from` nodes vote along a tree; 0: none do. Refers to the sender and the segment as
  /// long as it lives.
  NodeExchange(Sender& sender, protocol::ControlBlock control, const os::Segment& segment, std::uint64_t session,
               int tree_from = 0)
      : sender_(sender), control_(control), segment_(segment), session_(session), tree_from_(tree_from) {}

  /// The command in this slot comes to its ranks on this node. Does nothing if its ranks do not wait for other nodes.
  /// Called in the order of the numbers of commands.
  void add(std::size_t slot);
  /// Handles a message of the kinds exchange, abandon, left, vote, verdict and plans. Throws Error (system).
  void take(int node, MessageReader& message);
  /// Looks for requests of this node's ranks. Returns false if there was nothing to do. Throws Error (system).
  bool look();
  /// True if look() would find something.
  bool has_news() const;
  /// Whether a rank of this node waits for the answer to a request.
  bool awaits_messages() const;
  /// How many requests were answered.
  std::uint64_t answers() const noexcept { return answers_.load(std::memory_order_relaxed); }
  /// Lost workers are replaced, and all others are done with the commands up to `last`. Nobody waits for an exchange of
  /// these commands any more, and the last requests of all ranks count as taken.
  void forget(std::uint64_t last);

 private:
  /// A piece of a block, which has come for an exchange to come.
  struct Early {
    std::uint64_t step;
    std::size_t block_bytes;
    std::vector<std::byte> message;
    std::span<const std::byte> bytes;  // in the message
  };
  /// One of the nodes of a command.
  struct Part {
    int node = 0;
    int leader = 0;
    std::deque<Early> early;
    std::size_t come_bytes = 0;               // of the block of the pending request
    bool has_come = false;                    // all of this block
    std::optional<std::uint64_t> left_after;  // how many exchanges it takes part in, if it has left
    protocol::Vote vote = protocol::Vote::none;
  };
  /// A request that is not answered yet.
  struct Pending {
    std::uint64_t number;
    std::uint64_t step;
    protocol::NodeRequest::Kind kind;
    std::vector<protocol::NodeBlock> blocks;
  };
  /// How far a rank has come in the collectives of a command on GPUs (CollectivePlan).
  struct RankPlan {
    std::int32_t rank;
    std::uint64_t hash;
    std::uint64_t standing;
    bool operator==(const RankPlan&) const = default;
  };
  /// A command that ranks of this node have not finished.
  struct Open {
    std::uint64_t id = 0;
    std::size_t slot = 0;
    bool wants_vote = false;
    std::vector<Part> parts;
    std::size_t own = 0;
    std::uint64_t exchanges = 0;  // that the leader here has asked for
    std::optional<Pending> pending;
    bool has_told_failure = false;
    bool has_told_left = false;
    bool has_told_vote = false;
    bool is_on_gpus = false;
    std::vector<RankPlan> told_plans;
    os::Clock::time_point next_plans{};
    os::Clock::time_point came_at{};
  };
  struct MessageBefore {
    int node;
    std::vector<std::byte> bytes;
  };

  void take_for(Open& open, int node, MessageReader& message) SYNCRUN_REQUIRES(mutex_);
  void take_block(Open& open, Part& part, MessageReader& message) SYNCRUN_REQUIRES(mutex_);
  protocol::Command* command_of(const Open& open) const noexcept;
  void note_failure(const Open& open);
  void note_verdict(const Open& open, protocol::Vote verdict);
  bool look_at(Open& open) SYNCRUN_REQUIRES(mutex_);
  bool take_request(Open& open) SYNCRUN_REQUIRES(mutex_);
  void send_blocks(const Open& open);
  void send_piece(const Open& open, std::size_t part, std::size_t at, std::size_t bytes);
  void put(Open& open, std::size_t part, std::size_t block_bytes, std::span<const std::byte> bytes)
      SYNCRUN_REQUIRES(mutex_);
  void use_early(Open& open) SYNCRUN_REQUIRES(mutex_);
  bool answer(Open& open) SYNCRUN_REQUIRES(mutex_);
  bool tell_failure(Open& open) SYNCRUN_REQUIRES(mutex_);
  bool tell_vote(Open& open) SYNCRUN_REQUIRES(mutex_);
  void note_votes(Open& open) SYNCRUN_REQUIRES(mutex_);
  void begin_vote_tree(const Open& open) SYNCRUN_REQUIRES(mutex_);
  bool tell_vote_along_tree(const Open& open, protocol::Vote vote) SYNCRUN_REQUIRES(mutex_);
  bool take_along_vote_tree(std::uint64_t id, int node, MessageReader& message) SYNCRUN_REQUIRES(mutex_);
  void pass_on_votes(std::uint64_t id, VoteTree& tree) SYNCRUN_REQUIRES(mutex_);
  void announce(std::uint64_t id, const VoteTree& tree, protocol::Vote verdict) SYNCRUN_REQUIRES(mutex_);
  template <class... T>
  MessageWriter message_about(std::uint64_t id, MessageKind kind, const T&... values) const {
    return MessageWriter(kind, session_, id, values...);
  }
  bool tell_plans(Open& open) SYNCRUN_REQUIRES(mutex_);
  void note_waits(const Open& open) SYNCRUN_REQUIRES(mutex_);
  std::vector<RankPlan> plans_here(const Open& open) const;
  void take_plans(int node, MessageReader& message);
  bool is_over_here(const Open& open) const noexcept;
  bool leader_has_left(const Open& open) const noexcept;
  bool is_withdrawn(const Open& open) const noexcept;
  std::uint64_t exchanges_of_leader(const Open& open) const noexcept;
  bool is_out(int rank, std::uint64_t id) const noexcept;
  std::optional<protocol::Vote> vote_here(const Open& open) const noexcept;
  template <class Visit>
  bool all_here(const Open& open, Visit&& visit) const;
  void send_to_others(const Open& open, const MessageWriter& message);

  Sender& sender_;
  protocol::ControlBlock control_;
  const os::Segment& segment_;
  std::uint64_t session_;
  int tree_from_;
  mutable os::Mutex mutex_;
  std::deque<Open> open_ SYNCRUN_GUARDED_BY(mutex_);
  std::uint64_t last_added_ SYNCRUN_GUARDED_BY(mutex_) = 0;
  // by command: messages that came before it
  std::map<std::uint64_t, std::vector<MessageBefore>> early_ SYNCRUN_GUARDED_BY(mutex_);
  std::atomic<std::size_t> open_count_ = 0;  // of open_
  std::atomic<std::uint64_t> answers_ = 0;
  // By the number of the command. A tree stays until this node has passed on the verdict. The ranks here may be done before
  // that: ranks that have skipped the command do not wait for the verdict.
  std::map<std::uint64_t, VoteTree> vote_trees_ SYNCRUN_GUARDED_BY(mutex_);
};

}  // namespace syncrun::detail::master::nodes
