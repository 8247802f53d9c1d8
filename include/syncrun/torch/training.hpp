#pragma once

// Training of a Replica: parameters(), train_step(), evaluation() and sync_buffers(). Called by the master.

#include <torch/torch.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/names.hpp"
#include "syncrun/detail/step_layout.hpp"
#include "syncrun/gradient_ready.hpp"
#include "syncrun/options.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/torch/backward.hpp"
#include "syncrun/torch/replica.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/torch/units_interface.hpp"
#include "syncrun/train_step.hpp"
#include "syncrun/verify.hpp"

namespace syncrun::libtorch {

template <class Net, ShardOptions kOptions = ShardOptions{}>
class ShardedReplica;

namespace detail {
template <class R>
inline constexpr bool kIsSharded = false;
template <class Net, ShardOptions kOptions>
inline constexpr bool kIsSharded<ShardedReplica<Net, kOptions>> = true;
template <class R>
inline constexpr bool kIsWhole = false;
template <class Net>
inline constexpr bool kIsWhole<Replica<Net>> = true;
/// A Replica or a ShardedReplica.
template <class R>
concept AnyReplica = kIsSharded<R> || kIsWhole<R>;

/// For steps of a Replica.
inline void check_not_fully_sharded(StepForm form, const char* caller) {
  if (form == StepForm::fully_sharded)
    throw Error(ErrorKind::usage,
                std::string(caller) +
                    ": StepForm::fully_sharded needs session.replicate<ShardedReplica<Net>>, and this "
                    "is a Replica");
}

/// The options of a step with this loss. Without a name, the step has that of the loss.
template <auto kLoss>
TrainStepOptions options_with_name(const TrainStepOptions& options) {
  static_assert(
      kIsLoss<typename LossTraits<decltype(kLoss)>::Returned>,
      "a training step needs a loss: a function that returns a torch::Tensor, a WeightedLoss, a SummedLoss or "
      "a Loss<Numbers>");
  TrainStepOptions named = options;
  if (named.name.empty()) named.name = syncrun::detail::function_name<kLoss>();
  return named;
}
}  // namespace detail

/// Makes a Replica of the module that a factory function returns. Each worker calls the factory:
///
///   torch::nn::Sequential make_net(std::int64_t width) {
///     return torch::nn::Sequential(torch::nn::Linear(2, width), torch::nn::Tanh(), torch::nn::Linear(width, 1));
///   }
///   torch::Tensor loss(torch::nn::Sequential& net, sr::Scattered<const float, 2> x, ...);
///   const auto net = sr::libtorch::replicate<make_net>(session, seed, 16);
///
/// The factory is a function with a name, or a lambda without captures. It returns a module holder, a class derived from
/// torch::nn::Module, or a std::shared_ptr to one: `Net` is the holder or the class. In all else, this is
/// `session.replicate<Replica<Net>>(seed, arguments...)`. The factory must return the same module on every rank, see
/// parameters(). If it returns an empty module, every use of the replica throws Error (function).
template <auto kFactory, class... Arguments>
auto replicate(Session& session, std::uint64_t seed, const Arguments&... arguments) {
  static_assert(std::is_invocable_v<decltype(kFactory), syncrun::detail::Stored<Arguments>...>,
                "these arguments do not fit the factory (literals arrive as std::string)");
  using Returned = std::invoke_result_t<decltype(kFactory), syncrun::detail::Stored<Arguments>...>;
  using Net = typename detail::FactoryNet<std::remove_cv_t<Returned>>::type;
  static_assert(!std::is_same_v<Net, ::torch::jit::Module>,
                "a module of TorchScript has no factory: session.replicate<Replica<torch::jit::Module>>(seed, file)");
  return session.replicate<Replica<Net>>(seed, detail::ModuleFactory<kFactory>(), arguments...);
}

/// Makes the buffers and the frozen parameters of the modules equal on all ranks. BatchNorm has such buffers: in a
/// training step, each rank's running statistics are those of its own rows. Call it before an evaluation or a save.
template <detail::AnyReplica R>
void sync_buffers(Session& session, const Replicated<R>& net, BufferSync how = BufferSync::mean) {
  session.function(&R::template sync_buffers<CpuWorker>, &R::template sync_buffers<CudaWorker>, net, "sync_buffers")(
      how, 0);
  // Without a change, a new module lacks nothing else.
  if (!syncrun::detail::history_of(*net.record())) static_cast<void>(syncrun::detail::take_renewed(*net.record()));
}

/// Makes a shared variable of the module's parameters: one flat vector, with the parameters in the order of
/// named_parameters(). Every rank has the values of rank 0, also in buffers and frozen parameters. Parameters are those
/// that require a gradient. A tensor that the module has twice (tied weights) counts once. Without a name, the variable
/// is "params", or "params#2" if that name is in use.
///
/// T is float or double, the type of the variable, of the gradient and of the rule's state. From now on, the parameters
/// of this type are parts of the variable, on every rank. Parameters of a smaller type (float16 and bfloat16, and with
/// parameters<double> float32) are copies: at the start of each call, the values of the variable are converted to the
/// type of the parameter. So the variable holds the master weights, and rounding does not swallow small updates.
///
/// With a ShardedReplica, each rank's copy has its parts of the parameters, unit by unit, and copies are equally long. The
/// values are those of each rank's own module, which must be the same.
///
/// Throws Error (usage) if the module has no parameters, or if the modules differ between ranks: the message names the
/// first difference. It compares the names, types and shapes of parameters and buffers, the types of all modules, and
/// the options of LibTorch's layers. Throws Error (function) if a parameter is of a larger type than T.
template <class T = float, detail::AnyReplica R>
Shared<T, 1> parameters(Session& session, const Replicated<R>& net, std::string_view name = {}) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "a variable of parameters is float or double");
  const auto description = session.function(&R::template describe<T>, net, "parameters")();
  detail::check_layouts("parameters", description.layouts.span());
  auto params = session.shared<T, 1>(
      name.empty() ? syncrun::detail::unused_name(*syncrun::detail::HandleAccess::core(session), "params") : name);
  if constexpr (detail::kIsSharded<R>) {
    // Copies that differ, so that a worker that is replaced does not get the part of another rank.
    params.scatter(std::vector<T>(static_cast<std::size_t>(session.world_size())));
    auto& record = *syncrun::detail::record_of(params);
    syncrun::detail::zero_like(record, record, syncrun::detail::Zeros::like_all, description.elements.value());
  } else {
    params.broadcast(std::vector<T>(static_cast<std::size_t>(description.elements.value())));
  }
  session.function(&R::template store<CpuWorker, T>, &R::template store<CudaWorker, T>, net, "parameters")(params);
  if constexpr (!detail::kIsSharded<R>) params.broadcast(0);
  if (description.has_buffers.value() != 0) sync_buffers(session, net, BufferSync::rank0);
  return params;
}

