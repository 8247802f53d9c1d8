#include "launcher/nodes/remote_timelines.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "common/os/memory_limit.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail {

namespace {

Timeline& timeline_of(const ControlBlock& control, const Segment& segment, int rank) noexcept {
  return segment.at<Timeline>(control.header().timelines_offset)[rank];
}

struct SentEvent {
  std::uint64_t progress;
  std::int64_t after_ns;  // the begin of its command
};

/// The most events in one message, so that all of them and what the master adds fit into its timeline.
constexpr std::uint64_t kMostSent = Timeline::kEvents - 256;

}  // namespace

void reserve_timelines(const Segment& segment, const ControlHeader& header) {
  if (header.timelines_offset == 0) return;
  const auto bytes = sizeof(Timeline) * static_cast<std::size_t>(header.place.local_size);
  const auto begin = header.timelines_offset + sizeof(Timeline) * static_cast<std::size_t>(header.place.first_rank);
  check_memory_available(bytes, "the timelines of a profile");
  while (::fallocate(segment.fd(), 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR)
      throw_errno("cannot reserve " + std::to_string(bytes) + " bytes of shared memory for the timelines of a profile");
  }
}

// ---- the agent ------------------------------------------------------------------------------------------------

TimelineSender::TimelineSender(const ControlBlock& control, const Segment& segment)
    : control_(control), segment_(segment), ranks_(static_cast<std::size_t>(control.header().place.local_size)) {}

void TimelineSender::put(MessageWriter& to, int rank) {
  if (control_.header().timelines_offset == 0) return;
  RankState& state = ranks_[static_cast<std::size_t>(control_.header().place.local_rank(rank))];
  const Timeline& timeline = timeline_of(control_, segment_, rank);
  const std::uint64_t written = timeline.written();
  std::vector<SentEvent> events;
  for (; state.read < written; ++state.read) {
    const auto event = written - state.read > kMostSent ? std::nullopt : timeline.at(state.read);
    if (!event) {  // it was overwritten, or others have come since then
      if (events.empty() || events.back().progress != Timeline::kMissing) events.push_back({Timeline::kMissing, 0});
      ++events.back().after_ns;
      continue;
    }
    const std::uint64_t command = command_of(event->progress);
    if (command == 0) continue;  // the worker was starting, before any command
    if (command != state.command) {
      state.command = command;
      state.begin_ns = event->at_ns;
    }
    events.push_back({event->progress, event->at_ns - state.begin_ns});
  }
  to.put_list(std::span<const SentEvent>(events));
}

// ---- the master -----------------------------------------------------------------------------------------------

TimelineReceiver::TimelineReceiver(ControlBlock control, const Segment& segment)
    : control_(control), segment_(segment), ranks_(static_cast<std::size_t>(control.world_size())) {}

void TimelineReceiver::note_sent(const Command& command) {
  if (!are_kept()) return;
  const auto now = Clock::now();
  const std::lock_guard lock(lock_);
  for (const int rank : command.ranks) {
    if (!control_.header().place.has(rank)) ranks_[static_cast<std::size_t>(rank)].sent.push_back({command.id, now});
  }
}

/// A rank runs its commands in the order in which they were sent.
void TimelineReceiver::begin(RankState& state, std::uint64_t command) {
  state.command = command;
  state.begin = state.free_since;
  const std::lock_guard lock(lock_);
  while (!state.sent.empty() && state.sent.front().command <= command) {
    if (state.sent.front().command == command) state.begin = std::max(state.begin, state.sent.front().at);
    state.sent.pop_front();
  }
}

void TimelineReceiver::take(MessageReader& from, int rank) {
  if (!are_kept()) return;
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  Timeline& timeline = timeline_of(control_, segment_, rank);
  const auto now = Clock::now();
  for (const SentEvent& event : from.get_list<SentEvent>()) {
    if (event.progress == Timeline::kMissing) {
      timeline.add(event.progress, event.after_ns);
      continue;
    }
    if (command_of(event.progress) != state.command) begin(state, command_of(event.progress));
    // Clocks of different nodes may not go at exactly the same speed.
    const auto at = std::min(state.begin + std::chrono::nanoseconds(event.after_ns), now);
    timeline.add(event.progress, at.time_since_epoch().count());
    const Phase phase = phase_of(event.progress);
    if (phase != Phase::idle && phase != Phase::close) continue;
    state.free_since = at;
    timeline.add(event.progress, now.time_since_epoch().count());  // now the master knows of it
  }
}

}  // namespace syncrun::detail
