#include "syncrun/detail/step_layout.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "common/text/errors.hpp"
#include "master/records/variables.hpp"
#include "master/session/session_core.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/detail/step_plan.hpp"

namespace syncrun::detail {

namespace {

/// The parts of the plan within [begin, end), moved by `distance`.
std::vector<PlanPiece> cut_plan(std::span<const PlanPiece> pieces, std::int64_t begin, std::int64_t end,
                                std::int64_t distance) {
  std::vector<PlanPiece> cut;
  for (const PlanPiece& each : pieces) {
    const std::int64_t from = std::max(begin, each.begin);
    const std::int64_t to = std::min(end, each.end);
    if (from < to) cut.push_back({from + distance, to + distance, each.part});
  }
  return cut;
}

/// The same plan with fewer parts.
std::vector<PlanPiece> joined(std::span<const PlanPiece> pieces) {
  std::vector<PlanPiece> joined;
  for (const PlanPiece& each : pieces) {
    if (!joined.empty() && joined.back().end == each.begin && joined.back().part == each.part)
      joined.back().end = each.end;
    else joined.push_back(each);
  }
  return joined;
}

/// The state and the plan of a parameter that a step has trained.
struct KeptPart {
  std::vector<std::vector<std::byte>> state;
  std::vector<PlanPiece> pieces;  // from the first element of the parameter
  std::int64_t steps;             // of the step, when it trained the parameter last
  std::int64_t elements;
};

}  // namespace

class KeptParts {
 public:
  void keep(const StepVectors& vectors, std::span<const StepPart> layout, std::int64_t steps) {
    const ParameterRange& range = vectors.range;
    const auto pieces = pieces_of_plan(vectors.plan, range.end);
    for (const StepPart& each : layout) {
      if (!is_in(range, each)) continue;
      KeptPart part{{}, cut_plan(pieces, each.begin, each.end, -each.begin), steps, each.end - each.begin};
      const auto at = [&](std::int64_t element) {
        return (element - range.begin) * static_cast<std::int64_t>(vectors.element_bytes);
      };
      for (const auto& vector : vectors.state)
        part.state.emplace_back(vector.begin() + at(each.begin), vector.begin() + at(each.end));
      parts_.insert_or_assign(each.id, std::move(part));
    }
  }
  StepVectors take(const StepVectors& before, const StepLayout& layout, std::int64_t steps) {
    const ParameterRange& range = layout.range;
    StepVectors after{before.element_bytes, {}, {}, before.non_finite, nullptr, range};
    const std::int64_t elements = range.end - range.begin;
    after.state.assign(before.state.size(),
                       std::vector<std::byte>(static_cast<std::size_t>(elements) * before.element_bytes));
    std::vector<PlanPiece> pieces;
    for (const StepPart& each : layout.after) {
      if (!is_in(range, each)) continue;
      const auto found = parts_.find(each.id);
      // A tensor that has another size is another parameter.
      if (found == parts_.end() || found->second.elements != each.end - each.begin) {
        if (each.begin != each.end)
          pieces.push_back({each.begin, each.end, {.steps_before = static_cast<double>(steps)}});
        continue;
      }
      const KeptPart& part = found->second;
      for (std::size_t i = 0; i < part.state.size(); ++i) {
        std::ranges::copy(part.state[i], after.state[i].begin() + (each.begin - range.begin) *
                                                                      static_cast<std::int64_t>(before.element_bytes));
      }
      for (PlanPiece piece : cut_plan(part.pieces, 0, each.end - each.begin, each.begin)) {
        piece.part.steps_before += static_cast<double>(steps - part.steps);
        pieces.push_back(piece);
      }
      parts_.erase(found);
    }
    std::erase_if(parts_,
                  [&](const auto& part) { return std::ranges::find(layout.ids, part.first) == layout.ids.end(); });
    const bool is_plain = std::ranges::all_of(pieces, [](const auto& each) { return each.part == PlanPart(); });
    if (!before.plan.empty() || !is_plain) {
      after.plan = numbers_of_plan(before.plan.empty() ? 0 : before.plan[StepPlan::kClipNorm], before.non_finite,
                                   joined(pieces));
    }
    return after;
  }

 private:
  static bool is_in(const ParameterRange& range, const StepPart& part) {
    return range.begin <= part.begin && part.end <= range.end;
  }

  std::map<std::int64_t, KeptPart> parts_;  // by id
};

StepVectors move_parts(const StepVectors& before, const StepLayout& layout, std::int64_t steps) {
  const std::int64_t elements = before.range.end - before.range.begin;
  for (const auto& vector : before.state) {
    if (vector.size() == static_cast<std::size_t>(elements) * before.element_bytes) continue;
    text::throw_usage("change: a state of the step has " + std::to_string(vector.size() / before.element_bytes) +
                      " elements, expected " + std::to_string(elements) + ", as many as its parameters");
  }
  auto kept = before.kept ? std::make_shared<KeptParts>(*before.kept) : std::make_shared<KeptParts>();
  kept->keep(before, layout.before, steps);
  StepVectors after = kept->take(before, layout, steps);
  after.kept = std::move(kept);
  return after;
}

std::int64_t layout_of(const master::records::VariableRecord& params) { return params.layout; }

void check_layout(const master::records::VariableRecord& params, std::int64_t layout, const std::string& name) {
  if (params.layout == layout) return;
  text::throw_usage(
      "train_step: '" + params.name + "' was laid out anew by change() without the step '" + name +
      "', whose state and range are those of the old layout. Pass the step to change(), or make it again");
}

void raise_layout(master::records::VariableRecord& params) { ++params.layout; }

}  // namespace syncrun::detail
