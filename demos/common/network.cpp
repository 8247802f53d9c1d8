#include "demos/common/network.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "demos/common/philox.hpp"

namespace demos {
namespace {

constexpr std::size_t kEvaluationRows = 256;

DropoutKey mask_key(const DropoutLayer& layer, StepKey key) {
  return {.seed = key.seed, .step = key.step, .layer = layer.index};
}

bool has_parameters(const Layer& layer) {
  return std::holds_alternative<DenseLayer>(layer) || std::holds_alternative<ConvLayer>(layer);
}

/// The place of one layer's weights in the parameter vector, and the numbers of units that they connect.
struct Weights {
  std::size_t offset;
  std::size_t count;
  std::size_t fan_in;
  std::size_t fan_out;
};

struct WeightsOf {
  Weights operator()(const DenseLayer& layer) const {
    const auto [inputs, outputs] = layer.shape;
    return {layer.weights_offset, inputs * outputs, inputs, outputs};
  }
  Weights operator()(const ConvLayer& layer) const {
    const std::size_t fan_in = layer.shape.patch_elements();
    const std::size_t fan_out = layer.shape.kernel * layer.shape.kernel * layer.shape.channels_out;
    return {layer.weights_offset, fan_in * layer.shape.channels_out, fan_in, fan_out};
  }
  Weights operator()(const PoolLayer&) const { return {}; }
  Weights operator()(const DropoutLayer&) const { return {}; }
};

/// A uniform random number for one place of the parameter vector. No dropout mask uses these upper words of the
/// counter, so initialization and dropout never share draws.
double initial_uniform(std::uint64_t seed, std::uint64_t place) {
  constexpr std::uint32_t kInitialization = 0xFFFFFFFF;
  const std::uint64_t draw = place / 4;
  const PhiloxCounter counter{static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32), kInitialization,
                              kInitialization};
  return to_unit_interval(philox4x32_10(counter, seed)[place % 4]);
}

/// One layer's forward step for `rows` rows. Returns the place of the output: `y`, or `x` if the layer does nothing.
template <typename T>
struct Forward {
  const T* params;
  std::size_t rows;
  std::span<const std::int64_t> row_ids;
  const StepKey* key;  // null: no dropout
  T* scratch;
  const T* x;
  T* y;

  const T* operator()(const DenseLayer& layer) const {
    dense_forward(rows, layer.shape, layer.activation, x, params + layer.weights_offset, params + layer.bias_offset, y);
    return y;
  }
  const T* operator()(const ConvLayer& layer) const {
    conv2d_forward(rows, layer.shape, layer.activation, x, params + layer.weights_offset, params + layer.bias_offset,
                   scratch, y);
    return y;
  }
  const T* operator()(const PoolLayer& layer) const {
    max_pool_forward(rows, layer.shape, x, y);
    return y;
  }
  const T* operator()(const DropoutLayer& layer) const {
    if (key == nullptr) return x;
    dropout(row_ids, layer.units, layer.rate, mask_key(layer, *key), x, y);
    return y;
  }
};

/// One layer's backward step. From dy it computes the gradient of the layer's parameters, and dx unless that is null.
/// It may overwrite dy.
template <typename T>
struct Backward {
  const T* params;
  std::size_t rows;
  std::span<const std::int64_t> row_ids;
  StepKey key;
  T* scratch;
  T* gradient;
  const T* x;
  const T* y;
  T* dy;
  T* dx;

  void operator()(const DenseLayer& layer) const {
    before_activation(layer.activation, rows * layer.shape.outputs);
    dense_backward(rows, layer.shape, x, params + layer.weights_offset, dy, gradient + layer.weights_offset,
                   gradient + layer.bias_offset, dx);
  }
  void operator()(const ConvLayer& layer) const {
    before_activation(layer.activation, rows * layer.shape.output_elements());
    conv2d_backward(rows, layer.shape, x, params + layer.weights_offset, dy, scratch, gradient + layer.weights_offset,
                    gradient + layer.bias_offset, dx);
  }
  void operator()(const PoolLayer& layer) const { max_pool_backward(rows, layer.shape, x, dy, dx); }
  void operator()(const DropoutLayer& layer) const {
    dropout(row_ids, layer.units, layer.rate, mask_key(layer, key), dy, dx);
  }

 private:
  void before_activation(Activation activation, std::size_t elements) const {
    if (activation == Activation::kRelu) relu_backward(elements, y, dy);
  }
};

template <typename T>
void grow(std::vector<T>& buffer, std::size_t elements) {
  if (buffer.size() < elements) buffer.resize(elements);
}

}  // namespace

template <typename T>
Network<T>::Network(const ModelSpec& spec, std::size_t image_height, std::size_t image_width, std::size_t classes)
    : plan_(plan_layers(spec, image_height, image_width, classes)),
      image_elements_(image_height * image_width),
      classes_(classes),
      inputs_(plan_.layers.size()),
      outputs_(plan_.layers.size()) {
  std::size_t scratch_elements = 0;
  for (const Layer& layer : plan_.layers) {
    largest_elements_ = std::max(largest_elements_, output_elements(layer));
    uses_dropout_ |= std::holds_alternative<DropoutLayer>(layer);
    if (const auto* conv = std::get_if<ConvLayer>(&layer)) {
      scratch_elements = std::max(scratch_elements, conv2d_scratch_elements(conv->shape));
    }
  }
  while (!has_parameters(plan_.layers[first_trained_])) ++first_trained_;
  scratch_.resize(scratch_elements);
}

