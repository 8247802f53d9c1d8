#pragma once

// The call that a worker is running: its rows on this rank, its arguments, and what it has computed so far.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/arrays/rows.hpp"
#include "common/protocol/control_block.hpp"
#include "common/protocol/variable_entry.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/gradient_ready.hpp"
#include "worker/call/mapped_files.hpp"
#include "worker/call/shared_variables.hpp"
#include "worker/call/step_gradient.hpp"
#include "worker/comm/outgoing_memory.hpp"
#include "worker/devices/communicators.hpp"
#include "worker/devices/gpu_device.hpp"

namespace syncrun::detail {

/// The parts of its worker that a call uses. They outlive it.
struct WorkerParts {
  const Attachment& attachment;
  WorkerDevice& device;
  Communicators& comms;
  SharedHeap& arena;
  MappedFiles& files;         // the files of arguments
  OutgoingMemory& outgoing;   // takes over the memory of outputs at the end
  VariableCopies& variables;  // takes over the memory of outputs that stay on the device
};

/// The weights in an average: of all slices so far, and of the current slice.
constexpr std::array<double, 2> weights_of(std::int64_t rows_before, std::int64_t rows) noexcept {
  const auto all = static_cast<double>(rows_before + rows);
  return {static_cast<double>(rows_before) / all, static_cast<double>(rows) / all};
}

class RunningCall {
 public:
  explicit RunningCall(const WorkerParts& parts) noexcept;

  /// Starts the command with this number. Its rows are this rank's share of the scattered rows, or the selected rows of
  /// its own copies.
  void begin(const Command& command, std::uint64_t id);
  const Command& command() const noexcept { return *command_; }
  /// Frees what a failed call has computed.
  void discard() noexcept;

  /// Lets the device copy the inputs of a command's first slice ahead. This has no effect if the command does not run
  /// after all.
  void bring_ahead(const Command& command, std::uint64_t id);

  bool next_slice();
  std::int64_t slice_rows() const noexcept { return has_rows() ? slice_.count() : 1; }
  std::int64_t first_row() const noexcept { return first_row_of_call_ + slice_.begin; }
  int slice() const noexcept { return slice_index_; }
  SliceRows rows_of_slice() const noexcept;
  /// From here on, averages over the ranks are weighted by the rows of the whole call instead of the slice.
  void average_over_slices();
  bool wants(std::size_t output) const noexcept { return (call_->wanted_outputs >> output & 1U) != 0; }
  /// The communicator of the command's ranks.
  CommCore& comm() noexcept { return *comm_; }
  Comm& user_comm() noexcept { return *user_comm_; }
  GradientReady& gradient_ready() noexcept { return gradient_ready_; }
  void begin_gradient(const GradientPlace& place, GradientParts average);
  bool end_gradient() { return step_gradient_.finish(); }

  RawRows rows(std::size_t argument);
  RawArray whole(std::size_t argument);
  RawUpdate update(std::size_t argument);
  const void* value(std::size_t argument) const;
  const void* scalar(std::size_t argument);

  /// Called after the body. Throws Error (system) if bytes were missing in a file that the body has read.
  void check_files() const;
  /// Whether the command with this number has begun, and no other one since.
  bool is_of(std::uint64_t id) const noexcept { return begun_ == id; }

  void accept(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents, OutputBuffer buffer);
  void accept_scalar(std::size_t output, const OutputType& type, const void* value);
  void accept_device_scalar(std::size_t output, const OutputType& type, const void* place);

  /// Runs a slice of a replayable function; see WorkerCall::replay. If its work could not be captured for the first time,
  /// and need not be, the result says why. Otherwise it is empty.
  std::string replay(void (*run)(void* context), void* context, Capture capture);
  /// Called if recorded work refers to memory, or to a communicator, that no longer exists.
  void forget_recordings() noexcept { recordings_.clear(); }
  /// Like forget_recordings(), for use inside a body, where a recording may be in progress. Takes effect before the
  /// next call.
  void note_stale_recordings() noexcept { are_recordings_stale_ = true; }

  /// Called after the last slice. Concatenates gathered outputs of slices, brings outputs into shared memory, and
  /// describes them in the outbox. Large outputs that GPUs reduce through their communicator stay in device memory.
  void deliver(Outbox& outbox);
  bool may_reduce_outputs(const Outbox& outbox) const noexcept;
  /// Whether the ranks may meet to reduce outputs. GPUs do, if they make their communicator for it.
  bool may_meet_after_vote() const noexcept { return !shares_outputs_; }
  /// Called after the vote.
  void commit_updates();
  void reduce_outputs(Outbox& outbox);
  /// Hands over the memory of the outputs, which is freed after the master has consumed the command. Forgets the rest.
  void end(std::uint64_t command);

 private:
  struct PendingOutput {
    std::int64_t rows = 0;  // weight so far, for avg
    int slices = 0;
    std::array<std::int64_t, kMaxDimensions> extents{};
    alignas(8) std::array<std::byte, 8> scalar{};  // a number of the host's, in its partial_type
    double average = 0;                            // for the avg of a number: sum of value * rows
    OutputBuffer buffer;  // also holds a number in device memory; until deliver(), its elements have type_over_slices
    std::vector<OutputBuffer> pieces;  // for gather: one per slice
    std::vector<std::int64_t> piece_rows;
    std::uint64_t shared = 0;  // offset in the segment, after the output was shared
  };
  struct PendingUpdate {
    void* total = nullptr;  // accumulated over slices; its elements have type_over_slices
    void* value = nullptr;  // of the current slice
    std::size_t bytes = 0;
    std::int64_t rows = 0;
    bool is_written = false;
  };

