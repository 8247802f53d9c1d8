#include <algorithm>
#include <cmath>
#include <cstring>
#include <locale>
#include <ostream>
#include <sstream>

#include "libtorch/converted_parameters.hpp"
#include "libtorch/cuda_part.hpp"
#include "libtorch/gradient_hooks.hpp"
#include "libtorch/loss_form.hpp"
#include "libtorch/module_state.hpp"
#include "libtorch/module_tensors.hpp"
#include "libtorch/step_scope.hpp"
#include "syncrun/detail/gradient_count.hpp"
#include "syncrun/detail/number_text.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/replica.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/torch/weighted_loss.hpp"

namespace syncrun::libtorch::detail {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::usage, what); }

void check_type(const BoundParameter& parameter) {
  const ::torch::Tensor& tensor = parameter.tensor;
  const ::torch::Device device = device_here();
  if (tensor.scalar_type() != ::torch::kFloat32 || tensor.layout() != ::torch::kStrided || tensor.device() != device) {
    refuse("parameter '" + parameter.name + "' is " + type_and_shape(tensor) + " on " + tensor.device().str() +
           ", expected dense Float (float32) on " + (device.is_cpu() ? "the CPU" : device.str()) +
           ". Keep the parameters in float32 and where they are, and convert values in forward or with autocast");
  }
}

/// The bytes from the first to the last element of a tensor.
struct Extent {
  const std::byte* begin;
  const std::byte* end;
  const std::string* name;
};

Extent extent_of(const BoundParameter& parameter) {
  const ::torch::Tensor& tensor = parameter.tensor;
  const auto* begin = static_cast<const std::byte*>(tensor.data_ptr());
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {begin, begin + static_cast<std::size_t>(last + 1) * tensor.element_size(), &parameter.name};
}

/// Two tensors that share memory would become separate, and then differ.
void check_memory(const std::vector<BoundParameter>& parameters) {
  std::vector<Extent> extents;
  for (const BoundParameter& each : parameters) {
    if (each.tensor.numel() != 0) extents.push_back(extent_of(each));
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin >= extents[i - 1].end) continue;
    refuse(
        "parameters '" + *extents[i - 1].name + "' and '" + *extents[i].name +
        "' are two tensors with the same memory, expected tied parameters to be one tensor. Register the same tensor "
        "or the same module twice instead of a view of it");
  }
}

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

::torch::Tensor floats_at(float* data, ::torch::IntArrayRef sizes) {
  return ::torch::from_blob(data, sizes, ::torch::TensorOptions().dtype(::torch::kFloat32).device(device_here()));
}
::torch::Tensor part_of(float* data, const BoundParameter& parameter) {
  const ::torch::Tensor part = floats_at(data + parameter.offset, {parameter.tensor.numel()});
  return part.as_strided(parameter.tensor.sizes(), parameter.strides);
}
::torch::Tensor flat(std::span<float> vector) {
  return floats_at(vector.data(), {static_cast<std::int64_t>(vector.size())});
}

/// Whether the elements of a tensor that fills its memory lie in the order of these strides. The strides of dimensions of
/// length 1 mean nothing.
bool is_in_order(const ::torch::Tensor& tensor, const std::vector<std::int64_t>& strides) {
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) != strides[static_cast<std::size_t>(i)]) return false;
  }
  return true;
}

/// The elements of the parameter's gradient, in the order of the parameter's memory. Zeros if there is no gradient.
::torch::Tensor gradient_elements(const BoundParameter& parameter) {
  const ::torch::Tensor& own = parameter.tensor.grad();
  if (own.defined() && is_in_order(own, parameter.strides)) return own.as_strided({own.numel()}, {1});
  auto elements = ::torch::zeros({parameter.tensor.numel()}, parameter.tensor.options());
  if (own.defined()) elements.as_strided(own.sizes(), parameter.strides).copy_(own);
  return elements;
}

/// Sets all elements of a gradient to zero, in the order of the stream.
void clear(std::span<float> gradient) {
  if (gradient.empty()) return;
  if (device_here().is_cpu()) std::memset(gradient.data(), 0, gradient.size_bytes());
  else flat(gradient).zero_();
}

