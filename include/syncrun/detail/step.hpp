#pragma once

// A train step on the workers. Its thunk runs the user's body on each slice and combines the gradients of all slices.
// After the last slice, it averages the gradient over the ranks and applies the rule. For the rest of the framework,
// this is one body.

#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "syncrun/detail/body.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/signature.hpp"
#include "syncrun/detail/step_plan.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/train_step_options.hpp"
#include "syncrun/updates.hpp"

namespace syncrun::detail {

template <class T, std::size_t>
using VectorOfIndex = Local<T, 1>;

/// The last two parameters of a body: Local<T, 1> params, Local<T, 1> gradient.
template <class... P>
struct VectorParameters {
  static constexpr std::size_t kCount = sizeof...(P);
  static_assert(kCount >= 2, "the body of a train step ends in Local<T, 1> params, Local<T, 1> gradient");
  using Vector = std::remove_cvref_t<std::tuple_element_t<kCount - 1, std::tuple<P...>>>;
  static constexpr bool kIsRight = std::is_same_v<Vector, Local<float, 1>> || std::is_same_v<Vector, Local<double, 1>>;
  static_assert(kIsRight &&
                    std::is_same_v<std::remove_cvref_t<std::tuple_element_t<kCount - 2, std::tuple<P...>>>, Vector>,
                "the body of a train step ends in Local<T, 1> params, Local<T, 1> gradient, with T float or double");
  using T = typename Vector::element_type;
};

/// Passes the result and the parameters of a body to a template.
template <class F>
struct BodyShape;
// clang-format off
template <class R, class... P> struct BodyShape<R (*)(P...)> { template <template <class, class...> class To> using In = To<R, P...>; };
template <class R, class... P> struct BodyShape<R (*)(P...) noexcept> : BodyShape<R (*)(P...)> {};
template <class R, class C, class... P> struct BodyShape<R (C::*)(P...)> : BodyShape<R (*)(P...)> {};
template <class R, class C, class... P> struct BodyShape<R (C::*)(P...) const> : BodyShape<R (*)(P...)> {};
template <class R, class C, class... P> struct BodyShape<R (C::*)(P...) noexcept> : BodyShape<R (*)(P...)> {};
template <class R, class C, class... P> struct BodyShape<R (C::*)(P...) const noexcept> : BodyShape<R (*)(P...)> {};
// clang-format on

/// The signature and the work of a step whose body is R(P...).
template <UpdateRule Rule>
struct StepOf {
  static constexpr std::size_t kStates = Rule::kState.size();

  template <class R, class... P>
  struct Of {
    using T = typename VectorParameters<P...>::T;
    using Vector = Local<T, 1>;
    static constexpr std::size_t kCount = sizeof...(P);
    static constexpr bool kTellsOfGradient = (std::same_as<P, GradientReady&> || ...);
    static constexpr bool kHasComm = (std::same_as<P, Comm&> || ...);
    static constexpr GradientForm kGradient =
        (std::same_as<P, GradientCount&> || ...) ? GradientForm::sum : GradientForm::mean;
    static constexpr Reduction kReduction = kGradient == GradientForm::sum ? Reduction::sum : Reduction::avg;

    /// The signature of the step: the body's parameters, the state vectors, room for the gradient of one slice, the plan
    /// (step_plan.hpp), and the rule.
    template <std::size_t... I>
    static auto signature(std::index_sequence<I...>)
        -> Signature<R, Comm&, P..., VectorOfIndex<T, I>..., Vector, Local<double, 1>, DeviceScalar<Rule>>;
    using Sig = decltype(signature(std::make_index_sequence<kStates>{}));

    /// The arguments of Sig that the body does not write: the state and, if `reads_params`, the parameters. Also the plan
    /// and the room for a slice, because every step writes what it reads there. One bit each.
    static constexpr std::uint32_t written_by_update(bool reads_params) {
      constexpr std::size_t kPlan = Sig::kArguments.size() - 2;  // the rule is the last argument
      constexpr std::size_t kFirstState = kPlan - 1 - kStates;
      constexpr std::uint32_t kOthers = (std::uint32_t{1} << (kPlan + 1)) - (std::uint32_t{1} << kFirstState);
      constexpr std::uint32_t kParams = std::uint32_t{1} << (kFirstState - 2);
      return reads_params ? kOthers | kParams : kOthers;
    }