  bool has_rows() const noexcept { return call_->rows >= 0; }
  /// The type in which the values of all slices are combined. If there is only one slice, there is nothing to combine.
  DType type_over_slices(DType dtype) const noexcept {
    return has_rows() && call_->slices > 1 ? partial_type(dtype) : dtype;
  }
  const RowsSlot& local_selection(int rank) const noexcept;
  std::int64_t local_rows(int rank) const;
  std::size_t bucket_bytes() const noexcept;
  void finish_slice();
  RawArray whole_array(std::size_t argument);
  OutputBuffer adopted(OutputBuffer buffer);
  OutputBuffer borrowed(void* memory, std::size_t bytes) noexcept;
  OutputBuffer converted(ElementTypes types, OutputBuffer buffer);
  void take_output(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents,
                   OutputBuffer buffer);
  RowRange share_in(const Command& command) const;
  SharedRows array_of(const ArgumentSlot& slot);
  void* bring_rows(const Command& command, std::size_t argument, RowRange rows);
  void* bring_whole(const Command& command, std::size_t argument);
  const void* bring_scalar(const Command& command, std::size_t argument);
  RawRows scattered_rows(std::size_t argument, const ArgumentSlot& slot);
  RawRows sliced_rows(std::size_t argument, const ArgumentSlot& slot);
  VariableCopy& copy_of(const ArgumentSlot& slot, int rank) const;
  std::int64_t slice_rows_of(int rank) const;
  std::int64_t rows_of_all() const;
  void share_outputs(Outbox& outbox);
  bool all_are_large() const noexcept;
  bool is_reduced_by_workers(std::size_t output) const noexcept;
  void concatenate(PendingOutput& pending, const OutputType& type);
  bool reduce_output(std::size_t index, Outbox& outbox, std::span<const int> ranks, std::span<const double> weights);

  /// An output of a recorded replayable function.
  struct RecordedOutput {
    std::size_t output;
    OutputType type;
    std::vector<std::int64_t> extents;
    OutputBuffer buffer;
    const void* place = nullptr;  // of a number in device memory; else null
  };
  struct Recording {
    /// `warm`: the function has run once, so libraries have loaded what they need. Ranks take the smallest state of all.
    enum class State : std::int8_t { never = -1, fresh, warm, recorded };
    State state = State::fresh;
    std::unique_ptr<DeviceGraph> graph;
    std::vector<RecordedOutput> outputs;
    std::uint64_t last_use = 0;
  };
  using RecordingKey = std::vector<std::uint64_t>;
  Recording& recording_of(const RecordingKey& key);
  void record(Recording& recording, void (*run)(void* context), void* context);
  std::string record_if_possible(Recording& recording, void (*run)(void* context), void* context);
  void accept_recorded(const Recording& recording);
  void note_argument(const void* data, std::span<const std::int64_t> extents);

  const Attachment& attachment_;
  WorkerDevice& device_;
  Communicators& comms_;
  GpuDevice* gpu_;  // the same device if it is a GPU, else null
  SharedHeap& arena_;
  MappedFiles& files_;
  OutgoingMemory& outgoing_;
  VariableCopies& variables_;
  const Command* command_ = nullptr;
  std::uint64_t begun_ = 0;             // the number of that command
  const CallPayload* call_ = nullptr;   // the command's
  RowRange share_{};                    // of the call's rows, or of the selected rows if these are local
  std::int64_t first_row_of_call_ = 0;  // added to positions in share_ to get positions in the call
  RowRange slice_{};
  int slice_index_ = -1;
  std::array<PendingOutput, kMaxOutputs> outputs_;
  std::array<PendingUpdate, kMaxArguments> updates_;
  std::uint32_t update_arguments_ = 0;      // a bit for each argument that is an update
  CommCore* comm_ = nullptr;                // of the command's ranks
  bool shares_outputs_ = false;             // all outputs go to shared memory before the workers reduce them
  const bool is_on_one_node_;               // workers on several nodes do not reduce outputs; the master does
  RankWeights weights_;                     // of the current slice
  std::vector<std::int64_t> rows_by_rank_;  // rows of the current slice on every rank
  std::optional<Comm> user_comm_;
  StepGradient step_gradient_;
  GradientReady gradient_ready_{step_gradient_};
  BucketStart bucket_start_ = BucketStart::when_ready;
  RecordingKey key_;  // of the current slice
  std::map<RecordingKey, Recording> recordings_;
  /// Captures of a function after which the body failed without a capture too.
  struct FailedCaptures {
    std::uint64_t function;  // its id, because the offset of a FunctionEntry is used again
    int count;
  };
  std::map<std::uint64_t, FailedCaptures> failed_captures_;  // by the offset of the FunctionEntry
  Recording* recording_ = nullptr;                           // the one in progress, or null
  std::uint64_t recorded_generation_ = 0;
  bool are_recordings_stale_ = false;
};

}  // namespace syncrun::detail
