#pragma once

// Function, Future and Replicated: replicated functions and objects, as the master uses them. Session::function makes a
// Function. For the master only.

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "syncrun/convert.hpp"
#include "syncrun/detail/body.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/detail/signature.hpp"
#include "syncrun/detail/target.hpp"
#include "syncrun/device.hpp"
#include "syncrun/error.hpp"
#include "syncrun/options.hpp"

namespace syncrun {

template <class R>
class Future;
template <class R, class... Passed>
class PlacedFunction;

/// A function that runs on all workers at once. Each worker runs it on its own rows. R is the type of the result.
/// `Passed...` lists the parameters that the caller passes: the body's parameters, except CpuWorker&, CudaWorker& and
/// Comm&. A Function is a handle and cheap to copy.
template <class R, class... Passed>
class Function {
 public:
  Function(std::shared_ptr<detail::SessionCore> session, std::shared_ptr<detail::FunctionRecord> record,
           detail::Target target = {}, const detail::OutputChoice* choice = nullptr) noexcept
      : session_(std::move(session)), record_(std::move(record)), target_(std::move(target)), choice_(choice) {}

  /// Checks the arguments, runs the function on the workers, and returns the reduced result. Blocks. Throws Error:
  /// usage (the call is wrong, and no worker ran it), function (the body threw on a worker; the session goes on),
  /// worker_lost (the session is over, unless the worker was replaced), timeout (the session is over).
  detail::Returned<R> operator()(typename detail::Parameter<Passed>::Passed... arguments,
                                 const CallOptions& options = {}) const {
    detail::CallBuilder call(record_, target_.ranks(), options, choice_);
    (detail::Parameter<Passed>::add(call, arguments), ...);
    detail::CallResult result;
    call.run(result);
    return detail::assemble<R>(result, choice_);
  }

  /// Starts the same call and returns without waiting for the result. Several calls can be in flight, and each worker
  /// runs its calls in order. If the call is wrong, async() itself throws Error (usage). Future::get throws all other
  /// errors.
  [[nodiscard]] Future<R> async(typename detail::Parameter<Passed>::Passed... arguments,
                                const CallOptions& options = {}) const {
    detail::CallBuilder call(record_, target_.ranks(), options, choice_);
    (detail::Parameter<Passed>::add(call, arguments), ...);
    return Future<R>(session_, call.launch(), choice_);
  }

  /// Returns the same function for one rank only. That rank computes all rows: `f.on_rank(0)(x, y)`.
  [[nodiscard]] Function on_rank(int rank) const {
    held();
    if (rank < 0) throw Error(ErrorKind::usage, "on_rank requires a rank from 0, got " + std::to_string(rank));
    return Function(session_, record_, detail::Target::only(rank), choice_);
  }

  /// Returns the same function for one device, or for a set of devices: `f.on(left)(x)`, `f.on({left, right})(x)`. The
  /// rows are split over the devices of the set, in the order of their ranks. In the body, Comm::rank() is the device's
  /// position in this order, from 0. CpuWorker::rank() is its rank in the session. If the function returns nothing, or
  /// all its results are of type Keep, a call returns at once (see PlacedFunction). Throws Error (usage) if the set is
  /// empty, or if the same name occurs twice in it. Two different names of one device are allowed, and count as one
  /// device.
  [[nodiscard]] PlacedFunction<R, Passed...> on(const Device& device) const { return on({&device, 1}); }
  [[nodiscard]] PlacedFunction<R, Passed...> on(std::initializer_list<Device> devices) const {
    return on(std::span<const Device>(devices.begin(), devices.size()));
  }
  [[nodiscard]] PlacedFunction<R, Passed...> on(std::span<const Device> devices) const {
    held();
    return PlacedFunction<R, Passed...>(Function(session_, record_, detail::Target::of(devices), choice_));
  }

  /// Returns the same function with only some of its outputs. `f.only<&Stats::mean>()(x)` returns the output `mean`.
  /// `auto [max, mean] = f.only<&Stats::max, &Stats::mean>()(x)` returns a tuple of two outputs, in this order. The
  /// other outputs are neither transferred nor reduced. The body can ask whether the caller wants an output
  /// (CpuWorker::wants). An output can also be named by its number: `f.only<0>()`.
  template <auto... kOutputs>
  [[nodiscard]] auto only() const {
    using Choice = detail::Choice<R, kOutputs...>;
    held();
    return Function<typename Choice::Result, Passed...>(session_, record_, target_, &Choice::kChoice);
  }

  /// Copies host arrays into shared memory. Takes one array for each Scattered or Broadcast parameter, in the order of
  /// the parameters. Converts the elements to the element types of the parameters, as Session::data_as does. Returns a
  /// tuple of Data: `auto [x, y] = f.inputs(pixels, labels)`. Pass an array of more than one dimension as
  /// view_of(values, shape).
  template <class... Values>
  auto inputs(const Values&... values) const {
    held();
    return detail::make_inputs(session_, typename detail::DataOnly<detail::TypeList<>, Passed...>::type{}, values...);
  }

  /// The name of the function in error messages.
  const std::string& name() const { return detail::name_of(held()); }

  /// Describes the function as text, on several lines: its name; the kind, type and dimensions of each argument; each
  /// output with its reduction; and the kinds of devices for which the function has a body. `stream << f` prints the
  /// same text.
  std::string describe() const { return detail::describe(held()); }
  /// Writes describe() to the stream.
  template <class Stream>
    requires requires(Stream& stream, const std::string& text) { stream << text; }
  friend Stream& operator<<(Stream& stream, const Function& function) {
    stream << function.describe();
    return stream;
  }

