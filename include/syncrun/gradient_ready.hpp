#pragma once

// GradientReady: the body of a train step uses it to say which part of its gradient is final. The ranks then average
// that part while the body computes the rest.

#include <cstdint>

#include "syncrun/detail/export.hpp"

namespace syncrun {

namespace detail::worker::call {
class StepGradient;
}  // namespace detail::worker::call
namespace detail {
using worker::call::StepGradient;
}  // namespace detail

/// The type of a parameter `GradientReady&`, which only the body of a train step can have (train_step.hpp). A backward
/// pass goes from the last layer to the first. So in a flat vector of parameters, the end of the gradient is finished
/// first. The body passes an index to from(). All elements of the gradient from this index on are then final:
///
///   void backward(..., GradientReady& ready, ..., Local<float, 1> params, Local<float, 1> gradient) {
///     for (layer = last; layer >= first; --layer) {
///       ...
///       ready.from(offset_of(layer));
///     }
///   }
///
/// The step averages the final part early only if that is faster: on several CUDA devices, with StepForm::replicated
/// and without slices. The step then averages the gradient in buckets (TrainStepOptions::bucket_bytes), on a separate
/// stream. In all other cases, the step ignores the calls of from(). When the body returns, the rest of the gradient is
/// final too. So a body need not call from() at all.
class SYNCRUN_EXPORT GradientReady {
 public:
  explicit GradientReady(detail::StepGradient& gradient) noexcept : gradient_(&gradient) {}
  GradientReady(const GradientReady&) = delete;
  GradientReady& operator=(const GradientReady&) = delete;

  /// Reports that the elements [first, size) of the gradient are final: the body does not read or write these elements
  /// again in this slice. On CUDA devices, this holds in the order of the worker's stream: work that is already on the
  /// stream finishes these elements, and later work must not use them. Usually returns at once. The first calls may
  /// wait, because the ranks set up their communication. If the body calls collectives, every rank must make the same
  /// calls of from() between the same collectives. If the body calls no collectives, the calls of from() may differ
  /// between ranks.
  ///
  /// Throws Error (usage) if `first` is larger than in an earlier call in this slice, or if `first` is not between 0
  /// and the size of the gradient. Throws also the errors of a collective.
  void from(std::int64_t first);

  /// Whether calls of from() have an effect. The result is the same on every rank. If it is false, the body can skip
  /// any work that is needed only for calls of from().
  bool is_used() const noexcept;

 private:
  detail::StepGradient* gradient_;
};

}  // namespace syncrun
