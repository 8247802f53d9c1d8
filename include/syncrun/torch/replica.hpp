#pragma once

// Replica: a module of LibTorch on every worker.

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "syncrun/arguments.hpp"
#include "syncrun/cuda_worker.hpp"
#include "syncrun/detail/gradient_count.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/signature.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/gradient_ready.hpp"
#include "syncrun/output.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/torch/backward.hpp"
#include "syncrun/torch/descriptions.hpp"
#include "syncrun/torch/guard.hpp"
#include "syncrun/torch/loss.hpp"
#include "syncrun/torch/number.hpp"
#include "syncrun/torch/staged_loss.hpp"
#include "syncrun/torch/tensor.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/torch/weighted_loss.hpp"
#include "syncrun/worker.hpp"

namespace syncrun::libtorch {

/// How sync_buffers makes the buffers of a module equal on all ranks.
enum class BufferSync : std::uint8_t {
  rank0,  ///< Every rank gets the buffers of rank 0.
  mean    ///< Floating-point buffers become the mean over the ranks. All others become those of rank 0.
};

namespace detail {

template <class Net>
inline constexpr bool kIsHolder = std::is_base_of_v<::torch::detail::ModuleHolderIndicator, Net>;

/// Tells a Replica which function makes its module.
template <auto kFactory>
struct ModuleFactory {};

/// The Net of a Replica whose factory returns an R.
template <class R>
struct FactoryNet {
  using type = R;
};
template <class Net>
struct FactoryNet<std::shared_ptr<Net>> {
  using type = Net;
};

/// Makes a module, or a module holder such as torch::nn::Linear, and keeps it.
template <class Net>
class KeptModule {
  static_assert(std::is_base_of_v<::torch::nn::Module, Net> || kIsHolder<Net>,
                "Replica<Net>: Net is a class derived from torch::nn::Module, a module holder of TORCH_MODULE, or "
                "torch::jit::Module");

 public:
  template <class... Arguments>
  explicit KeptModule(Arguments&&... arguments) : net_(make(std::forward<Arguments>(arguments)...)) {}

  Net& net() noexcept {
    if constexpr (kIsHolder<Net>) return net_;
    else return *net_;
  }
  std::shared_ptr<::torch::nn::Module> module() const {
    if constexpr (kIsHolder<Net>) return net_.ptr();
    else return net_;
  }

 private:
  using Stored = std::conditional_t<kIsHolder<Net>, Net, std::shared_ptr<Net>>;
  template <class... Arguments>
  static Stored make(Arguments&&... arguments) {
    if constexpr (kIsHolder<Net>) return Net(std::forward<Arguments>(arguments)...);
    else return std::make_shared<Net>(std::forward<Arguments>(arguments)...);
  }
  template <auto kFactory, class... Arguments>
  static Stored make(ModuleFactory<kFactory>&&, Arguments&&... arguments) {
    const auto made = [&]() -> Stored {
      const auto call = [&] { return kFactory(std::forward<Arguments>(arguments)...); };
      if constexpr (std::is_same_v<decltype(call()), Stored>) return call();
      else return Stored(new Net(call()));  // without a copy
    }();
    check_is_module(static_cast<bool>(made));
    return made;
  }

  Stored net_;
};
/// Keeps a module of TorchScript, from a file.
template <>
class KeptModule<::torch::jit::Module> {
 public:
  explicit KeptModule(std::string_view file) : adapter_(ScriptAdapter::from_file(file)) {}

  ::torch::jit::Module& net() noexcept { return adapter_->script(); }
  std::shared_ptr<::torch::nn::Module> module() const { return adapter_; }

