#pragma once

// Copies of parameters in the type of autocast, for lt::linear. A small model has many parameters, and a kernel for each takes
// about as long as one kernel for all of them.

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <vector>

#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

/// The copies of one thread. In a scope of Autocast, the first read of a parameter converts all parameters of the bound module.
/// Other tensors, and the parameters of large modules, are converted one by one.
class ConvertedParameters {
 public:
  /// A module with more elements has each parameter converted by itself, because lt::linear may read only a few of them.
  static constexpr std::size_t kMostElements = std::size_t{1} << 24U;

  static ConvertedParameters& of_thread();

  /// The parameters are parts of `memory`, in the order of their offsets. Both live until unbind().
  void bind(const std::vector<BoundParameter>& parameters, std::span<const float> memory) noexcept;
  void unbind() noexcept;
  /// The lifetime of the outermost Autocast. Calls can be nested.
  void begin() noexcept { ++depth_; }
  void end() noexcept;
  /// `tensor` in `type`, without a gradient. Both are floating-point types, and autocast converts the one to the other.
  ::torch::Tensor get(const ::torch::Tensor& tensor, ::torch::ScalarType type);

 private:
  /// Undefined if the tensor is not a part of a parameter, if it has changed in this scope, or if its copy would begin at an
  /// address that makes matrix products slow. This depends on nothing that was computed before, so a resumed training has
  /// copies at the same addresses, and the same bits.
  ::torch::Tensor part_of_all(const ::torch::Tensor& tensor, ::torch::ScalarType type);
  void convert(const ::torch::TensorOptions& options, ::torch::ScalarType type);

  const std::vector<BoundParameter>* parameters_ = nullptr;
  std::span<const float> memory_;
  int depth_ = 0;
  ::torch::Tensor all_;                 // undefined until a parameter is read
  std::vector<std::int64_t> versions_;  // of the parameters when they were converted
};

}  // namespace syncrun::libtorch::detail