template <typename T>
void Network<T>::initialize(std::span<T> params, std::uint64_t seed) const {
  require("params", plan_.parameter_count, params.size());
  std::fill(params.begin(), params.end(), T{0});
  for (const Layer& layer : plan_.layers) {
    const Weights weights = std::visit(WeightsOf{}, layer);
    const double limit = std::sqrt(6.0 / static_cast<double>(weights.fan_in + weights.fan_out));
    for (std::size_t place = weights.offset; place < weights.offset + weights.count; ++place) {
      params[place] = static_cast<T>(limit * (2 * initial_uniform(seed, place) - 1));
    }
  }
}

template <typename T>
std::span<const T> Network<T>::forward(std::span<const T> params, std::span<const T> images) {
  require("params", plan_.parameter_count, params.size());
  const std::size_t rows = rows_of(images);
  reserve(rows, Phase::kInference);
  return {propagate(params.data(), images.data(), rows, nullptr, {}), rows * classes_};
}

template <typename T>
Outcome Network<T>::loss_and_gradient(std::span<const T> params, std::span<const T> images,
                                      std::span<const std::uint8_t> labels, std::span<const std::int64_t> row_ids,
                                      StepKey key, std::span<T> gradient) {
  const std::size_t rows = rows_of(images);
  require("params", plan_.parameter_count, params.size());
  require("gradient", plan_.parameter_count, gradient.size());
  require("labels", rows, labels.size());
  if (uses_dropout_ || !row_ids.empty()) require("row_ids", rows, row_ids.size());
  if (rows == 0) {
    std::fill(gradient.begin(), gradient.end(), T{0});
    return {};
  }
  reserve(rows, Phase::kTraining);
  const T* logits = propagate(params.data(), images.data(), rows, &key, row_ids);
  const Outcome outcome = softmax_cross_entropy(labels, classes_, logits, deltas_[0].data());
  back_propagate(params.data(), rows, key, row_ids, gradient.data());
  return outcome;
}

template <typename T>
Outcome Network<T>::evaluate(std::span<const T> params, std::span<const T> images,
                             std::span<const std::uint8_t> labels) {
  const std::size_t rows = rows_of(images);
  require("labels", rows, labels.size());
  Outcome total;
  for (std::size_t first = 0; first < rows; first += kEvaluationRows) {
    const std::size_t count = std::min(kEvaluationRows, rows - first);
    const auto logits = forward(params, images.subspan(first * image_elements_, count * image_elements_));
    const Outcome part = softmax_cross_entropy<T>(labels.subspan(first, count), classes_, logits.data(), nullptr);
    total.mean_loss += part.mean_loss * static_cast<double>(count) / static_cast<double>(rows);
    total.correct += part.correct;
  }
  return total;
}

template <typename T>
void Network<T>::require(const char* what, std::size_t expected, std::size_t got) const {
  if (got == expected) return;
  throw std::invalid_argument("network: expected " + std::string(what) + " of " + std::to_string(expected) +
                              " elements, got " + std::to_string(got));
}

template <typename T>
std::size_t Network<T>::rows_of(std::span<const T> images) const {
  const std::size_t rows = images.size() / image_elements_;
  if (rows * image_elements_ == images.size()) return rows;
  throw std::invalid_argument("network: expected images of a multiple of " + std::to_string(image_elements_) +
                              " elements, got " + std::to_string(images.size()));
}

template <typename T>
void Network<T>::reserve(std::size_t rows, Phase phase) {
  for (std::size_t i = 0; i < outputs_.size(); ++i) grow(outputs_[i], rows * output_elements(plan_.layers[i]));
  if (phase == Phase::kInference) return;
  for (std::vector<T>& delta : deltas_) grow(delta, rows * largest_elements_);
}

template <typename T>
const T* Network<T>::propagate(const T* params, const T* images, std::size_t rows, const StepKey* key,
                               std::span<const std::int64_t> row_ids) {
  const T* x = images;
  for (std::size_t i = 0; i < plan_.layers.size(); ++i) {
    inputs_[i] = x;
    x = std::visit(Forward<T>{params, rows, row_ids, key, scratch_.data(), x, outputs_[i].data()}, plan_.layers[i]);
  }
  return x;
}

template <typename T>
void Network<T>::back_propagate(const T* params, std::size_t rows, StepKey key, std::span<const std::int64_t> row_ids,
                                T* gradient) {
  T* dy = deltas_[0].data();
  T* dx = deltas_[1].data();
  for (std::size_t i = plan_.layers.size(); i-- > first_trained_;) {
    T* wanted = i == first_trained_ ? nullptr : dx;
    const Backward<T> step{params, rows,  row_ids, key, scratch_.data(), gradient, inputs_[i], outputs_[i].data(),
                           dy,     wanted};
    std::visit(step, plan_.layers[i]);
    std::swap(dy, dx);
  }
}

template class Network<float>;
template class Network<double>;

}  // namespace demos