 private:
  std::shared_ptr<ScriptAdapter> adapter_;
};

inline LoadedNames loaded_names(const LoadReport& report) {
  const auto gathered = [](const std::string& text) -> Gather<std::uint8_t, 1> {
    return {std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()), Shape<1>(text.size())};
  };
  return {gathered(joined_names(report.missing)), gathered(joined_names(report.additional))};
}

/// `elements` is the length of the variable on each rank.
template <class T>
ReplicaDescription describe_module(const BoundModule& module, const std::vector<BoundParameter>& parameters,
                                   std::int64_t elements) {
  module.check_types(parameters, c10::CppTypeToScalarType<T>::value);
  const std::string text = module.layout(parameters);
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(text.c_str()), text.size() + 1);
  return {elements, module.has_buffers() ? 1 : 0, {bytes, Shape<1>(bytes.size())}};
}

/// The parameters in the order of named_parameters().
inline PartsDescription describe_parts(const std::vector<BoundParameter>& parameters) {
  std::string names;
  std::vector<std::int64_t> places;
  for (const BoundParameter& each : parameters) {
    names.append(each.name).push_back('\0');
    places.insert(places.end(), {each.offset, each.end(), static_cast<std::int64_t>(each.sizes.size())});
  }
  return {{std::span(reinterpret_cast<const std::uint8_t*>(names.data()), names.size()), Shape<1>(names.size())},
          {places, Shape<2>(places.size() / 3, 3)}};
}

/// Constructs the module of a replica on a worker, with values that are the same on every rank.
template <class Net, class Worker, class... Arguments>
KeptModule<Net> make_module(Worker& worker, std::uint64_t seed, Arguments&&... arguments) {
  return Guard(worker).run([&] {
    check_versions(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR);
    seed_equally(seed);
    return KeptModule<Net>(std::forward<Arguments>(arguments)...);
  });
}

/// The averages beside a loss have its weights. Waits for the count, so it comes before the backward pass.
template <class Worker, class Numbers, class Value>
void weigh(Worker& worker, const Loss<Numbers, Value>& loss) {
  if constexpr (std::is_same_v<Value, WeightedLoss>) {
    syncrun::detail::weigh_slice(syncrun::detail::HandleAccess::command_loop(worker),
                                 worker.rows() == 0 ? 0 : count_of(loss.tensor));
  }
}
/// The end of a step's body: the backward pass, and the result for what the loss function has returned.
template <auto kLoss, class Worker, class Returned>
ResultOf<kLoss> trained(Worker& worker, BoundModule& module, const BackwardCall& call, Returned loss) {
  if constexpr (kIsOnlyLoss<Returned>) {
    ResultOf<kLoss> result = module.backward(loss, call);
    module.keep_buffers();
    return result;
  } else {
    weigh(worker, loss);
    static_cast<void>(module.backward(loss.tensor, call));
    module.keep_buffers();
    return std::move(loss.numbers);
  }
}
/// The same for an evaluation.
template <auto kLoss, class Worker, class Returned>
ResultOf<kLoss> evaluated(Worker& worker, BoundModule& module, Returned loss) {
  module.keep_buffers();
  if constexpr (kIsOnlyLoss<Returned>) {
    return module.result_of(loss);
  } else if constexpr (kIsLoss<Returned>) {
    weigh(worker, loss);
    return std::move(loss.numbers);
  } else {
    return loss;
  }
}

}  // namespace detail

/// A module of LibTorch on a worker. Session::replicate makes one on every worker:
///
///   const auto net = session.replicate<sr::libtorch::Replica<Net>>(seed, arguments...);
///
/// `Net` is a class derived from torch::nn::Module, or a module holder. The workers construct `Net(arguments...)` after
/// they have seeded LibTorch's generator with `seed`, an integer. After that, the generator of each rank has a seed of
/// its own, for dropout. replicate() in training.hpp makes the module with a factory function.
///
/// `Net` can also be torch::jit::Module. The only argument is then the name of a file of torch.jit.save, which every
/// worker reads. Its modules begin in training mode, whatever mode the file says.
///
/// On a CUDA device, the module is constructed on the CPU, with the same values as there, and then moved to the GPU.
/// The loss makes new tensors on the device of its inputs: `torch::zeros({3}, x.options())`.
///
/// Programs call only net(). The functions of training.hpp and files.hpp call the other members.
template <class Net>
class Replica final {
 public:
  /// For train steps. A loss must not write to the parameters.
  static constexpr bool kStepsOnlyReadParams = true;

