#pragma once

// Update rules applied, by a body on its worker: the parameters and the rule's state change in place, in one pass over
// memory. What a rule is: update_rules.hpp. A whole training step: train_step.hpp.

#include <array>
#include <concepts>
#include <memory>
#include <ranges>
#include <string>

#include "syncrun/arguments.hpp"
#include "syncrun/cuda_worker.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/detail/update_work.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/update_rules.hpp"
#include "syncrun/worker.hpp"

namespace syncrun {

/// Applies a rule: `update(worker, Adam{.step = 1}, params, gradient, m, v)`. Params, gradient and state vectors (those
/// that Rule::kState names, in that order) are contiguous ranges of float or double, of equal lengths, none overlapping
/// another: views, vectors, spans; anywhere in memory. In place; the gradient stays. Throws Error (usage) for unequal
/// lengths and for hyperparameters that make no sense.
template <UpdateRule Rule, std::ranges::contiguous_range P, class G, class... S>
void update(CpuWorker& worker, const Rule& rule, P&& params, const G& gradient, S&&... state) {
  detail::update_on(worker.core(), &rule, detail::UpdateWork::RulePlace::host, params, gradient, state...);
}
template <UpdateRule Rule, std::ranges::contiguous_range P, class G, class... S>
void update(CpuWorker& worker, const DeviceScalar<Rule>& rule, P&& params, const G& gradient, S&&... state) {
  update(worker, *rule.data(), params, gradient, state...);
}

/// The same in device memory, in the order of the worker's stream. Fastest where all vectors start at multiples of 16
/// bytes, as variables do. Throws Error (cuda), too.
template <UpdateRule Rule, std::ranges::contiguous_range P, class G, class... S>
void update(CudaWorker& worker, const Rule& rule, P&& params, const G& gradient, S&&... state) {
  detail::update_on(worker.core(), &rule, detail::UpdateWork::RulePlace::host, params, gradient, state...);
}
/// For a replayable body: hyperparameters, and the number of the step, change from call to call. They are not checked.
template <UpdateRule Rule, std::ranges::contiguous_range P, class G, class... S>
void update(CudaWorker& worker, const DeviceScalar<Rule>& rule, P&& params, const G& gradient, S&&... state) {
  detail::update_on(worker.core(), rule.data(), detail::UpdateWork::RulePlace::device, params, gradient, state...);
}

/// Master: the state vectors of a rule for these parameters, zero on every rank: `auto [m, v] = state_for<Adam>(session,
/// weights)`. Named after the parameters: "weights.m" ("weights.m#2" where there is one already). Throws Error: usage (params has no shape yet), system (memory).
template <UpdateRule Rule, class T>
  requires std::same_as<T, float> || std::same_as<T, double>
std::array<Shared<T, 1>, Rule::kState.size()> state_for(Session& session, const Shared<T, 1>& params) {
  const auto make = [&](std::string_view name) {
    Shared<T, 1> vector =
        session.shared<T, 1>(detail::unused_name(*session.core(), params.name() + "." + std::string(name)));
    detail::zero_like(*vector.record(), *params.record(), detail::Zeros::like_all);
    return vector;
  };
  return std::apply([&](auto... name) { return std::array<Shared<T, 1>, Rule::kState.size()>{make(name)...}; },
                    Rule::kState);
}

}  // namespace syncrun
