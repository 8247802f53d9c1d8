#pragma once

// The structure of a network, without its arithmetic: the model that a user names, and the list of layers made from it.
// The parameters of all layers lie in one flat vector.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "demos/common/convolution.hpp"
#include "demos/common/layers.hpp"

namespace demos {

enum class ModelKind { kMlp, kCnn };

/// A model as the user specifies it. The four numbers apply to an MLP only.
struct ModelSpec {
  ModelKind kind = ModelKind::kMlp;
  std::size_t hidden_layers = 2;
  std::size_t width = 800;
  double drop_input = 0;   // probability that an input is dropped
  double drop_hidden = 0;  // probability that a hidden unit is dropped
};

/// Reads "mlp" (two hidden layers of 800, ReLU, no dropout), "custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID" or
/// "cnn". Throws std::invalid_argument with a message that says what was expected.
ModelSpec parse_model(std::string_view text);

struct DenseLayer {
  DenseShape shape;
  Activation activation;
  std::size_t weights_offset;  // of [inputs, outputs] in the parameter vector
  std::size_t bias_offset;     // of [outputs]
};

struct ConvLayer {
  Conv2dShape shape;
  Activation activation;
  std::size_t weights_offset;  // of [kernel, kernel, channels_in, channels_out] in the parameter vector
  std::size_t bias_offset;     // of [channels_out]
};

struct PoolLayer {
  Pool2dShape shape;
};

struct DropoutLayer {
  std::size_t units;
  double rate;
  std::uint8_t index;  // distinguishes the masks of several dropout layers
};

using Layer = std::variant<DenseLayer, ConvLayer, PoolLayer, DropoutLayer>;

/// The layers from image to logits. The output of a layer has as many elements per row as the input of the next layer.
struct LayerPlan {
  std::vector<Layer> layers;
  std::size_t parameter_count = 0;
};

/// Lays out `spec` for gray images of image_height x image_width. The CNN has two 3x3 'same' convolutions, with 32 and
/// 64 channels and a 2x2 max-pool after each. A dense layer of 128 units and the dense output layer follow. All layers
/// but the last have ReLU. Throws std::invalid_argument if a size is zero or too large.
LayerPlan plan_layers(const ModelSpec& spec, std::size_t image_height, std::size_t image_width, std::size_t classes);

/// Elements of the layer's output per row.
std::size_t output_elements(const Layer& layer);

}  // namespace demos
