#include "launcher/calls/describe.hpp"

#include <array>

namespace syncrun::detail {

namespace {

constexpr std::array<const char*, 9> kKinds{"Scattered",   "Broadcast", "a value", "PerWorker",   "Local",
                                            "Local const", "Sliced",    "Update",  "DeviceScalar"};
constexpr std::array<const char*, 6> kOutputs{"Avg", "Sum", "Min", "Max", "Prod", "Gather"};

std::string kind_of(const ArgumentType& type) { return kKinds[static_cast<std::size_t>(type.kind)]; }

/// "float32, 2": element type and number of dimensions, as in the signature.
std::string array_of(DType dtype, std::uint8_t dimensions) {
  return std::string(to_string(dtype)) + (dimensions == 0 ? "" : ", " + std::to_string(dimensions));
}

std::string argument_in_words(const ArgumentType& type, std::string_view value_type) {
  const std::string array = array_of(type.dtype, type.dimensions);
  switch (type.kind) {
    case ArgumentKind::value: return std::string(value_type) + ", by value";
    case ArgumentKind::per_worker:
    case ArgumentKind::device_scalar: return kind_of(type) + "<" + std::string(value_type) + ">";
    case ArgumentKind::local_read: return "Local<const " + array + ">";
    case ArgumentKind::update: return "Update<" + std::string(syncrun::to_string(type.reduction)) + ", " + array + ">";
    default: return kind_of(type) + "<" + array + ">";
  }
}

std::string devices_in_words(const FunctionRecord& function) {
  std::string text;
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    const BodyState state = function.bodies[static_cast<std::size_t>(kind)];
    if (state == BodyState::missing) continue;
    text += text.empty() ? "" : " and ";
    text += kind == DeviceKind::cpu ? "CPU devices" : "CUDA devices";
    if (state == BodyState::replayable && kind == DeviceKind::cuda) text += " (replayed)";
  }
  return text.empty() ? "no device" : text;
}

}  // namespace

std::string describe_argument(const FunctionRecord& function, std::size_t index, std::string_view name) {
  std::string text = "argument " + std::to_string(index) + " (" + kind_of(function.signature.arguments[index]);
  if (!name.empty()) text.append(" '").append(name).append("'");
  return text + ") of '" + function.name + "'";
}

std::string describe_output(const FunctionRecord& function, std::size_t index) {
  std::string text = "output " + std::to_string(index);
  const std::string_view name = function.signature.output_names[index];
  if (!name.empty()) text.append(" (").append(name).append(")");
  return text;
}

std::string describe_data(const DataRecord& data) {
  return data.name.empty() ? "this Data" : "Data '" + data.name + "'";
}

std::string describe(const FunctionRecord& function) {
  const SignatureInfo& signature = function.signature;
  std::string text = function.name + "\n";
  for (std::size_t i = 0; i < signature.arguments.size(); ++i) {
    text += "  argument " + std::to_string(i) + ": " +
            argument_in_words(signature.arguments[i], signature.value_types[i]) + "\n";
  }
  for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
    const OutputType& type = signature.outputs[i];
    text += "  " + describe_output(function, i) + ": " +
            (type.is_kept ? "Keep" : kOutputs[static_cast<std::size_t>(type.reduction)]) + "<" +
            array_of(type.dtype, type.dimensions) + ">\n";
  }
  if (signature.outputs.empty()) text += "  no outputs\n";
  text += "  on " + devices_in_words(function);
  if (function.object) text += ", a method of a replicated object";
  if (signature.has_comm) text += ", with a Comm";
  return text + "\n";
}

std::string in_quotes(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

}  // namespace syncrun::detail
