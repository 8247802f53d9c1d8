#pragma once

// Session::verify: does a call or a training step compute the same on one worker and on many? For the master only.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncrun/detail/export.hpp"
#include "syncrun/detail/verified_call.hpp"
#include "syncrun/function.hpp"
#include "syncrun/options.hpp"
#include "syncrun/output.hpp"
#include "syncrun/session.hpp"
#include "syncrun/train_step.hpp"

namespace syncrun {

/// The likely reason why results differ.
enum class VerifyReason : std::uint8_t {
  none,              ///< Nothing differs.
  random_numbers,    ///< The body draws random numbers, as dropout does. Each rank draws others.
  kept_state,        ///< Two equal calls differ, with equal random numbers: the body keeps something between calls.
  not_finite,        ///< A result is NaN or infinite in one division of the rows, and finite in another.
  failed,            ///< The call failed in one division of the rows.
  is_sum,            ///< A sum over rows is returned where a mean is expected.
  is_counted_often,  ///< The sum has a term once for each rank and slice.
  which_rank,        ///< Another rank computes other values from the same rows.
  number_of_ranks,   ///< The result depends on how many ranks there are, and not on the division into slices.
  number_of_slices,  ///< The result depends on how many slices there are, and not on the division among ranks.
  rows_together,     ///< The result depends on which rows are computed together.
};

/// The name of a reason: "random_numbers", ...
SYNCRUN_EXPORT std::string_view to_string(VerifyReason reason) noexcept;

/// A result that is not the same as on one rank.
struct VerifyDifference {
  std::string run;   ///< How the rows were divided: "on all 3 ranks", "on rank 0 in 2 slices", ...
  std::string what;  ///< What differs: "output 'loss'", "the gradient", "variable 'weights'".
  /// The relative difference. Infinite if one of the two is not finite, if they have other shapes, or if the call failed.
  double relative = 0;
  std::string detail;  ///< The values, the parameter with the largest difference, or the message of a failure.
};

/// What Session::verify has found.
struct Verification {
  std::vector<VerifyDifference> differences;  ///< Empty: everything that was compared is the same.
  VerifyReason reason = VerifyReason::none;   ///< The likely reason of the differences.
  std::string advice;                         ///< The reason in words, and what to do. Empty without differences.
  std::vector<std::string> notes;             ///< What was not compared, and why.
  bool has_several_ranks = true;              ///< Otherwise, only slices were compared.

  /// Whether everything that was compared is the same.
  bool is_same() const noexcept { return differences.empty(); }
  /// All of it as text, on several lines. `stream << verification` prints the same text.
  SYNCRUN_EXPORT std::string to_string() const;
  /// Writes to_string() to the stream.
  template <class Stream>
    requires requires(Stream& stream, const std::string& text) { stream << text; }
  friend Stream& operator<<(Stream& stream, const Verification& verification) {
    stream << verification.to_string();
    return stream;
  }
};

namespace detail {

/// Adds the variable of an argument if the call may write it.
template <class Parameter, class Argument>
void add_written(VerifiedParts& parts, const Argument& argument) {
  constexpr bool kIsUpdate = Parameter::type.kind == ArgumentKind::update;
  if constexpr (kIsUpdate || Parameter::type.kind == ArgumentKind::local) {
    if (argument.record() == nullptr) return;  // the call says so
    (kIsUpdate ? parts.updates : parts.written).push_back(argument.record());
  }
}

/// The body that changes the state of a worker.
template <class Worker>
Gather<std::uint8_t, 1> state_text(Worker& worker, StateAction action) {
  const std::string text = change_worker_state(worker, action);
  return {std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()), Shape<1>(text.size())};
}

/// A call whose arguments `run` knows: run(result, ranks, slices).
template <class Run>
class VerifiedCallBy : public VerifiedCall {
 public:
  VerifiedCallBy(Session& session, VerifiedParts parts, Run run)
      : VerifiedCall(std::move(parts)),
        run_(std::move(run)),
        change_(session.function(&state_text<CpuWorker>, &state_text<CudaWorker>, "verify")) {}
  void run(CallResult& result, std::span<const int> ranks, std::int64_t slices) const override {
    run_(result, ranks, slices);
  }
  std::string change_state(StateAction action) const override {
    const auto text = action == StateAction::describe ? change_.on_rank(0)(action) : change_(action);
    return {reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(text.size())};
  }

 private:
  Run run_;
  Function<Gather<std::uint8_t, 1>, StateAction> change_;
};

}  // namespace detail

/// A function or a training step that is going to be verified. Session::verify makes it. The program calls it with the
/// arguments of the function or the step.
template <class F>
class Verifier;

/// A function that is going to be verified.
template <class R, class... Passed>
class Verifier<Function<R, Passed...>> {
 public:
  /// Session::verify makes it.
  Verifier(Session& session, const Function<R, Passed...>& function, const VerifyOptions& options)
      : session_(&session), function_(function), options_(options) {}
  /// Makes the calls and compares. See Session::verify.
  Verification operator()(typename detail::Parameter<Passed>::Passed... arguments,
                          const CallOptions& options = {}) const {
    detail::held(detail::HandleAccess::record(function_), "Function");
    detail::VerifiedParts parts{.function = detail::HandleAccess::record(function_),
                                .choice = detail::HandleAccess::choice(function_),
                                .slices = options.slices};
    (detail::add_written<detail::Parameter<Passed>>(parts, arguments), ...);
    const auto run = [&](detail::CallResult& result, std::span<const int> ranks, std::int64_t slices) {
      CallOptions here = options;
      here.slices = slices;
      detail::HandleAccess::run(function_, result, ranks, arguments..., here);
    };
    const detail::VerifiedCallBy call(*session_, std::move(parts), run);
    return detail::verify_call(*detail::HandleAccess::core(*session_), call, options_);
  }

 private:
  Session* session_;
  Function<R, Passed...> function_;
  VerifyOptions options_;
};

/// A training step that is going to be verified.
template <class Rule, class T, class R, class Inner, class... Passed>
class Verifier<TrainStep<Rule, T, R, Inner, Passed...>> {
 public:
  /// The type of the step.
  using Step = TrainStep<Rule, T, R, Inner, Passed...>;
  /// Session::verify makes it.
  Verifier(Session& session, Step& step, const VerifyOptions& options)
      : session_(&session), step_(&step), options_(options) {}
  /// Makes the steps and compares. See Session::verify.
  Verification operator()(typename detail::Parameter<Passed>::Passed... arguments, const Rule& rule,
                          const CallOptions& options = {}) const {
    detail::VerifiedParts parts = detail::HandleAccess::verified(*step_);
    (detail::add_written<detail::Parameter<Passed>>(parts, arguments), ...);
    parts.slices = options.slices;
    const auto run = [&](detail::CallResult& result, std::span<const int>, std::int64_t slices) {
      CallOptions here = options;
      here.slices = slices;
      detail::HandleAccess::run(*step_, result, arguments..., rule, here);
    };
    const detail::VerifiedCallBy call(*session_, std::move(parts), run);
    return detail::verify_call(*detail::HandleAccess::core(*session_), call, options_);
  }

 private:
  Session* session_;
  Step* step_;
  VerifyOptions options_;
};

template <class F>
Verifier<F> Session::verify(F& f, const VerifyOptions& options) {
  return Verifier<F>(*this, f, options);
}
template <class R, class... Passed>
Verifier<Function<R, Passed...>> Session::verify(const Function<R, Passed...>& f, const VerifyOptions& options) {
  return Verifier<Function<R, Passed...>>(*this, f, options);
}

}  // namespace syncrun
