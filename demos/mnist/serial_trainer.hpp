#pragma once

// The serial twin of functions.hpp and trainer.hpp: one network, a training step and an evaluation. What Syncrun does in
// the demo, to pick the rows of a batch and to cut an evaluation into slices, is done by hand.

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "demos/common/blas.hpp"
#include "demos/common/nesterov.hpp"
#include "demos/common/network.hpp"
#include "demos/mnist/serial_rows.hpp"
#include "demos/mnist/training.hpp"

namespace mnist {

/// How well the parameters fit some rows.
struct Evaluation {
  double loss = 0;
  std::int64_t correct = 0;
};

/// The network. T is float or double. Steps allocate nothing once there was a batch as large.
template <class T>
class Trainer {
 public:
  /// Throws std::invalid_argument for kTf32, which only CUDA devices have, and for a model that cannot be.
  Trainer(const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width, demos::MatrixMath math)
      : network_(model, image_height, image_width, kClasses) {
    if (math == demos::MatrixMath::kTf32) {
      throw std::invalid_argument("TF32 (--dtype tf32): expected CUDA devices, which have it, got cpu0");
    }
  }

  /// One step of Nesterov's method on these rows of `training`, whose numbers key dropout masks. Returns the mean of
  /// their losses.
  double step(const Rows<T>& training, std::span<const std::int64_t> batch, std::span<T> params, std::span<T> velocity,
              std::span<T> gradient, const StepOptions& options) {
    images_.resize(batch.size() * training.pixels());
    labels_.resize(batch.size());
    training.pick(batch, images_.data(), labels_.data());
    const demos::Outcome outcome =
        network_.loss_and_gradient(params, images_, labels_, batch, options.dropout, gradient);
    demos::nesterov_update<T>(params, velocity, gradient, static_cast<T>(options.learning_rate),
                              static_cast<T>(options.momentum));
    return outcome.mean_loss;
  }

  /// Mean loss and number of correct rows, without dropout, in as many passes; where rows do not divide evenly, the first
  /// passes get one more.
  Evaluation evaluate(const Rows<T>& rows, std::span<const T> params, std::size_t slices) {
    const std::size_t all = rows.labels.size();
    Evaluation total;
    for (std::size_t slice = 0, first = 0; slice < slices; ++slice) {
      const std::size_t count = all / slices + (slice < all % slices ? 1 : 0);
      const auto images = std::span(rows.images).subspan(first * rows.pixels(), count * rows.pixels());
      const auto labels = std::span(rows.labels).subspan(first, count);
      const demos::Outcome outcome = network_.evaluate(params, images, labels);
      total.loss += outcome.mean_loss * static_cast<double>(count);
      total.correct += outcome.correct;
      first += count;
    }
    total.loss /= static_cast<double>(all);
    return total;
  }

 private:
  demos::Network<T> network_;
  std::vector<T> images_;  // of a batch
  std::vector<std::uint8_t> labels_;
};

}  // namespace mnist
