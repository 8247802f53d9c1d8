#include <algorithm>
#include <cmath>
#include <cstring>

#include "libtorch/converted_parameters.hpp"
#include "libtorch/cuda_part.hpp"
#include "libtorch/gradient_hooks.hpp"
#include "libtorch/loss_form.hpp"
#include "libtorch/module_state.hpp"
#include "libtorch/module_tensors.hpp"
#include "libtorch/step_scope.hpp"
#include "libtorch/units.hpp"
#include "syncrun/detail/gradient_count.hpp"
#include "syncrun/detail/number_text.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/replica.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/torch/weighted_loss.hpp"

namespace syncrun::libtorch::detail {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::usage, what); }

/// Says what to do about a loss that is not finite. Names the first parameter with a value that is not finite, or says
/// that all parameters are finite. In the first training run of the module, no learning rate is the reason.
std::string advice_on(double value, const ::torch::Tensor& loss, const std::vector<BoundParameter>& parameters,
                      std::int64_t steps) {
  const std::string of_updates = ". Try a smaller learning rate, or clip the gradient";
  for (const BoundParameter& each : parameters) {
    if (::torch::isfinite(each.tensor.detach()).all().item<bool>()) continue;
    return "parameter '" + each.name + "' already has values that are not finite" +
           (steps == 1 ? ". Look at where its values come from: the constructor, a file or a broadcast" : of_updates);
  }
  const std::string finite = "all parameters are finite before this step";
  if (!std::isnan(value) && steps > 1) return finite + of_updates;
  if (const std::string why = why_no_mean(loss); !why.empty()) return finite + "; " + why;
  return finite +
         ". Look at the inputs, and for a division by 0 or a logarithm of 0. A mean over nothing is 0 / 0, for example "
         "if all targets of a rank are padding: return libtorch::cross_entropy(scores, targets, ignore_index), or "
         "another WeightedLoss";
}

::torch::Tensor flat(const FlatVector& vector) { return numbers_at(vector.data, {vector.elements}, vector.type); }

/// Whether the elements of a tensor that fills its memory lie in the order of these strides. The strides of dimensions of
/// length 1 mean nothing.
bool is_in_order(const ::torch::Tensor& tensor, const std::vector<std::int64_t>& strides) {
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) != strides[static_cast<std::size_t>(i)]) return false;
  }
  return true;
}

/// A gradient in the type of the variable, if it is sparse, as that of an embedding can be. Otherwise as it is. LibTorch has
/// no sparse sums of 16 bits for CPUs.
::torch::Tensor dense(const BoundParameter& parameter, const ::torch::Tensor& gradient, ::torch::ScalarType type) {
  if (gradient.layout() == ::torch::kStrided) return gradient;
  if (gradient.layout() == ::torch::kSparse) return gradient.to(type).to_dense();
  refuse("the gradient of parameter '" + parameter.name + "' has an unknown layout, expected a dense or a sparse one");
}

/// The elements of the parameter's gradient, in the order of the parameter's memory. Zeros if there is no gradient.
::torch::Tensor gradient_elements(const BoundParameter& parameter, ::torch::ScalarType type) {
  ::torch::Tensor own = parameter.tensor.grad();
  if (own.defined()) own = dense(parameter, own, type);
  if (own.defined() && is_in_order(own, parameter.strides)) return own.as_strided({own.numel()}, {1}).to(type);
  auto elements = ::torch::zeros({parameter.tensor.numel()}, parameter.tensor.options().dtype(type));
  if (own.defined()) elements.as_strided(own.sizes(), parameter.strides).copy_(own);
  return elements;
}

/// Sets all elements of a gradient to zero, in the order of the stream.
void clear(const FlatVector& gradient) {
  if (gradient.elements == 0) return;
  const auto bytes = static_cast<std::size_t>(gradient.elements) * c10::elementSize(gradient.type);
  if (device_here().is_cpu()) std::memset(gradient.data, 0, bytes);
  else flat(gradient).zero_();
}

void check_is_one_number(const ::torch::Tensor& loss) {
  if (!loss.defined()) refuse("the loss is an undefined tensor, expected one number: the mean over the rows");
  if (loss.numel() == 1) return;
  refuse("the loss is " + type_and_shape(loss) +
         ", expected one number: the mean over the rows. Apply .mean() to a "
         "loss of each row");
}

}  // namespace

double count_of(const WeightedLoss& loss) {
  const auto count = loss.count.item<double>();
  if (std::isfinite(count) && count >= 0) return count;
  refuse("the count of the loss is " + syncrun::detail::number_text(count) +
         ", expected a finite number from 0: the number or the weight of the terms of the sum");
}

