#include "libtorch/module_state.hpp"

#include "libtorch/module_tensors.hpp"
#include "syncrun/torch/guard.hpp"
#include "syncrun/torch/sync_batch_norm.hpp"

namespace syncrun::libtorch::detail {

namespace {

namespace nn = ::torch::nn;

template <class... Types>
bool is_one_of(const nn::Module& module) {
  return (... || (dynamic_cast<const Types*>(&module) != nullptr));
}

/// Runs code as a body does, on the device of the worker. No other body runs meanwhile, so nothing else uses generators.
template <class Code>
void run_on(const syncrun::detail::StateKeeper::Caller& caller, Code&& code) {
  const ::torch::NoGradGuard no_gradients;
  if (caller.cuda != nullptr) Guard(*caller.cuda).run(code);
  else Guard(*caller.cpu).run(code);
}

}  // namespace

ModuleState::ModuleState(std::shared_ptr<nn::Module> module, const std::vector<BoundParameter>& parameters)
    : module_(std::move(module)), modules_(module_->modules()), parameters_(module_->parameters()) {
  std::erase_if(parameters_, [](const ::torch::Tensor& each) { return !each.defined(); });
  mode_bits_.resize((modules_.size() + parameters_.size() + 63) / 64);
  for (const BoundParameter& each : parameters) {
    parts_ += "part " + std::to_string(each.offset) + " " + std::to_string(each.offset + each.tensor.numel()) + " " +
              each.name + "\n";
  }
  note_synced();
}

std::uint32_t ModuleState::buffer_versions() const {
  std::uint32_t sum = 0;
  for (const ModuleTensor& each : other_tensors(*module_)) sum += static_cast<std::uint32_t>(each.tensor._version());
  // All ranks have computed these statistics together, so they are equal.
  for (const auto& each : module_->modules()) {
    if (const auto* norm = each->as<SyncBatchNormImpl>()) {
      for (const auto& buffer : norm->buffers(false)) {
        if (buffer.defined()) sum -= static_cast<std::uint32_t>(buffer._version());
      }
    }
  }
  return sum;
}

std::span<const std::uint64_t> ModuleState::modes() noexcept {
  std::fill(mode_bits_.begin(), mode_bits_.end(), 0);
  std::size_t at = 0;
  const auto note = [&](bool bit) {
    mode_bits_[at / 64] |= static_cast<std::uint64_t>(bit) << (at % 64);
    ++at;
  };
  for (const auto& each : modules_) note(each->is_training());
  for (const auto& each : parameters_) note(each.requires_grad());
  return mode_bits_;
}

void ModuleState::keep(const Caller& caller) {
  run_on(caller, [&] {
    drop();
    use_ = Use::none;
    put_back_buffers();
    was_synced_ = is_synced();
    for (const ModuleTensor& each : other_tensors(*module_)) tensors_.emplace_back(each.tensor, each.tensor.clone());
    generators_.emplace_back(at::globalContext().defaultGenerator(at::kCPU), ::torch::Tensor());
    if (caller.cuda != nullptr)
      generators_.emplace_back(at::globalContext().defaultGenerator(device_here()), ::torch::Tensor());
    for (auto& [generator, state] : generators_) state = generator.get_state();
    for (const auto& each : module_->modules()) modes_.emplace_back(each.get(), each->is_training());
  });
}

void ModuleState::restore(const Caller& caller, Generators generators) {
  run_on(caller, [&] {
    put_back_buffers();
    for (auto& [tensor, copy] : tensors_) tensor.copy_(copy);
    if (was_synced_) note_synced();
    for (const auto& [module, is_training] : modes_) {
      if (module->is_training() != is_training) module->train(is_training);
    }
    if (generators == Generators::as_they_are) return;
    for (auto& [generator, state] : generators_) generator.set_state(state);
  });
}

/// A body that threw may have assigned buffers of TorchScript.
void ModuleState::put_back_buffers() {
  if (auto* const script = dynamic_cast<ScriptAdapter*>(module_.get())) script->put_back_buffers();
}

void ModuleState::drop() noexcept {
  tensors_.clear();
  generators_.clear();
  modes_.clear();
}

std::string ModuleState::describe() const {
  if (use_ == Use::none) return {};
  std::string text = "module\n" + parts_;
  if (use_ == Use::evaluation) return text;
  for (const auto& each : module_->named_modules("", false)) {
    const nn::Module& module = *each.value();
    const std::string name = " " + module.name() + " '" + each.key() + "'\n";
    if (is_one_of<nn::BatchNorm1dImpl, nn::BatchNorm2dImpl, nn::BatchNorm3dImpl>(module) && module.is_training())
      text += "normalisation" + name;
    if (is_one_of<nn::DropoutImpl, nn::Dropout2dImpl, nn::Dropout3dImpl, nn::AlphaDropoutImpl,
                  nn::FeatureAlphaDropoutImpl>(module) &&
        module.is_training())
      text += "random" + name;
  }
  return text;
}

}  // namespace syncrun::libtorch::detail
