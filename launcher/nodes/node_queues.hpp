#pragma once

// The queues of a session on an agent's node: their producers, and the reports about them to the master.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/os/shared_heap.hpp"
#include "launcher/nodes/mailbox.hpp"
#include "launcher/nodes/messages.hpp"
#include "launcher/nodes/queue_messages.hpp"
#include "launcher/queues/producer_processes.hpp"

namespace syncrun::detail {

//   open --a producer threw or died--> open, until the master ends the queue
//   open --close_queue--> ending --all processes have ended--> gone
//                            \--too late--> killed --all have ended, or the time is up--> gone
class NodeQueues {
 public:
  /// Starts the producers of a queue. Throws Error (system, timeout).
  using Starter = std::function<std::unique_ptr<ProducerProcesses>(const QueueStart& start, QueueBlock block)>;

  /// Sends to the master by `mailbox`. Refers to both arguments as long as it lives.
  NodeQueues(Mailbox& mailbox, const Segment& segment, Starter starter)
      : mailbox_(mailbox), segment_(segment), starter_(std::move(starter)) {}
  ~NodeQueues() { end(); }
  NodeQueues(const NodeQueues&) = delete;
  NodeQueues& operator=(const NodeQueues&) = delete;

  /// Handles a message of the kinds open_queue, free_batches and close_queue. `pages` says whether the pages of what the
  /// master has freed go back to the system. Throws Error (system).
  void take(MessageReader& message, SharedHeap::Pages pages);
  /// Tells the master what has changed. Returns false if nothing has.
  bool report();
  /// True if report() would send something that a producer has rung for.
  bool has_news() const noexcept;
  /// Kills the producers that are left, and waits for their ends.
  void end() noexcept;

 private:
  struct Queue {
    std::uint64_t number = 0;
    QueueBlock block;
    Milliseconds grace{};
    std::unique_ptr<ProducerProcesses> producers;
    std::vector<ToldOfProducer> told;
    bool is_watched = false;
    std::optional<Clock::time_point> lost_at;
    bool has_told_loss = false;
    std::optional<QueueEnd> end;
    Clock::time_point end_limit{};
    std::optional<ProducerLoss> bad_end;
  };
  void open(MessageReader& message, SharedHeap::Pages pages);
  void start(const QueueStart& start);
  void free_batches(MessageReader& message);
  void close(MessageReader& message);
  void tell_end(std::uint64_t number, const ProducerLoss& bad_end, bool is_left);
  static bool has_news(const Queue& queue) noexcept;
  bool report_news(Queue& queue);
  void watch_when_started(Queue& queue);
  bool report_loss(Queue& queue);
  bool report_end(Queue& queue);
  static ProducerLoss describe_end(Queue& queue, int producer, ChildEnd end);
  Queue* find(std::uint64_t number) noexcept;

  Mailbox& mailbox_;
  const Segment& segment_;
  Starter starter_;
  std::vector<std::unique_ptr<Queue>> queues_;
};

}  // namespace syncrun::detail
