#pragma once

// Tensors in the memory of a mapped file.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libtorch/safetensors_header.hpp"

namespace syncrun::libtorch::detail {

/// The element type of LibTorch for one of a file.
::torch::ScalarType scalar_of(StoredType type) noexcept;

/// The elements of a tensor in a file.
struct StoredElements {
  StoredType type;
  std::span<const std::byte> bytes;  // from the first element to the last one
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements
};

/// Returns a tensor that uses the memory of the file, which `file` keeps mapped. Elements that are not aligned are
/// copied. `name` is that of the tensor and its file in messages. Throws Error (usage) if a bool is neither 0 nor 1.
::torch::Tensor tensor_of(const StoredElements& elements, std::shared_ptr<const void> file, const std::string& name);

}  // namespace syncrun::libtorch::detail
