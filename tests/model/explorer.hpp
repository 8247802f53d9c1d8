#pragma once

// Visits every state that a protocol can reach, breadth first. So a counterexample is one of the shortest.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/model/state_store.hpp"

namespace model {

struct Report {
  std::size_t states = 0;
  std::size_t steps = 0;
  std::size_t ends = 0;
  std::string wrong;               // empty if all properties hold
  std::vector<std::string> trace;  // the steps to the state that is wrong
};

inline std::string trace_of(const Report& report) {
  std::string text = report.wrong;
  for (const auto& step : report.trace) text += "\n  " + step;
  return text;
}

/// A Protocol has the types State, Step and Scenario, the first state, all steps from a state, and the proper ends. The
/// state has `broken`, which is not 0 if a property does not hold.
template <class Protocol>
class Explorer {
  using State = typename Protocol::State;
  using Step = typename Protocol::Step;

 public:
  explicit Explorer(const typename Protocol::Scenario& scenario) : protocol_(scenario) {}

  Report explore() {
    add(protocol_.initial(), kNone, {});
    for (std::uint32_t at = 0; at < states_.size() && report_.wrong.empty(); ++at) {
      const State state = states_[at];
      first_successors_.push_back(static_cast<std::uint32_t>(successors_.size()));
      bool has_successor = false;
      const auto visit = [&](const State& next, Step step) {
        has_successor = true;
        if (!report_.wrong.empty()) return;
        const std::uint32_t to = add(next, at, step);
        ++arrivals_[to];
        successors_.push_back(to);
        if (next.broken != 0) fail(to, Protocol::describe_broken(next));
      };
      protocol_.for_each_step(state, visit);
      if (has_successor || !report_.wrong.empty()) continue;
      ++report_.ends;
      if (!protocol_.is_proper_end(state)) fail(at, "deadlock: nobody can go on, and it is no proper end");
    }
    if (report_.wrong.empty()) check_that_every_run_ends();
    report_.states = states_.size();
    report_.steps = successors_.size();
    return report_;
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Origin {
    std::uint32_t from;
    Step step;
  };

  std::uint32_t add(const State& state, std::uint32_t from, Step step) {
    const Found found = from == kNone ? states_.add(state) : states_.add(state, from);
    if (found.is_new) {
      origins_.push_back({from, step});
      arrivals_.push_back(0);
    }
    return found.number;
  }

  /// Removes states that no remaining state leads to, from the first state on. If all states can be removed, the graph
  /// has no cycle. A cycle would be a run without an end.
  void check_that_every_run_ends() {
    first_successors_.push_back(static_cast<std::uint32_t>(successors_.size()));
    std::vector<std::uint32_t> free{0};
    std::size_t taken = 0;
    while (!free.empty()) {
      const std::uint32_t at = free.back();
      free.pop_back();
      ++taken;
      for (std::size_t i = first_successors_[at]; i < first_successors_[at + 1U]; ++i) {
        if (--arrivals_[successors_[i]] == 0) free.push_back(successors_[i]);
      }
    }
    if (taken != states_.size()) report_.wrong = "livelock: there is a run without an end";
  }

  void fail(std::uint32_t at, std::string_view what) {
    report_.wrong = what;
    for (; at != 0; at = origins_[at].from) report_.trace.push_back(protocol_.describe(origins_[at].step));
    std::reverse(report_.trace.begin(), report_.trace.end());
  }

  Protocol protocol_;
  StateStore<State, Protocol::kPartBytes> states_;
  std::vector<Origin> origins_;
  std::vector<std::uint32_t> arrivals_;          // by state: the number of steps that lead to it
  std::vector<std::uint32_t> first_successors_;  // by state: the index of its first successor in successors_
  std::vector<std::uint32_t> successors_;
  Report report_;
};

}  // namespace model
