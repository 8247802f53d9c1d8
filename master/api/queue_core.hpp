#pragma once

// A queue of batches, the master's side. It starts the producers, takes their batches in turn, and ends them.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/os/wait.hpp"
#include "common/protocol/queue_block.hpp"
#include "master/queues/batch_turns.hpp"
#include "master/session/queue_processes.hpp"
#include "master/session/session_core.hpp"
#include "syncrun/queue.hpp"

namespace syncrun::detail {

//   open --the last batch was taken--> finished
//   open --a producer threw or died--> failed
//   any of them --close, the handle is gone--> closed
// The end of the session ends the processes. No function is called after it, because none can enter the session.
class QueueCore : public std::enable_shared_from_this<QueueCore> {
 public:
  QueueCore(std::shared_ptr<master::session::SessionCore> session, const HelperBody& body, int producers,
            const QueueOptions& options);
  ~QueueCore();
  QueueCore(const QueueCore&) = delete;
  QueueCore& operator=(const QueueCore&) = delete;

  /// Allocates the memory, starts the producers and waits until all of them run.
  void open(const HelperBody& body, std::span<const std::byte> arguments, std::span<const BatchArrayType> types,
            std::span<const std::span<const std::int64_t>> shapes, const QueueOptions& options);
  std::vector<std::shared_ptr<master::records::DataRecord>> next();
  void close();
  void abandon() noexcept;
  /// The same, for a handle that no longer exists. From any thread.
  void abandon_handle() noexcept;
  const std::shared_ptr<master::session::QueueProcesses>& processes() const noexcept { return processes_; }

  /// The last handle of a batch no longer exists. From any thread.
  void give_back(int batch) noexcept;

  const std::string& name() const noexcept { return name_; }
  int capacity() const noexcept { return capacity_; }
  std::vector<int> producer_pids() const;

 private:
  enum class State : std::uint8_t { open, finished, failed, closed };
  using Found = master::queues::BatchTurns::Found;
  static constexpr int kOwnNode = 0;

  std::uint64_t allocate(std::size_t bytes, os::SharedHeap::Contents contents) const;
  protocol::QueueLayout lay_out(std::span<const BatchArrayType> types,
                                std::span<const std::span<const std::int64_t>> shapes);
  void start(const master::queues::ProducersStart& producers, const protocol::QueueLayout& layout);
  void await_start(os::Milliseconds limit);
  void check_usable() const;
  class Limits;
  Found await_batch();
  bool has_calls_to_collect() const;
  bool has_lost_producer() const;
  std::vector<std::shared_ptr<master::records::DataRecord>> take();
  void note_rows(master::records::DataRecord& record, bool has_rows_here_only);
  void finish();
  std::optional<Error> await_ends();
  std::optional<Error> await_remote_ends();
  [[noreturn]] void fail(const Error& error);

  protocol::ProducerSlot& slot(int producer) const noexcept { return block_.producer(producer); }
  // queue_errors.cpp
  /// Empty if the producers run on this node only.
  std::string host_of(int node) const { return processes_->are_on_every_node() ? processes_->name_of(node) : ""; }
  int pid_of(int producer, int node) const;
  std::string describe(int producer, int node = kOwnNode) const;
  Failure blame(int producer, int node = kOwnNode) const;
  /// If `known_cause` is empty, finds out how the producer ended.
  Error lost_error(int producer, const std::string& where, std::optional<std::string> known_cause = {});
  Error lost_error(const master::nodes::RemoteQueue::Loss& loss, const std::string& where) const;
  /// About the first producer that was lost, on any node.
  Error first_lost_error(const std::string& where);
  Error start_error();
  Error late_start_error(int producer, int node, os::Milliseconds limit) const;
  Error late_end_error(int node, os::Milliseconds limit) const;
  Error failure_error(int producer, int node) const;
  Error difference_error() const;
  Error stuck_error() const;
  Error timeout_error(os::Milliseconds limit) const;

  std::shared_ptr<master::session::SessionCore> session_;
  std::string name_;
  int producers_;
  int capacity_;
  master::queues::BatchTurns turns_;
  os::Milliseconds timeout_;
  os::Milliseconds grace_;
  std::uint64_t block_offset_ = 0;
  std::uint64_t memory_offset_ = 0;
  protocol::QueueBlock block_;
  std::vector<protocol::QueueBlock> remote_blocks_;  // of other nodes: node n at n - 1
  std::shared_ptr<master::session::QueueProcesses> processes_;

  State state_ = State::open;
  std::optional<Error> error_;
};

}  // namespace syncrun::detail
