#pragma once

// One callable of gradient, all_reduce and update: a training step, made of a body that computes a loss and its gradient.

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "syncrun/detail/master_seam.hpp"
#include "syncrun/detail/step.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/function.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/updates.hpp"

namespace syncrun {

/// A training step as the master calls it: R is what the body returns, reduced; Passed are the body's parameters without
/// workers, params and gradient. Made by train_step. Movable, not copyable: it counts its steps.
template <UpdateRule Rule, class T, class R, class Inner, class... Passed>
class TrainStep {
 public:
  static constexpr std::size_t kStates = Rule::kState.size();

  /// Computes the gradient of all rows of the call on all ranks, with each rank's rows and each slice's by their number,
  /// averages it, and updates the parameters of every rank by the same. With slices, each of them sees the original
  /// parameters, and there is one update, after the last. Blocks. Throws Error as Function does, and usage for
  /// hyperparameters that make no sense and for variables that were given other lengths.
  R operator()(typename detail::Parameter<Passed>::Passed... arguments, const Rule& rule,
               const CallOptions& options = {}) {
    const Rule numbered = prepare(rule, options);
    try {
      return with_vectors(
          [&](const auto&... vectors) { return function_(arguments..., vectors..., numbered, options); });
    } catch (...) {
      --steps_;
      throw;
    }
  }

  /// The same without waiting. A step that fails later has been counted.
  [[nodiscard]] Future<R> async(typename detail::Parameter<Passed>::Passed... arguments, const Rule& rule,
                                const CallOptions& options = {}) {
    const Rule numbered = prepare(rule, options);
    try {
      return with_vectors(
          [&](const auto&... vectors) { return function_.async(arguments..., vectors..., numbered, options); });
    } catch (...) {
      --steps_;
      throw;
    }
  }

  /// Handles, here and below.
  Shared<T, 1> params() const {
    check_held();
    return params_;
  }
  /// Of the last call: the mean over all its rows, the same on every rank; if sharded, each rank's share only.
  Shared<T, 1> gradient() const {
    check_held();
    return gradient_;
  }
  /// The vectors that Rule::kState names, on every rank all or, if sharded, its share: gather() of that is all, and
  /// scatter(all) gives the shares back.
  std::array<Shared<T, 1>, kStates> state() const {
    check_held();
    return state_;
  }
  /// Steps so far, and how many were made before: with params and state, all that a checkpoint needs.
  std::int64_t steps() const {
    check_held();
    return steps_;
  }
  void set_steps(std::int64_t steps) {
    check_held();
    if (steps < 0) throw Error(ErrorKind::usage, "set_steps: steps is at least 0, got " + std::to_string(steps));
    steps_ = steps;
  }
  StepForm form() const noexcept { return form_; }
  const std::string& name() const {
    check_held();
    return function_.name();
  }

  /// The framework's own.
  TrainStep(Inner function, const Shared<T, 1>& params, Shared<T, 1> gradient, Shared<T, 1> slice_gradient,
            std::array<Shared<T, 1>, kStates> state, StepForm form)
      : function_(std::move(function)),
        params_(params),
        gradient_(std::move(gradient)),
        slice_gradient_(std::move(slice_gradient)),
        state_(std::move(state)),
        form_(form) {}
  TrainStep(TrainStep&&) noexcept = default;
  TrainStep& operator=(TrainStep&&) noexcept = default;

 private:
  void check_held() const { detail::held(detail::HandleAccess::record(function_), "TrainStep"); }

