#pragma once

// Loss: a loss with other numbers of the same batch. The types of loss functions.

#include <torch/torch.h>

#include <cstdint>
#include <type_traits>

#include "syncrun/arguments.hpp"
#include "syncrun/detail/fields.hpp"
#include "syncrun/detail/signature.hpp"
#include "syncrun/output.hpp"
#include "syncrun/torch/backward.hpp"
#include "syncrun/torch/weighted_loss.hpp"
#include "syncrun/worker.hpp"

namespace syncrun::libtorch {

/// A loss together with other numbers of the same batch. A loss function returns it instead of a tensor:
///
///   struct Numbers { sr::Avg<double> loss; sr::Sum<std::int64_t> correct; };
///   sr::libtorch::Loss<Numbers> loss(Net& net, sr::Scattered<const float, 2> x,
///                                    sr::Scattered<const std::int64_t, 1> y);
///
/// The backward pass starts at `tensor`, which is a WeightedLoss or a SummedLoss if Value says so. The caller of the
/// step gets `numbers`, reduced over all ranks. In averages, a rank and a slice have the weight of their rows, or in a
/// Loss<Numbers, WeightedLoss>, of their count.
template <class Numbers, class Value = ::torch::Tensor>
struct Loss {
  Value tensor;     ///< The loss: one number, where the backward pass starts.
  Numbers numbers;  ///< What the caller gets, for the rows of this rank.
};

namespace detail {

/// What the caller of a step or an evaluation gets for what a loss returns. An evaluation may also return outputs.
template <class R>
struct LossResult {
  using type = R;
};
template <>
struct LossResult<::torch::Tensor> {
  using type = Avg<double>;
};
template <>
struct LossResult<WeightedLoss> {
  using type = WeightedMean;
};
template <>
struct LossResult<SummedLoss> {
  using type = Sum<double>;
};
template <class Numbers, class Value>
struct LossResult<Loss<Numbers, Value>> {
  using type = Numbers;
};
/// The loss without numbers beside it.
template <class R>
struct LossValue {
  using type = R;
};
template <class Numbers, class Value>
struct LossValue<Loss<Numbers, Value>> {
  using type = Value;
};
/// Whether the gradient of the loss is that of a sum, which the step divides.
template <class R>
inline constexpr bool kIsSum = std::is_same_v<typename LossValue<R>::type, WeightedLoss> ||
                               std::is_same_v<typename LossValue<R>::type, SummedLoss>;
template <class R>
inline constexpr bool kIsLoss = kIsSum<R> || std::is_same_v<typename LossValue<R>::type, ::torch::Tensor>;
/// Whether a function returns a loss and nothing else.
template <class R>
inline constexpr bool kIsOnlyLoss = kIsLoss<R> && std::is_same_v<typename LossValue<R>::type, R>;
/// Whether the host reads the count of the loss, as the weight of the numbers beside it.
template <class R>
inline constexpr bool kWaitsForCount = !kIsOnlyLoss<R> && std::is_same_v<typename LossValue<R>::type, WeightedLoss>;

/// The types of a loss function.
template <class F>
struct LossTraits {
  static_assert(sizeof(F) == 0,
                "a loss is a function of a module and of the arguments of a body: torch::Tensor "
                "loss(Net& net, Scattered<const float, 2> x, ...)");
};
template <class R, class Module, class... P>
struct LossTraits<R (*)(Module&, P...)> {
  using Net = Module;
  using Returned = R;
  using Result = typename LossResult<R>::type;
};
template <class R, class Module, class... P>
struct LossTraits<R (*)(Module&, P...) noexcept> : LossTraits<R (*)(Module&, P...)> {};
template <auto kLoss>
using ResultOf = typename LossTraits<decltype(kLoss)>::Result;

/// The collectives among the inputs of a loss. Null if it has none.
template <class... P>
Comm* comm_in(P&... inputs) noexcept {
  Comm* found = nullptr;
  [[maybe_unused]] const auto look_at = [&found](auto& input) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(input)>, Comm>) found = &input;
  };
  (look_at(inputs), ...);
  return found;
}

/// Whether a step or an evaluation of a loss can be captured as a CUDA graph. TorchScript is not captured: it compiles
/// itself anew during its first calls, and may keep tensors that it makes then. Without its optimizer it does not, but a
/// plan that the optimizer has made stays, so the optimizer would have to be off in all calls of the module.
template <class F>
inline constexpr bool kCanReplayLoss = false;
template <class R, class Module, class... P>
inline constexpr bool kCanReplayLoss<R (*)(Module&, P...)> =
    kIsLoss<R> && !kWaitsForCount<R> && !syncrun::detail::kHasKeep<typename LossResult<R>::type> &&
    !std::is_same_v<Module, ::torch::jit::Module>;
template <class R, class Module, class... P>
inline constexpr bool kCanReplayLoss<R (*)(Module&, P...) noexcept> = kCanReplayLoss<R (*)(Module&, P...)>;

/// Whether a step or an evaluation of a loss is captured as a CUDA graph, if that is possible.
template <class F, BackwardOptions kBackward>
inline constexpr bool kIsReplayed =
    kCanReplayLoss<F> && kBackward.replay == Replay::if_possible &&
    kBackward.average == GradientAverage::after_backward && kBackward.check == FiniteCheck::loss;

/// Why such a step or evaluation is not captured.
template <BackwardOptions kBackward>
constexpr const char* why_not_replayed() noexcept {
  if (kBackward.average == GradientAverage::during_backward) return "the gradient is averaged during the backward pass";
  if (kBackward.check == FiniteCheck::gradients) return "FiniteCheck::gradients waits for each gradient";
  return "the loss is one of TorchScript, or returns a WeightedLoss with further numbers, or a Keep";
}

}  // namespace detail

}  // namespace syncrun::libtorch
