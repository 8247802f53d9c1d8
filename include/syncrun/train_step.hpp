#pragma once

// TrainStep: a training step as one callable object. It runs a body that computes a loss and its gradient, averages the
// gradient over all ranks, and updates the parameters.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/detail/step.hpp"
#include "syncrun/detail/step_layout.hpp"
#include "syncrun/detail/step_plan.hpp"
#include "syncrun/detail/verified_call.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/function.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/train_step_options.hpp"
#include "syncrun/updates.hpp"

namespace syncrun {

namespace detail {

/// What the function of a train step is made from.
struct StepFunction {
  std::shared_ptr<SessionCore> session;
  SignatureInfo signature;
  std::vector<Body> bodies;
  std::string name;
  std::shared_ptr<ObjectRecord> object;  // null if the body is no method

  /// The function for a range of the parameters that begins at this element.
  template <class Inner>
  Inner make(std::int64_t first) const {
    std::vector<Body> own = bodies;
    for (Body& each : own) each.first = first;
    return Inner(session, define_function(session, signature, own, name, object));
  }
};

/// Gives each rank its plan. One plan is for all.
inline void deliver(Shared<double, 1>& variable, const StepPlans& plans) {
  if (plans.size() == 1) return variable.broadcast(plans.front());
  for (std::size_t rank = 0; rank < plans.size(); ++rank) variable.set(static_cast<int>(rank), plans[rank]);
}

}  // namespace detail

/// A training step. The master calls it like a function. R is the reduced result of the body. `Passed...` lists the
/// body's parameters, except the worker, Comm&, GradientReady&, params and gradient. The function train_step() makes a
/// TrainStep. A TrainStep is movable, but not copyable, because it counts its steps.
template <UpdateRule Rule, class T, class R, class Inner, class... Passed>
class TrainStep {
 public:
  /// The number of state vectors of the rule.
  static constexpr std::size_t kStates = Rule::kState.size();

  /// Computes the gradient over all rows of the call, averages it over all ranks, and updates the parameters. After
  /// that, the parameters are equal on every rank. In the average, the weight of each rank and of each slice is its
  /// number of rows. All slices read the original parameters. The step updates them once, after the last slice. Blocks.
  /// Throws the same errors as a call of a Function. Throws also Error (usage) if a hyperparameter is not valid, or if
  /// the program changed the length of a variable of the step.
  R operator()(typename detail::Parameter<Passed>::Passed... arguments, const Rule& rule,
               const CallOptions& options = {}) {
    const Rule numbered = prepare(rule, options);
    try {
      return with_vectors(
          [&](const auto&... vectors) { return function_(arguments..., vectors..., plan_, numbered, options); });
    } catch (...) {
      --steps_;
      throw;
    }
  }

  /// Starts the step and returns without waiting for the result. If the step fails after async() has returned, steps()
  /// still counts it.
  [[nodiscard]] Future<R> async(typename detail::Parameter<Passed>::Passed... arguments, const Rule& rule,
                                const CallOptions& options = {}) {
    const Rule numbered = prepare(rule, options);
    try {
      return with_vectors(
          [&](const auto&... vectors) { return function_.async(arguments..., vectors..., plan_, numbered, options); });
    } catch (...) {
      --steps_;
      throw;
    }
  }

  /// The parameters. This member and the next two return handles, not copies of the values.
  Shared<T, 1> params() const {
    check_held();
    return params_;
  }
  /// The gradient of the last call: the mean over all rows of that call, clipped if the step clips it. On CUDA devices,
  /// it is not clipped, and that of a sum is not divided, because the update does both on the way. The gradient is
  /// equal on every rank. If the step is sharded (StepForm::sharded), each rank's copy is valid only in that rank's
  /// share. If it is fully sharded, each rank's copy is its own part.
  Shared<T, 1> gradient() const {
    check_held();
    return gradient_;
  }
  /// The state vectors of the rule, in the order of Rule::kState. If the step is replicated (StepForm::replicated),
  /// each rank has the whole of every vector. If the step is sharded, each rank has only its share of every vector. In
  /// a sharded step, Shared::gather returns the whole vector, and Shared::scatter divides a whole vector into the
  /// shares of the ranks. These shares are equal, whatever weights the ranks have. If the step is fully sharded, each
  /// rank's copy belongs to its own part of the parameters.
  std::array<Shared<T, 1>, kStates> state() const {
    check_held();
    return state_;
  }
  /// The number of steps so far. To continue a training from a checkpoint, save this number, the parameters and the
  /// state. Nothing else of the step is needed. After loading a checkpoint, call set_steps() with the saved number.
  std::int64_t steps() const {
    check_held();
    return steps_;
  }
  /// Sets the number of steps so far. Throws Error (usage) if it is negative.
  void set_steps(std::int64_t steps) {
    check_held();
    if (steps < 0) throw Error(ErrorKind::usage, "set_steps: steps is at least 0, got " + std::to_string(steps));
    steps_ = steps;
  }
  /// The norm of the whole gradient of the last step, before it was clipped. Waits for the steps in flight. Throws
  /// Error (usage) if the step does not clip the gradient (TrainStepOptions::clip_norm).
  double gradient_norm() const {
    check_held();
    if (!is_clipping())
      throw Error(ErrorKind::usage, "gradient_norm: the step has no clip_norm, so it computes no norm");
    return plan_.get(0)[detail::StepPlan::kNorm];
  }
  /// How the state is divided among the ranks.
  StepForm form() const noexcept { return form_; }
  /// The name of the step in error messages.
  const std::string& name() const {
    check_held();
    return function_.name();
  }

