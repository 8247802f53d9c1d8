#pragma once

// The processes of a queue's producers on one node. The master has those of its node, and an agent those of its own.

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/os/segment.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/helper_spec.hpp"
#include "common/protocol/queue_block.hpp"
#include "master/helper_processes/helper_watcher.hpp"
#include "master/process/child_end.hpp"
#include "master/process/nursery.hpp"

namespace syncrun::detail::master::queues {

/// Tells the nursery of a queue about its producers.
class ProducerWatcher final : public helper_processes::HelperWatcher {
 public:
  /// `node` stands before the producer in the tags of its output. Empty: nothing does.
  ProducerWatcher(helper_processes::HelperPlan plan, std::string name, const std::string& node,
                  protocol::QueueBlock block, os::Doorbell& to_master)
      : helper_processes::HelperWatcher(std::move(plan)),
        name_(std::move(name)),
        tag_(node.empty() ? "[producer " : "[" + node + ", producer "),
        block_(block),
        to_master_(to_master) {}
  std::string describe() const override { return "the producers of '" + name_ + "'"; }
  std::string tag_of(int child) const override { return tag_ + std::to_string(child) + "] "; }
  void on_loss(int child) noexcept override;
  pthread_mutex_t* life_of(int child) noexcept override { return &block_.producer(child).life; }
  /// Returns the first producer that died while its function ran, or earlier. Returns -1 if all are well.
  int lost() const noexcept { return lost_.load(std::memory_order_seq_cst); }
  /// Returns the first producer that died before its function began. Returns -1 if all have begun, or are alive.
  int lost_at_start() const noexcept { return lost_at_start_.load(std::memory_order_seq_cst); }

 private:
  std::string name_;
  std::string tag_;
  protocol::QueueBlock block_;
  os::Doorbell& to_master_;
  std::atomic<int> lost_ = -1;
  std::atomic<int> lost_at_start_ = -1;
};

/// What producers are started with, on any node.
struct ProducersStart {
  std::string name;  // of the queue
  protocol::HelperSpec spec{};
  std::vector<std::byte> arguments;
  helper_processes::Variables environment;
  os::Milliseconds grace{};
  os::Milliseconds start_timeout{};
};

inline constexpr const char* kProducerStartLimit = "--start-timeout or SessionOptions::start_timeout";

/// The settings of these processes for a watcher. Throws Error (system).
helper_processes::HelperPlan plan_producers(const ProducersStart& start, int count, const os::Segment& segment);

/// An agent's producers. The tests have an implementation without processes.
class ProducerProcesses {
 public:
  virtual ~ProducerProcesses() = default;
  ProducerProcesses(const ProducerProcesses&) = delete;
  ProducerProcesses& operator=(const ProducerProcesses&) = delete;

  /// Called when all producers have started. From then on, their deaths are seen early.
  virtual void watch() = 0;
  /// Returns -1 before the producer was started.
  virtual int pid(int producer) const noexcept = 0;
  /// Returns the first producer that died while its function ran, or earlier. Returns -1 if all are well.
  virtual int lost() const noexcept = 0;
  virtual void expect_ends() noexcept = 0;
  virtual void kill_all() noexcept = 0;
  /// The wait status of a producer that has ended.
  virtual std::optional<int> end_status(int producer) = 0;
  /// How a producer has ended that is dead or about to die. Waits until this is known, for a limited time.
  virtual process::ChildEnd await_end(int producer) = 0;
  virtual std::vector<std::string> last_stderr(int producer) = 0;

 protected:
  ProducerProcesses() = default;
};

class LocalProducers final : public ProducerProcesses {
 public:
  /// Starts the producers, and does not wait until they run. `to_master` is rung when one is lost. Refers to the segment
  /// and the doorbell as long as it lives. Throws Error (system, timeout).
  LocalProducers(const ProducersStart& start, const std::string& node, protocol::QueueBlock block,
                 const os::Segment& segment, os::Doorbell& to_master);
  void watch() override { nursery_.watch_lives(); }
  int pid(int producer) const noexcept override { return watcher_.pid(producer); }
  int lost() const noexcept override { return watcher_.lost(); }
  void expect_ends() noexcept override { nursery_.expect_ends(); }
  void kill_all() noexcept override { nursery_.kill_all(); }
  std::optional<int> end_status(int producer) override { return nursery_.await_end(producer, os::Milliseconds(0)); }
  process::ChildEnd await_end(int producer) override { return process::await_child_end(nursery_, producer); }
  std::vector<std::string> last_stderr(int producer) override { return nursery_.last_stderr(producer); }

 private:
  ProducerWatcher watcher_;
  process::Nursery nursery_;
};

}  // namespace syncrun::detail::master::queues
