#pragma once

// Copies of parameters in the type of autocast, for lt::linear. A model has many small parameters, so a kernel for each takes
// much longer than one for all of them.

#include <torch/torch.h>

#include <cstdint>
#include <set>
#include <span>

namespace syncrun::libtorch::detail {

/// The copies of one thread. One conversion of all parameters serves a scope of Autocast if lt::linear has read at least half
/// of them in the scope before. Otherwise each parameter that it reads is converted by itself.
class ConvertedParameters {
 public:
  static ConvertedParameters& of_thread();

  /// Parameters that are bound from now on are parts of this array. It lives until the next bind().
  void bind(std::span<const float> parameters);
  /// For the lifetime of the outermost Autocast: parameters do not change between begin() and end().
  void begin() noexcept { ++depth_; }
  void end() noexcept;
  /// `tensor` in `type`, without a gradient. Both are floating-point types, and autocast converts the one to the other.
  ::torch::Tensor get(const ::torch::Tensor& tensor, ::torch::ScalarType type);

 private:
  /// Where the tensor begins in the array. -1 if it is not a part of it, or if its copy would be at an address that makes
  /// matrix products slow.
  std::int64_t offset_of(const ::torch::Tensor& tensor, ::torch::ScalarType type) const;
  void forget() noexcept;

  std::span<const float> parameters_;
  int depth_ = 0;
  std::set<std::int64_t> read_;  // offsets, in this scope
  std::int64_t elements_read_ = 0;
  bool are_most_read_ = false;  // in the scope before
  ::torch::Tensor all_;         // undefined until a parameter is read
};

}  // namespace syncrun::libtorch::detail