  /// Syncrun calls this. A program calls train_step().
  TrainStep(detail::StepFunction function_from, const Shared<T, 1>& params, Shared<T, 1> gradient,
            Shared<T, 1> slice_gradient, std::array<Shared<T, 1>, kStates> state, Shared<double, 1> plan,
            detail::StepPlans plans, StepForm form, const std::optional<ParameterRange>& range)
      : function_from_(std::move(function_from)),
        function_(function_from_.template make<Inner>(range ? range->begin : 0)),
        params_(params),
        gradient_(std::move(gradient)),
        slice_gradient_(std::move(slice_gradient)),
        state_(std::move(state)),
        plan_(std::move(plan)),
        plans_(std::move(plans)),
        form_(form),
        range_(range),
        layout_(detail::layout_of(*detail::record_of(params))) {}
  TrainStep(TrainStep&&) noexcept = default;
  TrainStep& operator=(TrainStep&&) noexcept = default;

 private:
  friend struct detail::HandleAccess;
  void check_held() const { detail::held(detail::HandleAccess::record(function_), "TrainStep"); }

  /// Checks the variables and the rule before anything is sent to the workers. Returns the rule with the number of the
  /// step.
  Rule prepare(const Rule& rule, const CallOptions& options) {
    check_held();
    Rule numbered = rule;
    if constexpr (requires { numbered.step; }) numbered.step = steps_ + 1;
    detail::check_update_rule(detail::UpdateKindOf<Rule>::value, &numbered);
    detail::VariableRecord& params = *detail::record_of(params_);
    detail::check_layout(params, layout_, name());
    detail::VariableRecord& gradient = *detail::record_of(gradient_);
    detail::VariableRecord& slice_gradient = *detail::record_of(slice_gradient_);
    if (detail::is_gone_somewhere(gradient, params)) zero(gradient);
    std::array<const detail::VariableRecord*, kStates> state;
    for (std::size_t i = 0; i < kStates; ++i) state[i] = detail::record_of(state_[i]).get();
    detail::check_step_variables(params, gradient, state, form_, range_);
    // The first call with several slices makes room for the gradient of one slice.
    const bool wants_room =
        form_ != StepForm::fully_sharded && options.slices > 1 && !detail::is_as_long_as(slice_gradient, gradient);
    if (wants_room || detail::is_gone_somewhere(slice_gradient, params)) zero(slice_gradient);
    if (detail::is_gone_somewhere(*detail::record_of(plan_), params)) detail::deliver(plan_, plans_);
    ++steps_;
    return numbered;
  }

  /// Makes one step that does not count, and leaves the result as it arrives. See Session::verify.
  void run_once(detail::CallResult& result, typename detail::Parameter<Passed>::Passed... arguments, const Rule& rule,
                const CallOptions& options) {
    const Rule numbered = prepare(rule, options);
    --steps_;
    with_vectors([&](const auto&... vectors) {
      detail::HandleAccess::run(function_, result, std::span<const int>(), arguments..., vectors..., plan_, numbered,
                                options);
    });
  }
  detail::VerifiedParts verified() const {
    check_held();
    if (form_ == StepForm::fully_sharded)
      throw Error(ErrorKind::usage, "verify: the step '" + name() +
                                        "' is fully sharded, and verify() makes the step on one rank alone. Verify a "
                                        "replicated step of the same loss");
    detail::VerifiedParts parts{.function = detail::HandleAccess::record(function_)};
    parts.own = {detail::record_of(params_), detail::record_of(slice_gradient_), detail::record_of(plan_)};
    for (const Shared<T, 1>& vector : state_) parts.own.push_back(detail::record_of(vector));
    parts.gradient = detail::record_of(gradient_);
    if (is_clipping()) parts.clipping = detail::record_of(plan_);
    parts.is_sharded = form_ == StepForm::sharded;
    return parts;
  }

