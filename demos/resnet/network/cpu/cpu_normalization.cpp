#include "demos/resnet/network/cpu/cpu_normalization.hpp"

#include <algorithm>
#include <cmath>

#include "demos/resnet/network/cpu/cpu_parallel.hpp"

namespace resnet {
namespace {

// The work is divided into the same parts for any number of threads, so that the results are the same. A small amount
// of work is not divided.
constexpr std::size_t kParts = 64;
constexpr std::size_t kLeastElements = 16384;  // in a part
constexpr std::size_t kBlockPlaces = 32;       // places summed in float32; the sums of blocks are added up in float64

std::size_t parts_of(const NormShape& shape) {
  return std::clamp<std::size_t>(shape.elements() / kLeastElements, 1, kParts);
}

/// One part of sum_by_channel: sums the places of `piece` into `total` [width].
template <typename AddPlace>
void sum_piece(const Piece& piece, std::size_t width, float* block, double* total, const AddPlace& add_place) {
  std::fill_n(total, width, 0.0);
  for (std::size_t first = piece.begin; first < piece.end; first += kBlockPlaces) {
    std::fill_n(block, width, 0.0F);
    const std::size_t last = std::min(first + kBlockPlaces, piece.end);
    for (std::size_t place = first; place < last; ++place) add_place(place, block);
    for (std::size_t i = 0; i < width; ++i) total[i] += static_cast<double>(block[i]);
  }
}

/// Totals [width] over all places. add_place(place, sums) adds the values of one place to float32 sums [width].
template <typename AddPlace>
const double* sum_by_channel(const NormShape& shape, std::size_t width, NormScratch& scratch,
                             const AddPlace& add_place) {
  const std::size_t parts = parts_of(shape);
  double* const partial = scratch.partial.data();
  float* const blocks = scratch.block.data();
  for_each_part(parts, [&](std::size_t part) {
    sum_piece(Piece(shape.places(), part, parts), width, blocks + part * width, partial + part * width, add_place);
  });
  double* const totals = scratch.totals.data();
  std::copy_n(partial, width, totals);
  for (std::size_t part = 1; part < parts; ++part) {
    for (std::size_t i = 0; i < width; ++i) totals[i] += partial[part * width + i];
  }
  return totals;
}

/// Calls row(place) for each place, divided among the cores.
template <typename Row>
void for_each_place(const NormShape& shape, const Row& row) {
  const std::size_t parts = parts_of(shape);
  for_each_part(parts, [&](std::size_t part) {
    const Piece piece(shape.places(), part, parts);
    for (std::size_t place = piece.begin; place < piece.end; ++place) row(place);
  });
}

/// The sums [width] over all ranks of `totals` times `weight`.
const float* over_ranks(const StepRows& rows, const double* totals, std::size_t width, double weight,
                        NormScratch& scratch) {
  float* const exchange = scratch.exchange.data();
  std::transform(totals, totals + width, exchange, [&](double total) { return static_cast<float>(total * weight); });
  if (rows.sum) rows.sum({exchange, width});
  return exchange;
}

void move_running(std::size_t channels, const float* mean, const float* variance, double places, float* running) {
  const double unbiased = places / std::max(places - 1, 1.0);
  const auto move = [](float& value, double towards) {
    value = static_cast<float>((1 - kNormMomentum) * static_cast<double>(value) + kNormMomentum * towards);
  };
  for (std::size_t c = 0; c < channels; ++c) {
    move(running[c], static_cast<double>(mean[c]));
    move(running[channels + c], unbiased * static_cast<double>(variance[c]));
  }
}

float inverse_deviation(float variance) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(variance) + kNormEpsilon));
}

/// y = factor x + offset [+ addend], by channel.
template <bool kHasAddend, AfterNorm kAfter>
void apply(std::size_t channels, const float* factor, const float* offset, const float* x, const float* addend,
           float* y) {
  for (std::size_t c = 0; c < channels; ++c) {
    float value = factor[c] * x[c] + offset[c];
    if constexpr (kHasAddend) value += addend[c];
    if constexpr (kAfter == AfterNorm::kRelu) value = value < 0 ? 0.0F : value;  // a NaN stays NaN
    y[c] = value;
  }
}

using Apply = void (*)(std::size_t, const float*, const float*, const float*, const float*, float*);

Apply apply_for(bool has_addend, AfterNorm after) {
  if (after == AfterNorm::kRelu) return has_addend ? apply<true, AfterNorm::kRelu> : apply<false, AfterNorm::kRelu>;
  return has_addend ? apply<true, AfterNorm::kNothing> : apply<false, AfterNorm::kNothing>;
}

