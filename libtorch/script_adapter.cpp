#include <torch/csrc/jit/serialization/import.h>

#include <string_view>

#include "libtorch/module_tensors.hpp"
#include "libtorch/tensor_files.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

namespace {

/// The attribute of each module of TorchScript that has its mode. A frozen module has none.
constexpr const char* kTraining = "training";

/// What TorchScript assigned to a buffer, for a message.
std::string described(const c10::IValue& assigned) {
  if (assigned.isTensor() && assigned.toTensor().defined()) return type_and_shape(assigned.toTensor());
  return assigned.isTensor() || assigned.isNone() ? "None" : assigned.tagKind();
}

bool fits(const c10::IValue& assigned, const ::torch::Tensor& own) {
  if (!assigned.isTensor()) return false;
  const ::torch::Tensor& tensor = assigned.toTensor();
  return tensor.defined() && tensor.sizes() == own.sizes() && tensor.scalar_type() == own.scalar_type();
}

}  // namespace

ScriptAdapter::ScriptAdapter(::torch::jit::Module script) : script_(std::move(script)) {
  for (const auto& named : script_.named_parameters(/*recurse=*/false))
    register_parameter(named.name, named.value, named.value.requires_grad());
  for (const auto& named : script_.named_buffers(/*recurse=*/false)) register_buffer(named.name, named.value);
  for (const auto& named : script_.named_children())
    register_module(named.name, std::make_shared<ScriptAdapter>(named.value));
}

std::shared_ptr<ScriptAdapter> ScriptAdapter::from_file(const std::filesystem::path& file) {
  const FileBytes bytes(file);  // its errors say why a file cannot be read
  try {
    auto adapter = std::make_shared<ScriptAdapter>(::torch::jit::load(file.string(), device_here()));
    adapter->checksum_ =
        std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes.bytes().data()), bytes.bytes().size()});
    adapter->train();
    return adapter;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw Error(ErrorKind::usage, file.string() + ": expected a file of torch.jit.save, found '" +
                                      text.substr(0, text.find('\n')) +
                                      "'. A state_dict has no code: write the module in C++, and load() the file");
  }
}

void ScriptAdapter::train(bool on) {
  if (script_.hasattr(kTraining)) script_.setattr(kTraining, on);
  ::torch::nn::Module::train(on);
}

void ScriptAdapter::keep_buffers() {
  const std::string misfit = put_back_buffers("");
  if (!misfit.empty())
    throw Error(ErrorKind::usage, "the TorchScript assigned another shape or type to a buffer: " + misfit +
                                      ". Assign a tensor of the same shape and type. The buffer is as before");
}

std::string ScriptAdapter::put_back_buffers(const std::string& prefix) {
  const ::torch::NoGradGuard no_gradients;
  std::string misfit;
  std::vector<std::pair<::torch::Tensor, ::torch::Tensor>> changed;  // a buffer and its new values
  for (const auto& own : named_buffers(/*recurse=*/false)) {
    const c10::IValue assigned = script_.attr(own.key());
    if (assigned.isTensor() && assigned.toTensor().is_same(own.value())) continue;
    script_.setattr(own.key(), own.value());
    if (fits(assigned, own.value())) changed.emplace_back(own.value(), assigned.toTensor());
    else if (misfit.empty())
      misfit =
          "expected '" + prefix + own.key() + "' " + type_and_shape(own.value()) + ", found " + described(assigned);
  }
  if (changed.size() > 1) {  // the code may have exchanged two of them
    for (auto& [own, values] : changed) values = values.clone();
  }
  for (auto& [own, values] : changed) own.copy_(values);
  for (const auto& child : named_children()) {
    const std::string below = static_cast<ScriptAdapter&>(*child.value()).put_back_buffers(prefix + child.key() + ".");
    if (misfit.empty()) misfit = below;
  }
  return misfit;
}

bool ScriptAdapter::is_training() const noexcept {
  return script_.hasattr(kTraining) ? script_.is_training() : ::torch::nn::Module::is_training();
}

}  // namespace syncrun::libtorch::detail