/// The place of a parameter in the variable that parameters() returns: its elements [begin, end).
struct ParameterPart {
  std::string name;  ///< The name of the parameter in the module.
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t dimensions = 0;  ///< The number of dimensions of the parameter.
};

namespace detail {

template <AnyReplica R>
std::vector<ParameterPart> parts_of(Session& session, const Replicated<R>& net, Layout layout) {
  const auto description = session.function(&R::parts, net, "parts").on_rank(0)(layout);
  std::vector<ParameterPart> parts;
  const auto* name = reinterpret_cast<const char*>(description.names.data());
  for (std::int64_t i = 0; i < description.places.rows(); ++i) {
    const auto place = description.places[i];
    parts.push_back({name, place[0], place[1], place[2]});
    name += parts.back().name.size() + 1;
  }
  return parts;
}

}  // namespace detail

/// Returns the places of all parameters, in ascending order, for TrainStepOptions::groups. For example, without weight
/// decay for biases and the weights of norms, which have one dimension:
///
///   std::vector<sr::ParameterGroup> groups;
///   for (const auto& part : sr::libtorch::parts(session, net)) {
///     if (part.dimensions < 2) groups.push_back({.begin = part.begin, .end = part.end, .weight_decay = 0});
///   }
template <detail::AnyReplica R>
std::vector<ParameterPart> parts(Session& session, const Replicated<R>& net) {
  return detail::parts_of(session, net, detail::Layout::present);
}

