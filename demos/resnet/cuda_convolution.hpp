#pragma once

// One convolution of a residual network on a CUDA device, through cuDNN's graphs: forward, and backward for the input and
// for the filter, each by the fastest of cuDNN's plans, or by one that was chosen before. Needs no CUDA header.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "demos/resnet/conv_plans.hpp"
#include "demos/resnet/conv_shape.hpp"

struct CUstream_st;
struct cudnnContext;

namespace resnet {

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

/// What the current device's plans are for. Throws std::runtime_error where CUDA or cuDNN fails.
PlanPlace plan_place();

/// The names of the plans that cuDNN proposes for a convolution on this device, best first, but for those that do not give
/// the same bits each time, or that it cannot build. Throws std::runtime_error where cuDNN fails.
std::vector<std::string> proposed_plans(cudnnContext* cudnn, const PlanKey& key);

/// The plan of one pass of one convolution. Only plans that give the same bits each time.
class ConvPlan {
 public:
  /// Measures the plans that cuDNN proposes on the stream, which it waits for, and keeps the fastest. Throws
  /// std::runtime_error where cuDNN has none, with its own text.
  ConvPlan(cudnnContext* cudnn, CUstream_st* stream, const PlanKey& key, const TuningMemory& tuning);
  /// Takes the plan of that name, and measures it. Throws std::runtime_error where cuDNN does not propose it, or where it
  /// cannot be run in the memory given.
  ConvPlan(cudnnContext* cudnn, CUstream_st* stream, const PlanKey& key, const TuningMemory& tuning,
           const PlanChoice& stored);
  ConvPlan(ConvPlan&&) noexcept;
  ~ConvPlan();

  /// Puts the work on the stream of the handle. Can be captured.
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
  std::string refusal_;  // why the last proposal that could not be taken was not
  double microseconds_ = 0;
  PlanChoice choice_{};
};

}  // namespace resnet
