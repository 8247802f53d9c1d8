#include "master/nodes/remote_timelines.hpp"

#include <algorithm>
#include <string_view>

#include "common/os/memory_limit.hpp"
#include "common/os/wait.hpp"

namespace syncrun::detail::master::nodes {

namespace {

protocol::Timeline& timeline_of(const protocol::ControlBlock& control, const os::Segment& segment, int rank) noexcept {
  return segment.at<protocol::Timeline>(control.header().timelines_offset)[rank];
}

protocol::RankTotals& totals_of(const protocol::ControlBlock& control, const os::Segment& segment, int rank) noexcept {
  return segment.at<protocol::RankTotals>(control.header().totals_offset)[rank];
}

/// Reserves the elements of this node's ranks in an array by rank.
void reserve(const os::Segment& segment, std::uint64_t array, std::size_t each, const protocol::NodePlace& place,
             std::string_view what) {
  if (array == 0) return;
  const std::size_t bytes = each * static_cast<std::size_t>(place.local_size);
  os::check_memory_available(bytes, what);
  segment.reserve(array + each * static_cast<std::size_t>(place.first_rank), bytes, what);
}

struct SentEvent {
  std::uint64_t progress;
  std::int64_t after_ns;  // the begin of its command
};

/// The most events in one message, so that all of them and what the master adds fit into its timeline.
constexpr std::uint64_t kMostSent = protocol::Timeline::kEvents - 256;

}  // namespace

void reserve_timelines(const os::Segment& segment, const protocol::ControlHeader& header) {
  reserve(segment, header.timelines_offset, sizeof(protocol::Timeline), header.place, "the timelines of a profile");
  reserve(segment, header.totals_offset, sizeof(protocol::RankTotals), header.place, "the totals of metrics");
}

// ---- the agent ------------------------------------------------------------------------------------------------

TimelineSender::TimelineSender(const protocol::ControlBlock& control, const os::Segment& segment)
    : control_(control), segment_(segment), ranks_(static_cast<std::size_t>(control.place().local_size)) {}

void TimelineSender::put(MessageWriter& to, int rank) {
  if (control_.header().totals_offset != 0)
    to.put(totals_of(control_, segment_, rank).read(os::Clock::now().time_since_epoch().count()));
  if (control_.header().timelines_offset == 0) return;
  RankState& state = ranks_[static_cast<std::size_t>(control_.place().local_rank(rank))];
  const protocol::Timeline& timeline = timeline_of(control_, segment_, rank);
  const std::uint64_t written = timeline.written();
  std::vector<SentEvent> events;
  for (; state.read < written; ++state.read) {
    const auto event = written - state.read > kMostSent ? std::nullopt : timeline.at(state.read);
    if (!event) {  // it was overwritten, or others have come since then
      if (events.empty() || events.back().progress != protocol::Timeline::kMissing)
        events.push_back({protocol::Timeline::kMissing, 0});
      ++events.back().after_ns;
      continue;
    }
    const std::uint64_t command = protocol::command_of(event->progress);
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

TimelineReceiver::TimelineReceiver(protocol::ControlBlock control, const os::Segment& segment)
    : control_(control),
      segment_(segment),
      ranks_(static_cast<std::size_t>(control.world_size())),
      sent_(ranks_.size()) {}

void TimelineReceiver::note_sent(const protocol::Command& command) {
  if (!are_kept()) return;
  const auto now = os::Clock::now();
  const os::MutexLock lock(mutex_);
  for (const int rank : command.ranks) {
    if (!control_.place().has(rank)) sent_[static_cast<std::size_t>(rank)].push_back({command.id, now});
  }
}

/// A rank runs its commands in the order in which they were sent.
void TimelineReceiver::begin(int rank, std::uint64_t command) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  state.command = command;
  state.begin = state.free_since;
  const os::MutexLock lock(mutex_);
  std::deque<Sent>& sent = sent_[static_cast<std::size_t>(rank)];
  while (!sent.empty() && sent.front().command <= command) {
    if (sent.front().command == command) state.begin = std::max(state.begin, sent.front().at);
    sent.pop_front();
  }
}

void TimelineReceiver::take(MessageReader& from, int rank) {
  if (control_.header().totals_offset != 0) totals_of(control_, segment_, rank).store(from.get<protocol::TotalsNow>());
  if (!are_kept()) return;
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  protocol::Timeline& timeline = timeline_of(control_, segment_, rank);
  const auto now = os::Clock::now();
  for (const SentEvent& event : from.get_list<SentEvent>()) {
    if (event.progress == protocol::Timeline::kMissing) {
      timeline.add(event.progress, event.after_ns);
      continue;
    }
    if (protocol::command_of(event.progress) != state.command) begin(rank, protocol::command_of(event.progress));
    // Clocks of different nodes may not go at exactly the same speed.
    const auto at = std::min(state.begin + std::chrono::nanoseconds(event.after_ns), now);
    timeline.add(event.progress, at.time_since_epoch().count());
    const protocol::Phase phase = protocol::phase_of(event.progress);
    if (phase != protocol::Phase::idle && phase != protocol::Phase::close) continue;
    state.free_since = at;
    timeline.add(event.progress, now.time_since_epoch().count());  // now the master knows of it
  }
}

}  // namespace syncrun::detail::master::nodes
