#include "master/profile/profiler.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>

#include "common/text/errors.hpp"
#include "common/text/joined.hpp"
#include "common/text/numbers.hpp"
#include "common/text/visible_text.hpp"

namespace syncrun::detail::master::profile {

namespace {

std::int64_t now_ns() noexcept { return os::Clock::now().time_since_epoch().count(); }

/// The index of the phase in CallProfile, or kPhases for a phase that belongs to no call.
std::size_t index_of(protocol::Phase phase) noexcept {
  switch (phase) {
    case protocol::Phase::inputs: return 0;
    case protocol::Phase::function: return 1;
    case protocol::Phase::collective: return 2;
    case protocol::Phase::dependencies:
    case protocol::Phase::vote: return 3;
    case protocol::Phase::reduction: return 4;
    case protocol::Phase::spawn:
    case protocol::Phase::attach:
    case protocol::Phase::device:
    case protocol::Phase::communicator:
    case protocol::Phase::close:
    case protocol::Phase::idle: break;
  }
  return Profiler::kPhases;
}

constexpr const char* kProfile = "the profile";
constexpr int kMostMasterRows = 1 << 16;  // the rows of the ranks come after those of the master
constexpr std::array<const char*, 6> kSpanNames{"inputs", "function", "collective", "waiting", "reduction", "other"};
static_assert(kSpanNames.size() == Profiler::kPhases + 1);

std::string us(std::int64_t time_ns, int digits) {
  return text::fixed_text(static_cast<double>(time_ns) / 1000, digits);
}

}  // namespace

// ---- histograms -----------------------------------------------------------------------------------------------

/// Each time below 2^kStepBits has its own bucket.
std::size_t TimeHistogram::bucket_of(std::uint64_t time_ns) noexcept {
  if (time_ns < (1U << kStepBits)) return time_ns;
  const int shift = static_cast<int>(std::bit_width(time_ns)) - 1 - kStepBits;
  const std::uint64_t step = time_ns >> shift;  // from 2^kStepBits to twice that
  return static_cast<std::size_t>((static_cast<std::uint64_t>(shift) << kStepBits) + step);
}

std::uint64_t TimeHistogram::middle_of(std::size_t bucket) noexcept {
  if (bucket < (1U << kStepBits)) return bucket;
  const std::uint64_t shift = (bucket >> kStepBits) - 1;
  const std::uint64_t step = bucket - (shift << kStepBits);
  return (step << shift) + ((std::uint64_t{1} << shift) >> 1U);
}

void TimeHistogram::add(std::int64_t time_ns) {
  time_ns = std::max<std::int64_t>(time_ns, 0);
  const std::size_t bucket = bucket_of(static_cast<std::uint64_t>(time_ns));
  if (bucket >= counts_.size()) counts_.resize(bucket + 1);
  ++counts_[bucket];
  least_ns_ = calls_ == 0 ? time_ns : std::min(least_ns_, time_ns);
  max_ns_ = std::max(max_ns_, time_ns);
  total_ns_ += time_ns;
  ++calls_;
}

PhaseTimes TimeHistogram::times() const noexcept {
  PhaseTimes times{.max = std::chrono::nanoseconds(max_ns_), .total = std::chrono::nanoseconds(total_ns_)};
  std::uint64_t before = 0;
  for (std::size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    before += counts_[bucket];
    if (2 * before < calls_) continue;
    const auto middle = static_cast<std::int64_t>(middle_of(bucket));
    times.median = std::chrono::nanoseconds(std::clamp(middle, least_ns_, max_ns_));
    break;
  }
  return times;
}

// ---- keeping --------------------------------------------------------------------------------------------------

Profiler::Profiler(const settings::Settings& settings, const protocol::Timeline* timelines)
    : world_size_(static_cast<int>(settings.devices.size())),
      profile_path_(settings.profile),
      trace_path_(settings.trace),
      timelines_(timelines),
      start_ns_(now_ns()),
      devices_(settings::device_names(settings)),
      ranks_(settings.devices.size()) {
  // Open the files now, so that an error does not come only after hours of work. This removes what an earlier session
  // wrote.
  if (!profile_path_.empty() && profile_path_ != "-") process::OutputFile(profile_path_, kProfile);
  if (!trace_path_.empty()) open_trace(settings);
}

Profiler::~Profiler() = default;

void Profiler::begin(std::uint64_t id, const std::string& name, const std::vector<std::string>& after) {
  const auto [found, is_new] = functions_.try_emplace(name, names_.size());
  if (is_new) {
    names_.push_back(name);
    escaped_names_.push_back(text::json_escaped(name));
    times_.emplace_back(ranks_.size() + 1);
  }
  const std::string list =
      text::joined(after, ", ", [](const std::string& earlier) { return '"' + text::json_escaped(earlier) + '"'; });
  running_[id] = {found->second, now_ns(), 0, lost_events_, list.empty() ? "" : "\"after\": [" + list + "]"};
}

void Profiler::end(std::uint64_t id, std::optional<std::size_t> moved_bytes) {
  const std::int64_t now = now_ns();
  for (int rank = 0; rank < world_size_; ++rank) read_events(rank);
  Running call = running_.at(id);
  running_.erase(id);
  const bool is_end_known = call.end_ns != 0 && call.lost_events == lost_events_;
  const std::int64_t end = is_end_known ? call.end_ns : now;
  const std::int64_t begin = std::min(call.begin_ns, end);
  Times& times = times_[call.function].front();
  ++times.calls;
  times.whole.add(end - begin);
  note_in_flight(begin, end);
  if (moved_bytes)
    call.details += (call.details.empty() ? R"("bytes": )" : R"(, "bytes": )") + std::to_string(*moved_bytes);
  if (trace_) write_span(row_of_master(begin, end), escaped_names_[call.function], begin, end, call.details);
}

void Profiler::note_in_flight(std::int64_t begin, std::int64_t end) {
  coverage_.add(begin, end);
  std::int64_t first_begin = now_ns();
  for (const auto& [id, call] : running_) first_begin = std::min(first_begin, call.begin_ns);
  coverage_.settle(first_begin);
}

/// Returns a row of the trace in which the master does nothing else at this time. Adds a row if all are busy.
int Profiler::row_of_master(std::int64_t begin, std::int64_t end) {
  const auto is_free = [begin](std::int64_t last_end) { return last_end <= begin; };
  const auto found = std::find_if(master_rows_.begin(), master_rows_.end(), is_free);
  const auto index = static_cast<int>(found - master_rows_.begin());
  if (found != master_rows_.end()) {
    *found = end;
    return index == 0 ? 0 : world_size_ + index;
  }
  master_rows_.push_back(end);
  const int row = world_size_ + index;
  write_row_name(row, "master (" + std::to_string(index + 1) + ")", index);
  return row;
}

Profiler::Times& Profiler::times_of(std::size_t function, int rank) {
  return times_[function][static_cast<std::size_t>(rank) + 1];
}

void Profiler::read_events(int rank) {
  const protocol::Timeline& timeline = timelines_[rank];
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  const std::uint64_t written = timeline.written();
  while (state.read < written) {
    const auto event = timeline.at(state.read);
    if (event && event->progress != protocol::Timeline::kMissing) {
      take(rank, *event);
    } else {
      lost_events_ += event ? static_cast<std::uint64_t>(event->at_ns) : 1;
      state.is_open = false;
    }
    ++state.read;
  }
}

void Profiler::take(int rank, const protocol::TimelineEvent& event) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  const std::uint64_t command = protocol::command_of(event.progress);
  const protocol::Phase phase = protocol::phase_of(event.progress);
  if (state.is_open) end_phase(rank, event.at_ns);
  if (phase == protocol::Phase::idle || phase == protocol::Phase::close) {
    if (state.is_open) end_call(rank, event.at_ns);
    // For a rank of another node, the end of a call comes twice: when it was, and when the master has heard of it.
    else note_end(rank, command, event.at_ns);
    state.is_open = false;
    return;
  }
  if (!state.is_open || command != state.command) {
    state.call_since_ns = event.at_ns;
    state.sums_ns = {};
  }
  state.is_open = true;
  state.command = command;
  state.phase = phase;
  state.phase_since_ns = event.at_ns;
}

