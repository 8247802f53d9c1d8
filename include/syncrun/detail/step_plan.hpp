#pragma once

// How a train step treats parts of the parameters differently: groups with hyperparameters of their own, the clipping
// of the gradient by its norm, and the division of a gradient that is a sum. The master makes a plan as a list of
// numbers, which the workers get as a shared variable. If a step needs nothing of this, the list is empty.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "syncrun/detail/number_text.hpp"
#include "syncrun/error.hpp"
#include "syncrun/train_step_options.hpp"

namespace syncrun::detail {

/// What is different in a part of the parameters.
struct PlanPart {
  static constexpr double kAsRule = -1;

  double learning_rate = 1;  // a factor
  double weight_decay = 1;   // a factor
  double first = kAsRule;    // beta1, or the momentum
  double beta2 = kAsRule;
  double steps_before = 0;  // in which the part was not trained

  friend bool operator==(const PlanPart&, const PlanPart&) = default;
};

/// The rule of a part.
template <class Rule>
constexpr Rule rule_of_part(Rule rule, const PlanPart& part) noexcept {
  rule.learning_rate *= part.learning_rate;
  rule.weight_decay *= part.weight_decay;
  if constexpr (requires { rule.decoupled_weight_decay; }) rule.decoupled_weight_decay *= part.weight_decay;
  if constexpr (requires { rule.beta1; }) {
    if (part.first >= 0) rule.beta1 = part.first;
    if (part.beta2 >= 0) rule.beta2 = part.beta2;
  } else if constexpr (requires { rule.momentum; }) {
    if (part.first >= 0) rule.momentum = part.first;
  }
  if constexpr (requires { rule.step; }) {
    rule.step -= static_cast<std::int64_t>(part.steps_before);
    if (rule.step < 1) rule.step = 1;  // after a smaller number of set_steps()
  }
  return rule;
}

/// A plan, as a view of its list of numbers: the largest norm, the norm of the last step, the divisor of the gradient,
/// and then seven numbers for each part of the parameters: begin, end, and those of PlanPart. The parts cover all
/// parameters that the step trains. The divisor is 1, or in a step that sums its gradient, the sum of the counts of all ranks.
class StepPlan {
 public:
  explicit StepPlan(std::span<double> numbers) noexcept : numbers_(numbers) {}

  bool is_empty() const noexcept { return numbers_.empty(); }
  /// Whether the gradient is clipped. The length of the list says it, because the numbers can be in a GPU's memory.
  bool is_clipping() const noexcept { return numbers_.size() % kPart != kNotClipping; }
  /// Whether the update is skipped if the norm is not finite.
  bool is_skipping() const noexcept { return numbers_.size() % kPart == kSkipping; }
  double clip_norm() const noexcept { return numbers_[kClipNorm]; }
  void set_norm(double norm) const noexcept { numbers_[kNorm] = norm; }
  double divisor() const noexcept { return numbers_[kDivisor]; }

  /// Calls `use(begin, end, part)` for the intersection of [begin, end) with each part that is not frozen.
  template <class Use>
  void for_each_part(std::int64_t begin, std::int64_t end, Use&& use) const {
    for (std::size_t i = kHead; i + kPart <= numbers_.size(); i += kPart) {
      const auto part_begin = static_cast<std::int64_t>(numbers_[i]);
      const auto part_end = static_cast<std::int64_t>(numbers_[i + 1]);
      const auto from = part_begin > begin ? part_begin : begin;
      const auto to = part_end < end ? part_end : end;
      if (from < to && numbers_[i + 2] != 0) {
        use(from, to, PlanPart{numbers_[i + 2], numbers_[i + 3], numbers_[i + 4], numbers_[i + 5], numbers_[i + 6]});
      }
    }
  }

  // Places in the list.
  static constexpr std::size_t kClipNorm = 0;
  static constexpr std::size_t kNorm = 1;
  static constexpr std::size_t kDivisor = 2;
  static constexpr std::size_t kHead = 3;  // where the first part begins
  static constexpr std::size_t kPart = 7;
  // The length of the list, modulo kPart. It is kHead if the gradient is clipped.
  static constexpr std::size_t kNotClipping = kHead + 1;
  static constexpr std::size_t kSkipping = kHead + 2;

