#pragma once

// tensor(): the memory of a view or a value as a tensor of LibTorch. to_channels_last(): the memory format of a module's tensors.

#include <torch/torch.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "syncrun/arguments.hpp"
#include "syncrun/array.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch {

namespace detail {

/// The element type of LibTorch for an element type of Syncrun.
template <class T>
struct ScalarTypeOf {
  static_assert(sizeof(T) == 0,
                "tensor(): expected elements of float, double, float16, bfloat16, int8, int16, int32, int64, uint8 or "
                "bool, the types of every version of LibTorch. Convert the array first");
  static constexpr auto value = ::torch::kFloat32;
};
// clang-format off
template <> struct ScalarTypeOf<float>        { static constexpr auto value = ::torch::kFloat32; };
template <> struct ScalarTypeOf<double>       { static constexpr auto value = ::torch::kFloat64; };
template <> struct ScalarTypeOf<float16>      { static constexpr auto value = ::torch::kFloat16; };
template <> struct ScalarTypeOf<bfloat16>     { static constexpr auto value = ::torch::kBFloat16; };
template <> struct ScalarTypeOf<std::int8_t>  { static constexpr auto value = ::torch::kInt8; };
template <> struct ScalarTypeOf<std::int16_t> { static constexpr auto value = ::torch::kInt16; };
template <> struct ScalarTypeOf<std::int32_t> { static constexpr auto value = ::torch::kInt32; };
template <> struct ScalarTypeOf<std::int64_t> { static constexpr auto value = ::torch::kInt64; };
template <> struct ScalarTypeOf<std::uint8_t> { static constexpr auto value = ::torch::kUInt8; };
template <> struct ScalarTypeOf<bool>         { static constexpr auto value = ::torch::kBool; };
// clang-format on

}  // namespace detail

/// Returns a tensor that uses the memory of a view, without a copy: `tensor(x)` for any array parameter of a body, or
/// for the view of an Array. It is a tensor of the worker's device in a Guard, which Replica makes for a loss, and of
/// the CPU elsewhere. The tensor is valid as long as the memory, for a body's parameters until the body returns. An
/// input (Scattered, Broadcast) is only for reading, although LibTorch has no tensors that are const: all ranks read
/// the same memory.
template <class T, std::size_t N>
[[nodiscard]] ::torch::Tensor tensor(const ArrayView<T, N>& view) {
  using Plain = std::remove_const_t<T>;
  std::array<std::int64_t, N> sizes{};
  for (std::size_t i = 0; i < N; ++i) sizes[i] = view.shape(i);
  return ::torch::from_blob(
      const_cast<Plain*>(view.data()), ::torch::IntArrayRef(sizes.data(), N),
      ::torch::TensorOptions().dtype(detail::ScalarTypeOf<Plain>::value).device(detail::device_here()));
}

/// Returns a value in device memory as a tensor without dimensions, without a copy. A replayed step reads the value of
/// its own call there. Do not write to it.
template <class T>
[[nodiscard]] ::torch::Tensor tensor(const DeviceScalar<T>& value) {
  return tensor(ArrayView<const T, 0>(value.data(), Shape<0>()));
}

/// Converts the parameters and buffers of a module that have four or five dimensions to the memory format channels
/// last, which is the faster one for convolutions in bfloat16 on a GPU. Python's
/// `module.to(memory_format=channels_last)` does the same for four dimensions. Call it at the end of the module's
/// constructor: parameters() keeps the format that a parameter then has. Inputs need the format too.
/// `tensor(x).permute({0, 3, 1, 2})` has it without a copy if the rows are [height, width, channels]. Otherwise use
/// `tensor(x).contiguous(torch::MemoryFormat::ChannelsLast)`.
inline void to_channels_last(::torch::nn::Module& module) {
  const ::torch::NoGradGuard no_gradients;
  const auto convert = [](::torch::Tensor& tensor) {
    if (!tensor.defined() || (tensor.dim() != 4 && tensor.dim() != 5)) return;
    const auto format = tensor.dim() == 4 ? ::torch::MemoryFormat::ChannelsLast : ::torch::MemoryFormat::ChannelsLast3d;
    tensor.set_data(tensor.contiguous(format));
  };
  for (auto& each : module.parameters()) convert(each);
  for (auto& each : module.buffers()) convert(each);
}

}  // namespace syncrun::libtorch
