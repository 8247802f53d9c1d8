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
    states_.add(protocol_.initial());
    note_new(kNone, {});
    for (std::uint32_t end = 0; end < states_.size() && report_.wrong.empty();) {
      const std::uint32_t begin = end;
      end = std::min(begin + kTogether, states_.size());
      for (std::uint32_t at = begin; at < end; ++at) take_steps(at);
      for (const Next& next : next_) states_.prefetch(next.state);
      for (const Next& next : next_) add(next);
      next_.clear();
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

  using Store = StateStore<State, Protocol::kPartBytes>;
  /// A state to which a step leads, or the end of a run.
  struct Next {
    std::uint32_t from;
    Step step;
    typename Store::Prepared state;
    bool is_broken;
    bool is_end;
  };
  /// The successors of so many states are looked up together, because a look-up waits for memory.
  static constexpr std::uint32_t kTogether = 16;

  void take_steps(std::uint32_t at) {
    const State state = states_[at];
    const std::size_t before = next_.size();
    protocol_.for_each_step(state, [&](const State& next, Step step) {
      next_.push_back({at, step, states_.prepare(next, at), next.broken != 0, false});
    });
    if (next_.size() == before) next_.push_back({at, {}, {}, false, true});
  }

  void add(const Next& next) {
    if (!report_.wrong.empty()) return;
    while (first_successors_.size() <= next.from)
      first_successors_.push_back(static_cast<std::uint32_t>(successors_.size()));
    if (next.is_end) {
      ++report_.ends;
      if (!protocol_.is_proper_end(states_[next.from]))
        fail(next.from, "deadlock: nobody can go on, and it is no proper end");
      return;
    }
    const Found found = states_.add(next.state);
    if (found.is_new) note_new(next.from, next.step);
    ++arrivals_[found.number];
    successors_.push_back(found.number);
    if (next.is_broken) fail(found.number, Protocol::describe_broken(states_[found.number]));
  }

  void note_new(std::uint32_t from, Step step) {
    origins_.push_back({from, step});
    arrivals_.push_back(0);
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
  Store states_;
  std::vector<Next> next_;
  std::vector<Origin> origins_;
  std::vector<std::uint32_t> arrivals_;          // by state: the number of steps that lead to it
  std::vector<std::uint32_t> first_successors_;  // by state: the index of its first successor in successors_
  std::vector<std::uint32_t> successors_;
  Report report_;
};

}  // namespace model
