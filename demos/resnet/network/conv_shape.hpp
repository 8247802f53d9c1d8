#pragma once

// Describes a convolution of a residual network on a CUDA device: its shape, its passes and its arithmetic.

#include <compare>
#include <cstddef>

namespace resnet {

/// The element type of activations and filters on CUDA devices, and how they are multiplied. Sums are always float32.
enum class CudaMath {
  kFloat32,   // float32, not rounded when multiplied
  kTf32,      // float32, rounded to TF32 when multiplied
  kBfloat16,  // bfloat16
};

/// Bytes of an element.
constexpr std::size_t element_bytes(CudaMath math) { return math == CudaMath::kBfloat16 ? 2 : 4; }

/// The part of a convolution that is computed: its output, or one of its gradients.
enum class ConvPass { kForward, kBackwardInput, kBackwardFilter };
inline constexpr std::size_t kConvPasses = 3;

/// A convolution's shape, with the number of rows.
struct ConvShape {
  std::size_t rows;
  std::size_t channels_in;
  std::size_t channels_out;
  std::size_t size_in;  // height and width
  std::size_t kernel;
  std::size_t stride;
  std::size_t padding;

  std::size_t size_out() const { return (size_in + 2 * padding - kernel) / stride + 1; }
  auto operator<=>(const ConvShape&) const = default;
};

}  // namespace resnet
