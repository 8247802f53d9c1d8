#pragma once

// The serial twin of functions.hpp and trainer.hpp: one network, a training step and an evaluation. In the demo,
// Syncrun picks the rows of a batch and divides an evaluation into slices. Here, the program does both by hand.

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "demos/common/blas.hpp"
#include "demos/common/nesterov.hpp"
#include "demos/common/network.hpp"
#include "demos/mnist/serial_rows.hpp"

namespace mnist {

/// The network. T is float or double. A step allocates memory only if its batch is larger than all batches before.
template <class T>
class Trainer {
 public:
  using Vector = std::vector<T>;  // [parameters]
  static constexpr const char* kDevice = "cpu0";

  /// Throws std::invalid_argument for kTf32, which only CUDA devices support, and if the model is not possible.
  Trainer(const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width, demos::MatrixMath math)
      : network_(model, image_height, image_width, kClasses) {
    if (math == demos::MatrixMath::kTf32) {
      throw std::invalid_argument("TF32 (--dtype tf32): expected CUDA devices, which have it, got cpu0");
    }
  }

  /// Does nothing, because the rows are already in the memory of the only device.
  void hold(const Rows<T>&) {}

  /// One step of Nesterov's method on the rows of `training` that `batch` lists. The row numbers also determine the
  /// dropout masks. Returns the mean loss of these rows.
  double step(const Rows<T>& training, std::span<const std::int64_t> batch, Vector& params, Vector& velocity,
              Vector& gradient, const StepOptions& options) {
    images_.resize(batch.size() * training.pixels());
    labels_.resize(batch.size());
    training.pick(batch, images_.data(), labels_.data());
    const demos::Outcome outcome =
        network_.loss_and_gradient(params, images_, labels_, batch, options.dropout, gradient);
    demos::nesterov_update<T>(params, velocity, gradient, static_cast<T>(options.learning_rate),
                              static_cast<T>(options.momentum));
    return outcome.mean_loss;
  }

  /// Mean loss and number of correct rows, without dropout, computed in `slices` passes.
  Evaluation evaluate(const Rows<T>& rows, const Vector& params, std::size_t slices) {
    return evaluate_in_slices(rows.labels.size(), slices, [&](std::size_t first, std::size_t count) -> Evaluation {
      const auto images = std::span(rows.images).subspan(first * rows.pixels(), count * rows.pixels());
      const auto labels = std::span(rows.labels).subspan(first, count);
      const demos::Outcome outcome = network_.evaluate(params, images, labels);
      return {outcome.mean_loss, outcome.correct};
    });
  }

 private:
  demos::Network<T> network_;
  std::vector<T> images_;  // of a batch
  std::vector<std::uint8_t> labels_;
};

}  // namespace mnist
