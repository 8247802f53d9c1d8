// The master's side of train steps: the checks before anything is published.

#include "syncrun/train_step.hpp"

#include <algorithm>

#include "common/arrays/rows.hpp"
#include "common/text/errors.hpp"
#include "launcher/session/session_core.hpp"
#include "launcher/variables/variables.hpp"

namespace syncrun::detail {

namespace {

std::string length_text(const VariableRecord& variable, std::size_t rank) {
  return "'" + variable.name + "' has " + std::to_string(variable.extents[rank][0]) + " elements on rank " +
         std::to_string(rank);
}

}  // namespace

void check_step_params(const VariableRecord& params) {
  if (!params.assigned.all()) {
    throw_usage("train_step: " + not_assigned(params, RankSet::all(static_cast<int>(params.extents.size()))));
  }
  for (std::size_t rank = 1; rank < params.extents.size(); ++rank) {
    if (params.extents[rank] == params.extents[0]) continue;
    throw_usage("train_step: parameters are equally long on all ranks, but " + length_text(params, 0) + " and " +
                length_text(params, rank));
  }
}

bool is_as_long_as(const VariableRecord& variable, const VariableRecord& params) noexcept {
  return variable.extents == params.extents;
}

bool is_gone_somewhere(const VariableRecord& variable, const VariableRecord& params) noexcept {
  for (std::size_t rank = 0; rank < variable.extents.size(); ++rank) {
    if (!variable.assigned.has(rank) && params.assigned.has(rank)) return true;
  }
  return false;
}

void check_step_variables(const VariableRecord& params, const VariableRecord& gradient,
                          std::span<const VariableRecord* const> state, StepForm form) {
  check_step_params(params);
  const std::int64_t elements = params.extents[0][0];
  const auto world_size = static_cast<std::int64_t>(params.extents.size());
  const auto check = [&](const VariableRecord& variable, bool is_shared_out) {
    for (std::size_t rank = 0; rank < variable.extents.size(); ++rank) {
      const std::int64_t wanted =
          is_shared_out ? share_of(elements, world_size, static_cast<std::int64_t>(rank)).count() : elements;
      if (variable.extents[rank][0] == wanted) continue;
      throw_usage("train_step: " + length_text(variable, rank) + ", expected " + std::to_string(wanted) + ": '" +
                  params.name + "' has " + std::to_string(elements) +
                  (is_shared_out ? ", of which it is a share" : ""));
    }
  };
  check(gradient, false);
  for (const auto* vector : state) check(*vector, form == StepForm::sharded);
}

}  // namespace syncrun::detail
