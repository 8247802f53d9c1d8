#pragma once

// A queue of batches, the master's side. It starts the producers, takes their batches in turn, and ends them.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/os/fork_guard.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/queue_block.hpp"
#include "launcher/helpers/batch_turns.hpp"
#include "launcher/helpers/helper_watcher.hpp"
#include "launcher/process/nursery.hpp"
#include "launcher/session/session_core.hpp"
#include "syncrun/queue.hpp"

namespace syncrun::detail {

/// Tells the nursery of a queue about its producers.
class ProducerWatcher final : public HelperWatcher {
 public:
  ProducerWatcher(HelperPlan plan, std::string name, QueueBlock block, Doorbell& to_master)
      : HelperWatcher(std::move(plan)), name_(std::move(name)), block_(block), to_master_(to_master) {}
  std::string describe() const override { return "the producers of '" + name_ + "'"; }
  std::string tag_of(int child) const override { return "[producer " + std::to_string(child) + "] "; }
  void on_loss(int child) noexcept override;
  pthread_mutex_t* life_of(int child) noexcept override { return &block_.producer(child).life; }
  /// The first producer that died before its function had ended. -1 if there is none.
  int lost() const noexcept { return lost_.load(std::memory_order_seq_cst); }
  /// The first producer that died before its function had started. -1 if there is none.
  int lost_at_start() const noexcept { return lost_at_start_.load(std::memory_order_seq_cst); }

 private:
  std::string name_;
  QueueBlock block_;
  Doorbell& to_master_;
  std::atomic<int> lost_ = -1;
  std::atomic<int> lost_at_start_ = -1;
};

//   open --the last batch was taken--> finished
//   open --a producer threw or died--> failed
//   any of them --close, the handle is gone, the session is over--> closed
class QueueCore : public SessionDependant, public std::enable_shared_from_this<QueueCore> {
 public:
  QueueCore(std::shared_ptr<SessionCore> session, const HelperBody& body, int producers, const QueueOptions& options);
  ~QueueCore() override;
  QueueCore(const QueueCore&) = delete;
  QueueCore& operator=(const QueueCore&) = delete;

  /// Allocates the memory, starts the producers and waits until all of them run.
  void open(const HelperBody& body, std::span<const std::byte> arguments, std::span<const BatchArrayType> types,
            std::span<const std::span<const std::int64_t>> shapes, const QueueOptions& options);
  std::vector<std::shared_ptr<DataRecord>> next();
  void close();
  void abandon() noexcept;
  void end_with_session() noexcept override { abandon(); }

  /// The last handle of a batch no longer exists. From any thread.
  void give_back(int batch) noexcept;

  const std::string& name() const noexcept { return name_; }
  int capacity() const noexcept { return capacity_; }
  std::vector<int> producer_pids() const;

 private:
  enum class State : std::uint8_t { open, finished, failed, closed };
  using Found = BatchTurns::Found;

  std::uint64_t allocate(std::size_t bytes, SharedHeap::Contents contents) const;
  void lay_out(std::span<const BatchArrayType> types, std::span<const std::span<const std::int64_t>> shapes);
  void await_start(Milliseconds limit);
  void check_usable() const;
  class Limits;
  Found await_batch();
  bool has_calls_to_collect() const;
  std::vector<std::shared_ptr<DataRecord>> take();
  void finish();
  void end_producers() noexcept;
  std::optional<Error> await_ends();
  [[noreturn]] void fail(const Error& error);

  ProducerSlot& slot(int producer) const noexcept { return block_.producer(producer); }
  std::string describe(int producer) const;
  Failure blame(int producer) const;
  /// If `known_cause` is empty, finds out how the producer ended.
  Error lost_error(int producer, const std::string& where, std::optional<std::string> known_cause = {});
  Error failure_error(int producer) const;
  Error timeout_error(Milliseconds limit) const;

  std::shared_ptr<SessionCore> session_;
  std::string name_;
  int producers_;
  int capacity_;
  BatchTurns turns_;
  Milliseconds timeout_;
  Milliseconds grace_;
  ForkGuard fork_guard_;
  std::uint64_t block_offset_ = 0;
  std::uint64_t memory_offset_ = 0;
  QueueBlock block_;
  WaitPolicy policy_ = WaitPolicy::yielding();
  std::optional<ProducerWatcher> watcher_;
  std::unique_ptr<Nursery> nursery_;

  State state_ = State::open;
  std::optional<Error> error_;
};

}  // namespace syncrun::detail
