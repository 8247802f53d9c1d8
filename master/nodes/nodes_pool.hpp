#pragma once

// A pool whose workers are on several machines. This process, the master, starts and watches those of its own machine.
// An agent does the same on each other machine, and tells this pool what happens there.

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/os/mutex.hpp"
#include "master/nodes/node_group.hpp"
#include "master/nodes/rank_messages.hpp"
#include "master/nodes/remote_nodes.hpp"
#include "master/nodes/remote_queues.hpp"
#include "master/nodes/start_messages.hpp"
#include "master/pool/local_pool.hpp"

namespace syncrun::detail::master::nodes {

/// Asks all nodes for their devices, and completes the settings with them: the devices of all ranks, numbered node by
/// node. `settings` has the devices of this node. Throws Error (usage, timeout, worker_lost).
void gather_devices(NodeGroup& group, const SessionOptions& options, settings::Settings& settings);

class NodesPool final : public pool::WorkerPool, private NodeListener {
 public:
  /// Reserves the memory of this node. `settings` is complete (gather_devices). Refers to both arguments as long as it
  /// lives. Throws Error (usage, system).
  NodesPool(NodeGroup& group, const settings::Settings& settings);
  ~NodesPool() override;

  void publish(std::uint64_t id, std::size_t slot) override { commands_->publish(id, slot); }
  void spoil(std::uint64_t id, std::size_t slot) override { commands_->spoil(id, slot); }
  RemoteQueues* other_queues() noexcept override { return &*queues_; }
  void progress() override { group_.progress(); }
  /// The master also carries what its ranks exchange with other nodes, and a sleep would delay that. So it does not sleep
  /// while messages come and go. An agent does the same.
  std::chrono::nanoseconds longest_nap(Awaited awaited) override {
    if (group_.quiet() < awake_for_) return std::chrono::nanoseconds(0);
    return group_.nap(awaited == Awaited::call ? need_of(control()) : Activity::Need::likely);
  }
  os::WaitPolicy wait_policy() const override {
    return os::WaitPolicy::for_nodes(place().local_size + 1, os::usable_cores());
  }
  void follow_heap(os::SharedHeap& heap) override { heap.note_changes(commands_->changes()); }
  void start() override;
  void watch() override { local_.watch(); }
  void expect_ends() noexcept override {
    local_.expect_ends();
    send_to_agents(MessageKind::expect_ends);
  }
  void kill_all() noexcept override {
    local_.kill_all();
    send_to_agents(MessageKind::kill_all);
  }
  void end() noexcept override;
  void note_shared_memory(std::size_t used_bytes) override { local_.note_shared_memory(used_bytes); }
  int pid(int rank) const noexcept override {
    return place().has(rank) ? local_.pid(rank) : control().worker(rank).pid.load();
  }
  process::ChildEnd await_end(int rank) override;
  std::optional<int> end_status(int rank) override;
  bool await_all_ends(os::Milliseconds limit) override;
  int stop_signal(int rank) const override;
  int tracer(int rank) const override;
  void take_stacks(std::vector<RankState>& states) override;
  std::vector<std::string> last_stderr(int rank) override;
  std::string describe_kill() const override { return local_.describe_kill(); }
  std::optional<Error> watch_failure() const override;
  bool is_debugged() const override;
  os::Clock::duration awake_time(os::Clock::time_point now) noexcept override { return local_.awake_time(now); }
  bool reap(int rank) override;
  void replace(const std::vector<pool::Successor>& successors) override;
  void watch(int rank) override {
    if (place().has(rank)) local_.watch(rank);  // else its agent does it
  }

 private:
  void on_message(int node, MessageReader& message) override;
  void on_node_lost(int node, const Error& why) noexcept override;
  bool look() override;
  bool awaits_messages() const override { return exchange_->awaits_messages(); }
  std::uint64_t answers() const override { return exchange_->answers(); }
  void ask_for_stacks();
  void pass_on_stacks(MessageReader& message);
  bool tell_losses();
  bool tell_successors();
  void note_fault(int node, const Error& why) noexcept;
  std::optional<RankEnd> known_end(int rank) const;
  RankProgress last_progress(int rank) const;
  void send_to_agents(MessageKind kind) noexcept;
  static std::uint64_t bit_of(MessageKind kind) noexcept { return std::uint64_t{1} << static_cast<unsigned>(kind); }
  bool was_told(MessageKind kind) const noexcept { return (told_.load(std::memory_order_seq_cst) & bit_of(kind)) != 0; }
  SessionStart start_of(const protocol::NodePlace& node) const;
  void send_start();

  const protocol::NodePlace& place() const noexcept { return settings_.nodes.front(); }  // of this node

  NodeGroup& group_;
  const settings::Settings& settings_;
  pool::LocalPool local_;
  std::uint64_t session_;  // its number among the sessions of the job
  std::chrono::nanoseconds awake_for_;
  os::SharedHeap inbound_;
  std::optional<NodeExchange> exchange_;
  std::optional<NodeMoves> moves_;
  std::optional<RemoteNodes> commands_;
  std::optional<RemoteQueues> queues_;
  bool was_started_ = false;                 // only the thread of the session uses it
  std::vector<bool> told_losses_;            // by rank; only look() uses it
  std::uint32_t asked_for_stacks_ = 0;       // the last request; only look() uses it
  std::atomic<bool> has_successors_{false};  // there are some in successors_
  mutable os::Mutex mutex_;
  std::map<int, RankEnd> ends_ SYNCRUN_GUARDED_BY(mutex_);
  std::map<int, RankProgress> progress_ SYNCRUN_GUARDED_BY(mutex_);  // the last reports of ranks on other nodes
  std::optional<Error> fault_ SYNCRUN_GUARDED_BY(mutex_);            // of the first node that cannot continue
  std::vector<pool::Successor> successors_
      SYNCRUN_GUARDED_BY(mutex_);                           // of which the other nodes have not been told yet
  std::vector<bool> has_ended_ SYNCRUN_GUARDED_BY(mutex_);  // by node: nothing is left of the session there
  std::atomic<std::uint64_t> told_ = 0;                     // the kinds of messages that all agents were sent
};

}  // namespace syncrun::detail::master::nodes