    /// Runs one slice. `parameters` are those of Sig. `body` takes the first of them after the Comm&, and the gradient
    /// as its last.
    template <StepForm kForm, BodyDevice kDevice, class Body, class... A>
    static R run_slice(WorkerCall& call, Body& body, A&&... parameters) {
      const auto all = std::forward_as_tuple(std::forward<A>(parameters)...);
      const SliceRows rows = call.slice_rows();
      const Vector& gradient = std::get<kCount>(all);
      const Vector& slice_gradient = std::get<kCount + kStates + 1>(all);
      // A fully sharded body adds to the gradient, which each slice changes on every rank.
      const Vector& target = kForm == StepForm::fully_sharded || rows.before == 0 ? gradient : slice_gradient;
      if constexpr (kForm == StepForm::fully_sharded) {
        if (rows.is_first) clear_values(call.core(), gradient.data(), gradient.span().size_bytes());
      }
      if constexpr (kTellsOfGradient) {
        constexpr auto kParts = kForm == StepForm::replicated ? GradientParts::in_buckets : GradientParts::whole;
        call.begin_gradient(dtype_of<T>, target.data(), length_of(target), kParts, kReduction);
      }
      // Like any function, a body without a Comm& does not run if there are no rows. The rest of the step runs.
      const bool is_run = rows.count != 0 || kHasComm;
      const auto run_body = [&]<std::size_t... I>(std::index_sequence<I...>) -> R {
        const BodyScope scope;  // ends before the library's code continues
        return body(std::get<I + 1>(all)..., target);
      };
      if constexpr (std::is_void_v<R>) {
        if (is_run) run_body(std::make_index_sequence<kCount - 1>{});
        end_slice<kForm, kDevice>(call, rows, all, std::make_index_sequence<kStates>{});
      } else {
        R result = is_run ? run_body(std::make_index_sequence<kCount - 1>{}) : R{};
        end_slice<kForm, kDevice>(call, rows, all, std::make_index_sequence<kStates>{});
        return result;
      }
    }

   private:
    /// Adds the count of this slice to those of the slices before, in `count`.
    template <BodyDevice kDevice>
    static void add_count(WorkerCall& call, const SliceRows& rows, double& count) {
      const GradientCount& own = call.gradient_count();
      if constexpr (kDevice != BodyDevice::cuda) {
        if (rows.before == 0) count = 0;
        if (rows.count != 0) count += own.count();
      } else if (rows.count == 0) {
        if (rows.before == 0) clear_values(call.core(), &count, sizeof(count));
      } else if (rows.before == 0) {
        copy_values(call.core(), &count, own.place(), sizeof(count));
      } else {
        combine_values(call.core(), DType::float64, &count, own.place(), {1, 1}, 1);
      }
    }
    /// If the gradient is a sum: adds the counts of all ranks. On a CPU device, throws Error (usage) if nothing counts.
    template <BodyDevice kDevice>
    static void sum_counts(Comm& comm, std::span<double> numbers) {
      if constexpr (kGradient == GradientForm::sum) {
        double& count = numbers[StepPlan::kDivisor];
        if constexpr (kDevice == BodyDevice::cuda) {
          comm.all_reduce(std::span<double>(&count, 1), Reduction::sum);
        } else {
          count = comm.all_reduce(count, Reduction::sum);
          check_divisor(count);
        }
      }
    }
    /// Before the gradients of the ranks are added. A sum has no weights, so that of a rank without rows must be zero.
    static void clear_without_rows(WorkerCall& call, const SliceRows& rows, const Vector& gradient) {
      if constexpr (kGradient == GradientForm::sum) {
        if (rows.before + rows.count == 0) clear_values(call.core(), gradient.data(), gradient.span().size_bytes());
      }
    }

    /// Reduces the rest of the gradient if there are buckets. Returns whether the gradient has been reduced.
    static bool is_reduced([[maybe_unused]] WorkerCall& call) {
      if constexpr (kTellsOfGradient) return call.end_gradient();
      else return false;
    }