void Profiler::end_phase(int rank, std::int64_t now) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  const std::size_t index = index_of(state.phase);
  if (index < kPhases) state.sums_ns[index] += now - state.phase_since_ns;
  write_span(rank + 1, kSpanNames[index], state.phase_since_ns, now);
}

void Profiler::end_call(int rank, std::int64_t now) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  const std::int64_t free_since = std::exchange(state.free_since_ns, now);
  const auto call = running_.find(state.command);
  if (call == running_.end()) return;
  call->second.begin_ns = std::max(call->second.begin_ns, free_since);
  call->second.end_ns = std::max(call->second.end_ns, now);
  const std::size_t function = call->second.function;
  Times& times = times_of(function, rank);
  ++times.calls;
  times.whole.add(now - state.call_since_ns);
  for (std::size_t i = 0; i < kPhases; ++i) times.phases[i].add(state.sums_ns[i]);
  write_span(rank + 1, escaped_names_[function], state.call_since_ns, now);
}

/// The master knows since this time that the rank is done with a command.
void Profiler::note_end(int rank, std::uint64_t command, std::int64_t at_ns) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  state.free_since_ns = std::max(state.free_since_ns, at_ns);
  const auto call = running_.find(command);
  if (call != running_.end()) call->second.end_ns = std::max(call->second.end_ns, at_ns);
}

