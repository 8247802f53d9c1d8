#pragma once

// How a protocol names its next states.

#include <type_traits>

namespace model {

/// Refers to a function that is called with each state that a step leads to.
template <class State, class Step>
class BasicVisit {
 public:
  template <class Function>
    requires(!std::is_same_v<Function, BasicVisit>)
  BasicVisit(const Function& function) noexcept  // NOLINT(google-explicit-constructor)
      : function_(&function),
        call_([](const void* to, const State& next, Step step) { (*static_cast<const Function*>(to))(next, step); }) {}
  void operator()(const State& next, Step step) const { call_(function_, next, step); }

 private:
  const void* function_;
  void (*call_)(const void*, const State&, Step);
};

}  // namespace model
