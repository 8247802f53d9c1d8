#include "syncrun/torch/sync_batch_norm.hpp"

#include <torch/custom_class.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/os/gpu_allocators.hpp"
#include "libtorch/module_tensors.hpp"
#include "libtorch/step_scope.hpp"
#include "syncrun/error.hpp"
#include "syncrun/reduction.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch {

namespace detail {
namespace {

[[noreturn]] void refuse_norm(const std::string& what) { throw Error(ErrorKind::usage, "SyncBatchNorm: " + what); }

/// All dimensions but that of the channels.
std::vector<std::int64_t> dimensions_of_values(const ::torch::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t i = 2; i < input.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

/// A vector of one number for each channel, in the shape that operations with `input` need.
::torch::Tensor by_channel(const ::torch::Tensor& vector, const ::torch::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = vector.numel();
  return vector.view(shape);
}

/// The statistics of the rows of all ranks.
struct BatchStatistics {
  ::torch::Tensor mean;        // float64, one number for each channel
  ::torch::Tensor variance;    // the same. It is divided by the number of values
  ::torch::Tensor values;      // of each channel: float64, one number
  ::torch::Tensor own_values;  // the weight of this rank's loss in the mean of all, times `values`: the same
};

/// Whether the ranks capture a CUDA graph, which cannot wait for numbers of the host. Before, they have run the same code
/// with inputs of the same shapes.
bool is_captured() noexcept { return syncrun::detail::os::gpu_allocators().is_capturing; }

void check_values(double values) {
  if (values >= 2) return;
  refuse_norm("all ranks together have " + std::to_string(static_cast<std::int64_t>(values)) +
              " values of each channel, expected at least 2 in training. Use larger batches, or fewer slices");
}

/// Adds sums of this rank over all ranks: of the values and of their squares in each channel, and the number of values
/// and of rows. The sums are float64, so the variance of float32 values is as precise as in two passes. The check comes
/// first: its wait for a peer in host memory can be interrupted, and a wait for a GPU in LibTorch cannot.
BatchStatistics statistics_of_all(const ::torch::Tensor& input, StepComm& step) {
  const std::int64_t channels = input.size(1);
  const double own = static_cast<double>(input.numel()) / static_cast<double>(channels);
  if (!is_captured()) check_values(step.comm->all_reduce(own, Reduction::sum));
  auto sums = ::torch::zeros({2 * channels + 2}, input.options().dtype(::torch::kFloat64));
  if (own != 0) {
    const auto [variance, mean] = ::torch::var_mean(input, dimensions_of_values(input), false, false);
    const auto mean64 = mean.to(::torch::kFloat64);
    sums.narrow(0, 0, channels).copy_(mean64 * own);
    sums.narrow(0, channels, channels).copy_((variance.to(::torch::kFloat64) + mean64 * mean64) * own);
  }
  const auto values = sums.narrow(0, 2 * channels, 1).fill_(own);
  const auto rows = sums.narrow(0, 2 * channels + 1, 1).fill_(static_cast<double>(step.rows));
  step.comm->all_reduce(elements_of<double>(sums), Reduction::sum);
  auto mean = sums.narrow(0, 0, channels) / values;
  auto variance = (sums.narrow(0, channels, channels) / values - mean * mean).clamp_min(0);
  return {std::move(mean), std::move(variance), values, values * static_cast<double>(step.rows) / rows};
}

/// Lets a node of the graph refer to a step.
struct StepHolder : ::torch::CustomClassHolder {
  explicit StepHolder(std::shared_ptr<StepComm> held) : step(std::move(held)) {}
  std::shared_ptr<StepComm> step;
};

/// (input - mean) * inverse_deviation. The mean and the deviation depend on the inputs of all ranks, so the backward pass
/// needs the gradients of all ranks. With y the result, g the gradient of the loss in y, and n values of each channel
/// (Ioffe and Szegedy, 2015):
///
///   gradient of the input = inverse_deviation * (g - sum(g) / n - y * sum(g * y) / n)
///
/// This is for the loss over all ranks. A rank computes the gradient of its own loss, which then counts with the weight
/// w of the rank's rows. So the sums over the ranks have these weights, and the result of a rank is divided by w.
class NormalizeOverRanks : public ::torch::autograd::Function<NormalizeOverRanks> {
 public:
  static ::torch::Tensor forward(::torch::autograd::AutogradContext* context, const ::torch::Tensor& input,
                                 const ::torch::Tensor& mean, const ::torch::Tensor& inverse_deviation,
                                 const ::torch::Tensor& own_values, const std::shared_ptr<StepComm>& step) {
    auto output = (input - by_channel(mean, input)) * by_channel(inverse_deviation, input);
    context->save_for_backward({output, inverse_deviation, own_values});
    context->saved_data["step"] = c10::IValue::make_capsule(c10::make_intrusive<StepHolder>(step));
    return output;
  }

  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   ::torch::autograd::variable_list gradients) {
    if (::torch::GradMode::is_enabled()) refuse_norm("second derivatives are not supported (create_graph)");
    const auto capsule = context->saved_data["step"].toCapsule();
    StepComm& step = *static_cast<StepHolder*>(capsule.get())->step;
    if (step.comm == nullptr) refuse_norm("the backward pass came after the end of the body, expected it in the body");
    const auto saved = context->get_saved_variables();
    const ::torch::Tensor& output = saved[0];
    const ::torch::Tensor gradient = gradients[0].defined() ? gradients[0].contiguous() : ::torch::zeros_like(output);

    const std::int64_t channels = output.size(1);
    const auto dimensions = dimensions_of_values(output);
    const auto sums =
        ::torch::cat({gradient.sum(dimensions), (gradient * output).sum(dimensions)}).to(::torch::kFloat64);
    step.comm->avg(elements_of<double>(sums));
    ::torch::Tensor of_input = ::torch::zeros_like(output);
    if (output.numel() != 0) {
      const auto means = (sums / saved[2]).to(output.scalar_type());
      const auto of_mean = by_channel(means.narrow(0, 0, channels), output);
      const auto of_deviation = by_channel(means.narrow(0, channels, channels), output);
      of_input = (gradient - of_mean - output * of_deviation) * by_channel(saved[1], output);
    }
    return {of_input, {}, {}, {}, {}};
  }
};

/// Counts a batch in training.
void count_batch(SyncBatchNormImpl& norm) {
  if (norm.is_training() && norm.num_batches_tracked.defined()) norm.num_batches_tracked += 1;
}

/// Puts the statistics of a batch that was counted into the running ones. Without a momentum, those are the means over all
/// batches. The number of batches stays on the device, so the host does not wait, and a step can be replayed.
void add_to_running(SyncBatchNormImpl& norm, const ::torch::Tensor& mean, const ::torch::Tensor& unbiased_variance) {
  const auto momentum = norm.options.momentum();
  const auto add = [&](::torch::Tensor& running, const ::torch::Tensor& of_batch) {
    const auto values = of_batch.to(running.scalar_type());
    if (momentum.has_value()) running.mul_(1 - *momentum).add_(values, *momentum);
    else running.add_((values - running) / norm.num_batches_tracked);
  };
  add(norm.running_mean, mean);
  add(norm.running_var, unbiased_variance);
}

/// What LibTorch's BatchNorm does.
::torch::Tensor normalize_alone(SyncBatchNormImpl& norm, const ::torch::Tensor& input) {
  namespace functional = ::torch::nn::functional;
  const bool tracks = norm.options.track_running_stats();
  auto options = functional::BatchNormFuncOptions()
                     .weight(norm.weight)
                     .bias(norm.bias)
                     .training(norm.is_training() || !tracks)
                     .momentum(norm.options.momentum().value_or(0))
                     .eps(norm.options.eps());
  count_batch(norm);
  if (norm.options.momentum().has_value() || !norm.is_training() || !tracks)
    return functional::batch_norm(input, norm.running_mean, norm.running_var, options);
  const auto mean = ::torch::zeros_like(norm.running_mean);
  const auto variance = ::torch::zeros_like(norm.running_var);
  auto output = functional::batch_norm(input, mean, variance, options.momentum(1));
  const ::torch::NoGradGuard no_gradients;
  add_to_running(norm, mean, variance);
  return output;
}

::torch::Tensor normalize_together(SyncBatchNormImpl& norm, const ::torch::Tensor& input,
                                   const std::shared_ptr<StepComm>& step) {
  const auto type = input.scalar_type() == ::torch::kFloat64 ? ::torch::kFloat64 : ::torch::kFloat32;
  const ::torch::Tensor values = input.to(type);
  ::torch::Tensor mean;
  ::torch::Tensor inverse_deviation;
  ::torch::Tensor own_values;
  {
    const ::torch::NoGradGuard no_gradients;
    const BatchStatistics batch = statistics_of_all(values.detach(), *step);
    count_batch(norm);
    if (norm.options.track_running_stats())
      add_to_running(norm, batch.mean, batch.variance * (batch.values / (batch.values - 1)));
    mean = batch.mean.to(type);
    inverse_deviation = (batch.variance + norm.options.eps()).rsqrt().to(type);
    own_values = batch.own_values;
  }
  auto output = NormalizeOverRanks::apply(values, mean, inverse_deviation, own_values, step);
  if (norm.weight.defined()) output = output * by_channel(norm.weight, output) + by_channel(norm.bias, output);
  return output.to(input.scalar_type());
}

}  // namespace
}  // namespace detail

void SyncBatchNormImpl::_check_input_dim(const ::torch::Tensor& input) {
  if (input.dim() >= 2 && input.size(1) == options.num_features() && input.is_floating_point()) return;
  detail::refuse_norm("the input is " + detail::type_and_shape(input) +
                      ", expected floating-point values in the shape [rows, " + std::to_string(options.num_features()) +
                      "] or [rows, " + std::to_string(options.num_features()) + ", ...]");
}

::torch::Tensor SyncBatchNormImpl::forward(const ::torch::Tensor& input) {
  _check_input_dim(input);
  const detail::StepScope* const scope = detail::step_scope();
  if (!is_training() || scope == nullptr || scope->world_size == 1) return detail::normalize_alone(*this, input);
  if (!scope->comm) {
    detail::refuse_norm("there are " + std::to_string(scope->world_size) +
                        " ranks, expected their collectives. Give the loss a parameter sr::Comm&, or in a body of your "
                        "own, pass its Comm& to Guard");
  }
  return detail::normalize_together(*this, input, scope->comm);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "syncrun::libtorch::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps() << ")";
}

}  // namespace syncrun::libtorch
