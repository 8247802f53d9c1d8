#pragma once

// ShardedReplica: a module of LibTorch whose parameters are divided among the workers, for models that are larger than a
// device. train_step() and evaluation() for it.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "syncrun/cuda_worker.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/names.hpp"
#include "syncrun/detail/step_plan.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/torch/backward.hpp"
#include "syncrun/torch/guard.hpp"
#include "syncrun/torch/replica.hpp"
#include "syncrun/torch/sharded_units.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/torch/training.hpp"
#include "syncrun/train_step.hpp"
#include "syncrun/worker.hpp"

namespace syncrun::libtorch {

namespace detail {

/// The most memory of units on any rank.
struct PeakOfRanks {
  Max<std::int64_t> units;
  Max<std::int64_t> bytes;
};

}  // namespace detail

/// A module of LibTorch whose parameters are divided among all workers of the session:
///
///   const auto net = session.replicate<lt::ShardedReplica<Net>>(seed, arguments...);
///   auto params = lt::parameters(session, net);
///   auto step = lt::train_step<sr::Adam, loss>(session, net, params, {.form = sr::StepForm::fully_sharded});
///
/// The parts of `Net` that are Sharded modules (sharded_units.hpp) are units. Each worker has 1 / world size of the
/// parameters, of their gradient and of the state of the rule, and the whole parameters of a unit only while the unit
/// computes. The rest of the module is together on every device during a whole step, so make units of all that is large.
///
/// `Net`, the seed and the arguments are as those of a Replica, and so are the values and the names of the parameters,
/// the results of steps and evaluations up to rounding, and buffers. All parameters that require a gradient have the type
/// of the variable. The rest of the constructor may not use the parameters of units.
///
/// `kOptions` are types and prefetch, for example:
///
///   constexpr lt::ShardOptions kMixed{.gather = lt::UnitType::bfloat16};
///   const auto net = session.replicate<lt::ShardedReplica<Net, kMixed>>(seed, arguments...);
///
/// Programs call only net(). The functions of training.hpp and files.hpp call the other members.
template <class Net, ShardOptions kOptions>
class ShardedReplica final {
 public:
  /// For train steps. A loss must not write to the parameters.
  static constexpr bool kStepsOnlyReadParams = true;

  /// Session::replicate calls it, on every worker.
  template <class... Arguments>
  explicit ShardedReplica(CpuWorker& worker, std::uint64_t seed, Arguments... arguments)
      : ShardedReplica(Constructed{}, worker, seed, std::move(arguments)...) {}
  template <class... Arguments>
  explicit ShardedReplica(CudaWorker& worker, std::uint64_t seed, Arguments... arguments)
      : ShardedReplica(Constructed{}, worker, seed, std::move(arguments)...) {}

  /// The module of this worker.
  Net& net() noexcept { return kept_.net(); }

  /// For parameters(): the size of this rank's copy, and the names of the module.
  template <class T>
  detail::ReplicaDescription describe() const {
    return detail::describe_module<T>(bound_, bound_.parameters(), detail::elements_of_rank(*units_));
  }
  /// For the function parts(): the place of each parameter among all parameters.
  detail::PartsDescription parts(detail::Layout) const { return detail::describe_parts(bound_.parameters()); }
  /// For train_step(): where the ranks have the parameters.
  Gather<std::int64_t, 2> places() const {
    const auto places = bound_.places_in_units();
    return {places, Shape<2>(places.size() / 4, 4)};
  }
  /// For parameters(): copies this rank's parts of the module's parameters into `params`.
  template <class Worker, class T>
  void store(Worker& worker, Local<T, 1> params) {
    Guard(worker).run([&] { bound_.store(detail::FlatVector(params)); });
  }
  /// For sync_buffers(): makes the buffers of all ranks equal.
  template <class Worker>
  void sync_buffers(Worker& worker, Comm& comm, BufferSync how, int root) {
    Guard(worker).run([&] { bound_.sync_buffers(comm, how, root); });
  }
  /// For gather_peak().
  detail::PeakOfRanks peak() const {
    const detail::UnitPeak peak = detail::peak_of(*units_);
    return {peak.units, peak.bytes};
  }

  /// For save(): rank 0 writes the module with these parameters to a file.
  template <class Worker, class T>
  void save(Worker& worker, Comm& comm, std::string_view file, Local<const T, 1> params) {
    guard(worker, comm).run([&] {
      detail::UnitPass pass(bound_, comm, detail::FlatVector(params), detail::PassKind::file);
      bound_.warn_of_buffers(worker);
      bound_.save_units(file, worker.rank() == 0);
      pass.vote();
    });
  }
  /// For load(): throws if the file does not fit. On one rank.
  template <class Worker>
  void check_file(Worker& worker, std::string_view file, std::string_view options) {
    Guard(worker).run([&] { bound_.check_file(file, options); });
  }
  /// For load(): rank 0 reads parameters and buffers from a file.
  template <class Worker, class T>
  detail::LoadedNames load(Worker& worker, Comm& comm, std::string_view file, std::string_view options,
                           Local<T, 1> params) {
    return guard(worker, comm).run([&]() -> detail::LoadedNames {
      detail::UnitPass pass(bound_, comm, detail::FlatVector(params), detail::PassKind::file);
      const LoadReport report = bound_.load_units(file, options, worker.rank() == 0);
      pass.vote();
      return detail::loaded_names(report);
    });
  }

