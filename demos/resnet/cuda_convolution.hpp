#pragma once

// One convolution of a residual network on a CUDA device, through cuDNN's graphs: forward, and backward for the input and
// for the filter, each by the fastest of cuDNN's plans. Needs no CUDA header.

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "demos/resnet/architecture.hpp"

struct CUstream_st;
struct cudnnContext;

namespace resnet {

/// The element type of activations and filters on CUDA devices, and how they are multiplied. Sums are float32 always.
enum class CudaMath {
  kFloat32,   // float32 as it is
  kTf32,      // float32, rounded to TF32 when multiplied
  kBfloat16,  // bfloat16
};

/// Bytes of an element.
constexpr std::size_t element_bytes(CudaMath math) { return math == CudaMath::kBfloat16 ? 2 : 4; }

/// What of a convolution is computed.
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

/// Device memory: images are [rows, size, size, channels], filters [channels_out, kernel, kernel, channels_in].
struct ConvPlace {
  void* input;   // or its gradient, where that is computed
  void* filter;  // or its gradient
  void* output;  // or its gradient
  void* workspace;
};

/// Memory for tuning that anything may be written to: each as large as the array.
struct TuningMemory {
  ConvPlace place;
  std::size_t workspace_bytes;
};

/// The plan of one pass of one convolution. Only plans that give the same bits each time.
class ConvPlan {
 public:
  /// Measures the plans that cuDNN proposes on the stream, which it waits for, and keeps the fastest. Throws
  /// std::runtime_error where cuDNN has none, with its own text.
  ConvPlan(cudnnContext* cudnn, CUstream_st* stream, const ConvShape& shape, ConvPass pass, CudaMath math,
           const TuningMemory& tuning);
  ConvPlan(ConvPlan&&) noexcept;
  ~ConvPlan();

  /// Puts the work on the stream of the handle. Can be captured.
  void run(cudnnContext* cudnn, const ConvPlace& place) const;
  double microseconds() const noexcept { return microseconds_; }  // as measured
  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }

 private:
  struct Graph;
  template <class Status>
  bool is_refused(Status status);
  void choose(cudnnContext* cudnn, CUstream_st* stream, const TuningMemory& tuning, const std::string& what);

  std::unique_ptr<Graph> graph_;
  std::string refusal_;  // why the last proposal that could not be taken was not
  double microseconds_ = 0;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace resnet