  /// Checks what can be checked before anything is published, and numbers the step.
  Rule prepare(const Rule& rule, const CallOptions& options) {
    check_held();
    Rule numbered = rule;
    if constexpr (requires { numbered.step; }) numbered.step = steps_ + 1;
    detail::check_update_rule(detail::UpdateKindOf<Rule>::value, &numbered);
    if (detail::is_gone_somewhere(*gradient_.record(), *params_.record()))
      detail::zero_like(*gradient_.record(), *params_.record(), detail::Zeros::like_all);
    std::array<const detail::VariableRecord*, kStates> state;
    for (std::size_t i = 0; i < kStates; ++i) state[i] = state_[i].record().get();
    detail::check_step_variables(*params_.record(), *gradient_.record(), state, form_);
    // Room for the gradient of one slice, from the first call that has several.
    const bool wants_room = options.slices > 1 && !detail::is_as_long_as(*slice_gradient_.record(), *params_.record());
    if (wants_room || detail::is_gone_somewhere(*slice_gradient_.record(), *params_.record()))
      detail::zero_like(*slice_gradient_.record(), *params_.record(), detail::Zeros::like_all);
    ++steps_;
    return numbered;
  }

  template <class Call>
  auto with_vectors(Call&& call) {
    return std::apply([&](const auto&... state) { return call(params_, gradient_, state..., slice_gradient_); },
                      state_);
  }

