#pragma once

// A feed-forward network over one flat parameter vector and one flat gradient vector, so that a data-parallel program
// needs a single all_reduce per step. The object holds the layout and a workspace, but no parameters.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "demos/common/model.hpp"

namespace demos {

/// Determines the dropout masks of a step, together with the rows. All workers use the same key in a step.
struct StepKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
};

/// T is float or double. Images are [rows, image_height, image_width], labels uint8 [rows], logits [rows, classes].
/// Zero rows are legal and give zeros. The workspace grows only when a call has more rows than all calls before, so a
/// repeated call allocates nothing. Only one thread at a time may use an object. All members throw
/// std::invalid_argument if the lengths of their arguments do not fit together. They check this before they compute
/// anything.
template <typename T>
class Network {
 public:
  /// Throws std::invalid_argument if a size is zero or too large.
  Network(const ModelSpec& spec, std::size_t image_height, std::size_t image_width, std::size_t classes);

  std::size_t parameter_count() const { return plan_.parameter_count; }
  std::size_t image_elements() const { return image_elements_; }
  std::size_t classes() const { return classes_; }
  bool uses_dropout() const { return uses_dropout_; }

  /// Sets `params` [parameter_count]. Biases become 0. Each weight is drawn uniformly from +-sqrt(6 / (fan_in +
  /// fan_out)), as a pure function of the seed and of its place in the vector. Source: X. Glorot, Y. Bengio,
  /// "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010, equation 16.
  void initialize(std::span<T> params, std::uint64_t seed) const;

  /// Computes the logits, without dropout. They lie in the workspace and are valid until the next call.
  std::span<const T> forward(std::span<const T> params, std::span<const T> images);

  /// Returns the mean loss over the given rows and the number of correct rows, both with dropout. Writes the gradient
  /// of that mean to `gradient` [parameter_count]. The gradient of a batch is the average of the gradients of its
  /// parts, weighted by their rows. `row_ids` [rows] are the numbers of the rows within the whole data set. Together
  /// with `key` they determine the dropout masks. They may be empty if the model has no dropout.
  Outcome loss_and_gradient(std::span<const T> params, std::span<const T> images, std::span<const std::uint8_t> labels,
                            std::span<const std::int64_t> row_ids, StepKey key, std::span<T> gradient);

  /// Mean loss and number of correct rows, without dropout, computed some hundred rows at a time.
  Outcome evaluate(std::span<const T> params, std::span<const T> images, std::span<const std::uint8_t> labels);

 private:
  enum class Phase { kTraining, kInference };

  void require(const char* what, std::size_t expected, std::size_t got) const;
  std::size_t rows_of(std::span<const T> images) const;
  void reserve(std::size_t rows, Phase phase);
  const T* propagate(const T* params, const T* images, std::size_t rows, const StepKey* key,
                     std::span<const std::int64_t> row_ids);
  void back_propagate(const T* params, std::size_t rows, StepKey key, std::span<const std::int64_t> row_ids,
                      T* gradient);

  LayerPlan plan_;
  std::size_t image_elements_;
  std::size_t classes_;
  bool uses_dropout_ = false;
  std::size_t first_trained_ = 0;     // layers before this one have no parameters, so their gradient is not computed
  std::size_t largest_elements_ = 0;  // of any layer's output, per row

  std::vector<const T*> inputs_;          // of each layer, as of the last forward pass
  std::vector<std::vector<T>> outputs_;   // of each layer
  std::array<std::vector<T>, 2> deltas_;  // the gradients with respect to a layer's output and its input, in turn
  std::vector<T> scratch_;                // of convolutions
};

}  // namespace demos