    /// Divides and clips the gradient, and updates every part of the parameters by a rule of its own. The vectors begin at
    /// element `first` of the parameters. Goes through them in blocks that fit in the cache, so each block comes from
    /// memory once.
    template <class... State>
    static void update_by_plan(CommandLoop& core, const StepPlan& plan, const Rule& rule, std::int64_t first,
                               double squares, std::span<T> params, std::span<T> gradient, State... state) {
      constexpr std::int64_t kBlock = 8192;
      const std::optional<double> clip = plan.clip_norm() == 0 ? 1 : clip_factor(plan, squares);
      if (!clip) return;
      const double factor = *clip / plan.divisor();
      const auto end = first + static_cast<std::int64_t>(params.size());
      plan.for_each_part(first, end, [&](std::int64_t part_begin, std::int64_t part_end, const PlanPart& part) {
        const Rule own = rule_of_part(rule, part);
        for (std::int64_t begin = part_begin; begin < part_end; begin += kBlock) {
          const auto at = static_cast<std::size_t>(begin - first);
          const auto count = static_cast<std::size_t>(part_end - begin < kBlock ? part_end - begin : kBlock);
          const std::span<T> block = gradient.subspan(at, count);
          if (factor != 1) {
            for (T& value : block) value = static_cast<T>(static_cast<double>(value) * factor);
          }
          const std::span<T> own_params = params.subspan(at, count);
          update_block(core, own, own_params, block, state.subspan(at, count)...);
        }
      });
    }
    /// The same on a CUDA device. The plan is in device memory, and all work is done in stream order. If the norm is not
    /// finite or the divisor is not above 0, nothing is updated.
    template <class... State>
    static void update_by_plan_on_gpu(CommandLoop& core, Comm* comm, std::span<double> numbers, const Rule* rule,
                                      std::int64_t first, std::span<T> params, std::span<T> gradient, State... state) {
      UpdateWork work = update_work(rule, UpdateWork::RulePlace::device, params, gradient, state...);
      work.plan = numbers;
      work.first = first;
      if (StepPlan(numbers).is_clipping()) {
        double* const norm = &numbers[StepPlan::kNorm];
        sum_squares(core, work, norm);
        if (comm != nullptr) comm->all_reduce(std::span<double>(norm, 1), Reduction::sum);
        take_root(core, norm, &numbers[StepPlan::kDivisor]);
      }
      apply_update(core, work);
    }
    /// Updates vectors that begin at element `first` of the parameters. They are all of the parameters if `comm` is null,
    /// otherwise the part of this rank.
    template <BodyDevice kDevice, class... State>
    static void update(WorkerCall& call, Comm* comm, std::span<double> numbers, const Rule* rule, std::int64_t first,
                       std::span<T> params, std::span<T> gradient, State... state) {
      constexpr auto kPlace = kDevice == BodyDevice::cuda ? UpdateWork::RulePlace::device : UpdateWork::RulePlace::host;
      call.begin_update();
      CommandLoop& core = call.core();
      const StepPlan plan(numbers);
      if (plan.is_empty()) return update_on(core, rule, kPlace, params, gradient, state...);
      if constexpr (kDevice == BodyDevice::cuda) {
        update_by_plan_on_gpu(core, comm, numbers, rule, first, params, gradient, state...);
      } else {
        double squares = 0;
        if (plan.clip_norm() != 0) {
          squares = sum_of_squares(plan, first, std::span<const T>(gradient));
          if (comm != nullptr) squares = comm->all_reduce(squares, Reduction::sum);
        }
        update_by_plan(core, plan, *rule, first, squares, params, gradient, state...);
      }
    }
    template <class... State>
    static void update_block(CommandLoop& core, const Rule& rule, std::span<T> params, std::span<T> gradient,
                             State... state) {
      update_on(core, &rule, UpdateWork::RulePlace::host, params, gradient, state...);
    }

    template <StepForm kForm, BodyDevice kDevice, class All, std::size_t... I>
    static void end_slice(WorkerCall& call, const SliceRows& rows, const All& all, std::index_sequence<I...>) {
      Comm& comm = std::get<0>(all);
      const Vector& gradient = std::get<kCount>(all);
      // The step trains as many of the parameters as the gradient has elements.
      const std::int64_t first = first_element_of_step(call.core());
      const std::span<T> params =
          std::get<kCount - 1>(all).span().subspan(static_cast<std::size_t>(first), gradient.span().size());
      const Vector& slice_gradient = std::get<kCount + kStates + 1>(all);
      const std::span<double> numbers = std::get<kCount + kStates + 2>(all).span();
      const Rule* const rule = std::get<kCount + kStates + 3>(all).data();
      if (kForm != StepForm::fully_sharded && rows.before != 0 && rows.count != 0)
        call.add_slice(dtype_of<T>, gradient.data(), slice_gradient.data(), length_of(gradient), kReduction);
      if constexpr (kGradient == GradientForm::sum) add_count<kDevice>(call, rows, numbers[StepPlan::kDivisor]);
      if (!rows.is_last) return;

      call.average_over_slices();
      if constexpr (kForm == StepForm::replicated) {
        const bool is_done = is_reduced(call);
        sum_counts<kDevice>(comm, numbers);
        if (!is_done) {
          clear_without_rows(call, rows, gradient);
          comm.all_reduce(gradient, kReduction);
        }
        update<kDevice>(call, nullptr, numbers, rule, first, params, gradient.span(),
                        std::get<kCount + 1 + I>(all).span()...);
      } else if constexpr (kForm == StepForm::fully_sharded) {
        // So if the body has failed on one rank, no rank updates its part.
        if constexpr (kDevice != BodyDevice::cuda) comm.barrier();
        sum_counts<kDevice>(comm, numbers);
        update<kDevice>(call, &comm, numbers, rule, first, params, gradient.span(),
                        std::get<kCount + 1 + I>(all).span()...);
      } else {
        const Share own = comm.share(gradient.size());
        const auto part_of = [&own](std::span<T> vector) {
          return vector.subspan(static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.count));
        };
        const std::span<T> own_params = part_of(params);
        const std::span<T> own_gradient = part_of(gradient.span());
        sum_counts<kDevice>(comm, numbers);
        clear_without_rows(call, rows, gradient);
        comm.reduce_scatter(gradient, own_gradient, kReduction);
        update<kDevice>(call, &comm, numbers, rule, first + own.begin, own_params, own_gradient,
                        std::get<kCount + 1 + I>(all).span()...);
        comm.all_gather(own_params, params);
      }
    }
  };
};

