#pragma once

// What a body of a train step can say of its gradient while it computes it, so that the ranks' gradients are averaged
// beside the rest of the backward pass.

#include <cstdint>

#include "syncrun/detail/export.hpp"

namespace syncrun {

namespace detail {
class StepGradient;
}  // namespace detail

/// A parameter `GradientReady&` of the body of a train step (train_step.hpp), of no other function. A backward pass goes
/// from the last layer to the first, so that the gradient of a flat vector of parameters is finished from its end: the
/// body says how far it has come,
///
///   void backward(..., GradientReady& ready, ..., Local<float, 1> params, Local<float, 1> gradient) {
///     for (layer = last; layer >= first; --layer) {
///       ...
///       ready.from(offset_of(layer));
///     }
///   }
///
/// and the step averages what is finished where that is faster: on several CUDA devices, in the replicated form and
/// without slices, in buckets (TrainStepOptions::bucket_bytes) on a stream of their own. Elsewhere it is a fact that
/// nobody uses. What nobody has said to be finished is so when the body returns: saying nothing is right, too.
class SYNCRUN_EXPORT GradientReady {
 public:
  explicit GradientReady(detail::StepGradient& gradient) noexcept : gradient_(&gradient) {}
  GradientReady(const GradientReady&) = delete;
  GradientReady& operator=(const GradientReady&) = delete;

  /// Elements [first, size) of the gradient are final: the body neither writes nor reads them from here on in this slice.
  /// On CUDA devices in the order of the worker's stream: what is there now finishes them, and what comes later leaves
  /// them alone. Returns at once, but for the first times, when the ranks may meet to set their communication up. A body
  /// with collectives of its own says the same at the same places among them on every rank; one without may say something
  /// else on each. Throws Error: usage (`first` is more than it was before in this slice, or not within 0 to the gradient's
  /// size), and what a collective throws.
  void from(std::int64_t first);

  /// Whether anything comes of what is said, the same on every rank: a body for which it is more work need not do it where
  /// nothing does.
  bool is_used() const noexcept;

 private:
  detail::StepGradient* gradient_;
};

}  // namespace syncrun
