#include "worker/call/step_gradient.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "common/text/errors.hpp"
#include "syncrun/gradient_ready.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun {

void GradientReady::from(std::int64_t first) {
  detail::worker::process::end_if_forked();
  gradient_->ready_from(first);
}
bool GradientReady::is_used() const noexcept { return gradient_->is_cut(); }

namespace detail::worker::call {

namespace {

constexpr std::size_t rounded_up(std::size_t elements) noexcept {
  return (elements + BucketCutter::kAlignment - 1) / BucketCutter::kAlignment * BucketCutter::kAlignment;
}

}  // namespace

BucketCutter::BucketCutter(std::size_t elements, std::size_t bucket_elements) noexcept
    : left_(elements), bucket_elements_(rounded_up(std::max(bucket_elements, kAlignment))) {}

std::optional<Bucket> BucketCutter::next(std::size_t first) noexcept {
  if (left_ == 0) return std::nullopt;
  const std::size_t begin = left_ <= bucket_elements_ ? 0 : rounded_up(left_ - bucket_elements_);
  if (begin < first) return std::nullopt;
  return Bucket{begin, std::exchange(left_, begin)};
}

void StepGradient::begin(comm::CommCore& comm, const comm::RankWeights& weights, const GradientPlace& place,
                         std::size_t bucket_bytes) noexcept {
  const std::size_t bucket_elements = bucket_bytes / size_of(place.dtype);
  comm_ = &comm;
  weights_ = weights;
  place_ = place;
  ready_from_ = place.elements;
  is_cut_ = bucket_bytes != 0 && place.elements > bucket_elements;
  cutter_ = BucketCutter(place.elements, bucket_elements);
}

void StepGradient::ready_from(std::int64_t first) {
  if (first < 0 || static_cast<std::uint64_t>(first) > place_.elements) {
    text::throw_usage("GradientReady: first is from 0 to the gradient's " + std::to_string(place_.elements) +
                      " elements, got " + std::to_string(first));
  }
  if (static_cast<std::size_t>(first) > ready_from_) {
    text::throw_usage(
        "GradientReady: what is final stays so, from the gradient's end downwards: it was said to be final from " +
        std::to_string(ready_from_) + " on, and now from " + std::to_string(first));
  }
  ready_from_ = static_cast<std::size_t>(first);
  if (is_cut_ && start_ == BucketStart::when_ready) average_from(ready_from_);
}

void StepGradient::average_from(std::size_t first) {
  while (const auto bucket = cutter_.next(first)) {
    const std::size_t each = size_of(place_.dtype);
    const comm::InCollective mark(*comm_, bucket->count() * each);
    comm_->start_average(static_cast<std::byte*>(place_.data) + bucket->begin * each, bucket->count(), place_.dtype,
                         weights_, bucket->begin);
  }
}

bool StepGradient::finish() {
  if (!is_cut_) return false;
  average_from(0);
  comm_->join_started();
  return true;
}

}  // namespace detail::worker::call
}  // namespace syncrun