namespace detail {

inline Verification compared(const ReplicaChecksums& found) {
  Verification verification;
  for (std::int64_t rank = 1; rank < found.sums.rows(); ++rank) {
    const auto* name = reinterpret_cast<const char*>(found.names.data());
    for (std::int64_t i = 0; i < found.sums.shape()[1]; ++i, name += std::string_view(name).size() + 1) {
      if (found.sums[rank][i] == found.sums[0][i]) continue;
      verification.differences.push_back({"on rank " + std::to_string(rank), "'" + std::string(name) + "'",
                                          std::numeric_limits<double>::infinity(), "its values differ"});
      break;
    }
  }
  if (!verification.is_same()) {
    verification.reason = VerifyReason::which_rank;
    verification.advice =
        "the module was changed on some ranks only, for example by a call that failed, or its buffers are not synced "
        "(sync_buffers)";
  }
  return verification;
}

}  // namespace detail

/// Compares the modules of all ranks by checksums: parameters, frozen parameters and buffers. The result names the
/// first tensor that differs on each rank from that of rank 0. Buffers such as BatchNorm's running statistics differ
/// until sync_buffers(). On GPUs, copies the modules to the host. Throws the errors of a call. Throws Error (function) also
/// if the module has parameters of a smaller type than the variable: their values are in the variable, see below.
template <class Net>
Verification verify_replicas(Session& session, const Replicated<Replica<Net>>& net) {
  return detail::compared(session.function(&Replica<Net>::template checksums<CpuWorker>,
                                           &Replica<Net>::template checksums<CudaWorker>, net, "verify_replicas")());
}
/// The same with the variable of parameters(), whose values are compared in place of their copies in a smaller type.
template <class Net, class T>
Verification verify_replicas(Session& session, const Replicated<Replica<Net>>& net, const Shared<T, 1>& params) {
  return detail::compared(session.function(&Replica<Net>::template checksums_of<CpuWorker, T>,
                                           &Replica<Net>::template checksums_of<CudaWorker, T>, net,
                                           "verify_replicas")(params));
}

namespace detail {

template <auto kLoss, class Net, class T, class F>
struct LossBodies;
template <auto kLoss, class Net, class T, class R, class Module, class... P>
struct LossBodies<kLoss, Net, T, R (*)(Module&, P...)> {
  static_assert(std::is_same_v<Module, Net>, "the loss is a function of another module than that of the replica");
  using Result = ResultOf<kLoss>;
  using Passed = typename syncrun::detail::PassedOnly<syncrun::detail::TypeList<>, P...>::type;
  /// The body of a step on the device of Worker.
  template <BackwardOptions kBackward, class Worker>
  static constexpr auto step() {
    using Vector = Local<T, 1>;
    using Count = syncrun::detail::GradientCount;
    using Plain = Result (Replica<Net>::*)(Worker&, P..., Vector, Vector);
    using Summing = Result (Replica<Net>::*)(Worker&, Count&, P..., Vector, Vector);
    using Reporting = Result (Replica<Net>::*)(Worker&, GradientReady&, P..., Vector, Vector);
    using SummingReporting = Result (Replica<Net>::*)(Worker&, GradientReady&, Count&, P..., Vector, Vector);
    constexpr bool kReports = kBackward.average == GradientAverage::during_backward;
    if constexpr (kReports && kIsSum<R>)
      return SummingReporting(&Replica<Net>::template summed_step_with_reports<kLoss, kBackward, Worker, T, P...>);
    else if constexpr (kReports)
      return Reporting(&Replica<Net>::template step_with_reports<kLoss, kBackward, Worker, T, P...>);
    else if constexpr (kIsSum<R>)
      return Summing(&Replica<Net>::template summed_step<kLoss, kBackward, Worker, T, P...>);
    else return Plain(&Replica<Net>::template step<kLoss, kBackward, Worker, T, P...>);
  }
  /// The same for CUDA devices. It is replayed if that is possible.
  template <BackwardOptions kBackward>
  static constexpr auto cuda_step() {
    constexpr auto kStep = step<kBackward, CudaWorker>();
    if constexpr (kIsReplayed<R (*)(Module&, P...), kBackward>) return replayable_if_possible(kStep);
    else return kStep;
  }
  /// The body of a scaled step.
  template <class Worker>
  static constexpr auto scaled() {
    using Scaled = Result (Replica<Net>::*)(Worker&, syncrun::detail::GradientCount&, P..., DeviceScalar<float>,
                                            Local<T, 1>, Local<T, 1>);
    return Scaled(&Replica<Net>::template scaled_step<kLoss, Worker, T, P...>);
  }
  static constexpr auto cuda_scaled() {
    constexpr auto kStep = scaled<CudaWorker>();
    if constexpr (kIsReplayed<R (*)(Module&, P...), BackwardOptions{}>) return replayable_if_possible(kStep);
    else return kStep;
  }
  /// The body of a stage of a staged step.
  template <std::size_t kStage, class Worker>
  static constexpr auto stage() {
    using OneStage = Avg<double> (Replica<Net>::*)(Worker&, P..., Local<T, 1>, Local<T, 1>);
    return OneStage(&Replica<Net>::template stage<kLoss, kStage, Worker, T, P...>);
  }
  template <Replay kReplay, class Worker>
  static constexpr auto evaluate() {
    using Evaluate = Result (Replica<Net>::*)(Worker&, P..., Local<const T, 1>);
    return Evaluate(&Replica<Net>::template evaluate<kLoss, kReplay, Worker, T, P...>);
  }
  template <Replay kReplay>
  static constexpr auto cuda_evaluate() {
    constexpr auto kEvaluate = evaluate<kReplay, CudaWorker>();
    if constexpr (kIsReplayed<R (*)(Module&, P...), BackwardOptions{.replay = kReplay}>)
      return replayable_if_possible(kEvaluate);
    else return kEvaluate;
  }
};
template <auto kLoss, class Net, class T, class R, class Module, class... P>
struct LossBodies<kLoss, Net, T, R (*)(Module&, P...) noexcept> : LossBodies<kLoss, Net, T, R (*)(Module&, P...)> {};
template <auto kLoss, class Net, class T>
using BodiesOf = LossBodies<kLoss, Net, T, decltype(kLoss)>;

}  // namespace detail