  /// Session::replicate calls it, on every worker.
  template <class... Arguments>
  explicit Replica(CpuWorker& worker, std::uint64_t seed, Arguments... arguments)
      : kept_(detail::make_module<Net>(worker, seed, std::move(arguments)...)),
        bound_(bind(worker, kept_.module())),
        seed_(seed) {
    detail::seed_by_rank(seed, worker.rank());
  }
  template <class... Arguments>
  explicit Replica(CudaWorker& worker, std::uint64_t seed, Arguments... arguments)
      : kept_(detail::make_module<Net>(worker, seed, std::move(arguments)...)),
        bound_(bind(worker, kept_.module())),
        seed_(seed) {
    detail::seed_by_rank(seed, worker.rank());
  }

  /// The module of this worker.
  Net& net() noexcept { return kept_.net(); }

  /// For replay: a graph is for one state, see replayable().
  std::span<const std::uint64_t> replay_state() const noexcept { return bound_.modes(); }

  /// For parameters(): the sizes and names of the module, for a variable of T.
  template <class T>
  detail::ReplicaDescription describe() const {
    return described<T>(bound_.parameters());
  }
  /// For the function parts(): the place of each parameter.
  detail::PartsDescription parts(detail::Layout layout) const {
    return detail::describe_parts(layout == detail::Layout::present ? bound_.parameters() : bound_.proposed());
  }
  /// For parameters(): copies the module's parameters into `params`.
  template <class Worker, class T>
  void store(Worker& worker, Local<T, 1> params) {
    Guard(worker).run([&] { bound_.store(detail::FlatVector(params)); });
    bound_.end_change();
  }

  /// For change(): runs the program's function, and describes the module that it leaves.
  template <auto kChange, class Worker, class T, class... P>
  detail::ReplicaDescription change(Worker& worker, P... inputs, Local<const T, 1> params) {
    syncrun::detail::forget_graphs(syncrun::detail::HandleAccess::command_loop(worker));  // also if it fails
    slices_.release();
    return Guard(worker).run([&] {
      bound_.begin_change(detail::FlatVector(params));
      propose<kChange>(inputs...);
      return described<T>(bound_.proposed());
    });
  }
  /// For restore(): the same on a worker that replaces a lost one, for the change with this number. The values come later.
  template <auto kChange, class Worker, class... P>
  void repeat_change(Worker& worker, std::int64_t number, P... inputs) {
    if (number < bound_.changes()) return;
    Guard(worker).run([&] {
      bound_.begin_repeated_change();
      propose<kChange>(inputs...);
      bound_.accept_change();
      bound_.end_change();
    });
  }
  /// For change(): where the parameters are and will be.
  detail::ChangeDescription describe_change() const {
    const auto gathered = [](const std::vector<std::int64_t>& numbers) -> Gather<std::int64_t, 2> {
      return {numbers, Shape<2>(numbers.size() / 3, 3)};
    };
    const auto ids = bound_.ids();
    return {
        gathered(places_of(bound_.parameters())), gathered(places_of(bound_.proposed())), {ids, Shape<1>(ids.size())}};
  }
  /// For change(): the variable has its new length.
  template <class Worker, class T>
  void lay_out(Worker& worker, Local<T, 1> params) {
    Guard(worker).run([&] {
      bound_.accept_change();
      bound_.store(detail::FlatVector(params));
    });
  }
  /// All ranks have laid out the change.
  void end_change() { bound_.end_change(); }

  /// For verify_replicas(), without the variable and with it.
  template <class Worker>
  detail::ReplicaChecksums checksums(Worker& worker) {
    return checksums_with(worker, std::nullopt);
  }
  /// The same with the values of the variable in place of the parameters.
  template <class Worker, class T>
  detail::ReplicaChecksums checksums_of(Worker& worker, Local<const T, 1> params) {
    return checksums_with(worker, detail::FlatVector(params));
  }

