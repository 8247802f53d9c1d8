#pragma once

// One convolution of a residual network on a CUDA device, computed by cuDNN's graphs: forward, and backward for the
// input and for the filter. Each pass uses the fastest of cuDNN's plans, or a plan that was chosen before. This header
// needs no CUDA header.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "demos/resnet/network/conv_plans.hpp"
#include "demos/resnet/network/conv_shape.hpp"

struct CUstream_st;
struct cudnnContext;

namespace resnet {

/// The arrays of a convolution, in device memory. Images are [rows, size, size, channels]. Filters are [channels_out,
/// kernel, kernel, channels_in].
struct ConvPlace {
  void* input;   // or its gradient, if the pass computes that
  void* filter;  // or its gradient, if the pass computes that
  void* output;  // or its gradient, in a backward pass
  void* workspace;
};

/// Memory for measuring plans, which overwrite it. Each part must be as large as the array that it stands for.
struct TuningMemory {
  ConvPlace place;
  std::size_t workspace_bytes;
};

/// Describes the current device and the versions of the libraries, for lists of plans. Throws std::runtime_error if
/// CUDA or cuDNN fails.
PlanPlace plan_place();

/// The names of the plans that cuDNN proposes for a convolution on this device, best first. Plans that do not give the
/// same bits each time, or that cuDNN cannot build, are left out. Throws std::runtime_error if cuDNN fails.
std::vector<std::string> proposed_plans(cudnnContext* cudnn, const PlanKey& key);

/// The plan of one pass of one convolution. It gives the same bits each time.
class ConvPlan {
 public:
  /// Measures the plans that cuDNN proposes, and keeps the fastest. Measures on the stream and waits for it. Throws
  /// std::runtime_error with cuDNN's text if cuDNN has no plan.
  ConvPlan(cudnnContext* cudnn, CUstream_st* stream, const PlanKey& key, const TuningMemory& tuning);
  /// Takes the plan with the name in `stored`, and measures it. Throws std::runtime_error if cuDNN does not propose it,
  /// or if the workspace is too small for it.
  ConvPlan(cudnnContext* cudnn, CUstream_st* stream, const PlanKey& key, const TuningMemory& tuning,
           const PlanChoice& stored);
  ConvPlan(ConvPlan&&) noexcept;
  ~ConvPlan();

  /// Puts the work on the stream of the handle. The work can be captured into a CUDA graph.
  void run(cudnnContext* cudnn, const ConvPlace& place) const;
  double microseconds() const noexcept { return microseconds_; }  // as measured
  std::size_t workspace_bytes() const noexcept { return choice_.workspace_bytes; }
  const PlanChoice& choice() const noexcept { return choice_; }

 private:
  struct Graph;
  template <class Status>
  bool is_refused(Status status);
  bool find(cudnnContext* cudnn, CUstream_st* stream, const PlanKey& key, const TuningMemory& tuning,
            const std::string* only);
  void measure(cudnnContext* cudnn, CUstream_st* stream, const TuningMemory& tuning, const std::string* only);

  std::unique_ptr<Graph> graph_;
  std::string refusal_;  // why the last unusable proposal could not be used
  double microseconds_ = 0;
  PlanChoice choice_{};
};

}  // namespace resnet
