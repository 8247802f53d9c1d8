#pragma once

// Sharded: a part of a model whose parameters are divided among the ranks, and gathered while it computes.

#include <torch/torch.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "syncrun/torch/recompute.hpp"
#include "syncrun/torch/units_interface.hpp"

namespace syncrun::libtorch {

/// A module M as a unit of a ShardedReplica: a part of a model whose parameters are together on a device only while it
/// computes. Use it for parts that repeat, such as the blocks of a transformer. It has the names of M, and is constructed
/// as M, or with a Reshard before M's arguments:
///
///   blocks->push_back(std::make_shared<lt::Sharded<Block>>(config));
///   blocks->push_back(std::make_shared<lt::Sharded<Block>>(lt::Reshard::recompute, config));
///
/// M is a class derived from torch::nn::Module with one function `forward`, which takes tensors and values and returns a
/// tensor, or a std::tuple or std::vector of tensors. The constructor of M sets the initial values, because afterwards,
/// the rank has only its part of them. Outside of `forward`, the parameters cannot be used: call this class's forward(),
/// not M's. Inputs and outputs must not be changed in place, neither by M nor by the caller. All ranks must run the same
/// units in the same order, also ranks without rows. Units may contain units. In any other program or replica, the class
/// is the same as M.
template <class M, class Forward = decltype(&M::forward)>
class Sharded;

/// The unit for a `forward` of this type.
template <class M, class C, class R, class... P>
class Sharded<M, R (C::*)(P...)> : public M, public detail::UnitHolder {
  static_assert(std::is_base_of_v<::torch::nn::Module, M>,
                "Sharded<M>: M is a class derived from torch::nn::Module: Sharded<torch::nn::LinearImpl>");

 public:
  /// Constructs M with these arguments.
  template <class... A>
    requires(std::constructible_from<M, A...> &&
             (!std::derived_from<std::remove_cvref_t<A>, detail::UnitHolder> && ...))
  explicit Sharded(A&&... arguments) : Sharded(Reshard::keep, std::forward<A>(arguments)...) {}
  template <class... A>
    requires(std::constructible_from<M, A...> &&
             (!std::derived_from<std::remove_cvref_t<A>, detail::UnitHolder> && ...))
  explicit Sharded(Reshard reshard, A&&... arguments) : M(std::forward<A>(arguments)...), detail::UnitHolder(reshard) {
    divide(*this);
  }

  /// Computes M::forward with the whole parameters.
  R forward(P... arguments) {
    if (!is_divided()) return M::forward(std::forward<P>(arguments)...);
    const auto of_module = [this](const std::remove_cvref_t<P>&... again) -> R { return M::forward(again...); };
    return detail::TensorResult<std::remove_cvref_t<R>>::of(
        run(detail::tensors_in(arguments...),
            detail::TensorCall<decltype(of_module), std::remove_cvref_t<P>...>(of_module, arguments...)));
  }
};
/// The same if `forward` is const.
template <class M, class C, class R, class... P>
class Sharded<M, R (C::*)(P...) const> : public Sharded<M, R (C::*)(P...)> {
 public:
  using Sharded<M, R (C::*)(P...)>::Sharded;
};

}  // namespace syncrun::libtorch
