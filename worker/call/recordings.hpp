#pragma once

// Replay: the work of a function on the device is recorded once for each set of addresses and shapes.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "syncrun/detail/worker_interface.hpp"
#include "worker/call/call_outputs.hpp"
#include "worker/call/call_slices.hpp"
#include "worker/call/step_gradient.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail::worker::call {

class Recordings {
 public:
  Recordings(const process::Attachment& attachment, const devices::DeviceParts& device, CallSlices& slices,
             CallOutputs& outputs, StepGradient& gradient) noexcept
      : attachment_(attachment),
        graphs_(device.graphs),
        inputs_(device.inputs),
        slices_(slices),
        outputs_(outputs),
        gradient_(gradient) {}

  // Called before a call begins, and before the arguments of a slice are bound.
  void begin() noexcept {
    if (std::exchange(are_stale_, false)) recordings_.clear();
    state_.clear();
  }
  void begin_slice() noexcept {
    key_.clear();
    values_ = state_;
    own_values_ = state_;
  }
  void note_argument(const void* data, std::span<const std::int64_t> extents);
  /// The ranks that get a value. The others of the call may get different ones.
  enum class ValueFor : std::uint8_t { all_ranks, own_rank };
  /// Host code of the body can read these bytes, so a graph is for them only.
  void note_value(std::span<const std::byte> value, ValueFor ranks = ValueFor::all_ranks);
  /// Host code of the body depends on this state of its object, so a graph is for it only. Called before the first slice.
  void note_state(std::span<const std::uint64_t> state);
  /// Points to whether a body is being captured now.
  const bool* is_capturing() const noexcept { return &is_capturing_; }
  /// Called if recorded work refers to memory, or to a communicator, that no longer exists. It may be inside a body, where
  /// a recording may be in progress, so this takes effect before the next call.
  void note_stale() noexcept { are_stale_ = true; }

  /// The work of one slice, which can be captured.
  struct Work {
    void (*run)(void* context);
    void* context;
    void operator()() const { run(context); }
  };
  /// Runs a slice of a replayable function; see WorkerCall::replay. `comm` is null if the body has no Comm&. If the work
  /// could not be captured for the first time, and need not be, the result says why. It also says so once for each
  /// function if many calls came with new values. Otherwise it is empty.
  std::string replay(const Work& work, Capture capture, comm::CommCore* comm);

 private:
  using RecordingKey = std::vector<std::uint64_t>;
  using Values = std::vector<std::uint64_t>;
  struct Recording {
    /// `warm`: the function has run once, so libraries have loaded what they need. Ranks take the smallest state of all.
    enum class State : std::int8_t { never = -1, fresh, warm, recorded };
    State state = State::fresh;
    std::unique_ptr<devices::DeviceGraph> graph;
    std::vector<RecordedOutput> outputs;
    std::uint64_t last_use = 0;
    std::int64_t collectives = 0;  // in the graph, for metrics; and their bytes
    std::int64_t collective_bytes = 0;

    bool has_graph() const noexcept { return state == State::recorded; }
    void drop_graph() noexcept;
  };
  /// Captures of a function after which the body failed without a capture too.
  struct FailedCaptures {
    std::uint64_t function;  // its id, because the offset of a FunctionEntry is used again
    int count;
  };
  /// Values with which a function ran without a graph.
  struct NewValues {
    std::uint64_t function = 0;  // the same
    std::set<Values> since_launch;
    bool has_said = false;
  };

  void complete_key(std::uint64_t function, bool has_comm);
  Recording& recording_of(const RecordingKey& key);
  void keep_recent(const Recording& latest);
  bool finds_many_values(std::uint64_t at, std::uint64_t function);
  void record(Recording& recording, const Work& work);
  std::string record_if_possible(Recording& recording, const Work& work, comm::CommCore* comm);

  const process::Attachment& attachment_;
  devices::GraphRecorder* graphs_;  // null if the device is not a GPU
  devices::InputStage& inputs_;
  CallSlices& slices_;
  CallOutputs& outputs_;
  StepGradient& gradient_;
  RecordingKey key_;                  // of the current slice
  Values values_;                     // the state, and those of its arguments that the key contains
  Values own_values_;                 // those of them that only this rank has, which include the state
  Values state_;                      // of the object whose method the body is: a copy, because the body may change it
  const char* why_failed_ = nullptr;  // the last capture, if the device knows it
  std::map<RecordingKey, Recording> recordings_;
  std::map<std::uint64_t, FailedCaptures> failed_captures_;  // by the offset of the FunctionEntry
  std::map<std::uint64_t, NewValues> new_values_;            // by the same
  std::uint64_t generation_ = 0;                             // of the graphs
  std::uint64_t uses_ = 0;                                   // of recordings
  bool are_stale_ = false;
  bool is_capturing_ = false;
};

}  // namespace syncrun::detail::worker::call
