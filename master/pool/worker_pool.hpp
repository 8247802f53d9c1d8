#pragma once

// The interface between the master and the workers of a session: the memory that they share, and the processes of the
// workers.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/os/segment.hpp"
#include "common/os/shared_heap.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/control_block.hpp"
#include "master/pool/successor.hpp"
#include "master/process/child_end.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

class RemoteQueues;

}  // namespace syncrun::detail::master::nodes

namespace syncrun::detail::master::pool {

/// LocalPool implements it with processes on this machine, and NodesPool with those of several machines. The tests have
/// an implementation without processes (tests/master/pool/fake_pool.hpp).
///
/// Calls use the control block and the segment, which are ordinary memory of this process. The other functions are virtual.
/// A call that succeeds uses only publish() and progress() of them.
class WorkerPool {
 public:
  virtual ~WorkerPool() = default;
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// The memory that the master shares with its workers, with the control block at its beginning.
  const os::Segment& segment() const noexcept { return *segment_; }
  const protocol::ControlBlock& control() const noexcept { return control_; }
  int world_size() const noexcept { return control_.world_size(); }
  /// In a session on several nodes: the memory for what comes from the others. It is after the arenas of this node.
  os::SharedHeap inbound() const {
    const protocol::ControlHeader& header = control_.header();
    const auto arenas = header.arena_bytes * static_cast<std::uint64_t>(header.place.local_size);
    return {segment(), header.arenas_offset + arenas, header.arena_bytes};
  }
  /// Sends a command that was published to the workers on other machines. Throws Error (system).
  virtual void publish(std::uint64_t /*id*/, std::size_t /*slot*/) {}
  /// A command on which this one depends has failed (Command::spoiled). Tells the workers on other machines.
  virtual void spoil(std::uint64_t /*id*/, std::size_t /*slot*/) {}
  /// The producers on other machines. Null if there are none.
  virtual nodes::RemoteQueues* other_queues() noexcept { return nullptr; }
  /// Handles what has come from other machines.
  virtual void progress() {}
  /// What the program waits for.
  enum class Awaited { call, batch };
  /// How long a thread that waits may sleep before it calls progress() again.
  virtual std::chrono::nanoseconds longest_nap(Awaited /*awaited*/) { return os::kLap; }
  /// How the program waits for calls.
  virtual os::WaitPolicy wait_policy() const {
    return os::WaitPolicy::for_processes(world_size() + 1, os::usable_cores());
  }
  /// Lets other nodes follow the changes of the master's heap. Called once, before it is used.
  virtual void follow_heap(os::SharedHeap& /*heap*/) {}

  /// Starts all workers. Throws Error (system, timeout) if one cannot be started.
  virtual void start() = 0;
  /// Called when all workers are ready. From then on, the death of a worker is noted in the control block
  /// (ControlHeader::lost, WorkerSlot::is_lost) and wakes the processes that wait there.
  virtual void watch() = 0;
  /// From now on, a worker that ends does not count as a loss.
  virtual void expect_ends() noexcept = 0;
  virtual void kill_all() noexcept = 0;
  /// Ends the workers that are left. Afterwards, only end() itself may still be called for their processes.
  virtual void end() noexcept = 0;

  /// The master uses this much shared memory, or is about to. If memory runs out, the kernel must kill a worker before the
  /// master, although this memory counts as the master's. Otherwise nobody could say what has happened.
  virtual void note_shared_memory(std::size_t /*used_bytes*/) {}

  virtual int pid(int rank) const noexcept = 0;
  /// Returns how a worker ended that is known to be dead or about to die. Waits until this is known, for a limited time
  /// (see await_child_end).
  virtual process::ChildEnd await_end(int rank) = 0;
  /// Returns the wait status of a worker if it has ended and the status is known.
  virtual std::optional<int> end_status(int rank) = 0;
  /// Returns false if some worker has not ended within the limit.
  virtual bool await_all_ends(os::Milliseconds limit) = 0;
  /// The signal that has stopped the worker, or 0.
  virtual int stop_signal(int rank) const = 0;
  /// The process that traces the worker, or 0.
  virtual int tracer(int rank) const = 0;
  /// Adds the native stacks of the ranks that seem stuck (master/process/stuck_ranks.hpp). Takes a limited time.
  virtual void take_stacks(std::vector<RankState>& states) = 0;
  /// The last lines of the worker's standard error.
  virtual std::vector<std::string> last_stderr(int rank) = 0;
  /// A possible reason for a SIGKILL: ", the machine ran out of memory". Empty if none is known.
  virtual std::string describe_kill() const = 0;
  /// The error that says why nothing is known about the workers any more. They are dead then.
  virtual std::optional<Error> watch_failure() const = 0;
  /// True if a debugger is attached to a worker or to this process. Deadlines then do not count.
  virtual bool is_debugged() const = 0;
  /// How long this process has not been stopped (see AwakeTime).
  virtual os::Clock::duration awake_time(os::Clock::time_point now) noexcept = 0;

  /// Waits for the end of a lost worker. Its death is then no longer watched, and its slot can be initialised again.
  /// Returns false if it does not end.
  virtual bool reap(int rank) = 0;
  /// Starts new workers in the places of workers that were reaped, and removes the notes of their losses. Throws as
  /// start() does.
  virtual void replace(const std::vector<Successor>& successors) = 0;
  /// As watch(), for one worker that has been replaced.
  virtual void watch(int rank) = 0;

 protected:
  WorkerPool() = default;
  /// The memory stays until the process ends, because something outside of this process may still use it. Nothing of
  /// this object is used afterwards.
  void keep_memory() noexcept {
    static auto* const kept = std::make_unique<std::vector<std::shared_ptr<const os::Segment>>>()
                                  .release();  // a leak checker can still reach it
    kept->push_back(std::move(segment_));
  }
  /// Called once. The header of the control block says where the master's heap and the arenas of the workers are.
  void set_memory(os::Segment segment, int world_size) {
    segment_ = std::make_shared<const os::Segment>(std::move(segment));
    control_ = protocol::ControlBlock(segment_->base(), world_size);
  }
  /// The same, with the memory of a pool that is a part of this one.
  void share_memory(const WorkerPool& part) noexcept {
    segment_ = part.segment_;
    control_ = part.control_;
  }

 private:
  std::shared_ptr<const os::Segment> segment_;
  protocol::ControlBlock control_;
};

}  // namespace syncrun::detail::master::pool