  /// The body of train_step().
  template <auto kLoss, BackwardOptions kBackward, class Worker, class T, class... P>
  detail::ResultOf<kLoss> step(Worker& worker, P... inputs, Local<T, 1> params, Local<T, 1> gradient) {
    say_why_plain<kLoss, kBackward>(worker);
    return run_step<kLoss, kMemory<kLoss, kBackward>>(worker, params, gradient, {worker.rows(), kBackward.check, {}},
                                                      inputs...);
  }
  /// The same for a loss whose gradient is that of a sum.
  template <auto kLoss, BackwardOptions kBackward, class Worker, class T, class... P>
  detail::ResultOf<kLoss> summed_step(Worker& worker, syncrun::detail::GradientCount& count, P... inputs,
                                      Local<T, 1> params, Local<T, 1> gradient) {
    say_why_plain<kLoss, kBackward>(worker);
    return run_step<kLoss, kMemory<kLoss, kBackward>>(worker, params, gradient,
                                                      {worker.rows(), kBackward.check, {}, &count}, inputs...);
  }
  /// The same for a step that is told which part of the gradient is final.
  template <auto kLoss, BackwardOptions kBackward, class Worker, class T, class... P>
  detail::ResultOf<kLoss> step_with_reports(Worker& worker, GradientReady& ready, P... inputs, Local<T, 1> params,
                                            Local<T, 1> gradient) {
    say_why_plain<kLoss, kBackward>(worker);
    const auto report = [&ready](std::int64_t first) { ready.from(first); };
    return run_step<kLoss, detail::BodyMemory::lasting>(worker, params, gradient,
                                                        {worker.rows(), kBackward.check, report}, inputs...);
  }
  /// The same for a step that is told which part of the gradient is final.
  template <auto kLoss, BackwardOptions kBackward, class Worker, class T, class... P>
  detail::ResultOf<kLoss> summed_step_with_reports(Worker& worker, GradientReady& ready,
                                                   syncrun::detail::GradientCount& count, P... inputs,
                                                   Local<T, 1> params, Local<T, 1> gradient) {
    say_why_plain<kLoss, kBackward>(worker);
    const auto report = [&ready](std::int64_t first) { ready.from(first); };
    return run_step<kLoss, detail::BodyMemory::lasting>(worker, params, gradient,
                                                        {worker.rows(), kBackward.check, report, &count}, inputs...);
  }
  /// The body of scaled_step().
  template <auto kLoss, class Worker, class T, class... P>
  detail::ResultOf<kLoss> scaled_step(Worker& worker, syncrun::detail::GradientCount& count, P... inputs,
                                      DeviceScalar<float> scale, Local<T, 1> params, Local<T, 1> gradient) {
    constexpr BackwardOptions kBackward{};
    say_why_plain<kLoss, kBackward>(worker);
    detail::BackwardCall call{worker.rows(), kBackward.check, {}, &count};
    call.scale = scale.data();
    return run_step<kLoss, kMemory<kLoss, kBackward>>(worker, params, gradient, std::move(call), inputs...);
  }
  /// The body of a stage of staged_step(). The gradient is that of one network.
  template <auto kLoss, std::size_t kStage, class Worker, class T, class... P>
  Avg<double> stage(Worker& worker, P... inputs, Local<T, 1> params, Local<T, 1> gradient) {
    auto& core = syncrun::detail::HandleAccess::command_loop(worker);
    detail::BackwardCall call{.rows = worker.rows(), .share = syncrun::detail::share_of_rows(core)};
    const detail::FlatVector trained(gradient, syncrun::detail::first_element_of_step(core));
    Comm* const comm = detail::comm_in(inputs...);
    return syncrun::detail::HandleAccess::make<Guard>(worker, comm, detail::BodyMemory::lasting)
        .run([&]() -> Avg<double> {
          call.changed = slices_.changed(kStage, worker.slice());
          slices_.note_range(kStage, {trained.first, trained.first + trained.elements});
          bound_.bind(detail::FlatVector(params), trained, call);
          if constexpr (kStage == 0) {
            detail::KeptSlice& slice = slices_.add(worker.slice());
            auto loss = kLoss(kept_.net(), detail::KeptInput<P>::of(inputs, slice.inputs)...);
            slice.later.assign(loss.later.begin(), loss.later.end());
            return ended(bound_.backward(loss.first, call));
          } else {
            detail::KeptSlice& slice = slices_.next(worker.slice());
            const detail::CommAgain again(slice.comm.get(), comm);
            const auto result = bound_.backward(slice.later[kStage - 1](), call);
            if (kStage == slice.later.size()) slice = {};
            return ended(result);
          }
        });
  }
  /// After a stage has failed on any rank.
  void release_stages() { slices_.release(); }
  /// The body of evaluation().
  template <auto kLoss, Replay kReplay, class Worker, class T, class... P>
  detail::ResultOf<kLoss> evaluate(Worker& worker, P... inputs, Local<const T, 1> params) {
    constexpr auto kMemoryHere = kMemory<kLoss, BackwardOptions{.replay = kReplay}>;
    return syncrun::detail::HandleAccess::make<Guard>(worker, detail::comm_in(inputs...), kMemoryHere)
        .run([&]() -> detail::ResultOf<kLoss> {
          bound_.bind_to_read(detail::FlatVector(params));
          bound_.warn_of_buffers(worker);
          const detail::EvaluationScope scope(*kept_.module());
          return detail::evaluated<kLoss>(worker, bound_, kLoss(kept_.net(), inputs...));
        });
  }

