// Replay: the work of a function on the device is recorded once for each set of addresses and shapes.

#include <algorithm>
#include <exception>
#include <limits>
#include <string>

#include "common/protocol/function_entry.hpp"
#include "worker/call/running_call.hpp"
#include "worker/place/interruption.hpp"

namespace syncrun::detail {

namespace {

/// A function whose body fails after each failed capture is captured at most this number of times.
constexpr int kMostFailedCaptures = 3;

}  // namespace

/// Adds an argument's address and shape to the key. The key contains everything besides the values that work on the
/// device can depend on: the arguments, and what a body may ask its worker.
void RunningCall::note_argument(const void* data, std::span<const std::int64_t> extents) {
  if (gpu_ == nullptr) return;
  key_.push_back(reinterpret_cast<std::uintptr_t>(data));
  for (const auto extent : extents) key_.push_back(static_cast<std::uint64_t>(extent));
}

RunningCall::Recording& RunningCall::recording_of(const RecordingKey& key) {
  constexpr std::size_t kMostRecordings = 64;
  const auto found = recordings_.find(key);
  if (found != recordings_.end()) return found->second;
  if (recordings_.size() >= kMostRecordings) {
    recordings_.erase(std::min_element(recordings_.begin(), recordings_.end(), [](const auto& a, const auto& b) {
      return a.second.last_use < b.second.last_use;
    }));
  }
  return recordings_[key];
}

std::string RunningCall::replay(void (*run)(void* context), void* context, Capture capture) {
  attachment_.note(begun_, Phase::function);
  if (gpu_ == nullptr) {
    run(context);
    return {};
  }
  device_.begin_body();  // inputs are copied outside the graph
  if (command_->has_comm && !comm().can_be_captured()) {
    bucket_start_ = BucketStart::after_body;
    run(context);
    return {};
  }
  if (command_->has_comm) comm().prepare();
  const std::uint64_t generation = gpu_->graph_generation();  // a new one: all graphs are invalid
  if (generation != recorded_generation_) forget_recordings();
  recorded_generation_ = generation;
  const std::uint64_t function = attachment_.segment.at<const FunctionEntry>(call_->function)->id;
  key_.push_back(function);
  key_.push_back(call_->object);
  key_.push_back(command_->has_comm ? static_cast<std::uint64_t>(weights_.all) : 0);
  key_.push_back(static_cast<std::uint64_t>(slice_rows()));
  key_.push_back(static_cast<std::uint64_t>(first_row()));
  key_.push_back(static_cast<std::uint64_t>(slice_index_));
  // What follows the last slice, and the weights there (see rows_of_slice).
  key_.push_back(static_cast<std::uint64_t>(call_->slices));
  key_.push_back(static_cast<std::uint64_t>(call_->rows));
  key_.push_back(static_cast<std::uint64_t>(share_.count()));
  key_.push_back(static_cast<std::uint64_t>(command_->ranks.count()));  // first: it says how many numbers follow
  for (const std::uint64_t word : command_->ranks.words()) key_.push_back(word);
  key_.push_back(call_->wanted_outputs);
  // With equal shares, they follow from the rows of the call.
  if (command_->has_comm && (call_->rows_are_local || call_->share_begins != 0)) {
    for (const int rank : command_->ranks) key_.push_back(static_cast<std::uint64_t>(slice_rows_of(rank)));
  }
  Recording& recording = recording_of(key_);
  recording.last_use = begun_;
  const auto failed = failed_captures_.find(call_->function);
  const bool is_never_recorded = failed != failed_captures_.end() && failed->second.function == function &&
                                 failed->second.count >= kMostFailedCaptures;
  Recording::State state = is_never_recorded ? Recording::State::never : recording.state;
  // Ranks may have different shapes or addresses. NCCL requires that either all ranks capture a collective or none
  // does.
  if (command_->has_comm) state = static_cast<Recording::State>(comm().agree(static_cast<std::int64_t>(state)));
  bucket_start_ = state <= Recording::State::fresh ? BucketStart::after_body : BucketStart::when_ready;
  if (state <= Recording::State::fresh) {
    run(context);  // if this throws, the state stays fresh: the next call runs it again before it is recorded
    recording.state = std::max(recording.state, Recording::State::warm);
    return {};
  }
  std::string why_not;
  if (state == Recording::State::warm && capture == Capture::required) record(recording, run, context);
  if (state == Recording::State::warm && capture == Capture::if_possible) {
    why_not = record_if_possible(recording, run, context);
    if (recording.state != Recording::State::recorded) {
      bucket_start_ = BucketStart::after_body;
      // An error that has nothing to do with the capture comes again, and the function may be captured later. But the
      // capture may be the reason, because it leaves a communicator of NCCL unusable if it fails inside a collective.
      FailedCaptures& failures = failed_captures_[call_->function];
      failures = {function, failures.function == function ? failures.count + 1 : 1};
      run(context);
      failures.count = kMostFailedCaptures;
      return why_not;
    }
  }
  gpu_->launch(*recording.graph);
  accept_recorded(recording);
  return {};
}

/// Returns why the work could not be recorded, on the first rank where it could not. Either all ranks have a recording
/// afterwards, or none has.
std::string RunningCall::record_if_possible(Recording& recording, void (*run)(void* context), void* context) {
  constexpr std::int64_t kSucceeded = std::numeric_limits<std::int64_t>::max();
  const std::int64_t own_rank = attachment_.rank;
  std::string why_not;
  std::int64_t first_failed = kSucceeded;
  const RankWeights weights = weights_;
  try {
    record(recording, run, context);
  } catch (const Abandoned&) {
    throw;
  } catch (const SessionLost&) {
    throw;
  } catch (const std::exception& error) {
    first_failed = own_rank;
    why_not = error.what();
  }
  if (command_->has_comm) first_failed = comm().agree(first_failed);
  if (first_failed == kSucceeded) return {};
  if (command_->has_comm) comm().forget_captured();
  weights_ = weights;
  recording.graph.reset();
  recording.outputs.clear();
  recording.state = Recording::State::warm;
  if (first_failed != own_rank) return {};
  return "a replayable function runs without a CUDA graph from now on, which is slower, because its work could not be "
         "captured: " +
         why_not + ". Its body must not wait for the device, or draw random numbers on it";
}

void RunningCall::record(Recording& recording, void (*run)(void* context), void* context) {
  recording.state = Recording::State::warm;
  recording.graph.reset();
  recording.outputs.clear();
  recording_ = &recording;
  try {
    gpu_->begin_capture();
    run(context);
    recording.graph = gpu_->end_capture();
    recording.state = Recording::State::recorded;
  } catch (...) {
    recording_ = nullptr;
    gpu_->abandon_capture();
    throw;
  }
  recording_ = nullptr;
}

/// The recording keeps the memory of its outputs. If later slices are added to the first one, they are added to a copy.
void RunningCall::accept_recorded(const Recording& recording) {
  for (const RecordedOutput& recorded : recording.outputs) {
    if (recorded.place != nullptr) {
      accept_device_scalar(recorded.output, recorded.type, recorded.place);
      continue;
    }
    OutputBuffer buffer = borrowed(recorded.buffer.data(), recorded.buffer.bytes());
    if (call_->slices > 1 && buffer.data() != nullptr) {
      OutputBuffer copy = device_.allocate_output(buffer.bytes());
      device_.copy_within(copy.data(), buffer.data(), buffer.bytes());
      buffer = std::move(copy);
    }
    take_output(recorded.output, recorded.type, recorded.extents, std::move(buffer));
  }
}

}  // namespace syncrun::detail
