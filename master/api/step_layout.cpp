#include "syncrun/detail/step_layout.hpp"

#include <algorithm>
#include <map>
#include <utility>

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
};

}  // namespace

class KeptParts {
 public:
  void keep(const StepVectors& vectors, std::span<const StepPart> layout, std::int64_t steps) {
    const auto pieces = pieces_of_plan(vectors.plan, layout.empty() ? 0 : layout.back().end);
    for (const StepPart& each : layout) {
      KeptPart part{{}, cut_plan(pieces, each.begin, each.end, -each.begin), steps};
      const auto at = [&](std::int64_t element) { return element * static_cast<std::int64_t>(vectors.element_bytes); };
      for (const auto& vector : vectors.state)
        part.state.emplace_back(vector.begin() + at(each.begin), vector.begin() + at(each.end));
      parts_.insert_or_assign(each.id, std::move(part));
    }
  }
  StepVectors take(const StepVectors& before, const StepLayout& layout, std::int64_t steps) {
    StepVectors after{before.element_bytes, {}, {}, before.non_finite};
    const std::int64_t elements = layout.after.empty() ? 0 : layout.after.back().end;
    after.state.assign(before.state.size(),
                       std::vector<std::byte>(static_cast<std::size_t>(elements) * before.element_bytes));
    std::vector<PlanPiece> pieces;
    for (const StepPart& each : layout.after) {
      const auto found = parts_.find(each.id);
      if (found == parts_.end()) {
        if (each.begin != each.end)
          pieces.push_back({each.begin, each.end, {.steps_before = static_cast<double>(steps)}});
        continue;
      }
      const KeptPart& part = found->second;
      for (std::size_t i = 0; i < part.state.size(); ++i) {
        std::copy(part.state[i].begin(), part.state[i].end(),
                  after.state[i].begin() + each.begin * static_cast<std::int64_t>(before.element_bytes));
      }
      for (PlanPiece piece : cut_plan(part.pieces, 0, each.end - each.begin, each.begin)) {
        piece.part.steps_before += static_cast<double>(steps - part.steps);
        pieces.push_back(piece);
      }
      parts_.erase(found);
    }
    std::erase_if(parts_, [&](const auto& part) {
      return std::find(layout.ids.begin(), layout.ids.end(), part.first) == layout.ids.end();
    });
    const bool is_plain =
        std::all_of(pieces.begin(), pieces.end(), [](const auto& each) { return each.part == PlanPart(); });
    if (!before.plan.empty() || !is_plain) {
      after.plan = numbers_of_plan(before.plan.empty() ? 0 : before.plan[StepPlan::kClipNorm], before.non_finite,
                                   joined(pieces));
    }
    return after;
  }

 private:
  std::map<std::int64_t, KeptPart> parts_;  // by id
};

StepVectors move_parts(std::shared_ptr<KeptParts>& kept, const StepVectors& before, const StepLayout& layout,
                       std::int64_t steps) {
  if (!kept) kept = std::make_shared<KeptParts>();
  kept->keep(before, layout.before, steps);
  return kept->take(before, layout, steps);
}

}  // namespace syncrun::detail
