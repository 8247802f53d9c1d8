#include "demos/resnet/network/architecture.hpp"

#include <functional>
#include <numeric>
#include <stdexcept>

namespace resnet {
namespace {

constexpr std::size_t kStages = 4;
constexpr std::size_t kColors = 3;
constexpr std::size_t kBottleneckExpansion = 4;

struct Depth {
  int depth;
  bool has_bottlenecks;
  std::array<std::size_t, kStages> blocks;
};
constexpr std::array<Depth, 5> kDepths{{
    {18, false, {2, 2, 2, 2}},
    {34, false, {3, 4, 6, 3}},
    {50, true, {3, 4, 6, 3}},
    {101, true, {3, 4, 23, 3}},
    {152, true, {3, 8, 36, 3}},
}};

const Depth& depth_of(int depth) {
  for (const Depth& known : kDepths) {
    if (known.depth == depth) return known;
  }
  throw std::invalid_argument("depth of the network: expected 18, 34, 50, 101 or 152, got " + std::to_string(depth));
}

void check(const ArchitectureSpec& spec) {
  if (spec.image_size < kSmallestImage || spec.image_size > kLargestImage) {
    throw std::invalid_argument("image size: expected 32 to 1024 pixels, got " + std::to_string(spec.image_size));
  }
  if (spec.classes < 2 || spec.classes > kMostClasses) {
    throw std::invalid_argument("classes: expected 2 to 1048576, got " + std::to_string(spec.classes));
  }
  if (spec.width < 8 || spec.width > 256 || spec.width % 8 != 0) {
    throw std::invalid_argument("width: expected a multiple of 8 from 8 to 256 channels, got " +
                                std::to_string(spec.width));
  }
}

/// Lays out arrays one after the other.
class Planner {
 public:
  explicit Planner(const ArchitectureSpec& spec) : plan_{.spec = spec} {}

  std::size_t add_unit(ConvUnit unit) {
    unit.weights_offset = take(unit.weights());
    unit.scale_offset = take(unit.channels_out);
    unit.shift_offset = take(unit.channels_out);
    unit.statistics_offset = plan_.statistics_count;
    plan_.statistics_count += 2 * unit.channels_out;
    plan_.units.push_back(std::move(unit));
    return plan_.units.size() - 1;
  }

  /// Adds the block `name`, with units from `channels_in` to `channels_out`. The units between have `width` channels.
  /// Returns the size of the output.
  std::size_t add_block(const std::string& name, bool is_bottleneck, std::size_t channels_in, std::size_t width,
                        std::size_t channels_out, std::size_t size, std::size_t stride) {
    const auto unit = [&](int number, std::size_t in, std::size_t out, std::size_t at, std::size_t kernel,
                          std::size_t step) {
      return add_unit({.conv_name = name + ".conv" + std::to_string(number),
                       .norm_name = name + ".bn" + std::to_string(number),
                       .channels_in = in,
                       .channels_out = out,
                       .size_in = at,
                       .kernel = kernel,
                       .stride = step});
    };
    Block block{.first_unit = plan_.units.size(), .unit_count = is_bottleneck ? std::size_t{3} : std::size_t{2}};
    const std::size_t size_out = (size - 1) / stride + 1;
    if (is_bottleneck) {
      unit(1, channels_in, width, size, 1, 1);
      unit(2, width, width, size, 3, stride);
      unit(3, width, channels_out, size_out, 1, 1);
    } else {
      unit(1, channels_in, width, size, 3, stride);
      unit(2, width, channels_out, size_out, 3, 1);
    }
    if (stride != 1 || channels_in != channels_out) {
      block.shortcut = add_unit({.conv_name = name + ".downsample.0",
                                 .norm_name = name + ".downsample.1",
                                 .channels_in = channels_in,
                                 .channels_out = channels_out,
                                 .size_in = size,
                                 .kernel = 1,
                                 .stride = stride});
    }
    plan_.blocks.push_back(block);
    return size_out;
  }

  Architecture finish(std::size_t features) {
    plan_.features = features;
    plan_.fc_weights_offset = take(plan_.spec.classes * features);
    plan_.fc_bias_offset = take(plan_.spec.classes);
    return std::move(plan_);
  }

  Architecture& so_far() { return plan_; }

 private:
  std::size_t take(std::size_t elements) {
    constexpr std::size_t kAlignment = 16;
    const std::size_t offset = plan_.parameter_count;
    plan_.parameter_count += (elements + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }

  Architecture plan_;
};

}  // namespace

std::size_t Architecture::final_size() const {
  const Block& last = blocks.back();
  return units[last.first_unit + last.unit_count - 1].size_out();
}

Architecture plan(const ArchitectureSpec& spec) {
  const Depth& depth = depth_of(spec.depth);
  check(spec);
  Planner planner(spec);
  planner.add_unit({.conv_name = "conv1",
                    .norm_name = "bn1",
                    .channels_in = kColors,
                    .channels_out = spec.width,
                    .size_in = spec.image_size,
                    .kernel = 7,
                    .stride = 2});
  std::size_t size = planner.so_far().pooled_size();
  std::size_t channels = spec.width;
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    const std::size_t width = spec.width << stage;
    const std::size_t channels_out = depth.has_bottlenecks ? kBottleneckExpansion * width : width;
    for (std::size_t i = 0; i < depth.blocks[stage]; ++i) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i);
      const std::size_t stride = stage > 0 && i == 0 ? 2 : 1;
      size = planner.add_block(name, depth.has_bottlenecks, channels, width, channels_out, size, stride);
      channels = channels_out;
    }
  }
  return planner.finish(channels);
}

std::size_t NamedArray::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

std::vector<NamedArray> named_arrays(const Architecture& architecture) {
  using Where = NamedArray::Where;
  std::vector<NamedArray> arrays;
  for (const ConvUnit& unit : architecture.units) {
    const std::size_t channels = unit.channels_out;
    arrays.push_back({unit.conv_name + ".weight",
                      Where::kParameters,
                      unit.weights_offset,
                      {channels, unit.kernel, unit.kernel, unit.channels_in}});
    arrays.push_back({unit.norm_name + ".weight", Where::kParameters, unit.scale_offset, {channels}});
    arrays.push_back({unit.norm_name + ".bias", Where::kParameters, unit.shift_offset, {channels}});
    arrays.push_back({unit.norm_name + ".running_mean", Where::kStatistics, unit.statistics_offset, {channels}});
    arrays.push_back(
        {unit.norm_name + ".running_var", Where::kStatistics, unit.statistics_offset + channels, {channels}});
  }
  const ArchitectureSpec& spec = architecture.spec;
  arrays.push_back(
      {"fc.weight", Where::kParameters, architecture.fc_weights_offset, {spec.classes, architecture.features}});
  arrays.push_back({"fc.bias", Where::kParameters, architecture.fc_bias_offset, {spec.classes}});
  return arrays;
}

}  // namespace resnet