BoundModule::BoundModule(std::shared_ptr<::torch::nn::Module> module, std::shared_ptr<Units> units)
    : module_(std::move(module)),
      script_(dynamic_cast<ScriptAdapter*>(module_.get())),
      device_(device_here()),
      units_(std::move(units)) {
  if (units_) units_->complete(*module_);
  if (!device_.is_cpu()) {
    module_->to(device_);
    // The memory is there before a step is captured, and its address never changes.
    result_ = ::torch::zeros({3}, ::torch::TensorOptions().dtype(::torch::kFloat64).device(device_));
  }
  parameters_ = find_parameters(known_);
  next_id_ = proposed_next_id_;
  elements_ = count_elements(parameters_);
  state_ = std::make_shared<ModuleState>(module_, parameters_);
}

void check_is_module(bool is_module) {
  if (!is_module) refuse("the factory returned an empty module, expected one with parameters");
}

bool BoundModule::has_buffers() const { return !other_tensors(*module_).empty(); }

void BoundModule::store(const FlatVector& params) {
  if (units_) return units_->store(params);
  check_size(params);
  const ::torch::NoGradGuard no_gradients;
  for (const BoundParameter& each : parameters_) {
    if (is_part_of(params, each, each.tensor)) continue;
    auto part = part_of(params, each);
    // A number of the variable can have more digits than its copy in the module.
    const auto is_value = [&](const ::torch::Tensor& master) {
      return is_converted(each, params) && master.sizes() == each.tensor.sizes() &&
             master.to(each.tensor.scalar_type()).equal(each.tensor);
    };
    if (is_value(part)) continue;
    const auto kept =
        std::find_if(masters_.begin(), masters_.end(), [&](const auto& master) { return master.first == each.id; });
    part.copy_(kept != masters_.end() && is_value(kept->second) ? kept->second : each.tensor);
  }
  masters_.clear();
  bind_params(params, std::nullopt);
}

void BoundModule::bind(const FlatVector& params, const FlatVector& gradient, const BackwardCall& call) {
  check_unchanged();
  check_size(params);
  gradient_ = gradient;
  check_range();
  bind_params(params, call.changed);
  if (call.report) {
    for (const BoundParameter& each : parameters_) {
      if (is_converted(each, params))
        refuse("parameter '" + each.name + "' is " + type_and_shape(each.tensor) +
               ", and GradientAverage::during_backward expects parameters of the type of the variable. Use "
               "GradientAverage::after_backward");
    }
  }
  bind_gradient(gradient, device_.is_cpu() || call.report);
  note_loss_scale(call.scale == nullptr ? LossScale::none : LossScale::scaled);
  state_->note_use(ModuleState::Use::training);
  ++steps_;
}

void BoundModule::bind_to_read(const FlatVector& params) {
  check_unchanged();
  check_size(params);
  state_->note_use(ModuleState::Use::evaluation);
  bind_params(params, std::nullopt);
}

void BoundModule::check_size(const FlatVector& params) const {
  if (params.elements == elements_) return;
  refuse("the variable has " + std::to_string(params.elements) + " elements, expected " + std::to_string(elements_) +
         ", as many as the module's parameters. Make the variable with parameters(session, net)");
}

std::span<const std::uint64_t> BoundModule::modes() const noexcept { return state_->modes(); }

void BoundModule::keep_buffers() const {
  if (script_ != nullptr) script_->keep_buffers();
}

void BoundModule::check_unchanged() const {
  if (is_changing_)
    refuse("the last change() of the module has failed, and may have left it half changed, expected another one");
  keep_buffers();
  const auto now = trained_parameters(*module_);
  const std::size_t common = std::min(now.size(), parameters_.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (now[i].tensor.is_same(parameters_[i].tensor) && now[i].sizes == parameters_[i].sizes) continue;
    refuse("the module has other parameters than before: expected '" + parameters_[i].name + "', found '" +
           now[i].name + "'. Add, remove, replace, freeze or unfreeze parameters with change()");
  }
  if (now.size() == parameters_.size()) return;
  const bool is_more = now.size() > common;
  refuse("the module has " + std::to_string(now.size()) + " parameters, expected " +
         std::to_string(parameters_.size()) + " as before: '" +
         (is_more ? now[common].name : parameters_[common].name) + "' was " +
         (is_more ? "added or unfrozen" : "removed or frozen") + ". Do this with change()");
}