/// Makes a training step from a loss:
///
///   torch::Tensor loss(Net& net, sr::Scattered<const float, 2> x, sr::Scattered<const std::int64_t, 1> y) {
///     return torch::cross_entropy_loss(net.forward(sr::libtorch::tensor(x)), sr::libtorch::tensor(y));
///   }
///   auto step = sr::libtorch::train_step<sr::Adam, loss>(session, net, params);
///   const double mean = step(x, y, {.learning_rate = 1e-3}, {.batch = shuffled, .slices = 4});
///
/// The loss returns one number, the mean over the rows that it received, or a Loss with further numbers. A loss that is
/// no mean over rows returns a WeightedLoss or a SummedLoss (weighted_loss.hpp). It must not write to the module's
/// parameters. Its other arguments are those that a body can have. The result is a syncrun::TrainStep (train_step.hpp):
/// slices, minibatches, the replicated and the sharded form, and checkpoints work as described there. The ranks average
/// the gradient after the backward pass, and then update all parameters in one pass. A third template argument changes
/// what happens in the backward pass (backward.hpp):
///
///   auto step = sr::libtorch::train_step<sr::Adam, loss, sr::libtorch::BackwardOptions{
///       .check = sr::libtorch::FiniteCheck::gradients}>(session, net, params);
///
/// A loss with a parameter `sr::Comm&` runs on every rank, also on ranks without rows, where its value does not count.
///
/// On CUDA devices, a step is captured as a CUDA graph and then replayed (see Replay). It does not check whether the
/// loss is finite.
///
/// Throws Error (usage) if a sharded step is to average during the backward pass.
/// A step throws Error (function) if the loss is not one number or does not depend on a parameter, or if LibTorch
/// failed. With several ranks or slices, it also throws if the loss is a tensor that one of LibTorch's functions
/// computed as a sum, or on a CPU device, as a mean with ignored targets or class weights.
/// On a CPU device, it also throws if the loss is not finite, or if a gradient was replaced instead of added to. The
/// parameters are then as before. A parameter that the loss does not use has the gradient zero.
template <UpdateRule Rule, auto kLoss, BackwardOptions kBackward = BackwardOptions{}, class Net, class T>
auto train_step(Session& session, const Replicated<Replica<Net>>& net, const Shared<T, 1>& params,
                const TrainStepOptions& options = {}) {
  const TrainStepOptions named = detail::options_with_name<kLoss>(options);
  detail::check_not_fully_sharded(options.form, "train_step");
  if (kBackward.average == GradientAverage::during_backward && options.form == StepForm::sharded)
    throw Error(ErrorKind::usage,
                "train_step: GradientAverage::during_backward is for the replicated form, and this step is sharded: it "
                "reduces the whole gradient after the backward pass. Leave one of the two options out");
  if (kBackward.average == GradientAverage::during_backward && options.range)
    throw Error(ErrorKind::usage,
                "train_step: GradientAverage::during_backward is for all parameters, and this step has a range. Leave "
                "one of the two options out");
  using Bodies = detail::BodiesOf<kLoss, Net, T>;
  return syncrun::train_step<Rule>(session, Bodies::template step<kBackward, CpuWorker>(),
                                   Bodies::template cuda_step<kBackward>(), net, params, named);
}

