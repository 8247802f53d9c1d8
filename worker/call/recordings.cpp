#include "worker/call/recordings.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

#include "common/protocol/function_entry.hpp"
#include "worker/process/interruption.hpp"

namespace syncrun::detail::worker::call {

namespace {

/// A function whose body fails after each failed capture is captured at most this number of times.
constexpr int kMostFailedCaptures = 3;
/// Recordings with a graph, and as many without one.
constexpr std::ptrdiff_t kMostRecordings = 64;
/// A function is slow if it ran with this number of different values, and no graph was launched in between.
constexpr std::size_t kManyNewValues = 20;
/// What a rank that finds this says to the others, minus its own number. Less than each state of a recording.
constexpr std::int64_t kManyValuesFound = std::numeric_limits<std::int64_t>::min() / 2;

std::string many_values() {
  return "a replayable function runs without a CUDA graph, which is slower, because it came with " +
         std::to_string(kManyNewValues) +
         " different arguments by value or results of replay_state(), and a graph is for the same ones only. Pass a "
         "value that changes as a DeviceScalar, and leave out of replay_state() what the body does not read on the "
         "host";
}

}  // namespace

void Recordings::Recording::drop_graph() noexcept {
  state = State::warm;
  graph.reset();
  outputs.clear();
}

Recordings::Recording& Recordings::recording_of(const RecordingKey& key) {
  const auto found = recordings_.find(key);
  if (found != recordings_.end()) return found->second;
  Recording& made = recordings_[key];
  keep_recent(made);
  return made;
}

/// Drops the oldest recording if there are too many of the kind of `latest`: with a graph, or without one. So calls that
/// come with a new value each time drop no graph.
void Recordings::keep_recent(const Recording& latest) {
  const auto is_alike = [&](const auto& each) { return each.second.has_graph() == latest.has_graph(); };
  if (std::count_if(recordings_.begin(), recordings_.end(), is_alike) <= kMostRecordings) return;
  auto oldest = recordings_.end();
  for (auto each = recordings_.begin(); each != recordings_.end(); ++each) {
    if (&each->second == &latest || !is_alike(*each)) continue;
    if (oldest == recordings_.end() || each->second.last_use < oldest->second.last_use) oldest = each;
  }
  recordings_.erase(oldest);
}

/// Called before a run with arguments with which the body has not run before. Returns whether the function has now run with
/// so many values without a launch that the program should learn of it. The first rank notices those of all ranks, and each
/// other rank only its own, so ranks without a communicator do not say the same.
bool Recordings::finds_many_values(std::uint64_t at, std::uint64_t function) {
  const Values& values = attachment_.rank == slices_.command().ranks.first() ? values_ : own_values_;
  if (values.empty()) return false;
  NewValues& found = new_values_[at];
  if (std::exchange(found.function, function) != function) found = NewValues{function, {}, false};
  if (found.has_said) return false;
  found.since_launch.insert(values);
  return found.since_launch.size() >= kManyNewValues;
}

/// Adds an argument's address and shape to the key. The key contains everything besides the values that work on the
/// device can depend on: the arguments, and what a body may ask its worker.
void Recordings::note_argument(const void* data, std::span<const std::int64_t> extents) {
  if (graphs_ == nullptr) return;
  key_.push_back(reinterpret_cast<std::uintptr_t>(data));
  for (const auto extent : extents) key_.push_back(static_cast<std::uint64_t>(extent));
}

void Recordings::note_value(std::span<const std::byte> value, ValueFor ranks) {
  if (graphs_ == nullptr) return;
  const auto before = static_cast<std::ptrdiff_t>(values_.size());
  values_.push_back(value.size());
  for (; !value.empty(); value = value.subspan(std::min(value.size(), sizeof(std::uint64_t)))) {
    std::uint64_t word = 0;
    std::memcpy(&word, value.data(), std::min(value.size(), sizeof(word)));
    values_.push_back(word);
  }
  if (ranks == ValueFor::own_rank) own_values_.insert(own_values_.end(), values_.begin() + before, values_.end());
}

void Recordings::note_state(std::span<const std::uint64_t> state) {
  if (graphs_ == nullptr) return;
  state_.assign(1, state.size());
  state_.insert(state_.end(), state.begin(), state.end());
}

/// Adds the rest to the key.
void Recordings::complete_key(std::uint64_t function, bool has_comm) {
  const protocol::CallPayload& call = slices_.call();
  const protocol::RankSet& ranks = slices_.command().ranks;
  key_.insert(key_.end(), values_.begin(), values_.end());
  key_.push_back(function);
  key_.push_back(call.object);
  key_.push_back(has_comm ? static_cast<std::uint64_t>(slices_.weights().all) : 0);
  key_.push_back(static_cast<std::uint64_t>(slices_.rows()));
  key_.push_back(static_cast<std::uint64_t>(slices_.first_row()));
  key_.push_back(static_cast<std::uint64_t>(slices_.index()));
  // What follows the last slice, and the weights there (see CallSlices::in_share).
  key_.push_back(static_cast<std::uint64_t>(call.slices));
  key_.push_back(static_cast<std::uint64_t>(call.rows));
  key_.push_back(static_cast<std::uint64_t>(slices_.share_rows()));
  key_.push_back(static_cast<std::uint64_t>(ranks.count()));  // first: it says how many numbers follow
  for (const std::uint64_t word : ranks.words()) key_.push_back(word);
  key_.push_back(call.wanted_outputs);
  // With equal shares, they follow from the rows of the call.
  if (!has_comm || !(call.rows_are_local || call.share_begins != 0)) return;
  for (const int rank : ranks) key_.push_back(static_cast<std::uint64_t>(slices_.rows_of(rank)));
}

std::string Recordings::replay(const Work& work, Capture capture, comm::CommCore* comm) {
  constexpr auto kFresh = static_cast<std::int64_t>(Recording::State::fresh);
  constexpr auto kWarm = static_cast<std::int64_t>(Recording::State::warm);
  constexpr auto kRecorded = static_cast<std::int64_t>(Recording::State::recorded);
  attachment_.note(slices_.id(), protocol::Phase::function);
  if (graphs_ == nullptr) {
    work();
    return {};
  }
  inputs_.flush();  // inputs are copied outside the graph
  if (comm != nullptr && !comm->can_be_captured()) {
    gradient_.start_buckets(BucketStart::after_body);
    work();
    return {};
  }
  if (comm != nullptr) comm->prepare();
  const std::uint64_t generation = graphs_->generation();  // a new one: all graphs are invalid
  if (generation != std::exchange(generation_, generation)) recordings_.clear();
  const std::uint64_t at = slices_.call().function;
  const std::uint64_t function = attachment_.segment.at<const protocol::FunctionEntry>(at)->id;
  complete_key(function, comm != nullptr);
  Recording& recording = recording_of(key_);
  recording.last_use = ++uses_;
  const auto failed = failed_captures_.find(at);
  const bool is_never_recorded = failed != failed_captures_.end() && failed->second.function == function &&
                                 failed->second.count >= kMostFailedCaptures;
  auto state = static_cast<std::int64_t>(is_never_recorded ? Recording::State::never : recording.state);
  if (state == kFresh && finds_many_values(at, function)) state = kManyValuesFound + attachment_.rank;
  // Ranks may have different shapes, addresses or values. NCCL requires that either all ranks capture a collective or
  // none does. Of the ranks that find many values, the first one says so.
  const std::int64_t own_state = state;
  if (comm != nullptr) state = comm->agree(state);
  const bool runs = state <= kFresh;
  gradient_.start_buckets(runs ? BucketStart::after_body : BucketStart::when_ready);
  if (runs) {
    work();  // if this throws, the state stays fresh: the next call runs it again before it is recorded
    recording.state = std::max(recording.state, Recording::State::warm);
    if (state >= static_cast<std::int64_t>(Recording::State::never)) return {};
    new_values_[at] = {.function = function, .since_launch = {}, .has_said = true};
    return state == own_state ? many_values() : std::string();
  }
  if (state == kWarm && capture == Capture::required) record(recording, work);
  if (state == kWarm && capture == Capture::if_possible) {
    std::string why_not = record_if_possible(recording, work, comm);
    if (recording.state != Recording::State::recorded) {
      gradient_.start_buckets(BucketStart::after_body);
      // An error that has nothing to do with the capture comes again, and the function may be captured later. But the
      // capture may be the reason, because it leaves a communicator of NCCL unusable if it fails inside a collective.
      FailedCaptures& failures = failed_captures_[at];
      failures = {function, failures.function == function ? failures.count + 1 : 1};
      work();
      failures.count = kMostFailedCaptures;
      return why_not;
    }
  }
  if (state == kRecorded && attachment_.totals != nullptr) [[unlikely]] {  // it was not just captured
    attachment_.totals->add(protocol::Count::collectives, recording.collectives);
    attachment_.totals->add(protocol::Count::collective_bytes, recording.collective_bytes);
  }
  if (const auto found = new_values_.find(at); found != new_values_.end()) found->second.since_launch.clear();
  graphs_->launch(*recording.graph);
  outputs_.accept_recorded(recording.outputs);
  return {};
}

/// Returns why the work could not be recorded, on the first rank where it could not. Either all ranks have a recording
/// afterwards, or none has.
std::string Recordings::record_if_possible(Recording& recording, const Work& work, comm::CommCore* comm) {
  constexpr std::int64_t kSucceeded = std::numeric_limits<std::int64_t>::max();
  const std::int64_t own_rank = attachment_.rank;
  std::string why_not;
  std::int64_t first_failed = kSucceeded;
  const comm::RankWeights weights = slices_.weights();
  try {
    record(recording, work);
  } catch (const process::Abandoned&) {
    throw;
  } catch (const process::SessionLost&) {
    throw;
  } catch (const std::exception& error) {
    first_failed = own_rank;
    why_not = why_failed_ == nullptr ? error.what() : why_failed_;
  }
  if (comm != nullptr) first_failed = comm->agree(first_failed);
  if (first_failed == kSucceeded) return {};
  if (comm != nullptr) comm->forget_captured();
  slices_.weights() = weights;
  recording.drop_graph();
  if (first_failed != own_rank) return {};
  return "a replayable function runs without a CUDA graph from now on, which is slower, because its work could not be "
         "captured: " +
         why_not +
         ". Its body must not wait for the device, draw random numbers on the host, or seed a generator of them";
}

void Recordings::record(Recording& recording, const Work& work) {
  recording.drop_graph();
  outputs_.record_to(&recording.outputs);
  const protocol::RankTotals* const totals = attachment_.totals;
  const auto counted = [totals](protocol::Count what) { return totals == nullptr ? 0 : totals->of(what); };
  const std::int64_t collectives = counted(protocol::Count::collectives);
  const std::int64_t bytes = counted(protocol::Count::collective_bytes);
  try {
    graphs_->begin_capture();
    is_capturing_ = true;
    work();
    is_capturing_ = false;
    recording.graph = graphs_->end_capture();
    recording.collectives = counted(protocol::Count::collectives) - collectives;
    recording.collective_bytes = counted(protocol::Count::collective_bytes) - bytes;
    recording.state = Recording::State::recorded;
    keep_recent(recording);
  } catch (...) {
    is_capturing_ = false;
    outputs_.record_to(nullptr);
    why_failed_ = graphs_->abandon_capture();
    throw;
  }
  outputs_.record_to(nullptr);
}

}  // namespace syncrun::detail::worker::call
