#include "master/calls/describe.hpp"

namespace syncrun::detail {

namespace {

const char* type_of_argument(ArgumentKind kind) {
  switch (kind) {
    case ArgumentKind::scattered: return "Scattered";
    case ArgumentKind::broadcast: return "Broadcast";
    case ArgumentKind::value: return "a value";
    case ArgumentKind::per_worker: return "PerWorker";
    case ArgumentKind::local: return "Local";
    case ArgumentKind::local_read: return "Local const";
    case ArgumentKind::sliced: return "Sliced";
    case ArgumentKind::update: return "Update";
    case ArgumentKind::device_scalar: return "DeviceScalar";
    case ArgumentKind::text: return "std::string_view";
  }
  return "an unknown argument";
}

const char* type_of_output(Reduction reduction) {
  switch (reduction) {
    case Reduction::avg: return "Avg";
    case Reduction::sum: return "Sum";
    case Reduction::min: return "Min";
    case Reduction::max: return "Max";
    case Reduction::prod: return "Prod";
    case Reduction::gather: return "Gather";
  }
  return "an unknown output";
}

/// "float32, 2": element type and number of dimensions, as in the signature.
std::string array_of(DType dtype, std::uint8_t dimensions) {
  return std::string(to_string(dtype)) + (dimensions == 0 ? "" : ", " + std::to_string(dimensions));
}

std::string argument_in_words(const ArgumentType& type, std::string_view value_type) {
  const std::string array = array_of(type.dtype, type.dimensions);
  const std::string kind = type_of_argument(type.kind);
  switch (type.kind) {
    case ArgumentKind::value: return std::string(value_type) + ", by value";
    case ArgumentKind::per_worker:
    case ArgumentKind::device_scalar: return kind + "<" + std::string(value_type) + ">";
    case ArgumentKind::text: return kind + ", by value";
    case ArgumentKind::local_read: return "Local<const " + array + ">";
    case ArgumentKind::update: return "Update<" + std::string(syncrun::to_string(type.reduction)) + ", " + array + ">";
    case ArgumentKind::scattered:
    case ArgumentKind::broadcast:
    case ArgumentKind::local:
    case ArgumentKind::sliced: break;
  }
  return kind + "<" + array + ">";
}

std::string devices_in_words(const master::records::FunctionRecord& function) {
  std::string text;
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    const master::records::BodyState state = function.bodies[static_cast<std::size_t>(kind)];
    if (state == master::records::BodyState::missing) continue;
    text += text.empty() ? "" : " and ";
    text += kind == DeviceKind::cpu ? "CPU devices" : "CUDA devices";
    if (state == master::records::BodyState::replayable && kind == DeviceKind::cuda) text += " (replayed)";
  }
  return text.empty() ? "no device" : text;
}

}  // namespace

}  // namespace syncrun::detail

namespace syncrun::detail::master::calls {

std::string describe_argument(const master::records::FunctionRecord& function, std::size_t index,
                              std::string_view name) {
  std::string text =
      "argument " + std::to_string(index) + " (" + type_of_argument(function.signature.arguments[index].kind);
  if (!name.empty()) text.append(" '").append(name).append("'");
  return text + ") of '" + function.name + "'";
}

std::string describe_output(const master::records::FunctionRecord& function, std::size_t index) {
  std::string text = "output " + std::to_string(index);
  const std::string_view name = function.signature.output_names[index];
  if (!name.empty()) text.append(" (").append(name).append(")");
  return text;
}

std::string describe_data(const master::records::DataRecord& data) {
  return data.name.empty() ? "this Data" : "Data '" + data.name + "'";
}

std::string in_quotes(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

}  // namespace syncrun::detail::master::calls

namespace syncrun::detail {

std::string describe(const master::records::FunctionRecord& function) {
  const SignatureInfo& signature = function.signature;
  std::string text = function.name + "\n";
  for (std::size_t i = 0; i < signature.arguments.size(); ++i) {
    text += "  argument " + std::to_string(i) + ": " +
            argument_in_words(signature.arguments[i], signature.value_types[i]) + "\n";
  }
  for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
    const OutputType& type = signature.outputs[i];
    text += "  " + master::calls::describe_output(function, i) + ": " +
            (type.is_kept ? "Keep" : type_of_output(type.reduction)) + "<" + array_of(type.dtype, type.dimensions) +
            ">\n";
  }
  if (signature.outputs.empty()) text += "  no outputs\n";
  text += "  on " + devices_in_words(function);
  if (function.object) text += ", a method of a replicated object";
  if (signature.has_comm) text += ", with a Comm";
  return text + "\n";
}

}  // namespace syncrun::detail
