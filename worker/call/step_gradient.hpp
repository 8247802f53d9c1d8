#pragma once

// The gradient of a train step while its body computes it. Parts that the body declares final are averaged over the
// ranks in buckets. If the device supports it, this happens while the rest of the body runs.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "syncrun/dtype.hpp"
#include "worker/comm/collectives.hpp"

namespace syncrun::detail::worker::call {

/// A part of the gradient, in elements.
struct Bucket {
  std::size_t begin;
  std::size_t end;
  std::size_t count() const noexcept { return end - begin; }
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

/// How a gradient is divided into buckets, from its end downwards. Buckets have one size, which is rounded up to a
/// multiple of kAlignment, and begin at multiples of kAlignment. So the first bucket may be shorter by less than
/// kAlignment. The last bucket, at the beginning of the gradient, is the rest. The division depends only on the two
/// sizes, and not on what bodies declare or when. So every rank computes the same averages in the same order.
class BucketCutter {
 public:
  static constexpr std::size_t kAlignment = 32;

  BucketCutter() = default;
  BucketCutter(std::size_t elements, std::size_t bucket_elements) noexcept;

  /// The next bucket, if it lies completely in [first, elements). Otherwise nothing.
  std::optional<Bucket> next(std::size_t first) noexcept;

 private:
  std::size_t left_ = 0;  // elements that are not in a bucket yet: [0, left_)
  std::size_t bucket_elements_ = kAlignment;
};

/// The place of a gradient in device memory.
struct GradientPlace {
  void* data;
  std::size_t elements;
  DType dtype;
};

/// When a bucket's average starts.
enum class BucketStart : bool { when_ready, after_body };

class StepGradient {
 public:
  /// For the bodies that begin from now on.
  void start_buckets(BucketStart start) noexcept { start_ = start; }
  /// Called before the body of a slice. `weights` are those of all ranks, by their rows. What they refer to must live
  /// until finish(). If `bucket_bytes` is 0, there are no buckets.
  void begin(comm::CommCore& comm, const comm::RankWeights& weights, const GradientPlace& place,
             std::size_t bucket_bytes) noexcept;
  /// See GradientReady::from.
  void ready_from(std::int64_t first);
  bool is_cut() const noexcept { return is_cut_; }
  /// Called after the body, by all ranks, also by those that did not run it. Returns true if the whole gradient is
  /// averaged, in the order of the worker's stream. Returns false if no part of it is.
  bool finish();

 private:
  void average_from(std::size_t first);

  comm::CommCore* comm_ = nullptr;
  comm::RankWeights weights_;
  GradientPlace place_{nullptr, 0, DType::float32};
  std::size_t ready_from_ = 0;  // as the body has declared
  bool is_cut_ = false;
  BucketStart start_ = BucketStart::when_ready;
  BucketCutter cutter_;
};

}  // namespace syncrun::detail::worker::call
