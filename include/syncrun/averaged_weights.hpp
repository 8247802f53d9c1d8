#pragma once

// AveragedWeights: an average of the parameters of a training, for evaluations. It is on the devices, and the devices
// compute it.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "syncrun/arguments.hpp"
#include "syncrun/cuda_worker.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/detail/number_text.hpp"
#include "syncrun/detail/update_work.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/error.hpp"
#include "syncrun/function.hpp"
#include "syncrun/session.hpp"
#include "syncrun/shared.hpp"
#include "syncrun/worker.hpp"

namespace syncrun {

/// Options of averaged_weights().
struct AverageOptions {
  /// What is averaged.
  enum class Form : bool {
    exponential,  ///< average = decay average + (1 - decay) parameters, as PyTorch's AveragedModel with get_ema_avg_fn.
    equal         ///< The mean of all parameters that it took (SWA), as PyTorch's AveragedModel with get_swa_avg_fn.
  };
  Form form = Form::exponential;  ///< What is averaged.
  double decay = 0.999;           ///< From 0 to below 1. Of the exponential form.
  std::string_view name{};        ///< Of the variable. Empty: "weights.average" for parameters with the name "weights".
};

namespace detail {

/// average += rate (params - average). A rate of 1 copies.
template <class T, class Worker>
void move_average(Worker& worker, Local<const T, 1> params, Local<T, 1> average, double rate) {
  if (params.size() != average.size())
    throw Error(ErrorKind::usage, "averaged_weights: the parameters have " + std::to_string(params.size()) +
                                      " elements, but the average has " + std::to_string(average.size()) +
                                      ". Make a new average");
  CommandLoop& core = HandleAccess::command_loop(worker);
  const MovingAverage rule{.learning_rate = rate};
  if (rate == 1) copy_values(core, average.data(), params.data(), params.span().size_bytes());
  else update_on(core, &rule, UpdateWork::RulePlace::host, average, params);
}

}  // namespace detail

/// An average of parameters. The function averaged_weights() makes it. T is float or double. Called by the master. It
/// is movable, but not copyable, because it counts its updates.
template <class T>
class AveragedWeights {
 public:
  /// Takes the parameters as they are now into the average. The first call copies them. Blocks. Each element is read
  /// and written once on each rank, without communication. Throws Error: function (the parameters have another length
  /// than before), and the same errors as a call of a Function. If a worker is lost and replaced, ranks may have taken
  /// the parameters already, and another call takes them twice there: load values() and updates() from a checkpoint
  /// first.
  void update() { async().get(); }
  /// Starts the same and returns without waiting. A step that is started afterwards changes the parameters only after
  /// they have been taken. An update that fails, for example because the step before it failed, does not count.
  [[nodiscard]] Future<void> async() {
    check_held();
    const bool is_mean = form_ == AverageOptions::Form::equal;
    const double rate = *updates_ == 0 ? 1 : is_mean ? 1 / static_cast<double>(*updates_ + 1) : 1 - decay_;
    auto taken = function_.async(params_, average_, rate);
    detail::CallResult& result = *detail::HandleAccess::result(taken);
    if (!result.error) {
      ++*updates_;
      result.counted = updates_;
    }
    return taken;
  }

  /// The average, equal on every rank if the parameters are. Zero before the first update. It can stand where the
  /// parameters can: in an evaluation, in a file. An evaluation of a module of LibTorch uses the buffers that the
  /// module has at the time.
  Shared<T, 1> values() const {
    check_held();
    return average_;
  }
  /// How many times it has taken parameters. A checkpoint needs this number and values().
  std::int64_t updates() const {
    check_held();
    return *updates_;
  }
  /// Sets this number. Throws Error (usage) if it is negative.
  void set_updates(std::int64_t updates) {
    check_held();
    if (updates < 0)
      throw Error(ErrorKind::usage, "set_updates: updates is at least 0, got " + std::to_string(updates));
    updates_ = std::make_shared<std::int64_t>(updates);  // updates in flight count in the old number
  }

  /// Syncrun calls this. A program calls averaged_weights().
  AveragedWeights(Session& session, const Shared<T, 1>& params, Shared<T, 1> average, const AverageOptions& options)
      : function_(session.function(&detail::move_average<T, CpuWorker>, &detail::move_average<T, CudaWorker>,
                                   "averaged_weights")),
        params_(params),
        average_(std::move(average)),
        form_(options.form),
        decay_(options.decay) {}
  AveragedWeights(AveragedWeights&&) noexcept = default;
  AveragedWeights& operator=(AveragedWeights&&) noexcept = default;

 private:
  using Inner = Function<void, Local<const T, 1>, Local<T, 1>, double>;

  void check_held() const { detail::held(detail::HandleAccess::record(function_), "AveragedWeights"); }

  Inner function_;
  Shared<T, 1> params_;
  Shared<T, 1> average_;
  AverageOptions::Form form_;
  double decay_;
  std::shared_ptr<std::int64_t> updates_ = std::make_shared<std::int64_t>(0);
};

/// Makes an average of parameters, on every rank:
///
///   auto average = averaged_weights(session, weights, {.decay = 0.999});
///   for (...) {
///     step(x, y, {.learning_rate = 0.1});
///     average.update();
///   }
///   const double loss = evaluate(x_test, y_test, average.values());
///
/// The parameters must have their shape already. Throws Error: usage (they have none, or the decay is out of range),
/// system (not enough memory).
template <class T>
AveragedWeights<T> averaged_weights(Session& session, const Shared<T, 1>& params, const AverageOptions& options = {}) {
  if (!(options.decay >= 0 && options.decay < 1))
    throw Error(ErrorKind::usage,
                "averaged_weights: decay is from 0 to below 1, got " + detail::number_text(options.decay));
  const auto name = options.name.empty()
                        ? detail::unused_name(*detail::HandleAccess::core(session), params.name() + ".average")
                        : std::string(options.name);
  Shared<T, 1> average = session.shared<T, 1>(name);
  detail::zero_like(*detail::record_of(average), *detail::record_of(params), detail::Zeros::like_all);
  return AveragedWeights<T>(session, params, std::move(average), options);
}

}  // namespace syncrun
