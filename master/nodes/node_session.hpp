#pragma once

// The part of a session that an agent runs: the workers of its node, and the reports about them to the master.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "master/nodes/agent.hpp"
#include "master/nodes/node_group.hpp"
#include "master/nodes/node_queues.hpp"
#include "master/nodes/start_messages.hpp"
#include "master/pool/worker_pool.hpp"

namespace syncrun::detail::master::nodes {

class NodeSession {
 public:
  /// Starts the workers of this node. `start` outlives the session. The tests give a pool without processes. Throws Error
  /// (usage, system, timeout).
  NodeSession(NodeGroup& group, const SessionStart& start, std::unique_ptr<pool::WorkerPool> pool);
  ~NodeSession();
  NodeSession(const NodeSession&) = delete;
  NodeSession& operator=(const NodeSession&) = delete;

  /// Handles a message of a node that belongs to the session. Throws Error (system).
  void take(int node, MessageReader& message);
  /// Looks for what the ranks of this node exchange with others. Returns false if there was nothing to do.
  bool look() {
    const bool has_exchanged = exchange_.look();
    return moves_.look() || has_exchanged;
  }
  bool awaits_messages() const { return exchange_.awaits_messages(); }
  std::uint64_t answers() const noexcept { return exchange_.answers(); }
  /// Reports what has changed. Returns false if nothing has.
  bool report();
  /// Kills the workers and ends the producers. Neither take() nor report() is called afterwards.
  void stop() noexcept {
    queues_.end();
    pool_->expect_ends();
    pool_->kill_all();
  }
  /// The same, and waits until the workers have ended.
  void end() noexcept {
    queues_.end();
    pool_->end();
  }
  /// True while rows are under way to the memory of this session. It has to stay as long.
  bool awaits_rows() const noexcept { return commands_.awaits_rows(); }
  /// Lets rows arrive. True once none are under way.
  bool has_all_rows() { return commands_.has_all_rows(); }
  /// Sleeps until a worker has something to report, or until it is time to look for messages again.
  void sleep();

 private:
  /// What the master knows of a worker.
  struct Known {
    protocol::StartState start = protocol::StartState::starting;
    std::int32_t pid = 0;
    bool is_lost = false;
    os::Clock::time_point lost_at{};
    bool has_ended = false;
    bool is_successor = false;  // it has replaced a lost worker, and is not watched yet
  };
  bool report_start();
  void watch_started();
  void take_successors(MessageReader& message);
  void replace_lost_when_ready();
  void replace_lost();
  std::string prepare_places(const std::vector<pool::Successor>& successors);
  void report_failed_start(int rank, const std::string& why);
  bool report_losses();
  bool report_loss(int local_rank);
  bool report_ends();
  void report_progress();
  void report_stacks(std::uint32_t request);
  bool report_end(int local_rank);

  NodeGroup& group_;
  const settings::Settings& settings_;
  std::unique_ptr<pool::WorkerPool> pool_;
  protocol::NodePlace place_;
  NodeExchange exchange_;
  os::SharedHeap inbound_;
  NodeMoves moves_;
  Agent commands_;
  NodeQueues queues_;
  std::vector<Known> known_;  // by local rank
  bool was_started_ = false;
  bool are_watched_ = false;                 // all workers
  std::vector<pool::Successor> successors_;  // they start when no rows are under way any more
  os::Clock::time_point next_look_{};
  os::Clock::time_point next_progress_{};
  bool was_debugged_ = false;  // a worker was, at the last report of progress
};

}  // namespace syncrun::detail::master::nodes
