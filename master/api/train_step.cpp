// The master's side of train steps: the checks before anything is published.

#include "syncrun/train_step.hpp"

#include <algorithm>

#include "common/arrays/row_range.hpp"
#include "common/text/errors.hpp"
#include "master/records/variables.hpp"
#include "master/session/session_core.hpp"

namespace syncrun::detail {

namespace {

/// What is known of the copies now. There is no wait before the check that uses it is over; the call checks again that
/// the copies are there.
const master::records::CopyFacts& facts_of(const master::records::VariableRecord& variable) {
  return variable.copies(variable.session->commands().settled());
}

std::string length_text(const master::records::VariableRecord& variable, std::size_t rank) {
  return "'" + variable.name + "' has " + std::to_string(facts_of(variable).extents[rank][0]) + " elements on rank " +
         std::to_string(rank);
}

}  // namespace

void check_step_params(const master::records::VariableRecord& params, const std::optional<ParameterRange>& range) {
  const master::records::CopyFacts& facts = facts_of(params);
  if (!facts.assigned.all()) {
    const master::session::SessionCore& session = *params.session;
    text::throw_usage("train_step: " +
                      master::records::not_assigned(params, params.session->commands().settled(), session.all_ranks()));
  }
  for (std::size_t rank = 1; rank < facts.extents.size(); ++rank) {
    if (facts.extents[rank] == facts.extents[0]) continue;
    text::throw_usage("train_step: parameters are equally long on all ranks, but " + length_text(params, 0) + " and " +
                      length_text(params, rank));
  }
  if (!range || (range->begin >= 0 && range->begin <= range->end && range->end <= facts.extents[0][0])) return;
  text::throw_usage("train_step: the range of the step, the elements " + std::to_string(range->begin) + " to " +
                    std::to_string(range->end) + ", is not within the parameters: " + length_text(params, 0));
}

bool is_as_long_as(const master::records::VariableRecord& variable, const master::records::VariableRecord& other) {
  return facts_of(variable).extents == facts_of(other).extents;
}

bool is_gone_somewhere(const master::records::VariableRecord& variable, const master::records::VariableRecord& params) {
  const master::records::AssignedRanks& own = facts_of(variable).assigned;
  const master::records::AssignedRanks& wanted = facts_of(params).assigned;
  for (const int rank : variable.session->all_ranks()) {
    const auto at = static_cast<std::size_t>(rank);
    if (!own.has(at) && wanted.has(at)) return true;
  }
  return false;
}

void check_step_variables(const master::records::VariableRecord& params,
                          const master::records::VariableRecord& gradient,
                          std::span<const master::records::VariableRecord* const> state, StepForm form,
                          const std::optional<ParameterRange>& range) {
  check_step_params(params, range);
  const std::int64_t elements = range ? range->end - range->begin : facts_of(params).extents[0][0];
  const std::int64_t world_size = params.session->world_size();
  const auto check = [&](const master::records::VariableRecord& variable, bool is_shared_out) {
    const std::vector<Extents>& extents = facts_of(variable).extents;
    for (std::size_t rank = 0; rank < extents.size(); ++rank) {
      const std::int64_t wanted =
          is_shared_out ? arrays::share_of(elements, world_size, static_cast<std::int64_t>(rank)).count() : elements;
      if (extents[rank][0] == wanted) continue;
      text::throw_usage("train_step: " + length_text(variable, rank) + ", expected " + std::to_string(wanted) +
                        ": the step trains " + std::to_string(elements) + " elements of '" + params.name + "'" +
                        (is_shared_out ? ", of which it is a share" : ""));
    }
  };
  check(gradient, false);
  for (const auto* vector : state) check(*vector, form == StepForm::sharded);
}

}  // namespace syncrun::detail
