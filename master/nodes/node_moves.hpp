#pragma once

// Carries the values of variables between nodes, for moves to a rank of another node. Each node has one: in the agent, or
// in the master. Nodes send to each other directly.
//
//   master: the command to the node of the destination, `supply` to the node of the source
//   source node: waits for the earlier commands of the source, reads its copy, sends `values`
//   destination node: keeps them until its rank runs the command --> arrived = id --> the rank copies them
//
// The worker of the source takes no part. Before it overwrites the copy, it waits until its node owes the values no longer
// (WorkerSlot::owed).

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/os/mutex.hpp"
#include "common/os/segment.hpp"
#include "common/os/shared_heap.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/control_block.hpp"
#include "master/nodes/mailbox.hpp"
#include "master/nodes/messages.hpp"

namespace syncrun::detail::master::nodes {

class NodeMoves {
 public:
  /// `control` and `segment` are those of this node. `inbound` is memory for values that have come. Only take() and look()
  /// use it, and one thread at a time calls these. `session` is the same on all nodes, and different for each session of a
  /// job. Refers to the sender, the segment and the memory as long as it lives.
  NodeMoves(Sender& sender, protocol::ControlBlock control, const os::Segment& segment, os::SharedHeap& inbound,
            std::uint64_t session)
      : sender_(sender), control_(control), segment_(segment), inbound_(inbound), session_(session) {}

  /// The master has published the command in this slot. If it is a move between nodes, tells the node of the source.
  /// Does not send anything but that: the caller may be any thread.
  void order(std::size_t slot);
  /// The command in this slot comes to its ranks on this node. Does nothing unless it is a move from another node. Throws
  /// Error (system) if its values have come, and have another size than they say.
  void add(std::size_t slot);
  /// Handles a message of the kinds supply and values. Throws Error (system).
  void take(int node, MessageReader& message);
  /// Sends values whose copies are ready. Called before this node reports commands as done: afterwards, their slots may be
  /// used again, and show no longer whether they have failed. Returns false if there was nothing to do.
  bool look();
  /// True if look() would send something.
  bool has_news() const;
  /// Lost workers are replaced, and all others are done with the commands up to `last`. Values for moves among these
  /// commands are neither sent nor kept any more. Called as take() is.
  void forget(std::uint64_t last);

 private:
  /// Values of this node for a rank of another one.
  struct Supply {
    std::uint64_t id;  // of the move
    std::size_t slot;  // of the move
    std::uint64_t variable;
    std::int32_t from;                          // the rank that has the values
    std::int32_t to;                            // the rank that runs the move
    std::vector<protocol::Dependency> earlier;  // commands of the source that come before
  };
  /// Values for a rank of this node.
  struct Incoming {
    std::optional<std::size_t> slot;  // of the move, once it has come
    int rank = 0;                     // that runs it
    int source = 0;                   // the node that sends the values
    os::Clock::time_point came_at{};  // the move
    bool have_come = false;
    bool has_failed = false;
    std::array<std::int64_t, kMaxDimensions> extents{};
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;  // 0 if there are no bytes
  };

  bool is_here(int rank) const noexcept { return control_.place().has(rank); }
  void take_supply(MessageReader& message) SYNCRUN_REQUIRES(mutex_);
  void take_values(MessageReader& message) SYNCRUN_REQUIRES(mutex_);
  void keep(Incoming& incoming, std::span<const std::byte> values) SYNCRUN_REQUIRES(mutex_);
  void hand_over(std::uint64_t id, const Incoming& incoming) SYNCRUN_REQUIRES(mutex_);
  void check_size(const protocol::Command& command, const Incoming& incoming) const;
  bool is_ready(const Supply& supply) const noexcept;
  bool must_fail(const Supply& supply) const noexcept;
  void send_values(const Supply& supply) SYNCRUN_REQUIRES(mutex_);
  bool send_ready() SYNCRUN_REQUIRES(mutex_);
  bool free_taken() SYNCRUN_REQUIRES(mutex_);
  void note_waits() SYNCRUN_REQUIRES(mutex_);
  void free_memory(const Incoming& incoming) noexcept SYNCRUN_REQUIRES(mutex_);
  void note_owed(std::int32_t to) SYNCRUN_REQUIRES(mutex_);

  Sender& sender_;
  protocol::ControlBlock control_;
  const os::Segment& segment_;
  os::SharedHeap& inbound_ SYNCRUN_GUARDED_BY(mutex_);
  std::uint64_t session_;
  mutable os::Mutex mutex_;  // the master's program and its thread of signs of life use this object
  std::vector<Supply> supplies_ SYNCRUN_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Incoming> incoming_ SYNCRUN_GUARDED_BY(mutex_);  // by the number of the move
  std::uint64_t forgotten_ SYNCRUN_GUARDED_BY(mutex_) = 0;                 // the moves up to this one are over
};

}  // namespace syncrun::detail::master::nodes
