#pragma once

// What a network is made of, without its arithmetic: the model a user names and the list of layers it
// becomes, all of whose parameters lie in one flat vector.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "demos/common/convolution.hpp"
#include "demos/common/layers.hpp"

namespace demos {

enum class ModelKind { kMlp, kCnn };

/// A model as the user asks for it. The four numbers describe an MLP only.
struct ModelSpec {
  ModelKind kind = ModelKind::kMlp;
  std::size_t hidden_layers = 2;
  std::size_t width = 800;
  double drop_input = 0;   // probability that an input is dropped
  double drop_hidden = 0;  // probability that a hidden unit is dropped
};

/// Reads "mlp" (two hidden layers of 800, ReLU, no dropout), "custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID" or
/// "cnn". Throws std::invalid_argument that says what was expected.
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
  std::uint8_t index;  // tells the masks of several dropout layers apart
};

using Layer = std::variant<DenseLayer, ConvLayer, PoolLayer, DropoutLayer>;

/// The layers from image to logits. The elements of a layer's output, per row, are those of the next one's
/// input.
struct LayerPlan {
  std::vector<Layer> layers;
  std::size_t parameter_count = 0;
};

/// Lays out `spec` for gray images of image_height x image_width. The CNN is two times (3x3 'same'
/// convolution with 32, then 64 channels, 2x2 max-pool), a dense layer of 128 and the dense output layer, all
/// ReLU but the last. Throws std::invalid_argument where a size is zero or too large.
LayerPlan plan_layers(const ModelSpec& spec, std::size_t image_height, std::size_t image_width, std::size_t classes);

/// Elements of the layer's output per row.
std::size_t output_elements(const Layer& layer);

}  // namespace demos
