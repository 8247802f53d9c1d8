#pragma once

// One worker: its device, its communicator, the objects that live on it, and the call it is running.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/arrays/rows.hpp"
#include "common/os/shared_heap.hpp"
#include "common/text/log.hpp"
#include "syncrun/detail/call.hpp"
#include "worker/call/copy_files.hpp"
#include "worker/call/mapped_files.hpp"
#include "worker/call/running_call.hpp"
#include "worker/call/shared_variables.hpp"
#include "worker/comm/call_interruption.hpp"
#include "worker/comm/collectives.hpp"
#include "worker/comm/left_memory.hpp"
#include "worker/comm/meetings.hpp"
#include "worker/comm/outgoing_memory.hpp"
#include "worker/comm/rendezvous.hpp"
#include "worker/devices/device.hpp"
#include "worker/devices/gpu_device.hpp"
#include "worker/place/attachment.hpp"
#include "worker/place/failure.hpp"

namespace syncrun::detail {

class WorkerCore {
 public:
  explicit WorkerCore(Attachment& attachment);
  ~WorkerCore();
  WorkerCore(const WorkerCore&) = delete;
  WorkerCore& operator=(const WorkerCore&) = delete;

  /// Serves commands until the session ends; returns the exit code.
  int serve();

  // For CpuWorker and CudaWorker, which show these to bodies.
  const Attachment& attachment() const noexcept { return attachment_; }
  void* scratch(std::size_t bytes);
  std::mt19937_64& rng() noexcept { return rng_; }
  Logger& logger() noexcept { return *logger_; }

  // For running calls.
  WorkerDevice& device() noexcept { return *device_; }
  /// Throws Error (usage) on a CPU device.
  GpuDevice& gpu();
  CpuWorker& cpu_worker() noexcept { return cpu_worker_; }
  CudaWorker& cuda_worker() noexcept { return cuda_worker_; }
  RunningCall& running() noexcept { return *running_; }
  /// For a profile: records that the arguments are bound and the body starts. Both belong to Phase::function.
  void note_body() const noexcept { attachment_.note(current_, Phase::function); }
  void* object(std::uint64_t id) const;
  void keep_object(std::uint64_t id, void* object, void (*destroy)(void*) noexcept);

 private:
  struct Object {
    void* pointer;
    void (*destroy)(void*) noexcept;
  };
  struct LoadedFunction {
    std::uint64_t id;
    Thunk thunk;
    BodyPointer pointer;
  };

  void set_phase(Phase phase) noexcept { attachment_.mark(current_, phase); }
  void enter_phase(Phase phase) { attachment_.enter(current_, phase); }
  Command* await_command();
  /// Whether workers were replaced that the device has not forgotten yet.
  bool has_new_peers() const noexcept { return header_.replacements.load(std::memory_order_seq_cst) != replacements_; }
  /// Where this rank reports about the command that it runs.
  Outbox& own_outbox() const noexcept {
    return attachment_.control.outbox_at(attachment_.rank, (received_ - 1) % kInboxSize);
  }
  void give_up_for_loss(Command& command);
  void look_ahead();
  bool start_move_ahead(const Command& command);
  bool has_lost_a_rank(const Command& command) const noexcept;
  void await_earlier(const Command& command);
  void await_values(const Command& command);
  bool is_over(const Dependency& earlier) const noexcept;
  std::optional<int> source_on_other_node(const Command& command) const noexcept;
  template <class Ready>
  void await_others(Ready&& ready, const WorkerSlot& other);
  bool are_earlier_done(const Command& command) const noexcept;
  bool depends_on_a_failure(const Command& command) const noexcept;
  void execute(Command& command);
  void run_call(Command& command);
  std::int64_t own_ns();
  void complete_call(Command& command, Outbox& outbox);
  void destroy_object(std::uint64_t id) noexcept;
  /// Destroys all replicated objects that are left.
  void destroy_objects() noexcept;
  void drop_scratch() noexcept;
  const LoadedFunction& load(std::uint64_t function_offset);
  void cast_vote(const Command& command, Vote vote) noexcept;
  std::optional<CaughtFailure> missing_file() const;
  void note_failure_elsewhere(const Command& command) noexcept;
  void report_failure(Command& command, const CaughtFailure& failure);
  void finish(const Command& command) noexcept;

  Attachment& attachment_;
  ControlHeader& header_;
  WaitPolicy policy_;
  SharedHeap arena_;
  OutgoingMemory outgoing_;
  LeftMemory left_memory_;
  CallInterruption interruption_;
  Meetings meetings_;
  SegmentRendezvous rendezvous_;
  CpuComm peers_;
  std::unique_ptr<NodesComm> nodes_;      // null in a session on one node
  MappedFiles files_{attachment_.place};  // the device reads them
  std::unique_ptr<WorkerDevice> device_;
  Communicators comms_;
  CpuWorker cpu_worker_;
  CudaWorker cuda_worker_;
  std::unique_ptr<Logger> logger_;
  std::mt19937_64 rng_;
  VariableCopies variables_;
  CopyFiles copy_files_;
  std::unique_ptr<RunningCall> running_;
  // By the offset of the FunctionEntry. The master uses the offset again when it has dropped the function.
  std::unordered_map<std::uint64_t, LoadedFunction> functions_;
  std::uint64_t last_function_ = 0;  // most calls are of the same function as the last one
  const LoadedFunction* last_loaded_ = nullptr;
  std::unordered_map<std::uint64_t, Object> objects_;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  std::uint64_t replacements_;      // of workers, as far as the device knows
  std::uint64_t received_;          // how many commands this rank has got
  std::uint64_t current_ = 0;       // the number of the last one
  std::uint64_t looked_ahead_ = 0;  // the last command whose inputs were copied ahead
  const Command* call_ = nullptr;   // the call that runs
};

}  // namespace syncrun::detail