/// Does not compile, and says why: an optimizer is no rule.
template <class Optimizer, auto kLoss, BackwardOptions kBackward = BackwardOptions{}, class Net, class T>
  requires std::is_base_of_v<::torch::optim::Optimizer, Optimizer>
void train_step(Session&, const Replicated<Replica<Net>>&, const Shared<T, 1>&, const TrainStepOptions& = {}) {
  static_assert(
      sizeof(Optimizer) == 0,
      "an optimizer of LibTorch cannot be the rule of a train step, replicated or sharded: a step updates any "
      "share of the flat vector of parameters, element by element. Use a rule of Syncrun, such as sr::Adam, or "
      "run the optimizer in a body of your own, after average() (docs/libtorch.md)");
}

/// An evaluation. evaluation() makes it. R is the result, and T the type of the parameters. `Passed...` lists the
/// parameters of the loss for which the caller passes an argument.
template <class R, class T, class... Passed>
class Evaluation {
 public:
  /// The function that evaluates, with the parameters as its last argument.
  using Inner = Function<R, Passed..., Local<const T, 1>>;

  /// Syncrun calls this. A program calls evaluation().
  Evaluation(Inner function, const Shared<T, 1>& params) : function_(std::move(function)), params_(params) {}

  /// Evaluates all rows of the call and returns the result, reduced over the ranks. Blocks. Throws the same errors as a
  /// call of a Function.
  syncrun::detail::Returned<R> operator()(typename syncrun::detail::Parameter<Passed>::Passed... arguments,
                                          const CallOptions& options = {}) const {
    return function_(arguments..., params_, options);
  }
  /// Starts the same call and returns without waiting for the result.
  [[nodiscard]] Future<R> async(typename syncrun::detail::Parameter<Passed>::Passed... arguments,
                                const CallOptions& options = {}) const {
    return function_.async(arguments..., params_, options);
  }

 private:
  Inner function_;
  Shared<T, 1> params_;
};

/// Makes an evaluation: a call of the loss with the module in evaluation mode, and without gradients. The function may
/// also return a struct of outputs in place of a loss:
///
///   struct Score { sr::Avg<double> accuracy; };
///   const auto score = sr::libtorch::evaluation<accuracy>(session, net, params);
///   const double part = score(x, y, {.slices = 10}).accuracy;
///
/// A second template argument is the Replay on CUDA devices.
template <auto kLoss, Replay kReplay = Replay::if_possible, class Net, class T>
auto evaluation(Session& session, const Replicated<Replica<Net>>& net, const Shared<T, 1>& params) {
  using Bodies = detail::BodiesOf<kLoss, Net, T>;
  using Made = syncrun::detail::Listed<Evaluation, typename Bodies::Passed, typename Bodies::Result, T>;
  return Made(session.function(Bodies::template evaluate<kReplay, CpuWorker>(),
                               Bodies::template cuda_evaluate<kReplay>(), net, syncrun::detail::function_name<kLoss>()),
              params);
}

}  // namespace syncrun::libtorch
