#include "syncrun/torch/recompute.hpp"

#include <torch/custom_class.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "libtorch/autocast_state.hpp"
#include "libtorch/step_scope.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

namespace autograd = ::torch::autograd;

/// The states of the random generators: that of the CPU, and that of the worker's GPU.
class RandomState {
 public:
  RandomState() {
    add(::torch::kCPU);
    if (device_here().is_cuda()) add(device_here());
  }
  void restore() const {
    for (const auto& [generator, state] : states_) at::Generator(generator).set_state(state);
  }

 private:
  void add(::torch::Device device) {
    const at::Generator& generator = at::globalContext().defaultGenerator(device);
    states_.emplace_back(generator, generator.get_state());
  }
  std::vector<std::pair<at::Generator, ::torch::Tensor>> states_;
};

/// In its lifetime, Autocast keeps no copies of parameters. A copy that was made without a graph would serve later uses of
/// the parameter in the same scope, which then had no gradient. It would also need memory until the end of the scope.
class NoAutocastCache {
 public:
  NoAutocastCache() : was_enabled_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(was_enabled_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool was_enabled_;
};

/// What a computation can ask for in its thread.
class ThreadState : public ::torch::CustomClassHolder {
 public:
  explicit ThreadState(RepeatedWork of)
      : work(std::move(of)),
        device_(device_here().type()),
        has_autocast_(is_autocast_enabled(device_)),
        type_(autocast_type(device_)) {
    if (const StepScope* const scope = step_scope())
      scope_.emplace(StepScope{scope->world_size, scope->device, scope->comm, nullptr});
  }

  /// In its lifetime, the thread has this state again.
  class Again {
   public:
    explicit Again(const ThreadState& state)
        : scope_(state.scope_ && step_scope() == nullptr ? &*state.scope_ : nullptr),
          device_(state.device_),
          had_autocast_(is_autocast_enabled(device_)),
          type_before_(autocast_type(device_)) {
      state.random_.restore();
      set_autocast(device_, state.has_autocast_, state.type_);
      at::autocast::increment_nesting();
    }
    ~Again() {
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      set_autocast(device_, had_autocast_, type_before_);
      before_.restore();
    }
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    RandomState before_;
    ScopeOfThread scope_;
    ::torch::DeviceType device_;
    bool had_autocast_;
    ::torch::ScalarType type_before_;
  };

  const RepeatedWork work;

 private:
  RandomState random_;
  ::torch::DeviceType device_;
  bool has_autocast_;
  ::torch::ScalarType type_;
  std::optional<StepScope> scope_;  // LibTorch runs the backward pass on GPUs in a thread of its own, which has none
};

/// The gradients of parameters are added where they belong, by a backward pass within the backward pass. So the node needs
/// an input that requires a gradient, also if its inputs are numbers of tokens: the ticket.
class RepeatedNode : public autograd::Function<RepeatedNode> {
 public:
  static autograd::variable_list forward(autograd::AutogradContext* context, at::TensorList inputs,
                                         const ::torch::Tensor& /*ticket*/,
                                         const c10::intrusive_ptr<ThreadState>& state) {
    const Tensors kept = inputs.vec();
    context->save_for_backward(kept);
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    context->saved_data["inputs"] = static_cast<std::int64_t>(inputs.size());
    context->set_materialize_grads(false);
    const NoAutocastCache no_cache;
    return state->work.run(kept);
  }

  static autograd::variable_list backward(autograd::AutogradContext* context, autograd::variable_list gradients) {
    if (::torch::GradMode::is_enabled())
      throw Error(ErrorKind::usage, "checkpoint: second derivatives are not supported (create_graph)");
    // The pass below adds to the gradients of all parameters. torch::autograd::grad wants none of them.
    if (!context->needs_input_grad(static_cast<std::size_t>(context->saved_data["inputs"].toInt())))
      throw Error(
          ErrorKind::usage,
          "checkpoint: the backward pass is to given tensors only, as that of torch::autograd::grad, expected one "
          "to all parameters, as that of backward(). Compute this part of the loss without checkpoint()");
    const auto capsule = context->saved_data["state"].toCapsule();
    const auto& state = *static_cast<const ThreadState*>(capsule.get());
    Tensors inputs;
    for (const ::torch::Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    Tensors results;
    Tensors own;
    {
      const ThreadState::Again again(state);
      const ::torch::AutoGradMode recorded(true);
      const NoAutocastCache no_cache;
      Tensors outputs = state.work.run(inputs);
      for (std::size_t i = 0; i < outputs.size() && i < gradients.size(); ++i) {
        if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
        results.push_back(std::move(outputs[i]));
        own.push_back(gradients[i]);
      }
    }
    if (state.work.before_backward) state.work.before_backward();
    if (!results.empty()) autograd::backward(results, own);
    results.clear();
    if (state.work.after_backward) state.work.after_backward();
    autograd::variable_list of_inputs;
    for (const ::torch::Tensor& input : inputs) of_inputs.push_back(input.grad());
    of_inputs.resize(inputs.size() + 2);  // the ticket and the state have none
    return of_inputs;
  }
};

}  // namespace

Tensors run_repeatedly(RepeatedWork work, const Tensors& inputs) {
  if (!::torch::GradMode::is_enabled()) return work.run(inputs);
  for (const ::torch::Tensor& each : inputs) {
    if (!each.defined()) throw Error(ErrorKind::usage, "checkpoint: an input is an undefined tensor, expected a value");
  }
  return RepeatedNode::apply(at::TensorList(inputs), checkpoint_ticket(),
                             c10::make_intrusive<ThreadState>(std::move(work)));
}

const ::torch::Tensor& checkpoint_ticket() {
  static const ::torch::Tensor ticket = ::torch::zeros({}, ::torch::requires_grad());
  return ticket;
}

}  // namespace syncrun::libtorch::detail
