#include "common/arrays/update.hpp"

#include <cmath>
#include <string>
#include <type_traits>

#include "common/arrays/update_arithmetic.hpp"
#include "common/text/errors.hpp"
#include "common/text/numbers.hpp"

namespace syncrun::detail {

namespace {

/// Calls f with the rule, in its own type.
template <class F>
void with_rule(UpdateKind kind, const void* rule, F&& f) {
  arrays::with_rule_type(kind, [&]<class Rule>(std::type_identity<Rule>) { f(*static_cast<const Rule*>(rule)); });
}

// ---- the pass over the elements -------------------------------------------------------------------------------

/// The arrays do not overlap, so the compiler generates vector code. Every cache line that is written was read before,
/// so stores that bypass the caches would save nothing.
template <class Rule, class T>
[[gnu::always_inline]] inline void update_all(const Rule& rule, std::size_t elements, T* __restrict params,
                                              const T* __restrict gradient, T* __restrict first, T* __restrict second,
                                              T* __restrict third) {
  const arrays::UpdateStep<Rule, T> step(rule);
  for (std::size_t i = 0; i < elements; ++i) {
    T p = params[i];
    if constexpr (Rule::kState.size() == 0) {
      step(p, gradient[i], nullptr);
    } else if constexpr (Rule::kState.size() == 1) {
      step(p, gradient[i], first + i);
    } else if constexpr (Rule::kState.size() == 2) {
      T state[2] = {first[i], second[i]};
      step(p, gradient[i], state);
      first[i] = state[0];
      second[i] = state[1];
    } else {
      T state[3] = {first[i], second[i], third[i]};
      step(p, gradient[i], state);
      first[i] = state[0];
      second[i] = state[1];
      third[i] = state[2];
    }
    params[i] = p;
  }
}

template <class Rule, class T>
void update_plainly(const Rule& rule, std::size_t elements, T* params, const T* gradient, T* first, T* second,
                    T* third) {
  update_all<Rule, T>(rule, elements, params, gradient, first, second, third);
}

#if defined(__x86_64__)
/// update_all with AVX2. Square roots and divisions of four floats at a time are slower than memory, but those of eight
/// are not. (adam, with one worker on a Zen 3: 31 GB/s with four and 40 GB/s with eight. memcpy reaches 32 GB/s.) The
/// compiler does not fuse multiplications and additions (see CMakeLists.txt), so the bits are the same.
template <class Rule, class T>
[[gnu::target("avx2")]] void update_widely(const Rule& rule, std::size_t elements, T* params, const T* gradient,
                                           T* first, T* second, T* third) {
  update_all<Rule, T>(rule, elements, params, gradient, first, second, third);
}
#endif

template <class T, class Rule>
void update_with(const Rule& rule, const UpdateWork& work) {
  auto* update = &update_plainly<Rule, T>;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) update = &update_widely<Rule, T>;
#endif
  update(rule, work.elements, static_cast<T*>(work.params), static_cast<const T*>(work.gradient),
         static_cast<T*>(work.state[0]), static_cast<T*>(work.state[1]), static_cast<T*>(work.state[2]));
}

// ---- checks ---------------------------------------------------------------------------------------------------

class RuleCheck {
 public:
  explicit RuleCheck(UpdateKind kind) noexcept : kind_(kind) {}

  /// The comparisons are written so that NaN is refused.
  void from_zero(const char* name, double value) const {
    if (!(value >= 0) || std::isinf(value)) complain(name, "a finite number of at least 0", number_text(value));
  }
  void fraction(const char* name, double value) const {
    if (!(value >= 0) || !(value < 1)) complain(name, "from 0 to below 1", number_text(value));
  }
  void step(std::int64_t step) const {
    if (step < 1) complain("step", "the number of this update, from 1", std::to_string(step));
  }
  void nesterov(const SgdMomentum& rule) const {
    if (rule.momentum == 0 || rule.dampening != 0)
      text::throw_usage("sgd_momentum: nesterov requires a momentum above 0 and no dampening, got the momentum " +
                        number_text(rule.momentum) + " and the dampening " + number_text(rule.dampening));
  }

