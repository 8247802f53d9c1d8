#include <torch/csrc/jit/serialization/import.h>

#include "libtorch/tensor_files.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

namespace {

/// The attribute of each module of TorchScript that has its mode. A frozen module has none.
constexpr const char* kTraining = "training";

}  // namespace

ScriptAdapter::ScriptAdapter(::torch::jit::Module script) : script_(std::move(script)) {
  for (const auto& named : script_.named_parameters(/*recurse=*/false))
    register_parameter(named.name, named.value, named.value.requires_grad());
  for (const auto& named : script_.named_buffers(/*recurse=*/false)) register_buffer(named.name, named.value);
  for (const auto& named : script_.named_children())
    register_module(named.name, std::make_shared<ScriptAdapter>(named.value));
}

std::shared_ptr<ScriptAdapter> ScriptAdapter::from_file(const std::filesystem::path& file) {
  const FileBytes check(file);  // its errors say why a file cannot be read
  try {
    auto adapter = std::make_shared<ScriptAdapter>(::torch::jit::load(file.string(), device_here()));
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
  const ::torch::NoGradGuard no_gradients;
  for (const auto& own : named_buffers(/*recurse=*/false)) {
    const ::torch::Tensor assigned = script_.attr(own.key()).toTensor();
    if (assigned.is_same(own.value())) continue;
    ::torch::Tensor(own.value()).copy_(assigned);
    script_.setattr(own.key(), own.value());
  }
  for (const auto& child : children()) static_cast<ScriptAdapter&>(*child).keep_buffers();
}

bool ScriptAdapter::is_training() const noexcept {
  return script_.hasattr(kTraining) ? script_.is_training() : ::torch::nn::Module::is_training();
}

}  // namespace syncrun::libtorch::detail
