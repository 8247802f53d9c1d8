#include "demos/common/model.hpp"

#include <array>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <string>

namespace demos {
namespace {

constexpr std::size_t kMaxHiddenLayers = 64;
constexpr std::size_t kMaxWidth = 65536;
constexpr std::size_t kMaxImageSide = 4096;
constexpr std::size_t kMaxClasses = 256;  // labels are uint8
constexpr std::string_view kCustomPrefix = "custom_mlp:";

[[noreturn]] void fail(std::string_view text, const std::string& expected) {
  throw std::invalid_argument("model '" + std::string(text) + "': expected " + expected);
}

/// The whole of `field` as a number, or nothing.
template <typename Number>
std::optional<Number> parse_number(std::string_view field) {
  Number value{};
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc{} || end != field.data() + field.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> fields;
  for (std::size_t comma = text.find(','); comma != text.npos; comma = text.find(',')) {
    fields.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  fields.push_back(text);
  return fields;
}

std::size_t parse_size(std::string_view text, std::string_view name, std::string_view field, std::size_t maximum) {
  const auto value = parse_number<std::size_t>(field);
  if (value && *value >= 1 && *value <= maximum) return *value;
  fail(text, std::string(name) + " to be a whole number from 1 to " + std::to_string(maximum) + ", got '" +
                 std::string(field) + "'");
}

double parse_rate(std::string_view text, std::string_view name, std::string_view field) {
  const auto value = parse_number<double>(field);
  if (value && *value >= 0 && *value < 1) return *value;
  fail(text, std::string(name) + " to be a probability from 0 to below 1, got '" + std::string(field) + "'");
}

ModelSpec parse_custom_mlp(std::string_view text) {
  const std::vector<std::string_view> fields = split_at_commas(text.substr(kCustomPrefix.size()));
  if (fields.size() != 4) {
    fail(text, "four values, custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID, got " + std::to_string(fields.size()));
  }
  return {.kind = ModelKind::kMlp,
          .hidden_layers = parse_size(text, "DEPTH", fields[0], kMaxHiddenLayers),
          .width = parse_size(text, "WIDTH", fields[1], kMaxWidth),
          .drop_input = parse_rate(text, "DROP_IN", fields[2]),
          .drop_hidden = parse_rate(text, "DROP_HID", fields[3])};
}

/// Collects layers and allocates their places in the parameter vector.
class PlanBuilder {
 public:
  void dense(DenseShape shape, Activation activation) {
    const std::size_t weights = allocate(shape.inputs * shape.outputs);
    plan_.layers.emplace_back(DenseLayer{shape, activation, weights, allocate(shape.outputs)});
  }

  void convolution(const Conv2dShape& shape) {
    const std::size_t weights = allocate(shape.patch_elements() * shape.channels_out);
    plan_.layers.emplace_back(ConvLayer{shape, Activation::kRelu, weights, allocate(shape.channels_out)});
  }

  void max_pool(const Pool2dShape& shape) { plan_.layers.emplace_back(PoolLayer{shape}); }

  void dropout(std::size_t units, double rate) {
    if (rate > 0) plan_.layers.emplace_back(DropoutLayer{units, rate, dropout_layers_++});
  }

  LayerPlan finish() && { return std::move(plan_); }

 private:
  std::size_t allocate(std::size_t elements) {
    const std::size_t offset = plan_.parameter_count;
    plan_.parameter_count += elements;
    return offset;
  }

  LayerPlan plan_;
  std::uint8_t dropout_layers_ = 0;
};

LayerPlan plan_mlp(const ModelSpec& spec, std::size_t pixels, std::size_t classes) {
  PlanBuilder plan;
  plan.dropout(pixels, spec.drop_input);
  std::size_t inputs = pixels;
  for (std::size_t i = 0; i < spec.hidden_layers; ++i) {
    plan.dense({inputs, spec.width}, Activation::kRelu);
    plan.dropout(spec.width, spec.drop_hidden);
    inputs = spec.width;
  }
  plan.dense({inputs, classes}, Activation::kNone);
  return std::move(plan).finish();
}

LayerPlan plan_cnn(std::size_t height, std::size_t width, std::size_t classes) {
  constexpr std::size_t kKernel = 3;
  constexpr std::size_t kDenseUnits = 128;
  PlanBuilder plan;
  std::size_t channels_in = 1;
  for (const std::size_t channels : {std::size_t{32}, std::size_t{64}}) {
    plan.convolution({height, width, channels_in, channels, kKernel, Padding::kSame});
    const Pool2dShape pool{height, width, channels};
    plan.max_pool(pool);
    height = pool.height_out();
    width = pool.width_out();
    channels_in = channels;
  }
  plan.dense({height * width * channels_in, kDenseUnits}, Activation::kRelu);
  plan.dense({kDenseUnits, classes}, Activation::kNone);
  return std::move(plan).finish();
}

void check_range(const char* name, std::size_t value, std::size_t maximum) {
  if (value >= 1 && value <= maximum) return;
  throw std::invalid_argument("network: expected " + std::string(name) + " from 1 to " + std::to_string(maximum) +
                              ", got " + std::to_string(value));
}

void check_rate(const char* name, double rate) {
  if (rate >= 0 && rate < 1) return;
  throw std::invalid_argument("network: expected " + std::string(name) + " from 0 to below 1, got " +
                              std::to_string(rate));
}

struct OutputElements {
  std::size_t operator()(const DenseLayer& layer) const { return layer.shape.outputs; }
  std::size_t operator()(const ConvLayer& layer) const { return layer.shape.output_elements(); }
  std::size_t operator()(const PoolLayer& layer) const { return layer.shape.output_elements(); }
  std::size_t operator()(const DropoutLayer& layer) const { return layer.units; }
};

}  // namespace

ModelSpec parse_model(std::string_view text) {
  if (text == "mlp") return {};
  if (text == "cnn") return {.kind = ModelKind::kCnn};
  if (text.starts_with(kCustomPrefix)) return parse_custom_mlp(text);
  fail(text, "'mlp', 'cnn' or 'custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID'");
}

LayerPlan plan_layers(const ModelSpec& spec, std::size_t image_height, std::size_t image_width, std::size_t classes) {
  static_assert(kMaxImageSide * kMaxImageSide <= kMaxDropoutUnits && kMaxWidth <= kMaxDropoutUnits);
  check_range("image height", image_height, kMaxImageSide);
  check_range("image width", image_width, kMaxImageSide);
  check_range("classes", classes, kMaxClasses);
  if (spec.kind == ModelKind::kCnn) return plan_cnn(image_height, image_width, classes);
  check_range("hidden layers", spec.hidden_layers, kMaxHiddenLayers);
  check_range("width", spec.width, kMaxWidth);
  check_rate("input dropout", spec.drop_input);
  check_rate("hidden dropout", spec.drop_hidden);
  return plan_mlp(spec, image_height * image_width, classes);
}

std::size_t output_elements(const Layer& layer) { return std::visit(OutputElements{}, layer); }

}  // namespace demos