  /// For update_bn(): forgets the running statistics of BatchNorm.
  template <class Worker>
  void reset_statistics(Worker& worker) {
    Guard(worker).run([&] { bound_.reset_statistics(); });
  }
  /// Adds the statistics of a batch.
  template <auto kLoss, class Worker, class... P>
  void add_statistics(Worker& worker, P... inputs, Local<const float, 1> params) {
    syncrun::detail::HandleAccess::make<Guard>(worker, detail::comm_in(inputs...), detail::BodyMemory::lasting)
        .run([&] {
          bound_.bind_to_read(detail::FlatVector(params));
          const detail::StatisticsScope scope(*kept_.module());
          static_cast<void>(kLoss(kept_.net(), inputs...));
        });
  }
  /// Makes the statistics those of all ranks.
  template <class Worker>
  void finish_statistics(Worker& worker, Comm& comm) {
    Guard(worker).run([&] { bound_.finish_statistics(comm); });
  }

  /// For sync_buffers(): makes the buffers of all ranks equal.
  template <class Worker>
  void sync_buffers(Worker& worker, Comm& comm, BufferSync how, int root) {
    Guard(worker).run([&] { bound_.sync_buffers(comm, how, root); });
  }
  /// For save(): writes the module with these parameters to a file.
  template <class Worker, class T>
  void save(Worker& worker, std::string_view file, FileFormat format, Local<const T, 1> params) {
    Guard(worker).run([&] {
      bound_.bind_to_read(detail::FlatVector(params));
      bound_.warn_of_buffers(worker);
      bound_.save(file, format);
    });
  }
  /// For load(): reads parameters and buffers from a file.
  template <class Worker, class T>
  detail::LoadedNames load(Worker& worker, std::string_view file, std::string_view options, Local<T, 1> params) {
    return Guard(worker).run([&]() -> detail::LoadedNames {
      bound_.bind_to_read(detail::FlatVector(params));
      const LoadReport report = bound_.load(file, options);
      bound_.store(detail::FlatVector(params));
      return detail::loaded_names(report);
    });
  }