void BoundModule::bind_params(const FlatVector& params, const std::optional<ParameterRange>& changed) {
  // The Guard of the body ends this.
  if (step_scope() != nullptr && params.type == ::torch::kFloat32) {
    ConvertedParameters::of_thread().bind(
        parameters_, {static_cast<const float*>(params.data), static_cast<std::size_t>(params.elements)});
  }
  has_copies_ = false;
  const ::torch::NoGradGuard no_gradients;
  for (BoundParameter& each : parameters_) {
    const bool may_have_changed = !changed || (each.offset >= changed->begin && each.end() <= changed->end);
    if (is_converted(each, params)) {
      has_copies_ = true;
      check_type(each);
      if (may_have_changed) each.tensor.copy_(part_of(params, each));
      continue;
    }
    // A graph that refers to the values before the update would compute with those after it.
    if (changed && may_have_changed) ::torch::autograd::impl::bump_version(each.tensor);
    if (is_part_of(params, each, each.tensor)) continue;
    check_type(each);  // the program may have moved it
    each.tensor.set_data(part_of(params, each));
  }
}

/// A range of a step must not cut a parameter: the gradient of a part of it would be lost.
void BoundModule::check_range() const {
  const std::int64_t last = gradient_.first + gradient_.elements;
  for (const BoundParameter& each : parameters_) {
    if (is_trained(each) || each.end() <= gradient_.first || each.offset >= last) continue;
    refuse("the range of the step, the elements " + std::to_string(gradient_.first) + " to " + std::to_string(last) +
           ", cuts parameter '" + each.name +
           "', expected whole parameters. range_of() gives the range of a submodule");
  }
}

bool BoundModule::is_trained(const BoundParameter& parameter) const {
  return parameter.offset >= gradient_.first && parameter.end() <= gradient_.first + gradient_.elements;
}

void BoundModule::bind_gradient(const FlatVector& gradient, bool is_in_place) {
  if (is_in_place) clear(gradient);
  for (const BoundParameter& each : parameters_) {
    ::torch::Tensor& own = each.tensor.mutable_grad();
    if (!is_in_place || !is_trained(each) || is_converted(each, gradient)) own.reset();
    else if (!is_part_of(gradient, each, own)) own = part_of(gradient, each);
  }
}

/// Copies the gradients of all parameters to where they belong.
void BoundModule::collect_gradient() {
  const ::torch::NoGradGuard no_gradients;
  std::vector<::torch::Tensor> parts;
  for (const BoundParameter& each : parameters_) {
    if (is_trained(each)) parts.push_back(gradient_elements(each, gradient_.type));
    each.tensor.mutable_grad().reset();
  }
  auto all = flat(gradient_);
  ::torch::cat_out(all, parts);
}

/// The same if most of them are there already.
void BoundModule::collect_in_place() {
  const ::torch::NoGradGuard no_gradients;
  for (const BoundParameter& each : parameters_) {
    if (!is_trained(each)) continue;
    if (!is_converted(each, gradient_)) {
      check_gradient_place(each, gradient_);
      continue;
    }
    ::torch::Tensor& own = each.tensor.mutable_grad();
    if (own.defined()) part_of(gradient_, each).copy_(dense(each, own, gradient_.type));
    own.reset();
  }
}

Avg<double> BoundModule::result_of(const ::torch::Tensor& loss) {
  check_is_one_number(loss);
  if (device_.is_cpu()) return loss.item<double>();
  const ::torch::NoGradGuard no_gradients;
  result_[0].copy_(loss.detach().reshape({}));
  return Avg<double>::in_device_memory(result_.data_ptr<double>());
}

WeightedMean BoundModule::result_of(const WeightedLoss& loss) {
  check_is_one_number(loss.sum);
  if (device_.is_cpu()) {
    const double count = count_of(loss);
    return {count == 0 ? 0 : loss.sum.item<double>(), count};
  }
  const ::torch::NoGradGuard no_gradients;
  const auto count = loss.count.reshape({}).to(::torch::kFloat64);
  const auto sum = loss.sum.detach().reshape({}).to(::torch::kFloat64);
  result_[0].copy_(::torch::where(count == 0, ::torch::zeros_like(sum), sum));
  result_[1].copy_(count);
  auto* const places = result_.data_ptr<double>();
  return {Sum<double>::in_device_memory(places), Sum<double>::in_device_memory(places + 1)};
}

Sum<double> BoundModule::result_of(const SummedLoss& loss) {
  check_is_one_number(loss.sum);
  if (device_.is_cpu()) return loss.sum.item<double>();
  const ::torch::NoGradGuard no_gradients;
  result_[0].copy_(loss.sum.detach().reshape({}));
  return Sum<double>::in_device_memory(result_.data_ptr<double>());
}

