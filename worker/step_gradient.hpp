#pragma once

// The gradient of a train step while its body computes it: what the body says to be final is averaged over the ranks, in
// buckets, beside the rest of the body where the device can do that.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "syncrun/dtype.hpp"
#include "worker/collectives.hpp"

namespace syncrun::detail {

/// A part of the gradient, in elements.
struct Bucket {
  std::size_t begin;
  std::size_t end;
  std::size_t count() const noexcept { return end - begin; }
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

/// How a gradient is cut: from its end downwards, in buckets of one size that begin at multiples of kAlignment (to which the
/// size is rounded up, and by which the first may be shorter); the last one, at the beginning of the gradient, is what is
/// left. A function of the two sizes alone, whatever the bodies say and when, so that every rank comes to the same averages
/// in the same order.
class BucketCutter {
 public:
  static constexpr std::size_t kAlignment = 32;

  BucketCutter() = default;
  BucketCutter(std::size_t elements, std::size_t bucket_elements) noexcept;

  /// The next bucket, if all of it lies in [first, elements).
  std::optional<Bucket> next(std::size_t first) noexcept;

 private:
  std::size_t left_ = 0;  // elements that are in no bucket yet: [0, left_)
  std::size_t bucket_elements_ = kAlignment;
};

/// A gradient on its device.
struct GradientPlace {
  void* data;
  std::size_t elements;
  DType dtype;
};

/// When a bucket's average starts.
enum class BucketStart : bool { when_ready, after_body };

class StepGradient {
 public:
  /// Before the body of a slice. `weights`: of all ranks by their rows; what they refer to lives until finish().
  /// `bucket_bytes` 0: there are no buckets.
  void begin(CommCore& comm, const RankWeights& weights, const GradientPlace& place, std::size_t bucket_bytes,
             BucketStart start) noexcept;
  /// See GradientReady::from.
  void ready_from(std::int64_t first);
  bool is_cut() const noexcept { return is_cut_; }
  /// After the body: true if all of the gradient is averaged, in the order of the worker's stream; false if none of it is.
  /// Called by all ranks, also by those that did not run the body.
  bool finish();

 private:
  void average_from(std::size_t first);

  CommCore* comm_ = nullptr;
  RankWeights weights_;
  GradientPlace place_{nullptr, 0, DType::float32};
  std::size_t ready_from_ = 0;  // as the body has said
  bool is_cut_ = false;
  BucketStart start_ = BucketStart::when_ready;
  BucketCutter cutter_;
};

}  // namespace syncrun::detail