  /// The body of train_step().
  template <auto kLoss, BackwardOptions kBackward, class Worker, class T, class... P>
  detail::ResultOf<kLoss> step(Worker& worker, Comm& comm, P... inputs, Local<T, 1> params, Local<T, 1> gradient) {
    return run_step<kLoss>(worker, comm, params, gradient, {worker.rows(), kBackward.check, {}}, inputs...);
  }
  /// The same for a loss whose gradient is that of a sum.
  template <auto kLoss, BackwardOptions kBackward, class Worker, class T, class... P>
  detail::ResultOf<kLoss> summed_step(Worker& worker, Comm& comm, syncrun::detail::GradientCount& count, P... inputs,
                                      Local<T, 1> params, Local<T, 1> gradient) {
    return run_step<kLoss>(worker, comm, params, gradient, {worker.rows(), kBackward.check, {}, &count}, inputs...);
  }
  /// The body of evaluation().
  template <auto kLoss, class Worker, class T, class... P>
  detail::ResultOf<kLoss> evaluate(Worker& worker, Comm& comm, P... inputs, Local<const T, 1> params) {
    return guard(worker, comm).run([&]() -> detail::ResultOf<kLoss> {
      detail::UnitPass pass(bound_, comm, detail::FlatVector(params), detail::PassKind::evaluation);
      bound_.warn_of_buffers(worker);
      const detail::EvaluationScope scope(*kept_.module());
      auto result = detail::evaluated<kLoss>(worker, bound_, kLoss(kept_.net(), inputs...));
      pass.vote();
      return result;
    });
  }

 private:
  struct Constructed {};

  template <class Worker, class... Arguments>
  ShardedReplica(Constructed, Worker& worker, std::uint64_t seed, Arguments&&... arguments)
      : units_(Guard(worker).run([&] { return detail::make_units(worker.rank(), worker.world_size(), kOptions); })),
        kept_(made(worker, *units_, seed, std::forward<Arguments>(arguments)...)),
        bound_(Guard(worker).run([&] { return detail::BoundModule(kept_.module(), units_); })) {
    detail::seed_by_rank(seed, worker.rank());
  }
  template <class Worker, class... Arguments>
  static detail::KeptModule<Net> made(Worker& worker, detail::Units& units, std::uint64_t seed,
                                      Arguments&&... arguments) {
    const detail::DividingScope scope(&units);
    return detail::make_module<Net>(worker, seed, std::forward<Arguments>(arguments)...);
  }
  template <class Worker>
  static Guard guard(Worker& worker, Comm& comm) {
    return syncrun::detail::HandleAccess::make<Guard>(worker, &comm, detail::BodyMemory::lasting);
  }
  template <auto kLoss, class Worker, class T, class... P>
  detail::ResultOf<kLoss> run_step(Worker& worker, Comm& comm, Local<T, 1>& params, Local<T, 1>& gradient,
                                   detail::BackwardCall call, P&... inputs) {
    call.share = syncrun::detail::share_of_rows(syncrun::detail::HandleAccess::command_loop(worker));
    return guard(worker, comm).run([&]() -> detail::ResultOf<kLoss> {
      detail::UnitPass pass(bound_, comm, detail::FlatVector(params), detail::FlatVector(gradient), worker.slice());
      auto result = detail::trained<kLoss>(worker, bound_, call, kLoss(kept_.net(), inputs...));
      pass.vote();  // so a rank that fails before it fails the step on all ranks, before any has updated its part
      return result;
    });
  }

