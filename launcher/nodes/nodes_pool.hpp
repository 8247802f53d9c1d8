#pragma once

// A pool whose workers are on several machines. This process, the master, starts and watches those of its own machine.
// An agent does the same on each other machine, and tells this pool what happens there.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "launcher/nodes/node_group.hpp"
#include "launcher/nodes/rank_messages.hpp"
#include "launcher/nodes/remote_nodes.hpp"
#include "launcher/nodes/remote_queues.hpp"
#include "launcher/nodes/start_messages.hpp"
#include "launcher/pool/local_pool.hpp"

namespace syncrun::detail {

/// Asks all nodes for their devices, and completes the settings with them: the devices of all ranks, numbered node by
/// node. `settings` has the devices of this node. Throws Error (usage, timeout, worker_lost).
void gather_devices(NodeGroup& group, const SessionOptions& options, Settings& settings);

class NodesPool final : public LocalPool, private NodeListener {
 public:
  /// Reserves the memory of this node. `settings` is complete (gather_devices). Refers to both arguments as long as it
  /// lives. Throws Error (usage, system).
  NodesPool(NodeGroup& group, const Settings& settings);
  ~NodesPool() override;

  RemoteNodes* other_nodes() noexcept override { return &*commands_; }
  RemoteQueues* other_queues() noexcept override { return &*queues_; }
  void progress() override { group_.progress(); }
  /// The master also carries what its ranks exchange with other nodes, and a sleep would delay that. So it does not sleep
  /// while messages come and go. An agent does the same.
  std::chrono::nanoseconds longest_nap(Awaited awaited) override {
    if (group_.quiet() < awake_for_) return std::chrono::nanoseconds(0);
    return group_.nap(awaited == Awaited::call ? need_of(control()) : NodeGroup::Need::likely);
  }
  void start() override;
  void expect_ends() noexcept override;
  void kill_all() noexcept override;
  void end() noexcept override;
  int pid(int rank) const noexcept override;
  ChildEnd await_end(int rank) override;
  std::optional<int> end_status(int rank) override;
  bool await_all_ends(Milliseconds limit) override;
  int stop_signal(int rank) const override;
  int tracer(int rank) const override;
  void take_stacks(std::vector<RankState>& states) override;
  std::vector<std::string> last_stderr(int rank) override;
  std::optional<Error> watch_failure() const override;
  bool reap(int rank) override;
  void replace(const std::vector<Successor>& successors) override;
  void watch(int rank) override {
    if (place().has(rank)) LocalPool::watch(rank);  // else its agent does it
  }
  using LocalPool::watch;

 private:
  void on_message(int node, MessageReader& message) override;
  void on_node_lost(int node, const Error& why) noexcept override;
  bool look() override;
  bool tell_losses();
  bool tell_successors();
  void note_fault(int node, const Error& why) noexcept;
  std::optional<RankEnd> known_end(int rank) const;
  void send_to_agents(MessageKind kind) noexcept;
  static std::uint64_t bit_of(MessageKind kind) noexcept { return std::uint64_t{1} << static_cast<unsigned>(kind); }
  bool was_told(MessageKind kind) const noexcept { return (told_.load(std::memory_order_seq_cst) & bit_of(kind)) != 0; }
  SessionStart start_of(const NodePlace& node) const;
  void send_start();

  NodeGroup& group_;
  std::uint64_t session_;  // its number among the sessions of the job
  std::chrono::nanoseconds awake_for_;
  SharedHeap inbound_;
  std::optional<NodeExchange> exchange_;
  std::optional<NodeMoves> moves_;
  std::optional<RemoteNodes> commands_;
  std::optional<RemoteQueues> queues_;
  std::vector<bool> told_losses_;            // by rank; only look() uses it
  std::atomic<bool> has_successors_{false};  // there are some in successors_
  mutable std::mutex mutex_;                 // of the members below
  std::map<int, RankEnd> ends_;
  std::map<int, int> stop_signals_;
  std::optional<Error> fault_;         // of the first node that cannot continue
  std::vector<Successor> successors_;  // of which the other nodes have not been told yet
  std::vector<bool> has_ended_;        // by node: nothing is left of the session there
  bool was_started_ = false;
  std::atomic<std::uint64_t> told_ = 0;  // the kinds of messages that all agents were sent
};

}  // namespace syncrun::detail
