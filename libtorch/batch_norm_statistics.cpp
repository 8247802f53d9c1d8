// The running statistics of BatchNorm, for update_bn().

#include <cstdint>
#include <optional>
#include <vector>

#include "libtorch/module_tensors.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/replica.hpp"
#include "syncrun/torch/sync_batch_norm.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/worker.hpp"

namespace syncrun::libtorch::detail {

namespace {

struct RunningNorm {
  ::torch::nn::BatchNormOptions* options;
  ::torch::Tensor mean, variance, batches;
  bool is_of_all_ranks;
};

template <class Impl>
void add_if(::torch::nn::Module& module, std::vector<RunningNorm>& norms) {
  auto* const norm = module.as<Impl>();
  if (norm == nullptr || !norm->options.track_running_stats()) return;
  norms.push_back({&norm->options, norm->running_mean, norm->running_var, norm->num_batches_tracked,
                   std::is_same_v<Impl, SyncBatchNormImpl>});
}

std::vector<RunningNorm> running_norms(::torch::nn::Module& module) {
  std::vector<RunningNorm> norms;
  for (const auto& each : module.modules()) {
    add_if<::torch::nn::BatchNorm1dImpl>(*each, norms);
    add_if<::torch::nn::BatchNorm2dImpl>(*each, norms);
    add_if<::torch::nn::BatchNorm3dImpl>(*each, norms);
    add_if<SyncBatchNormImpl>(*each, norms);
  }
  return norms;
}

}  // namespace

StatisticsScope::StatisticsScope(::torch::nn::Module& module) {
  for (const auto& each : module.modules()) modes_.emplace_back(each, each->is_training());
  for (const RunningNorm& norm : running_norms(module)) {
    momenta_.emplace_back(norm.options, norm.options->momentum());
    norm.options->momentum({});  // LibTorch then weighs all batches equally
  }
  module.train();
}

StatisticsScope::~StatisticsScope() {
  for (const auto& [options, momentum] : momenta_) options->momentum(momentum);
  // A module passes its mode on to its submodules, which come after it.
  for (const auto& [module, is_training] : modes_) module->train(is_training);
}

void BoundModule::reset_statistics() {
  const ::torch::NoGradGuard no_gradients;
  for (const RunningNorm& norm : running_norms(*module_)) {
    norm.mean.zero_();
    norm.variance.fill_(1);
    norm.batches.zero_();
  }
}

void BoundModule::finish_statistics(Comm& comm) {
  const ::torch::NoGradGuard no_gradients;
  for (const RunningNorm& norm : running_norms(*module_)) {
    // The ranks of SyncBatchNorm have equal statistics. Others may have seen different numbers of batches.
    const auto count = norm.batches.to(::torch::kFloat64).reshape({1});
    const auto sums =
        ::torch::cat({norm.mean.to(::torch::kFloat64) * count, norm.variance.to(::torch::kFloat64) * count, count});
    comm.all_reduce(elements_of<double>(sums), Reduction::sum);
    const auto total = sums[-1].item<double>();
    if (total == 0)
      throw Error(ErrorKind::usage,
                  "update_bn: no batch was added, so there are no statistics. Call it with batches first");
    const auto channels = norm.mean.numel();
    norm.mean.copy_(sums.narrow(0, 0, channels) / total);
    norm.variance.copy_(sums.narrow(0, channels, channels) / total);
    if (!norm.is_of_all_ranks) norm.batches.fill_(static_cast<std::int64_t>(total));
  }
  sync_buffers(comm, BufferSync::mean);
}

}  // namespace syncrun::libtorch::detail