 private:
  /// The memory of a body: that of graphs if the body may be captured.
  template <auto kLoss, BackwardOptions kBackward>
  static constexpr auto kMemory =
      detail::kIsReplayed<decltype(kLoss), kBackward> ? detail::BodyMemory::of_graphs : detail::BodyMemory::lasting;

  /// On a GPU, says once why steps run without a CUDA graph although the program has not turned graphs off. It is a
  /// warning unless an option of the program is the reason.
  template <auto kLoss, BackwardOptions kBackward, class Worker>
  void say_why_plain(Worker& worker) {
    if constexpr (std::is_same_v<Worker, CudaWorker> && kBackward.replay == Replay::if_possible &&
                  !detail::kIsReplayed<decltype(kLoss), kBackward>) {
      constexpr bool kIsChosen =
          kBackward.average == GradientAverage::during_backward || kBackward.check == FiniteCheck::gradients;
      if (std::exchange(has_said_why_[kIsChosen ? 0 : 1], true) || worker.rank() != 0) return;
      worker.log(kIsChosen ? LogLevel::info : LogLevel::warning,
                 std::string("steps run without a CUDA graph: ") + detail::why_not_replayed<kBackward>());
    }
  }

  template <class Worker>
  static detail::BoundModule bind(Worker& worker, std::shared_ptr<::torch::nn::Module> module) {
    return Guard(worker).run([&] { return detail::BoundModule(std::move(module)); });
  }
  template <auto kLoss, detail::BodyMemory kMemoryHere, class Worker, class T, class... P>
  detail::ResultOf<kLoss> run_step(Worker& worker, Local<T, 1>& params, Local<T, 1>& gradient,
                                   detail::BackwardCall call, P&... inputs) {
    auto& core = syncrun::detail::HandleAccess::command_loop(worker);
    call.share = syncrun::detail::share_of_rows(core);
    const detail::FlatVector trained(gradient, syncrun::detail::first_element_of_step(core));
    return syncrun::detail::HandleAccess::make<Guard>(worker, detail::comm_in(inputs...), kMemoryHere)
        .run([&]() -> detail::ResultOf<kLoss> {
          bound_.bind(detail::FlatVector(params), trained, call);
          return detail::trained<kLoss>(worker, bound_, call, kLoss(kept_.net(), inputs...));
        });
  }
  /// The result of a body, at its end.
  template <class R>
  R ended(R result) const {
    bound_.keep_buffers();
    return result;
  }
  template <class Worker>
  detail::ReplicaChecksums checksums_with(Worker& worker, const std::optional<detail::FlatVector>& params) {
    return Guard(worker).run([&]() -> detail::ReplicaChecksums {
      std::vector<std::uint64_t> sums;
      std::string names;
      for (const auto& each : bound_.checksums(params)) {
        sums.push_back(each.sum);
        names.append(each.tensor).push_back('\0');
      }
      return {{sums, Shape<2>(1, sums.size())},
              {std::span(reinterpret_cast<const std::uint8_t*>(names.data()), names.size()), Shape<1>(names.size())}};
    });
  }
  template <auto kChange, class... P>
  void propose(P&... inputs) {
    const detail::SeededScope scope(seed_ + 1 + static_cast<std::uint64_t>(bound_.changes()));
    kChange(kept_.net(), inputs...);
    bound_.propose_change();
  }
  template <class T>
  detail::ReplicaDescription described(const std::vector<detail::BoundParameter>& parameters) const {
    return detail::describe_module<T>(bound_, parameters, detail::BoundModule::count_elements(parameters));
  }
  static std::vector<std::int64_t> places_of(const std::vector<detail::BoundParameter>& parameters) {
    std::vector<std::int64_t> places;
    for (const auto& each : parameters) places.insert(places.end(), {each.id, each.offset, each.end()});
    return places;
  }

  detail::KeptModule<Net> kept_;
  detail::BoundModule bound_;
  std::uint64_t seed_;
  detail::KeptSlices slices_;
  std::array<bool, 2> has_said_why_{};  // that it is an option; that it is the loss
};

}  // namespace syncrun::libtorch
