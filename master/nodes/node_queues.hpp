#pragma once

// The queues of a session on an agent's node: their producers, and the reports about them to the master.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/os/shared_heap.hpp"
#include "master/nodes/mailbox.hpp"
#include "master/nodes/messages.hpp"
#include "master/nodes/queue_messages.hpp"
#include "master/queues/producer_processes.hpp"

namespace syncrun::detail::master::nodes {

//   open --a producer threw or died--> open, until the master ends the queue
//   open --close_queue--> ending --all processes have ended--> gone
//                            \--too late--> killed --all have ended, or the time is up--> gone
class NodeQueues {
 public:
  /// Starts the producers of a queue. Throws Error (system, timeout).
  using Starter =
      std::function<std::unique_ptr<queues::ProducerProcesses>(const QueueStart& start, protocol::QueueBlock block)>;

  /// Sends to the master by `sender`. Refers to both arguments as long as it lives.
  NodeQueues(Sender& sender, const os::Segment& segment, Starter starter)
      : sender_(sender), segment_(segment), starter_(std::move(starter)) {}
  ~NodeQueues() { end(); }
  NodeQueues(const NodeQueues&) = delete;
  NodeQueues& operator=(const NodeQueues&) = delete;

  /// Handles a message of the kinds open_queue, free_batches and close_queue. `pages` says whether the pages of what the
  /// master has freed go back to the system. Throws Error (system).
  void take(MessageReader& message, os::SharedHeap::Pages pages);
  /// Tells the master what has changed. Returns false if nothing has.
  bool report();
  /// True if report() would send something that a producer has rung for.
  bool has_news() const noexcept;
  /// Kills the producers that are left, and waits for their ends.
  void end() noexcept;

 private:
  struct Queue {
    std::uint64_t number = 0;
    protocol::QueueBlock block;
    os::Milliseconds grace{};
    std::unique_ptr<queues::ProducerProcesses> producers;
    std::vector<ToldOfProducer> told;
    bool is_watched = false;
    std::optional<os::Clock::time_point> lost_at;
    bool has_told_loss = false;
    std::optional<QueueEnd> end;
    os::Patience until_end = os::Patience::none();
    std::optional<ProducerLoss> bad_end;
  };
  void open(MessageReader& message, os::SharedHeap::Pages pages);
  void start(const QueueStart& start);
  void free_batches(MessageReader& message);
  void close(MessageReader& message);
  void tell_end(std::uint64_t number, const ProducerLoss& bad_end, bool is_left);
  static bool has_news(const Queue& queue) noexcept;
  bool report_news(Queue& queue);
  void watch_when_started(Queue& queue);
  bool report_loss(Queue& queue);
  bool report_end(Queue& queue);
  static ProducerLoss describe_end(Queue& queue, int producer, process::ChildEnd end);
  Queue* find(std::uint64_t number) noexcept;

  Sender& sender_;
  const os::Segment& segment_;
  Starter starter_;
  std::vector<std::unique_ptr<Queue>> queues_;
};

}  // namespace syncrun::detail::master::nodes