  /// Throws Error (usage) if the step cannot move to another layout of these parameters.
  void check_may_move(const detail::MovingParams& params) const {
    check_held();
    if (detail::record_of(params_).get() != &params.record)
      throw Error(ErrorKind::usage, "change: the step '" + name() + "' trains '" + params_.name() +
                                        "', expected a step of '" + detail::name_of(params.record) + "'");
    if (range_ && params.network.empty())
      throw Error(ErrorKind::usage, "change: the step '" + name() +
                                        "' has a range, expected one without, or a staged step, whose ranges have "
                                        "names. Make the step again after change()");
    detail::check_layout(params.record, layout_, name());
  }
  /// The state and the plan, for a new layout of the parameters.
  detail::StepVectors vectors() const {
    const std::vector<double>& plan = plans_.front();
    const bool skips = detail::StepPlan(std::span<double>(const_cast<double*>(plan.data()), plan.size())).is_skipping();
    detail::StepVectors all{sizeof(T), {},
                            plan,      skips ? NonFiniteGradient::skip : NonFiniteGradient::error,
                            kept_,     range_.value_or(ParameterRange{0, params_.shape(0)[0]})};
    for (const Shared<T, 1>& vector : state_) {
      const Array<T, 1> whole = form_ == StepForm::sharded ? vector.gather() : vector.get(0);
      const auto bytes = std::as_bytes(whole.span());
      all.state.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
  }
  /// The parameters have that layout. The gradient is zero.
  void lay_out(const detail::StepVectors& after) {
    if (range_) {
      if (after.range.begin != range_->begin) function_ = function_from_.template make<Inner>(after.range.begin);
      range_ = after.range;
    }
    for (std::size_t i = 0; i < kStates; ++i) {
      const std::vector<std::byte>& bytes = after.state[i];
      const std::span values(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
      if (form_ == StepForm::sharded) state_[i].scatter(values);
      else state_[i].broadcast(values);
    }
    kept_ = after.kept;
    plans_ = {after.plan};
    detail::deliver(plan_, plans_);
    slice_gradient_.broadcast(std::span<const T>());
    zero(*detail::record_of(gradient_));
    layout_ = detail::layout_of(*detail::record_of(params_));
  }

  bool is_clipping() const { return !plans_.front().empty() && plans_.front()[detail::StepPlan::kClipNorm] != 0; }
  /// Makes a vector zero, and as long as what the step trains.
  void zero(detail::VariableRecord& vector) const {
    detail::zero_like(vector, *detail::record_of(params_), detail::Zeros::like_all,
                      range_ ? range_->end - range_->begin : -1);
  }

  template <class Call>
  auto with_vectors(Call&& call) {
    return std::apply([&](const auto&... state) { return call(params_, gradient_, state..., slice_gradient_); },
                      state_);
  }

  detail::StepFunction function_from_;
  Inner function_;
  Shared<T, 1> params_;
  Shared<T, 1> gradient_;
  Shared<T, 1> slice_gradient_;
  std::array<Shared<T, 1>, kStates> state_;
  Shared<double, 1> plan_;
  detail::StepPlans plans_;
  StepForm form_;
  std::optional<ParameterRange> range_;
  std::int64_t steps_ = 0;
  std::int64_t layout_;                            // of the parameters
  std::shared_ptr<const detail::KeptParts> kept_;  // of parameters that were trained before; null until lay_out()
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
  using Inner = Listed<Function, typename Body::Sig::Passed, R>;
  using type = TrainStep<Rule, typename Body::T, R, Inner, Own...>;
};

/// The types of a step whose body has type Pointer.
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

/// `groups` has those of each rank. Null: all ranks have those of the options.
template <UpdateRule Rule, class Cpu, class T, class... Others>
auto make_train_step(Session& session, const std::shared_ptr<ObjectRecord>& object, const Shared<T, 1>& params,
                     const TrainStepOptions& options, const GroupsByRank* groups, const Cpu& body,
                     const Others&... others) {
  using Pointer = typename PointerIn<Cpu>::type;
  using Types = StepTypes<Rule, Pointer>;
  using Step = typename Types::Result::type;
  static_assert(std::is_same_v<typename Types::Body::T, T>,
                "the parameters have another element type than the body's params and gradient");
  static_assert((std::is_same_v<Step, typename StepTypes<Rule, typename PointerIn<Others>::type>::Result::type> && ...),
                "the two bodies must take and return the same");
  static_assert(
      sizeof...(Others) == 0 || (BodyTraits<Pointer>::kDevice == BodyDevice::cpu &&
                                 ((BodyTraits<typename PointerIn<Others>::type>::kDevice == BodyDevice::cuda) && ...)),
      "the bodies come in the order: for CPU devices, for CUDA devices (it has a CudaWorker&)");
  check_step_params(*record_of(params), options.range);
  const ParameterRange range = options.range.value_or(ParameterRange{0, params.shape(0)[0]});
  const StepPlans plans = make_step_plans(options, groups, range, Types::Body::kGradient, kGroupFields<Rule>);
  const std::array<Body, 1 + sizeof...(Others)> bodies{
      make_step_body<Rule>(body, options.form, options.bucket_bytes, range.begin),
      make_step_body<Rule>(others, options.form, options.bucket_bytes, range.begin)...};
  StepFunction function_from{HandleAccess::core(session),
                             Types::Body::Sig::info(),
                             {bodies.begin(), bodies.end()},
                             std::string(options.name),
                             object};
  const auto vector = [&](std::string_view name, Zeros zeros) {
    Shared<T, 1> made =
        session.shared<T, 1>(unused_name(*HandleAccess::core(session), params.name() + "." + std::string(name)));
    zero_like(*record_of(made), *record_of(params), zeros, range.end - range.begin);
    return made;
  };
  Shared<T, 1> slice_gradient =
      session.shared<T, 1>(unused_name(*HandleAccess::core(session), params.name() + ".slice_gradient"));
  slice_gradient.broadcast(std::span<const T>());
  Shared<double, 1> plan =
      session.shared<double, 1>(unused_name(*HandleAccess::core(session), params.name() + ".plan"));
  deliver(plan, plans);
  const Zeros of_state = options.form == StepForm::sharded ? Zeros::like_its_share : Zeros::like_all;
  auto state =
      std::apply([&](auto... name) { return std::array<Shared<T, 1>, Rule::kState.size()>{vector(name, of_state)...}; },
                 Rule::kState);
  return Step(std::move(function_from), params, vector("gradient", Zeros::like_all), std::move(slice_gradient),
              std::move(state), std::move(plan), plans, options.form, options.range);
}

}  // namespace detail

/// Makes a training step from a body. Called by the master. The body returns a loss, or any other result that a
/// function can return. It also computes the gradient of the mean loss over the rows that it received:
///
///   Avg<double> loss_and_gradient(CpuWorker&, Scattered<const float, 2> x, Scattered<const int, 1> y,
///                                 Local<float, 1> params, Local<float, 1> gradient);
///   auto step = train_step<Adam>(session, loss_and_gradient, weights);
///   const double loss = step(x, y, {.learning_rate = 1e-3}, {.batch = shuffled, .slices = 4});
///
/// The last two parameters of the body are params and gradient. Their elements are float or double. The body reads
/// params and writes every element of gradient. The contents of gradient are undefined when the body starts. Before
/// params and gradient, the body may take any parameters that a body of Session::function can take. A body that has no
/// Comm& runs only on ranks that have rows. A body with a Comm& runs on every rank. On a rank without rows, the body
/// need not write the gradient. A body with a GradientReady& (gradient_ready.hpp) can say which part of the gradient is
/// final. The ranks can then average that part while the body computes the rest.
///
/// train_step() makes the variables for the gradient and for the rule's state. These variables are zero at first. Their
/// names start with the name of the parameters ("weights.m"). The parameters must already have a shape, and must be
/// equal on all ranks. Throws Error: usage (bad arguments), system (not enough memory).
template <UpdateRule Rule, class F, class T>
  requires(!detail::kIsMethod<F>)
auto train_step(Session& session, F body, const Shared<T, 1>& params, const TrainStepOptions& options = {}) {
  return detail::make_train_step<Rule>(session, nullptr, params, options, nullptr, detail::as_pointer(body));
}
/// Makes a training step with one body for CPU devices and one for CUDA devices. The body for CUDA devices may be
/// replayable: recorded once as a CUDA graph and then replayed (see replayable() in replayable.hpp).
template <UpdateRule Rule, class F, class G, class T>
  requires(!detail::kIsMethod<F>)
auto train_step(Session& session, F cpu_body, G cuda_body, const Shared<T, 1>& params,
                const TrainStepOptions& options = {}) {
  return detail::make_train_step<Rule>(session, nullptr, params, options, nullptr, detail::as_pointer(cpu_body),
                                       detail::as_pointer(cuda_body));
}
/// Makes a training step whose bodies are methods of a replicated object.
template <UpdateRule Rule, class Method, class C, class T>
  requires detail::kIsMethod<Method>
auto train_step(Session& session, Method method, const Replicated<C>& object, const Shared<T, 1>& params,
                const TrainStepOptions& options = {}) {
  return detail::make_train_step<Rule>(session, object.record(), params, options, nullptr, method);
}
template <UpdateRule Rule, class Method, class CudaMethod, class C, class T>
  requires detail::kIsMethod<Method>
auto train_step(Session& session, Method cpu_method, CudaMethod cuda_method, const Replicated<C>& object,
                const Shared<T, 1>& params, const TrainStepOptions& options = {}) {
  return detail::make_train_step<Rule>(session, object.record(), params, options, nullptr, cpu_method, cuda_method);
}

}  // namespace syncrun