/// The thunks of a step whose body has type Pointer.
template <UpdateRule Rule, StepForm kForm, class Pointer>
struct StepThunk {
  using Step = typename BodyShape<Pointer>::template In<StepOf<Rule>::template Of>;
  using R = typename BodyTraits<Pointer>::ResultType;
  static constexpr BodyDevice kDevice = BodyTraits<Pointer>::kDevice;

  /// See Body. The owner of a method may say that its steps only read the parameters.
  static constexpr std::uint32_t written_by_update() {
    return Step::written_by_update(requires { requires BodyTraits<Pointer>::Owner::kStepsOnlyReadParams; });
  }

  static void run(WorkerCall& call, const BodyPointer& body) {
    with_body(call, body, [&](auto& invoke) {
      Step::Sig::run(call, [&](auto&&... p) -> R {
        return Step::template run_slice<kForm, kDevice>(call, invoke, std::forward<decltype(p)>(p)...);
      });
    });
  }
  template <Capture kCapture>
  static void replay(WorkerCall& call, const BodyPointer& body) {
    note_state<typename BodyTraits<Pointer>::Owner>(call);
    with_body(call, body, [&](auto& invoke) {
      Step::Sig::template replay<kCapture>(call, [&](auto&&... p) -> R {
        return Step::template run_slice<kForm, kDevice>(call, invoke, std::forward<decltype(p)>(p)...);
      });
    });
  }

 private:
  template <class Run>
  static void with_body(WorkerCall& call, const BodyPointer& body, Run&& run) {
    const auto pointer = from_body_pointer<Pointer>(body);
    if constexpr (std::is_member_function_pointer_v<Pointer>) {
      auto& object = *static_cast<typename BodyTraits<Pointer>::Owner*>(call.object());
      auto invoke = [&](auto&&... p) -> R { return (object.*pointer)(std::forward<decltype(p)>(p)...); };
      run(invoke);
    } else {
      auto invoke = [&](auto&&... p) -> R { return pointer(std::forward<decltype(p)>(p)...); };
      run(invoke);
    }
  }
};

template <UpdateRule Rule, StepForm kForm, class Pointer>
Body make_step_body(Pointer pointer) noexcept {
  using Step = StepThunk<Rule, kForm, Pointer>;
  return {Step::kDevice, &Step::run, to_body_pointer(pointer)};
}
template <UpdateRule Rule, StepForm kForm, class Pointer, Capture kCapture>
Body make_step_body(const Replayable<Pointer, kCapture>& replayable) noexcept {
  using Step = StepThunk<Rule, kForm, Pointer>;
  return {Step::kDevice, &Step::template replay<kCapture>, to_body_pointer(replayable.body), true};
}
template <UpdateRule Rule, class Pointer>
Body make_step_body(const Pointer& pointer, StepForm form, std::size_t bucket_bytes, std::int64_t first) {
  using Shape = typename BodyShape<typename PointerIn<Pointer>::type>::template In<StepOf<Rule>::template Of>;
  Body body{};
  if (form == StepForm::replicated) {
    body = make_step_body<Rule, StepForm::replicated>(pointer);
  } else if (form == StepForm::sharded) {
    body = make_step_body<Rule, StepForm::sharded>(pointer);
  } else if constexpr (Shape::kHasComm && !Shape::kTellsOfGradient) {
    body = make_step_body<Rule, StepForm::fully_sharded>(pointer);
  } else {
    throw Error(
        ErrorKind::usage,
        "train_step: expected a body with a Comm& and without a GradientReady& in a fully sharded step, because "
        "it gathers the parameters itself. A model of LibTorch needs a libtorch::ShardedReplica");
  }
  body.bucket_bytes = bucket_bytes;
  body.is_step = true;
  body.first = first;
  body.written_by_update =
      StepThunk<Rule, StepForm::replicated, typename PointerIn<Pointer>::type>::written_by_update();
  return body;
}

}  // namespace syncrun::detail
