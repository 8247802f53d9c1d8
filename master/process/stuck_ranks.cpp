#include "master/process/stuck_ranks.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <utility>

#include "common/text/errors.hpp"
#include "common/text/numbers.hpp"

namespace syncrun::detail::master::process {

namespace {

// The limit for the stacks of all ranks together, because the error waits for them.
constexpr std::chrono::milliseconds kStacksLimit{500};

/// How likely it is that other ranks wait for this rank. The most likely is first.
enum class Activity : std::uint8_t { stopped, busy, reducing, waiting, over };

Activity activity_of(const RankState& state) noexcept {
  if (!state.takes_part || state.has_finished || !state.end.empty()) return Activity::over;
  if (state.stop_signal != 0) return Activity::stopped;
  const bool meets_others = state.phase == "collective" || state.phase == "vote" || state.phase == "communicator";
  if (meets_others && !state.is_behind) return Activity::waiting;
  return state.phase == "reduction" ? Activity::reducing : Activity::busy;
}

std::string in_seconds(std::chrono::milliseconds age) {
  return text::fixed_text(static_cast<double>(age.count()) / 1000, 1) + " s";
}

std::string line_of(const RankState& state) {
  std::string line =
      "rank " + std::to_string(state.rank) + " (" + state.device + ", pid " + std::to_string(state.pid) + ") ";
  if (!state.end.empty()) return line + "is gone: " + state.end;
  if (!state.takes_part) line += "takes no part, ";
  line += (state.has_finished ? "has finished, " : "") + describe_phase(state);
  if (!state.call.empty()) line += (state.phase == "idle" ? ", before call '" : ", call '") + state.call + "'";
  if (state.tracer != 0) line += ", traced by process " + std::to_string(state.tracer);
  // For a rank that has nothing to do, this time would mean nothing.
  if (state.no_progress_for.count() > 0 && !state.has_finished) {
    line += ", no progress for " + in_seconds(state.no_progress_for);
  }
  return line;
}

}  // namespace

int culprit_of(const std::vector<RankState>& states) noexcept {
  const auto comes_before = [](const RankState& a, const RankState& b) { return activity_of(a) < activity_of(b); };
  const auto first = std::ranges::min_element(states, comes_before);
  if (first == states.end() || activity_of(*first) == Activity::over) return -1;
  return static_cast<int>(first - states.begin());
}

void take_stacks(std::vector<RankState>& states) {
  const auto of = [&](auto holds) {
    std::vector<RankState*> wanted;
    for (auto& state : states) {
      if (holds(activity_of(state))) wanted.push_back(&state);
    }
    return wanted;
  };
  auto stuck = of([](Activity standing) { return standing < Activity::waiting; });
  if (stuck.empty()) stuck = of([](Activity standing) { return standing == Activity::waiting; });
  // Most likely culprits first, in case there is no time for all.
  std::ranges::stable_sort(stuck, [](const auto* a, const auto* b) { return activity_of(*a) < activity_of(*b); });
  std::vector<int> pids;
  for (const RankState* state : stuck) pids.push_back(state->pid);
  auto stacks = native_stacks(pids, kStacksLimit);
  for (std::size_t i = 0; i < stuck.size(); ++i) {
    stuck[i]->stack = std::move(stacks[i].lines);
    stuck[i]->no_stack = std::move(stacks[i].problem);
  }
}

void put_stacks(std::vector<RankState>& states, std::vector<NativeStack> stacks) {
  for (std::size_t i = 0; i < states.size(); ++i) {
    states[i].stack = std::move(stacks[i].lines);
    states[i].no_stack = std::move(stacks[i].problem);
  }
}

std::string stop_suffix(int signal) {
  if (signal == 0) return {};
  const std::string name = text::signal_name(signal);
  return ", stopped by " + name.substr(0, name.find(" ("));
}

std::string describe_phase(const RankState& state) {
  return "is in phase " + state.phase + stop_suffix(state.stop_signal);
}

std::string report_of(const std::vector<RankState>& states) {
  std::string report;
  std::string_view said;  // the same reason appears only once
  for (const auto& state : states) {
    report += "\n  " + line_of(state);
    for (const auto& line : state.stack) report += "\n    " + line;
    if (state.no_stack.empty() || state.no_stack == said) continue;
    said = state.no_stack;
    report += "\n    no stack: " + state.no_stack;
  }
  return report;
}

}  // namespace syncrun::detail::master::process