Avg<double> BoundModule::backward(const ::torch::Tensor& loss, const BackwardCall& call) {
  check_is_one_number(loss);
  const bool has_rows = call.rows != 0;
  const bool is_averaged = has_rows && call.share != 1;
  if (const std::string why = is_averaged ? why_no_mean(loss) : std::string(); !why.empty()) {
    refuse(why +
           ". The gradients of ranks and slices are averaged by their rows, so several of them would train another "
           "objective");
  }
  if (has_rows) check_loss(loss, call);
  // Without rows, the gradient does not count. The rank takes part because modules may compute with all ranks.
  run_backward(scaled(loss, call, call.share), call, has_rows ? call.check : FiniteCheck::loss, has_rows);
  if (!has_rows) return 0.0;
  if (call.scale != nullptr) set_count(call.share, call);
  return result_of(loss);
}

WeightedMean BoundModule::backward(const WeightedLoss& loss, const BackwardCall& call) {
  check_is_one_number(loss.sum);
  const bool has_rows = call.rows != 0;
  const bool may_count = has_rows && !(device_.is_cpu() && count_of(loss) == 0);
  if (may_count) check_loss(loss.sum, call);
  run_backward(scaled(loss.sum, call), call, may_count ? call.check : FiniteCheck::loss, may_count);
  if (!may_count && device_.is_cpu() && !units_) clear(gradient_);  // it may be NaN
  if (!has_rows) return {};
  WeightedMean result = result_of(loss);
  if (device_.is_cpu()) {
    set_count(result.count, call);
  } else if (call.scale == nullptr) {
    call.count->set_in_device_memory(result_.data_ptr<double>() + 1);
  } else {
    set_count(1, call);
    const ::torch::NoGradGuard no_gradients;
    result_[2].mul_(result_[1]);
  }
  return result;
}

Sum<double> BoundModule::backward(const SummedLoss& loss, const BackwardCall& call) {
  check_is_one_number(loss.sum);
  const bool has_rows = call.rows != 0;
  if (has_rows) check_loss(loss.sum, call);
  run_backward(scaled(loss.sum, call), call, has_rows ? call.check : FiniteCheck::loss, has_rows);
  if (!has_rows) return 0.0;
  set_count(call.share, call);
  return result_of(loss);
}

/// The tensor at which the backward pass starts: the loss, or the loss times the factor and the scale. The product is not
/// computed in float16, where it could be infinite.
::torch::Tensor BoundModule::scaled(const ::torch::Tensor& loss, const BackwardCall& call, double factor) const {
  // The ranks of a divided module add their gradients. Others average them by rows.
  const auto type = loss.scalar_type() == ::torch::kFloat64 ? ::torch::kFloat64 : ::torch::kFloat32;
  if (call.scale == nullptr) return units_ && factor != 1 ? loss.to(type) * factor : loss;
  if (device_.is_cpu()) return loss.to(type) * (static_cast<double>(*call.scale) * factor);
  return loss.to(type) * factor * numbers_at(const_cast<float*>(call.scale), {}, ::torch::kFloat32);
}

/// Tells the step by what it divides the gradient: by the count, times the scale.
void BoundModule::set_count(double count, const BackwardCall& call) {
  if (device_.is_cpu()) return call.count->set(count * (call.scale == nullptr ? 1 : static_cast<double>(*call.scale)));
  const ::torch::NoGradGuard no_gradients;
  result_[2].fill_(count);
  if (call.scale != nullptr) result_[2].mul_(numbers_at(const_cast<float*>(call.scale), {}, ::torch::kFloat32));
  call.count->set_in_device_memory(result_.data_ptr<double>() + 2);
}

/// Computes the gradient of one number, where it belongs. `counts`: whether it is more than zero or NaN.
void BoundModule::run_backward(const ::torch::Tensor& loss, const BackwardCall& call, FiniteCheck check, bool counts) {
  // With reports and with units, collectives run meanwhile.
  const CudaPart::Waiting waiting(device_.is_cpu() || call.report || units_ ? nullptr : &cuda_part());
  if (units_) units_->begin_backward(counts);
  const bool is_watched = check != FiniteCheck::loss || call.report;
  const auto backward = [&] {
    if (units_) return units_->backward(loss);
    if (gradient_.elements == elements_) return loss.backward();
    std::vector<::torch::Tensor> trained{checkpoint_ticket()};
    for (const BoundParameter& each : parameters_) {
      if (is_trained(each)) trained.push_back(each.tensor);
    }
    loss.backward({}, {}, false, ::torch::TensorList(trained));
  };
  if (is_watched && loss.requires_grad()) {
    if (!watch_) watch_ = std::make_shared<GradientHooks>();
    watch_->run(loss, backward, parameters_, gradient_, check, call.report, steps_);
  } else if (loss.requires_grad()) {
    backward();
  }
  if (units_) units_->end_backward();
  else if (!device_.is_cpu() && !call.report) collect_gradient();
  else collect_in_place();
}

