#pragma once

// update_bn(): the running statistics of BatchNorm for other parameters, such as averaged ones. Called by the master.

#include <torch/torch.h>

#include <type_traits>
#include <utility>

#include "syncrun/detail/names.hpp"
#include "syncrun/options.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/torch/replica.hpp"
#include "syncrun/torch/training.hpp"

namespace syncrun::libtorch {

namespace detail {

template <auto kLoss, class Net, class F>
struct StatisticsBodies;
template <auto kLoss, class Net, class R, class Module, class... P>
struct StatisticsBodies<kLoss, Net, R (*)(Module&, P...)> {
  static_assert(std::is_same_v<Module, Net>, "the loss is a function of another module than that of the replica");
  using Passed = typename syncrun::detail::PassedOnly<syncrun::detail::TypeList<>, P...>::type;
  template <class Worker>
  static constexpr auto add() {
    using Add = void (Replica<Net>::*)(Worker&, P..., Local<const float, 1>);
    return Add(&Replica<Net>::template add_statistics<kLoss, Worker, P...>);
  }
};
template <auto kLoss, class Net, class R, class Module, class... P>
struct StatisticsBodies<kLoss, Net, R (*)(Module&, P...) noexcept>
    : StatisticsBodies<kLoss, Net, R (*)(Module&, P...)> {};

}  // namespace detail

/// Collects the running statistics of BatchNorm. update_bn() makes it. `Passed...` lists the parameters of the loss for
/// which the caller passes an argument.
template <class... Passed>
class BatchNormUpdate {
 public:
  /// The function that adds a batch.
  using Add = Evaluation<void, float, Passed...>;

  /// Syncrun calls this. A program calls update_bn().
  BatchNormUpdate(Add add, Function<void> finish) : add_(std::move(add)), finish_(std::move(finish)) {}

  /// Adds a batch: runs the loss forward, in training mode and without gradients. Each rank, and each slice, normalizes
  /// its own rows and adds their statistics. Blocks. Throws the errors of a call.
  void operator()(typename syncrun::detail::Parameter<Passed>::Passed... arguments,
                  const CallOptions& options = {}) const {
    add_(arguments..., options);
  }
  /// Makes the statistics those of all ranks, and then does what sync_buffers() does. Throws Error (function) if no
  /// batch was added.
  void finish() const { finish_(); }

 private:
  Add add_;
  Function<void> finish_;
};

/// Recomputes the running statistics of BatchNorm with other parameters, as torch.optim.swa_utils.update_bn does. Those
/// that a training leaves do not fit averaged weights:
///
///   const auto update = sr::libtorch::update_bn<loss>(session, net, average.values());
///   for (const Digits& batch : digits) update(batch.images, batch.labels);
///   update.finish();
///   const double mean = sr::libtorch::evaluation<loss>(session, net, average.values())(x, y);
///
/// Forgets the statistics of BatchNorm1d, 2d and 3d and of SyncBatchNorm at once. Afterwards, they are the means of
/// those of all batches, whatever their momentum. The rows of each rank in a call are a batch of their own, except for
/// SyncBatchNorm, whose batch has the rows of all ranks. Throws the errors of a call.
template <auto kLoss, class Net>
auto update_bn(Session& session, const Replicated<Replica<Net>>& net, const Shared<float, 1>& params) {
  static_assert(!std::is_same_v<Net, ::torch::jit::Module>,
                "update_bn cannot change the momentum of a module of TorchScript");
  using Bodies = detail::StatisticsBodies<kLoss, Net, decltype(kLoss)>;
  using Made = syncrun::detail::Listed<BatchNormUpdate, typename Bodies::Passed>;
  session.function(&Replica<Net>::template reset_statistics<CpuWorker>,
                   &Replica<Net>::template reset_statistics<CudaWorker>, net, "update_bn")();
  return Made(typename Made::Add(session.function(Bodies::template add<CpuWorker>(), Bodies::template add<CudaWorker>(),
                                                  net, "update_bn"),
                                 params),
              session.function(&Replica<Net>::template finish_statistics<CpuWorker>,
                               &Replica<Net>::template finish_statistics<CudaWorker>, net, "update_bn"));
}

}  // namespace syncrun::libtorch