/// Classes of the program may print what differs between ranks, so only LibTorch's print their options.
std::string type_and_options(const ::torch::nn::Module& module) {
  if (!module.name().starts_with("torch::nn::")) return module.name();
  std::stringbuf text;
  std::ostream stream(&text);
  stream.imbue(std::locale::classic());
  module.pretty_print(stream);
  return text.str();
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

BoundModule::BoundModule(std::shared_ptr<::torch::nn::Module> module)
    : module_(std::move(module)), script_(dynamic_cast<ScriptAdapter*>(module_.get())), device_(device_here()) {
  if (!device_.is_cpu()) {
    module_->to(device_);
    // The memory is there before a step is captured, and its address never changes.
    result_ = ::torch::zeros({2}, ::torch::TensorOptions().dtype(::torch::kFloat64).device(device_));
  }
  parameters_ = trained_parameters(*module_);
  for (const BoundParameter& each : parameters_) {
    check_type(each);
    elements_ += each.tensor.numel();
  }
  check_memory(parameters_);
  state_ = std::make_shared<ModuleState>(module_, parameters_);
}

std::string BoundModule::layout() const {
  std::string text;
  for (const BoundParameter& each : parameters_)
    text += "parameter '" + each.name + "' " + type_and_shape(each.tensor) + memory_order(each) + "\n";
  text += "no more parameters\n";
  for (const ModuleTensor& each : other_tensors(*module_))
    text += "buffer '" + each.names.front() + "' " + type_and_shape(each.tensor) + "\n";
  text += "no more buffers\n";
  for (const auto& each : module_->named_modules())
    text += "module '" + each.key() + "' " + type_and_options(*each.value()) + "\n";
  if (script_ != nullptr)
    text += "a file of TorchScript with the checksum " + std::to_string(script_->checksum()) + "\n";
  return text;
}

void check_is_module(bool is_module) {
  if (!is_module) refuse("the factory returned an empty module, expected one with parameters");
}

bool BoundModule::has_buffers() const { return !other_tensors(*module_).empty(); }

void BoundModule::store(std::span<float> params) {
  check_size(params.size());
  const ::torch::NoGradGuard no_gradients;
  for (const BoundParameter& each : parameters_) part_of(params.data(), each).copy_(each.tensor);
  bind_params(params.data());
}

void BoundModule::bind(std::span<float> params, std::span<float> gradient, const BackwardCall& call) {
  check_unchanged();
  check_size(params.size());
  bind_params(params.data());
  bind_gradient(gradient, device_.is_cpu() || call.report);
  state_->note_use(ModuleState::Use::training);
  ++steps_;
}

void BoundModule::bind_to_read(std::span<const float> params) {
  check_unchanged();
  check_size(params.size());
  state_->note_use(ModuleState::Use::evaluation);
  bind_params(const_cast<float*>(params.data()));  // LibTorch has no tensors that are const
}

void BoundModule::check_size(std::size_t elements) const {
  if (elements == static_cast<std::size_t>(elements_)) return;
  refuse("the variable has " + std::to_string(elements) + " elements, expected " + std::to_string(elements_) +
         ", as many as the module's parameters. Make the variable with parameters(session, net)");
}

void BoundModule::keep_buffers() const {
  if (script_ != nullptr) script_->keep_buffers();
}

void BoundModule::check_unchanged() const {
  keep_buffers();
  const auto now = trained_parameters(*module_);
  const std::size_t common = std::min(now.size(), parameters_.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (now[i].tensor.is_same(parameters_[i].tensor)) continue;
    refuse("the module has other parameters than at its construction: expected '" + parameters_[i].name + "', found '" +
           now[i].name + "'. Do not add, remove, replace, freeze or unfreeze parameters later");
  }
  if (now.size() == parameters_.size()) return;
  const bool is_more = now.size() > common;
  refuse("the module has " + std::to_string(now.size()) + " parameters, expected " +
         std::to_string(parameters_.size()) + " as at its construction: '" +
         (is_more ? now[common].name : parameters_[common].name) + "' was " +
         (is_more ? "added or unfrozen" : "removed or frozen") + " later");
}

void BoundModule::bind_params(float* data) {
  // The Guard of the body ends this.
  if (step_scope() != nullptr)
    ConvertedParameters::of_thread().bind(parameters_, {data, static_cast<std::size_t>(elements_)});
  for (BoundParameter& each : parameters_) {
    if (is_part_of(data, each, each.tensor)) continue;
    check_type(each);  // the program may have converted it
    each.tensor.set_data(part_of(data, each));
  }
}

void BoundModule::bind_gradient(std::span<float> gradient, bool is_in_place) {
  gradient_ = gradient;
  if (is_in_place) clear(gradient);
  for (const BoundParameter& each : parameters_) {
    ::torch::Tensor& own = each.tensor.mutable_grad();
    if (!is_in_place) own.reset();
    else if (!is_part_of(gradient.data(), each, own)) own = part_of(gradient.data(), each);
  }
}

/// Copies the gradients of all parameters to where they belong.
void BoundModule::collect_gradient() {
  const ::torch::NoGradGuard no_gradients;
  std::vector<::torch::Tensor> parts;
  for (const BoundParameter& each : parameters_) {
    ::torch::Tensor& own = each.tensor.mutable_grad();
    if (own.defined() && own.layout() != ::torch::kStrided)
      refuse("the gradient of parameter '" + each.name + "' is sparse, expected a dense one");
    parts.push_back(gradient_elements(each));
    own.reset();
  }
  auto all = flat(gradient_);
  ::torch::cat_out(all, parts);
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
  if (has_rows) check_loss(loss, call.check);
  // Without rows, the gradient does not count. The rank takes part because modules may compute with all ranks.
  run_backward(loss, call, has_rows ? call.check : FiniteCheck::loss);
  if (has_rows) return result_of(loss);
  return 0.0;
}

WeightedMean BoundModule::backward(const WeightedLoss& loss, const BackwardCall& call) {
  check_is_one_number(loss.sum);
  const bool has_rows = call.rows != 0;
  const bool may_count = has_rows && !(device_.is_cpu() && count_of(loss) == 0);
  if (may_count) check_loss(loss.sum, call.check);
  run_backward(loss.sum, call, may_count ? call.check : FiniteCheck::loss);
  if (!may_count && device_.is_cpu()) clear(gradient_);  // it may be NaN
  if (!has_rows) return {};
  WeightedMean result = result_of(loss);
  if (device_.is_cpu()) call.count->set(result.count);
  else call.count->set_in_device_memory(result_.data_ptr<double>() + 1);
  return result;
}

Sum<double> BoundModule::backward(const SummedLoss& loss, const BackwardCall& call) {
  check_is_one_number(loss.sum);
  const bool has_rows = call.rows != 0;
  if (has_rows) check_loss(loss.sum, call.check);
  run_backward(loss.sum, call, has_rows ? call.check : FiniteCheck::loss);
  if (!has_rows) return 0.0;
  if (device_.is_cpu()) {
    call.count->set(call.share);
  } else {
    result_[1].fill_(call.share);
    call.count->set_in_device_memory(result_.data_ptr<double>() + 1);
  }
  return result_of(loss);
}

/// Computes the gradient of one number, where it belongs.
void BoundModule::run_backward(const ::torch::Tensor& loss, const BackwardCall& call, FiniteCheck check) {
  // With reports, collectives run meanwhile.
  const CudaPart::Waiting waiting(device_.is_cpu() || call.report ? nullptr : &cuda_part());
  const bool is_watched = check != FiniteCheck::loss || call.report;
  if (is_watched && loss.requires_grad()) {
    if (!watch_) watch_ = std::make_shared<GradientHooks>();
    watch_->run(loss, parameters_, gradient_.data(), check, call.report, steps_);
  } else if (loss.requires_grad()) {
    loss.backward();
  }
  if (!device_.is_cpu() && !call.report) {
    collect_gradient();
  } else {
    for (const BoundParameter& each : parameters_) check_gradient_place(each, gradient_.data());
  }
}

void BoundModule::check_loss(const ::torch::Tensor& loss, FiniteCheck check) const {
  if (!loss.requires_grad()) {
    refuse(
        "the loss does not depend on a parameter, so it has no gradient. Compute it from the module's output, "
        "without NoGradGuard and without detach()");
  }
  if (!device_.is_cpu() && check != FiniteCheck::gradients) return;  // the host does not wait for the value
  const auto value = loss.item<double>();
  if (!std::isfinite(value)) {
    refuse("the loss is " + syncrun::detail::number_text(value) + " in training run " + std::to_string(steps_) +
           " of this module, expected a finite number; " + advice_on(value, loss, parameters_, steps_));
  }
}

void BoundModule::sync_buffers(Comm& comm, BufferSync how) {
  keep_buffers();
  const ::torch::NoGradGuard no_gradients;
  for (const ModuleTensor& each : other_tensors(*module_)) {
    if (each.tensor.numel() == 0) continue;
    const ::torch::Tensor values = each.tensor.detach().contiguous();
    const bool is_averaged = how == BufferSync::mean && each.tensor.is_floating_point() &&
                             with_floating_elements(values, [&](auto elements) { comm.avg(elements); });
    if (!is_averaged) comm.broadcast(elements_of<std::uint8_t>(values), 0);
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

void check_layouts(std::span<const std::uint8_t> layouts) {
  std::vector<std::string> by_rank(1);
  for (const std::uint8_t byte : layouts) {
    if (byte == 0) by_rank.emplace_back();
    else by_rank.back().push_back(static_cast<char>(byte));
  }
  by_rank.pop_back();  // after the last zero
  const std::string& first = by_rank.front();
  const auto line_at = [](const std::string& text, std::size_t begin) {
    return begin >= text.size() ? std::string("nothing more") : text.substr(begin, text.find('\n', begin) - begin);
  };
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const std::string& other = by_rank[rank];
    if (other == first) continue;
    const auto common = static_cast<std::size_t>(
        std::mismatch(first.begin(), first.end(), other.begin(), other.end()).first - first.begin());
    const std::size_t before = common == 0 ? std::string::npos : first.rfind('\n', common - 1);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    refuse("parameters: the modules differ: rank 0 has " + line_at(first, begin) + ", rank " + std::to_string(rank) +
           " has " + line_at(other, begin) + ". Construct the same module on every rank");
  }
  if (first.find("parameter '") != 0)
    refuse("parameters: the module has no parameter that requires a gradient, expected at least one");
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