void BoundModule::check_loss(const ::torch::Tensor& loss, const BackwardCall& call) const {
  if (!loss.requires_grad()) {
    refuse(
        "the loss does not depend on a parameter, so it has no gradient. Compute it from the module's output, "
        "without NoGradGuard and without detach()");
  }
  if (call.scale != nullptr) return;  // the step is skipped if the gradient is not finite
  if (!device_.is_cpu() && call.check != FiniteCheck::gradients) return;  // the host does not wait for the value
  const auto value = loss.item<double>();
  if (!std::isfinite(value)) {
    refuse(
        "the loss is " + syncrun::detail::number_text(value) + " in training run " + std::to_string(steps_) +
        " of this module, expected a finite number; " +
        (units_ ? "look at the inputs, or try a smaller learning rate" : advice_on(value, loss, parameters_, steps_)));
  }
}

void BoundModule::sync_buffers(Comm& comm, BufferSync how, int root) {
  keep_buffers();
  const ::torch::NoGradGuard no_gradients;
  for (const ModuleTensor& each : other_tensors(*module_)) {
    if (each.tensor.numel() == 0) continue;
    const ::torch::Tensor values = each.tensor.detach().contiguous();
    const bool is_averaged = how == BufferSync::mean && each.tensor.is_floating_point() &&
                             with_floating_elements(values, [&](auto elements) { comm.avg(elements); });
    if (!is_averaged) comm.broadcast(elements_of<std::uint8_t>(values), root);
    if (values.data_ptr() != each.tensor.data_ptr()) each.tensor.detach().copy_(values);
  }
  state_->note_synced();
}

void BoundModule::warn_of_buffers(AnyWorker& worker) {
  if (has_warned_ || worker.world_size() == 1 || state_->is_synced()) return;
  has_warned_ = true;
  if (worker.rank() != 0) return;
  worker.log(LogLevel::warning,
             "the buffers of the module, such as the running statistics of BatchNorm, differ between ranks: each rank "
             "has those of its own rows. Call sync_buffers(session, net) before an evaluation or a save");
}

EvaluationScope::EvaluationScope(::torch::nn::Module& module) {
  for (const auto& each : module.modules()) modes_.emplace_back(each, each->is_training());
  module.eval();
}

EvaluationScope::~EvaluationScope() {
  // A module passes its mode on to its submodules, which come after it.
  for (const auto& [module, is_training] : modes_) module->train(is_training);
}

void average_gradients(Comm& comm, ::torch::nn::Module& module) {
  const ::torch::NoGradGuard no_gradients;
  const auto parameters = trained_parameters(module);
  for (const BoundParameter& each : parameters) {
    if (!each.tensor.is_floating_point())
      refuse("average: parameter '" + each.name + "' is " + type_and_shape(each.tensor) +
             ", expected a floating-point type");
  }
  for (const auto type : {::torch::kFloat32, ::torch::kFloat64, ::torch::kFloat16, ::torch::kBFloat16}) {
    std::vector<::torch::Tensor> parts;
    for (const BoundParameter& each : parameters) {
      if (each.tensor.scalar_type() != type) continue;
      const ::torch::Tensor& gradient = each.tensor.grad();
      if (gradient.defined() && gradient.layout() != ::torch::kStrided)
        refuse("average: the gradient of parameter '" + each.name + "' is sparse, expected a dense one");
      parts.push_back((gradient.defined() ? gradient : ::torch::zeros_like(each.tensor)).reshape(-1));
    }
    if (parts.empty()) continue;
    const ::torch::Tensor flat = ::torch::cat(parts);
    with_floating_elements(flat, [&](auto elements) { comm.avg(elements); });
    std::int64_t offset = 0;
    for (const BoundParameter& each : parameters) {
      if (each.tensor.scalar_type() != type) continue;
      const auto mean = flat.narrow(0, offset, each.tensor.numel()).view(each.tensor.sizes());
      offset += each.tensor.numel();
      ::torch::Tensor& gradient = each.tensor.mutable_grad();
      if (gradient.defined()) gradient.copy_(mean);
      else gradient = mean.clone();
    }
  }
}

}  // namespace syncrun::libtorch::detail