  std::shared_ptr<detail::Units> units_;
  detail::KeptModule<Net> kept_;
  detail::BoundModule bound_;
};

namespace detail {

template <auto kLoss, class Replica, class T, class F>
struct ShardedBodies;
template <auto kLoss, class Replica, class T, class R, class Module, class... P>
struct ShardedBodies<kLoss, Replica, T, R (*)(Module&, P...)> {
  static_assert(std::is_same_v<Module&, decltype(std::declval<Replica&>().net())>,
                "the loss is a function of another module than that of the replica");
  using Result = ResultOf<kLoss>;
  using Passed = typename syncrun::detail::PassedOnly<syncrun::detail::TypeList<>, P...>::type;
  template <BackwardOptions kBackward, class Worker>
  static constexpr auto step() {
    using Vector = Local<T, 1>;
    using Plain = Result (Replica::*)(Worker&, Comm&, P..., Vector, Vector);
    using Summing = Result (Replica::*)(Worker&, Comm&, syncrun::detail::GradientCount&, P..., Vector, Vector);
    if constexpr (kIsSum<R>) return Summing(&Replica::template summed_step<kLoss, kBackward, Worker, T, P...>);
    else return Plain(&Replica::template step<kLoss, kBackward, Worker, T, P...>);
  }
  template <class Worker>
  static constexpr auto evaluate() {
    using Evaluate = Result (Replica::*)(Worker&, Comm&, P..., Local<const T, 1>);
    return Evaluate(&Replica::template evaluate<kLoss, Worker, T, P...>);
  }
};
template <auto kLoss, class Replica, class T, class R, class Module, class... P>
struct ShardedBodies<kLoss, Replica, T, R (*)(Module&, P...) noexcept>
    : ShardedBodies<kLoss, Replica, T, R (*)(Module&, P...)> {};

}  // namespace detail

/// Makes a training step of a ShardedReplica from a loss, as train_step() in training.hpp does. Rules, groups, clipping,
/// slices and losses are as there. Groups are positions among all parameters, as parts() gives them. The loss runs on
/// every rank, also without rows, where its value does not count. A step is not replayed on CUDA devices.
///
/// Throws Error (usage) if the form of the options is not StepForm::fully_sharded, or if they have a range or average
/// during the backward pass. A step throws Error (function) also if ranks run different units, or the same in another
/// order: the message names both.
template <UpdateRule Rule, auto kLoss, BackwardOptions kBackward = BackwardOptions{}, class Net, ShardOptions kOptions,
          class T>
auto train_step(Session& session, const Replicated<ShardedReplica<Net, kOptions>>& net, const Shared<T, 1>& params,
                const TrainStepOptions& options) {
  const TrainStepOptions named = detail::options_with_name<kLoss>(options);
  if (options.form != StepForm::fully_sharded || options.range || kBackward.average == GradientAverage::during_backward)
    throw Error(ErrorKind::usage,
                "train_step: a ShardedReplica needs the form StepForm::fully_sharded, no range, and "
                "GradientAverage::after_backward");
  const auto parts = libtorch::parts(session, net);
  const ParameterRange all{0, parts.empty() ? 0 : parts.back().end};
  constexpr auto kFields = syncrun::detail::kGroupFields<Rule>;
  static_cast<void>(
      syncrun::detail::make_step_plan(options, all, syncrun::detail::GradientForm::mean, kFields));  // checks them
  const auto places = session.function(&ShardedReplica<Net, kOptions>::places, net, "train_step").on_rank(0)();
  std::vector<std::int64_t> begins;
  for (const ParameterPart& part : parts) begins.push_back(part.begin);
  const auto groups = detail::divide_groups(options.groups, begins, places.span(), session.world_size());
  using Bodies = detail::ShardedBodies<kLoss, ShardedReplica<Net, kOptions>, T, decltype(kLoss)>;
  return syncrun::detail::make_train_step<Rule>(session, net.record(), params, named, &groups,
                                                Bodies::template step<kBackward, CpuWorker>(),
                                                Bodies::template step<kBackward, CudaWorker>());
}

/// Makes an evaluation of a ShardedReplica, as evaluation() in training.hpp does.
template <auto kLoss, class Net, ShardOptions kOptions, class T>
auto evaluation(Session& session, const Replicated<ShardedReplica<Net, kOptions>>& net, const Shared<T, 1>& params) {
  using Bodies = detail::ShardedBodies<kLoss, ShardedReplica<Net, kOptions>, T, decltype(kLoss)>;
  using Made = syncrun::detail::Listed<Evaluation, typename Bodies::Passed, typename Bodies::Result, T>;
  return Made(session.function(Bodies::template evaluate<CpuWorker>(), Bodies::template evaluate<CudaWorker>(), net,
                               syncrun::detail::function_name<kLoss>()),
              params);
}

/// The most that a rank of a ShardedReplica has had in memory at a time. The rest of the module comes on top. Parameters that
/// CPU devices map from other ranks count too.
struct GatherPeak {
  std::int64_t units = 0;  ///< Units whose whole parameters were gathered.
  std::int64_t bytes = 0;  ///< Whole parameters and gradients of units, and copies of these in another type.
};
/// Returns it, since the replica was made. Called by the master.
template <class Net, ShardOptions kOptions>
GatherPeak gather_peak(Session& session, const Replicated<ShardedReplica<Net, kOptions>>& net) {
  const auto peak = session.function(&ShardedReplica<Net, kOptions>::peak, net, "gather_peak")();
  return {peak.units, peak.bytes};
}

}  // namespace syncrun::libtorch