 private:
  void complain(const char* name, const char* expected, const std::string& got) const {
    text::throw_usage(std::string(arrays::to_string(kind_)) + ": " + name + " is " + expected + ", got " + got);
  }
  UpdateKind kind_;
};

/// Whether the result depends on the number of the step.
template <class Rule>
bool needs_step(const Rule& rule) noexcept {
  if constexpr (requires { rule.dampening; }) return rule.dampening != 0;
  else if constexpr (requires { rule.learning_rate_decay; }) return rule.learning_rate_decay != 0;
  else return requires { rule.step; };
}

template <class Rule>
void check(const RuleCheck& check, const Rule& rule) {
  check.from_zero("learning_rate", rule.learning_rate);
  check.from_zero("weight_decay", rule.weight_decay);
  if constexpr (requires { rule.momentum; }) check.fraction("momentum", rule.momentum);
  if constexpr (requires { rule.dampening; }) {
    check.fraction("dampening", rule.dampening);
    if (rule.nesterov) check.nesterov(rule);
  }
  if constexpr (requires { rule.decay; }) check.fraction("decay", rule.decay);
  if constexpr (requires { rule.epsilon; }) check.from_zero("epsilon", rule.epsilon);
  if constexpr (requires { rule.initial_accumulator; }) {
    check.from_zero("learning_rate_decay", rule.learning_rate_decay);
    check.from_zero("initial_accumulator", rule.initial_accumulator);
  }
  if constexpr (requires { rule.beta1; }) {
    check.fraction("beta1", rule.beta1);
    check.fraction("beta2", rule.beta2);
  }
  if constexpr (requires { rule.momentum_decay; }) check.from_zero("momentum_decay", rule.momentum_decay);
  if constexpr (requires { rule.decoupled_weight_decay; })
    check.from_zero("decoupled_weight_decay", rule.decoupled_weight_decay);
  if constexpr (requires { rule.step; }) {
    if (needs_step(rule)) check.step(rule.step);
  }
}

}  // namespace

}  // namespace syncrun::detail

namespace syncrun::detail::arrays {

void update_elements(const UpdateWork& work) {
  with_rule(work.kind, work.rule, [&](const auto& rule) {
    if (work.dtype == DType::float64) update_with<double>(rule, work);
    else update_with<float>(rule, work);
  });
}

std::string_view to_string(UpdateKind kind) noexcept {
  switch (kind) {
    case UpdateKind::sgd: return "sgd";
    case UpdateKind::sgd_momentum: return "sgd_momentum";
    case UpdateKind::momentum: return "momentum";
    case UpdateKind::nesterov: return "nesterov";
    case UpdateKind::adagrad: return "adagrad";
    case UpdateKind::rmsprop: return "rmsprop";
    case UpdateKind::rmsprop_momentum: return "rmsprop_momentum";
    case UpdateKind::centered_rmsprop: return "centered_rmsprop";
    case UpdateKind::centered_rmsprop_momentum: return "centered_rmsprop_momentum";
    case UpdateKind::adadelta: return "adadelta";
    case UpdateKind::adam: return "adam";
    case UpdateKind::amsgrad: return "amsgrad";
    case UpdateKind::nadam: return "nadam";
    case UpdateKind::radam: return "radam";
    case UpdateKind::adamax: return "adamax";
    case UpdateKind::lion: return "lion";
    case UpdateKind::moving_average: return "moving_average";
  }
  return "an unknown rule";
}

}  // namespace syncrun::detail::arrays

namespace syncrun::detail {

void check_update_rule(UpdateKind kind, const void* rule) {
  with_rule(kind, rule, [kind](const auto& known) { check(RuleCheck(kind), known); });
}

void check_update_lengths(UpdateKind kind, std::size_t params, std::size_t gradient, std::span<const std::size_t> state,
                          std::span<const std::string_view> names) {
  const auto complain = [&](const std::string& name, std::size_t got) {
    text::throw_usage("update (" + std::string(arrays::to_string(kind)) + "): " + name + " has " + std::to_string(got) +
                      " elements, but params has " + std::to_string(params));
  };
  if (gradient != params) complain("gradient", gradient);
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (state[i] != params) {
      complain("state vector " + std::to_string(i) + " (" + std::string(names[i]) + ")", state[i]);
    }
  }
}

}  // namespace syncrun::detail
