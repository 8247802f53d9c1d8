#pragma once

// A body calls update() to apply an update rule. update() changes the parameters and the rule's state in place, in one
// pass over memory. update_rules.hpp has the rules. train_step.hpp has a whole training step.

#include <array>
#include <concepts>
#include <memory>
#include <ranges>
#include <string>

#include "syncrun/arguments.hpp"
#include "syncrun/cuda_worker.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/detail/update_work.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/update_rules.hpp"
#include "syncrun/worker.hpp"

namespace syncrun {

/// Applies a rule: `update(worker, Adam{.step = 1}, params, gradient, m, v)`. Changes the parameters and the state in
/// place, and leaves the gradient as it is. `state` lists the state vectors in the order of Rule::kState. Every vector
/// is a contiguous range of float or double: a view, a vector or a span. All vectors must have the same length and must
/// not overlap. Throws Error (usage) if the lengths differ, or if a hyperparameter is not valid.
template <UpdateRule Rule, std::ranges::contiguous_range P, class G, class... S>
void update(CpuWorker& worker, const Rule& rule, P&& params, const G& gradient, S&&... state) {
  detail::update_on(detail::HandleAccess::command_loop(worker), &rule, detail::UpdateWork::RulePlace::host, params,
                    gradient, state...);
}
template <UpdateRule Rule, std::ranges::contiguous_range P, class G, class... S>
void update(CpuWorker& worker, const DeviceScalar<Rule>& rule, P&& params, const G& gradient, S&&... state) {
  update(worker, rule.value(), params, gradient, state...);
}

/// Applies a rule to vectors in device memory, in the order of the worker's stream. The update is fastest if all
/// vectors start at multiples of 16 bytes. Shared variables always start at multiples of 16 bytes. Throws the same
/// errors as above. Throws also Error (cuda).
template <UpdateRule Rule, std::ranges::contiguous_range P, class G, class... S>
void update(CudaWorker& worker, const Rule& rule, P&& params, const G& gradient, S&&... state) {
  detail::update_on(detail::HandleAccess::command_loop(worker), &rule, detail::UpdateWork::RulePlace::host, params,
                    gradient, state...);
}
/// Applies a rule that is in device memory. Replayable bodies use this overload. Such a body is recorded once as a CUDA
/// graph, and later calls replay the recording (see replayable() in replayable.hpp). The GPU reads the rule at
/// every call, so the hyperparameters and the number of the step may change from call to call. update() does not check
/// them.
template <UpdateRule Rule, std::ranges::contiguous_range P, class G, class... S>
void update(CudaWorker& worker, const DeviceScalar<Rule>& rule, P&& params, const G& gradient, S&&... state) {
  detail::update_on<Rule>(detail::HandleAccess::command_loop(worker), rule.data(),
                          detail::UpdateWork::RulePlace::device, params, gradient, state...);
}

/// Makes the state vectors that a rule needs for these parameters: `auto [m, v] = state_for<Adam>(session, weights)`.
/// Called by the master. The vectors are zero on every rank. The name of a vector is "weights.m", or "weights.m#2" if
/// another variable has that name. Throws Error: usage (the parameters have no shape yet), system (not enough memory).
template <UpdateRule Rule, class T>
  requires std::same_as<T, float> || std::same_as<T, double>
std::array<Shared<T, 1>, Rule::kState.size()> state_for(Session& session, const Shared<T, 1>& params) {
  const auto make = [&](std::string_view name) {
    Shared<T, 1> vector = session.shared<T, 1>(
        detail::unused_name(*detail::HandleAccess::core(session), params.name() + "." + std::string(name)));
    detail::zero_like(*detail::record_of(vector), *detail::record_of(params), detail::Zeros::like_all);
    return vector;
  };
  return std::apply([&](auto... name) { return std::array<Shared<T, 1>, Rule::kState.size()>{make(name)...}; },
                    Rule::kState);
}

}  // namespace syncrun