  Inner function_;
  Shared<T, 1> params_;
  Shared<T, 1> gradient_;
  Shared<T, 1> slice_gradient_;
  std::array<Shared<T, 1>, kStates> state_;
  StepForm form_;
  std::int64_t steps_ = 0;
};

/// Options of a training step.
struct TrainStepOptions {
  StepForm form = StepForm::replicated;
  /// For messages; left out: that of the body.
  std::string_view name{};
  /// How much of a gradient is averaged at a time while a body that has a GradientReady& computes the rest; 0: all of it,
  /// after the body. Between GPUs with NVLink, copy engines average all but the last of buckets of more than 1 and up to 16 MiB,
  /// and leave the multiprocessors to the body but for the sums.
  std::size_t bucket_bytes = std::size_t{16} << 20U;
};

namespace detail {

template <class List, class Indices>
struct FirstOf;
template <class... P, std::size_t... I>
struct FirstOf<TypeList<P...>, std::index_sequence<I...>> {
  using type = TypeList<std::tuple_element_t<I, std::tuple<P...>>...>;
};

template <UpdateRule Rule, class Pointer, class Body, class List>
struct TrainStepOf;
template <UpdateRule Rule, class Pointer, class Body, class... Own>
struct TrainStepOf<Rule, Pointer, Body, TypeList<Own...>> {
  using R = typename BodyTraits<Pointer>::ResultType;
  using Inner = typename FunctionOf<R, typename Body::Sig::Passed>::type;
  using type = TrainStep<Rule, typename Body::T, R, Inner, Own...>;
};

/// Types of the step around a body of type Pointer.
template <UpdateRule Rule, class Pointer>
struct StepTypes {
  using Body = typename BodyShape<Pointer>::template In<StepOf<Rule>::template Of>;
  using All = typename BodyTraits<Pointer>::Sig::Passed;
  template <class... P>
  static constexpr std::size_t count(TypeList<P...>) {
    return sizeof...(P);
  }
  using Passed = typename FirstOf<All, std::make_index_sequence<count(All{}) - 2>>::type;
  using Result = TrainStepOf<Rule, Pointer, Body, Passed>;
};

template <UpdateRule Rule, class Cpu, class T, class... Others>
auto make_train_step(Session& session, const std::shared_ptr<ObjectRecord>& object, const Shared<T, 1>& params,
                     const TrainStepOptions& options, const Cpu& body, const Others&... others) {
  using Pointer = typename PointerIn<Cpu>::type;
  using Types = StepTypes<Rule, Pointer>;
  using Step = typename Types::Result::type;
  using Inner = typename Types::Result::Inner;
  static_assert(std::is_same_v<typename Types::Body::T, T>,
                "the parameters have another element type than the body's params and gradient");
  static_assert((std::is_same_v<Step, typename StepTypes<Rule, typename PointerIn<Others>::type>::Result::type> && ...),
                "the two bodies must take and return the same");
  static_assert(
      sizeof...(Others) == 0 || (BodyTraits<Pointer>::kDevice == BodyDevice::cpu &&
                                 ((BodyTraits<typename PointerIn<Others>::type>::kDevice == BodyDevice::cuda) && ...)),
      "the bodies come in the order: for CPU devices, for CUDA devices (it has a CudaWorker&)");
  check_step_params(*params.record());
  const std::array<Body, 1 + sizeof...(Others)> bodies{
      make_step_body<Rule>(body, options.form, options.bucket_bytes),
      make_step_body<Rule>(others, options.form, options.bucket_bytes)...};
  Inner function(session.core(),
                 define_function(session.core(), Types::Body::Sig::info(), bodies, options.name, object));
  const auto vector = [&](std::string_view name, Zeros zeros) {
    Shared<T, 1> made = session.shared<T, 1>(unused_name(*session.core(), params.name() + "." + std::string(name)));
    zero_like(*made.record(), *params.record(), zeros);
    return made;
  };
  Shared<T, 1> slice_gradient = session.shared<T, 1>(unused_name(*session.core(), params.name() + ".slice_gradient"));
  slice_gradient.broadcast(std::span<const T>());
  const Zeros of_state = options.form == StepForm::sharded ? Zeros::like_its_share : Zeros::like_all;
  auto state =
      std::apply([&](auto... name) { return std::array<Shared<T, 1>, Rule::kState.size()>{vector(name, of_state)...}; },
                 Rule::kState);
  return Step(std::move(function), params, vector("gradient", Zeros::like_all), std::move(slice_gradient),
              std::move(state), options.form);
}

}  // namespace detail

/// Makes a training step of a body that computes, from its rows and the parameters, a loss (or anything that a function
/// can return) and the gradient of the mean over its rows:
///
///   Avg<double> loss_and_gradient(CpuWorker&, Scattered<const float, 2> x, Scattered<const int, 1> y,
///                                 Local<float, 1> params, Local<float, 1> gradient);
///   auto step = train_step<Adam>(session, loss_and_gradient, weights);
///   const double loss = step(x, y, {.learning_rate = 1e-3}, {.batch = shuffled, .slices = 4});
///
/// The body ends in params and gradient, of float or double; it reads the former and writes every element of the latter,
/// which holds anything before. What stands before them is up to it, as for any function. It is not run where there are
/// no rows, unless it has a Comm& (then it need not write the gradient there). With a GradientReady& (gradient_ready.hpp)
/// it can say what of the gradient is final, and that is averaged over the ranks while it computes the rest. The step makes
/// its gradient and the rule's state, zero, named after the parameters ("weights.m"). The parameters must have been given
/// their shape, and start equal on all ranks. Master. Throws Error: usage, system (memory).
template <UpdateRule Rule, class F, class T>
  requires(!detail::kIsMethod<F>)
auto train_step(Session& session, F body, const Shared<T, 1>& params, const TrainStepOptions& options = {}) {
  return detail::make_train_step<Rule>(session, nullptr, params, options, detail::as_pointer(body));
}
/// With a body for each kind of device; that for CUDA devices may be replayable.
template <UpdateRule Rule, class F, class G, class T>
  requires(!detail::kIsMethod<F>)
auto train_step(Session& session, F cpu_body, G cuda_body, const Shared<T, 1>& params,
                const TrainStepOptions& options = {}) {
  return detail::make_train_step<Rule>(session, nullptr, params, options, detail::as_pointer(cpu_body),
                                       detail::as_pointer(cuda_body));
}
/// Of methods of a replicated object.
template <UpdateRule Rule, class Method, class C, class T>
  requires detail::kIsMethod<Method>
auto train_step(Session& session, Method method, const Replicated<C>& object, const Shared<T, 1>& params,
                const TrainStepOptions& options = {}) {
  return detail::make_train_step<Rule>(session, object.record(), params, options, method);
}
template <UpdateRule Rule, class Method, class CudaMethod, class C, class T>
  requires detail::kIsMethod<Method>
auto train_step(Session& session, Method cpu_method, CudaMethod cuda_method, const Replicated<C>& object,
                const Shared<T, 1>& params, const TrainStepOptions& options = {}) {
  return detail::make_train_step<Rule>(session, object.record(), params, options, cpu_method, cuda_method);
}

}  // namespace syncrun
