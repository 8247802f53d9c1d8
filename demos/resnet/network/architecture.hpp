#pragma once

// The structure of a residual network, without its arithmetic: every convolution with its normalisation, the blocks
// that they form, and the places of their parameters in one flat vector. CPU and CUDA devices use the same description.

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace resnet {

inline constexpr std::size_t kSmallestImage = 32;  // height and width of the network's input, in pixels
inline constexpr std::size_t kLargestImage = 1024;
inline constexpr std::size_t kMostClasses = std::size_t{1} << 20;

/// The network as the user specifies it.
struct ArchitectureSpec {
  int depth = 50;                // 18, 34, 50, 101 or 152
  std::size_t image_size = 224;  // height and width of the input
  std::size_t classes = 1000;
  std::size_t width = 64;  // channels of the first stage, 64 as published; other stages have multiples of it
};

/// A convolution without bias, then batch normalisation. Names are those of torchvision's parameters.
struct ConvUnit {
  std::string conv_name;  // "layer1.0.conv1": its weights are "layer1.0.conv1.weight"
  std::string norm_name;  // "layer1.0.bn1": "layer1.0.bn1.weight", ".bias", ".running_mean", ".running_var"
  std::size_t channels_in;
  std::size_t channels_out;
  std::size_t size_in;  // height and width of the input
  std::size_t kernel;   // height and width
  std::size_t stride;
  std::size_t weights_offset = 0;     // of [channels_out, kernel, kernel, channels_in] in the parameters
  std::size_t scale_offset = 0;       // of [channels_out]
  std::size_t shift_offset = 0;       // of [channels_out]
  std::size_t statistics_offset = 0;  // of running mean [channels_out], then running variance [channels_out]

  std::size_t padding() const { return kernel / 2; }
  std::size_t size_out() const { return (size_in + 2 * padding() - kernel) / stride + 1; }
  std::size_t weights() const { return channels_out * kernel * kernel * channels_in; }
  std::size_t elements_in() const { return size_in * size_in * channels_in; }          // per row
  std::size_t elements_out() const { return size_out() * size_out() * channels_out; }  // per row
};

/// y = relu(last(... relu(first(x))) + shortcut(x)), where shortcut(x) is x itself or the output of a unit of its own.
/// All units except the last one and the shortcut end with a ReLU.
struct Block {
  std::size_t first_unit;
  std::size_t unit_count;                 // 2 (basic), or 3 (bottleneck)
  std::optional<std::size_t> shortcut{};  // the index of a unit; empty if the shortcut is x itself
};

/// The layers from image to logits: unit 0 with ReLU, a 3x3 max-pool with stride 2 and a border of 1, the blocks, the
/// mean over the pixels of each channel, and a dense layer.
struct Architecture {
  ArchitectureSpec spec;
  std::vector<ConvUnit> units{};
  std::vector<Block> blocks{};
  std::size_t features = 0;           // inputs of the dense layer
  std::size_t fc_weights_offset = 0;  // of [classes, features]
  std::size_t fc_bias_offset = 0;     // of [classes]
  std::size_t parameter_count = 0;
  std::size_t statistics_count = 0;  // running means and variances together

  const ConvUnit& stem() const { return units.front(); }
  std::size_t pooled_size() const { return (stem().size_out() - 1) / 2 + 1; }
  std::size_t final_size() const;  // height and width of the last block's output
};

/// Lays out ResNet-18, 34, 50, 101 or 152, version 1.5: the stride of a bottleneck is in its 3x3 convolution. Each
/// parameter array starts at a multiple of 16 elements of the flat vector. Throws std::invalid_argument with a message
/// that says what was expected. Source: K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image
/// Recognition", arXiv 1512.03385, table 1 and section 3.3.
Architecture plan(const ArchitectureSpec& spec);

/// An array among the parameters or the statistics, under torchvision's name.
struct NamedArray {
  enum class Where { kParameters, kStatistics };
  std::string name;  // "fc.weight"
  Where where;
  std::size_t offset;
  std::vector<std::size_t> shape;  // in the flat vector: filters are [channels_out, kernel, kernel, channels_in]
  std::size_t elements() const;
};

/// All arrays of the architecture, in the order of torchvision's state_dict. torchvision's counters of batches are left
/// out.
std::vector<NamedArray> named_arrays(const Architecture& architecture);

}  // namespace resnet
