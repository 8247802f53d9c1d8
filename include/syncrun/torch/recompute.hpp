#pragma once

// checkpoint(): a part of a loss whose intermediate results are computed again in the backward pass.

#include <torch/torch.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "syncrun/torch/units_interface.hpp"

namespace syncrun::libtorch {

namespace detail {

template <class T>
inline constexpr bool kIsTensor = std::is_same_v<std::remove_cvref_t<T>, ::torch::Tensor>;

/// Whether a value has tensors in it, which would not be seen.
template <class T>
inline constexpr bool kHoldsTensors = !kIsTensor<T> && (std::is_convertible_v<const T&, ::torch::TensorList> ||
                                                        std::is_same_v<T, c10::optional<::torch::Tensor>>);

/// The tensors among the arguments of a call.
template <class... A>
Tensors tensors_in(const A&... arguments) {
  Tensors tensors;
  const auto look_at = [&](const auto& argument) {
    if constexpr (kIsTensor<decltype(argument)>) tensors.push_back(argument);
  };
  (look_at(arguments), ...);
  return tensors;
}

/// The results of a function as a list of tensors, and back.
template <class R>
struct TensorResult {
  static_assert(kIsTensor<R>, "expected a function that returns a tensor, a std::tuple or a std::vector of tensors");
  static Tensors listed(R result) { return {std::move(result)}; }
  static R of(Tensors tensors) { return std::move(tensors.front()); }
};
template <>
struct TensorResult<Tensors> {
  static Tensors listed(Tensors result) { return result; }
  static Tensors of(Tensors tensors) { return tensors; }
};
template <class... T>
struct TensorResult<std::tuple<T...>> {
  static_assert((kIsTensor<T> && ...), "expected a std::tuple of tensors");
  static Tensors listed(const std::tuple<T...>& result) {
    return std::apply([](const auto&... each) { return Tensors{each...}; }, result);
  }
  static std::tuple<T...> of(const Tensors& tensors) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::tuple<T...>(tensors[I]...);
    }(std::index_sequence_for<T...>{});
  }
};

/// A call of `function` with these arguments, as a function of the tensors among them. It copies the others.
template <class F, class... A>
class TensorCall {
  static_assert((!kHoldsTensors<std::remove_cvref_t<A>> && ...),
                "expected tensors and values as arguments. Pass each tensor of a vector or an optional by itself");

 public:
  using R = std::invoke_result_t<F&, const std::remove_cvref_t<A>&...>;

  explicit TensorCall(F function, const A&... arguments)
      : function_(std::move(function)), others_(kept(arguments)...) {}
  Tensors operator()(const Tensors& tensors) {
    return TensorResult<std::remove_cvref_t<R>>::listed([&]<std::size_t... I>(std::index_sequence<I...>) -> R {
      return std::invoke(function_, argument<I>(tensors)...);
    }(std::index_sequence_for<A...>{}));
  }

 private:
  template <class T>
  using Kept = std::conditional_t<kIsTensor<T>, std::monostate, std::remove_cvref_t<T>>;
  template <class T>
  static Kept<T> kept(const T& argument) {
    if constexpr (kIsTensor<T>) return {};
    else return argument;
  }
  template <std::size_t kIndex>
  const auto& argument(const Tensors& tensors) const {
    if constexpr (kIsTensor<std::tuple_element_t<kIndex, std::tuple<A...>>>) {
      constexpr std::array<bool, sizeof...(A)> kAre{kIsTensor<A>...};
      std::size_t before = 0;
      for (std::size_t i = 0; i < kIndex; ++i) before += kAre[i] ? 1 : 0;
      return tensors[before];
    } else {
      return std::get<kIndex>(others_);
    }
  }

  F function_;
  std::tuple<Kept<A>...> others_;
};

}  // namespace detail

/// Computes `function(inputs...)`. The graph keeps the inputs only, and the backward pass calls the function again. This
/// saves the memory of what the function would keep for the backward pass, and costs its time once more:
///
///   for (auto& block : net.blocks) x = lt::checkpoint([&](const torch::Tensor& x) { return block->forward(x); }, x);
///
/// The function takes tensors and values, which must fit `inputs`, and returns a tensor, or a std::tuple or std::vector
/// of tensors. It must compute the same both times, and what it refers to must live until the backward pass: modules,
/// not variables of a loop. Random numbers, Autocast and a Guard are as in the first call. BatchNorm updates its running
/// statistics twice, as in PyTorch. Works in a body and outside of one. Steps with it were not replayed on CUDA devices.
///
/// Throws what the function throws. The backward pass throws Error (usage) if it is to record a graph (create_graph), and
/// in torch::autograd::grad, because it adds to the gradients of the parameters that the function uses.
/// Source: T. Chen, B. Xu, C. Zhang and C. Guestrin, Training Deep Nets with Sublinear Memory Cost, 2016.
template <class F, class... Inputs>
auto checkpoint(F function, const Inputs&... inputs) {
  using Call = detail::TensorCall<F, Inputs...>;
  return detail::TensorResult<std::remove_cvref_t<typename Call::R>>::of(
      detail::run_repeatedly({Call(std::move(function), inputs...)}, detail::tensors_in(inputs...)));
}

}  // namespace syncrun::libtorch
