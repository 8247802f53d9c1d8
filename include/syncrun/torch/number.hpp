#pragma once

// number(): one number of a tensor as a result of a body, without a wait for the device.

#include <torch/torch.h>

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "syncrun/output.hpp"
#include "syncrun/torch/tensor.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch {

/// What number() returns. It converts to Avg, Sum, Min, Max and Prod of one number.
class Number {
 public:
  /// A program calls number().
  explicit Number(::torch::Tensor tensor) : tensor_(std::move(tensor)) { detail::check_number(tensor_); }

  /// The result. On a CUDA device, it is a copy in device memory, which the worker reads after the body.
  template <Reduction kReduction, Element T>
  operator Output<kReduction, T, 0>() const {  // NOLINT(google-explicit-constructor): {number(loss), number(correct)}
    constexpr auto kType = detail::ScalarTypeOf<T>::value;
    if (!tensor_.is_cpu()) {
      return Output<kReduction, T, 0>::in_device_memory(static_cast<const T*>(detail::keep_number(tensor_, kType)));
    }
    if constexpr (std::integral<T>) return static_cast<T>(tensor_.item<std::int64_t>());
    else return static_cast<T>(static_cast<Wide<T>>(tensor_.item<double>()));
  }

 private:
  template <class T>
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

  ::torch::Tensor tensor_;
};

/// One number that a loss or a body returns beside others, from a tensor with one element:
///
///   return {value, {lt::number(value), lt::number(correct)}};
///
/// It does not wait for the device, in contrast to `value.item<double>()`. So a step with such numbers can be replayed on
/// CUDA devices (docs/libtorch.md, "Replay"). The number is that of this moment, in the type of the result. Called in a
/// loss, or in a body with a Guard. Throws Error (usage) if the tensor does not have exactly one element.
[[nodiscard]] inline Number number(::torch::Tensor tensor) { return Number(std::move(tensor)); }

}  // namespace syncrun::libtorch
