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
#include "launcher/pool/successor.hpp"
#include "launcher/process/child_end.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

class RemoteNodes;
class RemoteQueues;

/// LocalPool implements it with processes on this machine, and NodesPool with those of several machines. The tests have an implementation without processes
/// (tests/launcher/pool/fake_pool.hpp).
///
/// Calls use only the control block and the segment, which are ordinary memory of this process. The other functions are
/// virtual. A call that succeeds uses none of them.
class WorkerPool {
 public:
  virtual ~WorkerPool() = default;
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// The memory that the master shares with its workers, with the control block at its beginning.
  const Segment& segment() const noexcept { return segment_; }
  const ControlBlock& control() const noexcept { return control_; }
  int world_size() const noexcept { return control_.world_size(); }
  /// In a session on several nodes: the memory for what comes from the others. It is after the arenas of this node.
  SharedHeap inbound() const {
    const ControlHeader& header = control_.header();
    const auto arenas = header.arena_bytes * static_cast<std::uint64_t>(header.place.local_size);
    return {segment_, header.arenas_offset + arenas, header.arena_bytes};
  }
  /// The part of the session that is on other machines. Null if there is none.
  virtual RemoteNodes* other_nodes() noexcept { return nullptr; }
  /// The producers on other machines. Null if there are none.
  virtual RemoteQueues* other_queues() noexcept { return nullptr; }
  /// Handles what has come from other machines.
  virtual void progress() {}
  /// What the program waits for.
  enum class Awaited { call, batch };
  /// How long a thread that waits may sleep before it calls progress() again.
  virtual std::chrono::nanoseconds longest_nap(Awaited /*awaited*/) { return kLap; }

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
  virtual ChildEnd await_end(int rank) = 0;
  /// Returns the wait status of a worker if it has ended and the status is known.
  virtual std::optional<int> end_status(int rank) = 0;
  /// Returns false if some worker has not ended within the limit.
  virtual bool await_all_ends(Milliseconds limit) = 0;
  /// The signal that has stopped the worker, or 0.
  virtual int stop_signal(int rank) const = 0;
  /// The process that traces the worker, or 0.
  virtual int tracer(int rank) const = 0;
  /// Adds the native stacks of the ranks that seem stuck (launcher/process/rank_report.hpp). Takes a limited time.
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
  virtual Clock::duration awake_time(Clock::time_point now) noexcept = 0;

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
  /// Called once. The header of the control block says where the master's heap and the arenas of the workers are.
  /// The memory stays until the process ends, because something outside of this process may still use it. Nothing of
  /// this object is used afterwards.
  void keep_memory() noexcept {
    static auto* const kept = std::make_unique<std::vector<Segment>>().release();  // a leak checker can still reach it
    kept->push_back(std::move(segment_));
  }
  void set_memory(Segment segment, int world_size) noexcept {
    segment_ = std::move(segment);
    control_ = ControlBlock(segment_.base(), world_size);
  }

 private:
  Segment segment_;
  ControlBlock control_;
};

}  // namespace syncrun::detail