/// Totals of dy, then of dy x', by channel. Sets dy to 0 where the ReLU returned 0.
const double* backward_totals(const NormShape& shape, const NormBackward& arrays, NormScratch& scratch) {
  const std::size_t channels = shape.channels;
  const float* const mean = arrays.moments.mean;
  const float* const inverse = arrays.moments.inverse_deviation;
  return sum_by_channel(shape, 2 * channels, scratch, [&](std::size_t place, float* sums) {
    const float* x = arrays.x + place * channels;
    float* dy = arrays.dy + place * channels;
    if (arrays.y != nullptr) {
      const float* y = arrays.y + place * channels;
      for (std::size_t c = 0; c < channels; ++c) dy[c] = y[c] > 0 ? dy[c] : 0.0F;
    }
    for (std::size_t c = 0; c < channels; ++c) sums[c] += dy[c];
    for (std::size_t c = 0; c < channels; ++c) sums[channels + c] += dy[c] * ((x[c] - mean[c]) * inverse[c]);
  });
}

}  // namespace

void NormScratch::reserve(std::size_t channels) {
  totals.reserve(2 * channels);
  partial.reserve(kParts * 2 * channels);
  block.reserve(kParts * 2 * channels);
  exchange.reserve(2 * channels);
  factors.reserve(3 * channels);
}

void measure(const NormShape& shape, const StepRows& rows, const float* x, NormScratch& scratch,
             const NormMoments& moments, float* running) {
  const std::size_t channels = shape.channels;
  scratch.reserve(channels);
  const double all_places = static_cast<double>(std::max<std::size_t>(rows.all * shape.pixels, 1));
  const double* totals = sum_by_channel(shape, channels, scratch, [&](std::size_t place, float* sums) {
    for (std::size_t c = 0; c < channels; ++c) sums[c] += x[place * channels + c];
  });
  std::copy_n(over_ranks(rows, totals, channels, 1 / all_places, scratch), channels, moments.mean);

  const float* mean = moments.mean;
  totals = sum_by_channel(shape, channels, scratch, [&](std::size_t place, float* sums) {
    for (std::size_t c = 0; c < channels; ++c) {
      const float deviation = x[place * channels + c] - mean[c];
      sums[c] += deviation * deviation;
    }
  });
  const float* variance = over_ranks(rows, totals, channels, 1 / all_places, scratch);
  std::transform(variance, variance + channels, moments.inverse_deviation, inverse_deviation);
  if (rows.all > 0) move_running(channels, mean, variance, all_places, running);
}

void moments_of_running(std::size_t channels, const float* running, const NormMoments& moments) {
  std::copy_n(running, channels, moments.mean);
  std::transform(running + channels, running + 2 * channels, moments.inverse_deviation, inverse_deviation);
}

void normalize(const NormShape& shape, const NormMoments& moments, const NormParams& params, AfterNorm after,
               const float* x, const float* addend, NormScratch& scratch, float* y) {
  const std::size_t channels = shape.channels;
  scratch.reserve(channels);
  float* const factor = scratch.factors.data();
  float* const offset = factor + channels;
  for (std::size_t c = 0; c < channels; ++c) {
    factor[c] = params.scale[c] * moments.inverse_deviation[c];
    offset[c] = params.shift[c] - moments.mean[c] * factor[c];
  }
  const Apply apply_to = apply_for(addend != nullptr, after);
  for_each_place(shape, [&](std::size_t place) {
    const std::size_t first = place * channels;
    apply_to(channels, factor, offset, x + first, addend == nullptr ? nullptr : addend + first, y + first);
  });
}

void normalize_backward(const NormShape& shape, const StepRows& rows, const NormBackward& arrays,
                        NormScratch& scratch) {
  const std::size_t channels = shape.channels;
  scratch.reserve(channels);
  const double* totals = backward_totals(shape, arrays, scratch);
  std::transform(totals, totals + channels, arrays.dshift, [](double total) { return static_cast<float>(total); });
  std::transform(totals + channels, totals + 2 * channels, arrays.dscale,
                 [](double total) { return static_cast<float>(total); });

  const double all_places = static_cast<double>(std::max<std::size_t>(rows.all * shape.pixels, 1));
  const float* means =
      over_ranks(rows, totals, 2 * channels, static_cast<double>(rows.own) / all_places, scratch);  // times own rows
  if (rows.own == 0) return;

  // dx = factor dy + slope (x - mean) + offset
  const float own = static_cast<float>(rows.own);
  const float* const mean = arrays.moments.mean;
  const float* const inverse = arrays.moments.inverse_deviation;
  float* const factor = scratch.factors.data();
  float* const slope = factor + channels;
  float* const offset = slope + channels;
  for (std::size_t c = 0; c < channels; ++c) {
    factor[c] = arrays.scale[c] * inverse[c];
    slope[c] = -factor[c] * inverse[c] * (means[channels + c] / own);
    offset[c] = -factor[c] * (means[c] / own);
  }
  for_each_place(shape, [&](std::size_t place) {
    const float* x = arrays.x + place * channels;
    const float* dy = arrays.dy + place * channels;
    float* dx = arrays.dx + place * channels;
    for (std::size_t c = 0; c < channels; ++c) dx[c] = factor[c] * dy[c] + slope[c] * (x[c] - mean[c]) + offset[c];
  });
}

}  // namespace resnet