std::vector<CallProfile> Profiler::calls() const {
  std::vector<CallProfile> result;
  for (std::size_t function = 0; function < names_.size(); ++function) {
    for (int rank = -1; rank < world_size_; ++rank) {
      const Times& times = times_[function][static_cast<std::size_t>(rank) + 1];
      if (times.calls == 0) continue;
      const auto& phases = times.phases;
      result.push_back({names_[function], rank, times.calls, times.whole.times(), phases[0].times(), phases[1].times(),
                        phases[2].times(), phases[3].times(), phases[4].times()});
    }
  }
  return result;
}

// ---- files ----------------------------------------------------------------------------------------------------

// The trace event format of Chrome and Perfetto: an array of complete ("X") events, with times in microseconds. The end
// of the array may be missing. So a trace is readable no matter how the program ends.

void Profiler::open_trace(const settings::Settings& settings) {
  trace_.emplace(trace_path_, "the trace");
  trace_->write("[\n");
  write_row_name(0, "master", 0);
  for (int rank = 0; rank < world_size_; ++rank) {
    const std::string device = text::json_escaped(settings::device_name(settings, rank));
    write_row_name(rank + 1, "rank " + std::to_string(rank) + " (" + device + ")", kMostMasterRows + rank);
  }
}

/// Viewers show the rows in the order of their places.
void Profiler::write_row_name(int row, const std::string& name, int place) {
  const std::string front = R"({"ph": "M", "pid": 1, "tid": )" + std::to_string(row);
  trace_->write(front + R"(, "name": "thread_name", "args": {"name": ")" + name + "\"}},\n" + front +
                R"(, "name": "thread_sort_index", "args": {"sort_index": )" + std::to_string(place) + "}},\n");
}

void Profiler::write_span(int row, const std::string& name, std::int64_t begin_ns, std::int64_t end_ns,
                          const std::string& details) {
  if (!trace_) return;
  trace_->write(R"({"ph": "X", "pid": 1, "tid": )" + std::to_string(row) + ", \"ts\": " + us(begin_ns - start_ns_, 3) +
                ", \"dur\": " + us(end_ns - begin_ns, 3) + ", \"name\": \"");
  trace_->write(name + (details.empty() ? "\"" : "\", \"args\": {" + details + "}") + "},\n");
}

std::string Profiler::profile_text() const {
  const std::vector<CallProfile> all = calls();
  if (profile_path_.ends_with(".json")) return profile_json(all, devices_, coverage_, lost_events_);
  const std::string table = syncrun::to_string(all);
  if (lost_events_ == 0) return table;
  return table + std::to_string(lost_events_) + " events came too fast to be read, and are missing\n";
}

void Profiler::close() {
  if (is_closed_) return;
  is_closed_ = true;
  // Phases that workers were in when the session ended appear in the trace, but do not count in the profile.
  const std::int64_t now = now_ns();
  for (int rank = 0; rank < world_size_; ++rank) {
    read_events(rank);
    const RankState& state = ranks_[static_cast<std::size_t>(rank)];
    if (!state.is_open) continue;
    write_span(rank + 1, kSpanNames[index_of(state.phase)], state.phase_since_ns, now);
    const auto call = running_.find(state.command);
    if (call != running_.end()) write_span(rank + 1, escaped_names_[call->second.function], state.call_since_ns, now);
  }
  if (!profile_path_.empty()) {
    const std::string text = profile_text();
    if (profile_path_ != "-") {
      process::OutputFile file(profile_path_, kProfile);
      file.write(text);
      file.close();
    } else if (std::fputs(text.c_str(), stderr) < 0 || std::fflush(stderr) != 0) {
      text::throw_errno("cannot write the profile " + profile_path_, errno);
    }
  }
  if (trace_) {
    trace_->write("{\"ph\": \"M\", \"pid\": 1, \"name\": \"process_name\", \"args\": {\"name\": \"syncrun\"}}\n]\n");
    trace_->close();
  }
}

}  // namespace syncrun::detail::master::profile

namespace syncrun {

namespace {

std::string padded(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string in_us(const PhaseTimes& times) {
  return detail::master::profile::us(times.median.count(), 1) + " / " +
         detail::master::profile::us(times.max.count(), 1);
}

}  // namespace

std::string to_string(std::span<const CallProfile> calls) {
  constexpr std::size_t kWidth = 20;
  std::string text = "median / max in us    calls";
  for (const char* phase : {"whole", "inputs", "function", "collective", "waiting", "reduction"}) {
    text += padded(phase, kWidth);
  }
  text += '\n';
  const std::string* name = nullptr;
  for (const CallProfile& call : calls) {
    if (name == nullptr || *name != call.name) text += call.name + "\n";
    name = &call.name;
    std::string who = call.rank < 0 ? "  master" : "  rank " + std::to_string(call.rank);
    who.resize(std::max<std::size_t>(who.size(), 18), ' ');
    text += who + padded(std::to_string(call.calls), 9) + padded(in_us(call.whole), kWidth);
    if (call.rank >= 0) {
      for (const PhaseTimes* phase : {&call.inputs, &call.function, &call.collective, &call.waiting, &call.reduction}) {
        text += padded(in_us(*phase), kWidth);
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace syncrun
