#pragma once

// UpdateWork: the description of an update() for a device, and its construction from the typed arguments.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>

#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/update_rules.hpp"

namespace syncrun::detail {

inline constexpr std::size_t kMostStateVectors = 3;

/// One update, in place. All arrays are float32 or float64, have `elements` elements, and must not overlap.
struct UpdateWork {
  enum class RulePlace : bool { host, device };

  UpdateKind kind;
  DType dtype;
  const void* rule;  // a struct of update_rules.hpp
  RulePlace place;   // where the struct is
  void* params;
  const void* gradient;
  std::array<void*, kMostStateVectors> state;
  std::size_t elements;
  // For CUDA devices: a plan of parts with their own rates, in device memory (step_plan.hpp). The arrays begin at element
  // `first` of the plan. Empty: no plan.
  std::span<const double> plan{};
  std::int64_t first = 0;
};

/// A contiguous range of elements of type T.
template <class T, class R>
concept VectorOf = std::ranges::contiguous_range<R> && std::same_as<std::ranges::range_value_t<R>, T>;

template <class R>
std::size_t length_of(const R& range) noexcept {
  return static_cast<std::size_t>(std::ranges::size(range));
}

/// Describes an update. Throws Error (usage) if the lengths differ.
template <UpdateRule Rule, std::ranges::contiguous_range P, class G, class... S>
UpdateWork update_work(const Rule* rule, UpdateWork::RulePlace place, P& params, const G& gradient, S&... state) {
  using T = std::ranges::range_value_t<P>;
  static_assert(std::same_as<T, float> || std::same_as<T, double>, "update: parameters are float or double");
  static_assert(VectorOf<T, G> && (VectorOf<T, S> && ...),
                "update: gradient and state have the parameters' element type");
  static_assert(sizeof...(S) == Rule::kState.size(),
                "update: after the gradient come the state vectors that Rule::kState names, each an argument");
  const std::array<std::size_t, sizeof...(S)> lengths{length_of(state)...};
  constexpr UpdateKind kKind = UpdateKindOf<Rule>::value;
  check_update_lengths(kKind, length_of(params), length_of(gradient), lengths, Rule::kState);
  return {.kind = kKind,
          .dtype = dtype_of<T>,
          .rule = rule,
          .place = place,
          .params = std::ranges::data(params),
          .gradient = std::ranges::data(gradient),
          .state = {std::ranges::data(state)...},
          .elements = length_of(params)};
}

template <UpdateRule Rule, std::ranges::contiguous_range P, class G, class... S>
void update_on(CommandLoop& core, const Rule* rule, UpdateWork::RulePlace place, P& params, const G& gradient,
               S&... state) {
  apply_update(core, update_work(rule, place, params, gradient, state...));
}

}  // namespace syncrun::detail