 private:
  std::span<double> numbers_;
};

template <class Rule>
inline constexpr bool kHasMomentum = requires(Rule rule) { rule.momentum; };
template <class Rule>
inline constexpr bool kHasBetas = requires(Rule rule) { rule.beta1; };

/// Which hyperparameters a rule has that a group can replace.
struct GroupFields {
  bool momentum;
  bool betas;
};
template <class Rule>
inline constexpr GroupFields kGroupFields{.momentum = kHasMomentum<Rule>, .betas = kHasBetas<Rule>};

inline void check_group(const ParameterGroup& group, const ParameterRange& range, const GroupFields& fields) {
  const auto text = [&] {
    return "train_step: the group of elements " + std::to_string(group.begin) + " to " + std::to_string(group.end);
  };
  if (group.begin < range.begin || group.end < group.begin || group.end > range.end)
    throw Error(ErrorKind::usage, text() + " is not within the parameters " + std::to_string(range.begin) + " to " +
                                      std::to_string(range.end));
  const auto is_factor = [](double factor) { return std::isfinite(factor) && factor >= 0; };
  if (!is_factor(group.learning_rate) || !is_factor(group.weight_decay))
    throw Error(ErrorKind::usage, text() + " has the factors " + number_text(group.learning_rate) + " and " +
                                      number_text(group.weight_decay) + ", expected finite numbers from 0");
  const auto check_own = [&](const char* name, const std::optional<double>& own, bool is_known) {
    if (!own) return;
    if (!is_known) throw Error(ErrorKind::usage, text() + " has a " + name + ", but the rule has none. Leave it out");
    if (!(*own >= 0 && *own < 1))
      throw Error(ErrorKind::usage,
                  text() + " has the " + name + " " + number_text(*own) + ", expected a number from 0 to below 1");
  };
  check_own("momentum", group.momentum, fields.momentum);
  check_own("beta1", group.beta1, fields.betas);
  check_own("beta2", group.beta2, fields.betas);
}

/// What the body of a step writes: the gradient of a mean over its rows, or of a sum that the step divides.
enum class GradientForm : bool { mean, sum };

/// A part of the parameters, and what is different there.
struct PlanPiece {
  std::int64_t begin;
  std::int64_t end;
  PlanPart part;
};

/// The list of numbers of a plan with these parts. `non_finite` matters if clip_norm is not 0.
inline std::vector<double> numbers_of_plan(double clip_norm, NonFiniteGradient non_finite,
                                           std::span<const PlanPiece> pieces) {
  std::vector<double> numbers{clip_norm, 0, 1};
  for (const auto& [begin, end, part] : pieces) {
    for (const double number : {static_cast<double>(begin), static_cast<double>(end), part.learning_rate,
                                part.weight_decay, part.first, part.beta2, part.steps_before})
      numbers.push_back(number);
  }
  if (clip_norm == 0) numbers.resize(numbers.size() + 1);  // see is_clipping()
  else if (non_finite == NonFiniteGradient::skip) numbers.resize(numbers.size() + 2);
  return numbers;
}
/// The parts of a plan with these numbers. An empty plan has one part.
inline std::vector<PlanPiece> pieces_of_plan(std::span<const double> numbers, std::int64_t elements) {
  if (numbers.empty()) return {{0, elements, {}}};
  std::vector<PlanPiece> pieces;
  for (std::size_t i = StepPlan::kHead; i + StepPlan::kPart <= numbers.size(); i += StepPlan::kPart) {
    pieces.push_back({static_cast<std::int64_t>(numbers[i]),
                      static_cast<std::int64_t>(numbers[i + 1]),
                      {numbers[i + 2], numbers[i + 3], numbers[i + 4], numbers[i + 5], numbers[i + 6]}});
  }
  return pieces;
}

/// Makes the list of numbers. Throws Error (usage) if a group is not within the parameters of the step, if the groups are
/// not in ascending order, or if a number is not valid.
inline std::vector<double> make_step_plan(const TrainStepOptions& options, const ParameterRange& range,
                                          GradientForm form, const GroupFields& fields) {
  const auto& groups = options.groups;
  const double clip_norm = options.clip_norm;
  if (std::isnan(clip_norm) || clip_norm < 0)
    throw Error(ErrorKind::usage,
                "train_step: clip_norm is " + number_text(clip_norm) + ", expected 0 (no clipping) or more");
  if (options.non_finite == NonFiniteGradient::skip && clip_norm == 0)
    throw Error(
        ErrorKind::usage,
        "train_step: NonFiniteGradient::skip needs the norm of the gradient, expected a clip_norm, which can be "
        "infinite");
  if (groups.empty() && clip_norm == 0 && form == GradientForm::mean) return {};
  std::vector<PlanPiece> pieces;
  std::int64_t next = range.begin;
  const auto add = [&](std::int64_t begin, std::int64_t end, const PlanPart& part) {
    if (begin != end) pieces.push_back({begin, end, part});
  };
  for (const ParameterGroup& group : groups) {
    check_group(group, range, fields);
    if (group.begin < next)
      throw Error(ErrorKind::usage, "train_step: a group begins at element " + std::to_string(group.begin) +
                                        ", but the one before it ends at " + std::to_string(next) +
                                        ". List groups in ascending order and without overlaps");
    add(next, group.begin, {});
    add(group.begin, group.end,
        {group.learning_rate, group.weight_decay, group.beta1.value_or(group.momentum.value_or(PlanPart::kAsRule)),
         group.beta2.value_or(PlanPart::kAsRule)});
    next = group.end;
  }
  add(next, range.end, {});
  return numbers_of_plan(clip_norm, options.non_finite, pieces);
}

/// The plans of the ranks, or one for all.
using StepPlans = std::vector<std::vector<double>>;
using GroupsByRank = std::vector<std::vector<ParameterGroup>>;

/// The lists of numbers. `groups` has the groups of each rank; null: all ranks have those of the options.
inline StepPlans make_step_plans(const TrainStepOptions& options, const GroupsByRank* groups,
                                 const ParameterRange& range, GradientForm form, const GroupFields& fields) {
  if (groups == nullptr) return {make_step_plan(options, range, form, fields)};
  StepPlans plans;
  TrainStepOptions of_rank = options;
  for (const auto& own : *groups) {
    of_rank.groups = own;
    plans.push_back(make_step_plan(of_rank, range, form, fields));
  }
  return plans;
}

/// The sum of the squares of the elements that the plan does not freeze. `values` begins at element `first` of the
/// parameters.
template <class T>
double sum_of_squares(const StepPlan& plan, std::int64_t first, std::span<const T> values) noexcept {
  constexpr std::size_t kLanes = 8;  // independent sums, which the processor adds side by side
  double total = 0;
  plan.for_each_part(first, first + static_cast<std::int64_t>(values.size()),
                     [&](std::int64_t begin, std::int64_t end, const PlanPart&) {
                       const auto part = values.subspan(static_cast<std::size_t>(begin - first),
                                                        static_cast<std::size_t>(end - begin));
                       double sums[kLanes] = {};
                       std::size_t i = 0;
                       for (; i + kLanes <= part.size(); i += kLanes) {
                         for (std::size_t lane = 0; lane < kLanes; ++lane) {
                           const auto value = static_cast<double>(part[i + lane]);
                           sums[lane] += value * value;
                         }
                       }
                       for (; i < part.size(); ++i)
                         sums[0] += static_cast<double>(part[i]) * static_cast<double>(part[i]);
                       for (const double sum : sums) total += sum;
                     });
  return total;
}

/// The factor for a gradient of this norm. The formula is that of PyTorch's clip_grad_norm_.
constexpr double clip_factor(double clip_norm, double norm) noexcept {
  constexpr double kEpsilon = 1e-6;
  const double factor = clip_norm / (norm + kEpsilon);
  return factor < 1 ? factor : 1;
}

/// Throws Error (usage) unless a gradient can be divided by the sum of the counts of all ranks.
inline void check_divisor(double count) {
  if (std::isfinite(count) && count > 0) return;
  throw Error(ErrorKind::usage, "train_step: the counts of all ranks and slices add up to " + number_text(count) +
                                    ", expected a finite number above 0: nothing in these rows counts, for example "
                                    "because all targets are ignored. The parameters are as before this step. Leave "
                                    "such rows out");
}

/// Stores the norm of the gradient, and returns the factor that clips the gradient. `squares` is of the gradient before
/// it is divided. If the norm is not finite, returns nothing if the step skips the update then, and otherwise throws
/// Error (usage). This is in a body, so the master throws it as function.
inline std::optional<double> clip_factor(const StepPlan& plan, double squares) {
  const double norm = std::sqrt(squares) / plan.divisor();
  if (!std::isfinite(norm)) {
    plan.set_norm(norm);
    if (plan.is_skipping()) return std::nullopt;
    throw Error(ErrorKind::usage, "train_step: the norm of the gradient is " + number_text(norm) +
                                      ", expected a finite number. The parameters are as before this step");
  }
  plan.set_norm(norm);
  return clip_factor(plan.clip_norm(), norm);
}

}  // namespace syncrun::detail