 private:
  friend struct detail::HandleAccess;
  /// See HandleAccess::measure.
  [[nodiscard]] std::vector<double> measure(typename detail::Parameter<Passed>::Passed... arguments,
                                            const CallOptions& options = {}) const {
    detail::CallBuilder call(record_, target_.ranks(), options, choice_);
    (detail::Parameter<Passed>::add(call, arguments), ...);
    return call.measure();
  }
  /// Makes one call on these ranks, and leaves the result as it arrives. See Session::verify.
  void run_once(detail::CallResult& result, std::span<const int> ranks,
                typename detail::Parameter<Passed>::Passed... arguments, const CallOptions& options) const {
    if (!target_.ranks().empty())
      throw Error(ErrorKind::usage,
                  "verify: '" + name() + "' runs on some of the ranks: pass the function for all of them");
    detail::CallBuilder call(record_, ranks, options, choice_);
    (detail::Parameter<Passed>::add(call, arguments), ...);
    call.run(result);
  }
  detail::FunctionRecord& held() const { return detail::held(record_, "Function"); }

  std::shared_ptr<detail::SessionCore> session_;
  std::shared_ptr<detail::FunctionRecord> record_;
  detail::Target target_;
  const detail::OutputChoice* choice_;
};

/// A function on one device or on a set of devices. Function::on makes it. Calls on different devices run side by side.
template <class R, class... Passed>
class PlacedFunction {
 public:
  /// Function::on makes it.
  explicit PlacedFunction(Function<R, Passed...> function) noexcept : function_(std::move(function)) {}

  /// As Function::operator(). If the function returns nothing, or all its results are of type Keep, the call starts and
  /// this member returns at once. If the call fails later, the calls that depend on it fail too. Session::wait() and
  /// close() throw its error.
  detail::Returned<R> operator()(typename detail::Parameter<Passed>::Passed... arguments,
                                 const CallOptions& options = {}) const {
    if constexpr (std::is_void_v<R>) static_cast<void>(function_.async(arguments..., options));
    else if constexpr (detail::kAllKept<R>) return function_.async(arguments..., options).kept();
    else return function_(arguments..., options);
  }
  /// As Function::async.
  [[nodiscard]] Future<R> async(typename detail::Parameter<Passed>::Passed... arguments,
                                const CallOptions& options = {}) const {
    return function_.async(arguments..., options);
  }

 private:
  Function<R, Passed...> function_;
};

/// The result of a call in flight. `get()` works once. If the program destroys a future without get(), its call still
/// runs. Session::wait() and close() wait for that call, and throw its error. This also holds if the call had already
/// failed when the program destroyed the future.
template <class R>
class Future {
 public:
  Future(std::shared_ptr<detail::SessionCore> session, std::shared_ptr<detail::CallResult> result,
         const detail::OutputChoice* choice) noexcept
      : session_(std::move(session)), result_(std::move(result)), choice_(choice) {}

  /// Returns true if the result has arrived or the call has failed. Returns false after get(). Never blocks. A call fails
  /// too if its deadline passes: the time since the previous is_ready(), but at most 500 ms, counts as waiting. After the
  /// loss of a worker, see docs/failures.md ("A lost worker is replaced").
  bool is_ready() const {
    detail::SessionCore& session = detail::held(session_, "Future");
    return result_ && detail::is_ready(session, *result_);
  }

  /// Waits for this call, and returns its result. A rank runs its calls in order, so this includes the earlier calls on
  /// the same ranks. It also waits for calls on other ranks that may have written a variable or an object that this
  /// call uses. If this call failed, throws its error. If this call uses something that an earlier call may have
  /// written, and the earlier call failed, throws the error of the earlier call. Other earlier calls that failed do not
  /// matter here. If another thread is inside the session, throws Error (usage), and can be called again.
  detail::Returned<R> get() {
    detail::SessionCore& session = detail::held(session_, "Future");
    const auto result = detail::take_result(session, result_);
    return detail::assemble<R>(*result, choice_);
  }

  /// Returns the Values that the call makes, without waiting for the call. If the call is already known to have failed,
  /// throws its error.
  detail::Returned<R> kept() const
    requires(detail::kAllKept<R>)
  {
    detail::held(session_, "Future");
    if (!result_) throw Error(ErrorKind::usage, "Future::kept was called after get()");
    detail::check_launched(*session_, *result_);
    return detail::assemble<R>(*result_, choice_);
  }

 private:
  friend struct detail::HandleAccess;

  std::shared_ptr<detail::SessionCore> session_;
  std::shared_ptr<detail::CallResult> result_;
  const detail::OutputChoice* choice_;
};

/// A handle to objects of type T: one object on each worker. Session::replicate makes it. The workers destroy the
/// object when all handles of it, and all functions made from its methods, are gone.
template <class T>
class Replicated {
 public:
  explicit Replicated(std::shared_ptr<detail::ObjectRecord> record) noexcept : record_(std::move(record)) {}
  const std::shared_ptr<detail::ObjectRecord>& record() const {
    detail::held(record_, "Replicated");
    return record_;
  }

 private:
  std::shared_ptr<detail::ObjectRecord> record_;
};

namespace detail {

template <class Pointer>
using FunctionFor =
    Listed<Function, typename BodyTraits<Pointer>::Sig::Passed, typename BodyTraits<Pointer>::ResultType>;

}  // namespace detail
}  // namespace syncrun
