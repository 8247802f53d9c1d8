#pragma once

// Replicated functions, as the master calls them. Made by Session::function. Master only.

#include <memory>
#include <string>
#include <utility>

#include "syncrun/convert.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/detail/signature.hpp"
#include "syncrun/error.hpp"
#include "syncrun/options.hpp"

namespace syncrun {

template <class R>
class Future;

/// A function that runs on every worker at once, each on its own rows. R is its result, Passed are the parameters that
/// the caller passes: the signature of the body without CpuWorker& and Comm&. A handle: cheap to copy.
template <class R, class... Passed>
class Function {
 public:
  Function(std::shared_ptr<detail::SessionCore> session, std::shared_ptr<detail::FunctionRecord> record,
           int target = -1, const detail::OutputChoice* choice = nullptr) noexcept
      : session_(std::move(session)), record_(std::move(record)), target_(target), choice_(choice) {}

  /// Checks the arguments, runs the function on the workers and returns the reduced result. Blocks. Throws Error:
  /// usage (nothing was started), function (a worker threw; the session goes on), worker_lost or timeout (the session
  /// is over).
  R operator()(typename detail::Parameter<Passed>::Passed... arguments, const CallOptions& options = {}) const {
    detail::CallBuilder call(record_, target_, options, choice_);
    (detail::Parameter<Passed>::add(call, arguments), ...);
    detail::CallResult result;
    call.run(result);
    return detail::assemble<R>(result, choice_);
  }

  /// The same without waiting. Several calls can be in flight; they run in order. Throws Error (usage) at once.
  [[nodiscard]] Future<R> async(typename detail::Parameter<Passed>::Passed... arguments,
                                const CallOptions& options = {}) const {
    detail::CallBuilder call(record_, target_, options, choice_);
    (detail::Parameter<Passed>::add(call, arguments), ...);
    return Future<R>(session_, call.launch(), choice_);
  }

  /// The function on one device only, computing all rows there: `f.on_rank(0)(x, y)`.
  [[nodiscard]] Function on_rank(int rank) const {
    held();
    if (rank < 0) throw Error(ErrorKind::usage, "on_rank wants a rank from 0, got " + std::to_string(rank));
    return Function(session_, record_, rank, choice_);
  }

  /// The function with some of its outputs only: `f.only<&Stats::mean>()(x)` returns that output, and
  /// `auto [max, mean] = f.only<&Stats::max, &Stats::mean>()(x)` a tuple. The others are neither moved nor reduced, and
  /// the body can ask whether they are wanted (CpuWorker::wants). Also by number: `f.only<0>()`.
  template <auto... kOutputs>
  [[nodiscard]] auto only() const {
    using Choice = detail::Choice<R, kOutputs...>;
    held();
    return Function<typename Choice::Result, Passed...>(session_, record_, target_, &Choice::kChoice);
  }

  /// Puts host arrays into shared memory as this function wants them: one for each Scattered and Broadcast parameter, in
  /// their order; the result is a tuple of Data. `auto [x, y] = f.inputs(pixels, labels)`; arrays of more dimensions are
  /// view_of(values, shape). Converts as Session::data_as.
  template <class... Values>
  auto inputs(const Values&... values) const {
    held();
    return detail::make_inputs(session_, typename detail::DataOnly<detail::TypeList<>, Passed...>::type{}, values...);
  }

  const std::string& name() const { return detail::name_of(held()); }

  /// In words, a line each: its name, its arguments' kinds, types and dimensions, its outputs and how they are reduced,
  /// and the devices it has bodies for. Also printed by `stream << f`.
  std::string describe() const { return detail::describe(held()); }
  template <class Stream>
    requires requires(Stream& stream, const std::string& text) { stream << text; }
  friend Stream& operator<<(Stream& stream, const Function& function) {
    stream << function.describe();
    return stream;
  }

 private:
  friend struct detail::HandleAccess;
  detail::FunctionRecord& held() const { return detail::held(record_, "Function"); }

  std::shared_ptr<detail::SessionCore> session_;
  std::shared_ptr<detail::FunctionRecord> record_;
  int target_;
  const detail::OutputChoice* choice_;
};

/// The result of a call in flight. `get()` once. A dropped future is waited for at the next blocking call or close.
template <class R>
class Future {
 public:
  Future(std::shared_ptr<detail::SessionCore> session, std::shared_ptr<detail::CallResult> result,
         const detail::OutputChoice* choice) noexcept
      : session_(std::move(session)), result_(std::move(result)), choice_(choice) {}

  /// True when get() will not block: the result is there, or the call has failed. False once get() was called. A program
  /// that polls waits: the time between two polls, up to 500 ms, counts for the deadlines of the calls in flight. If one
  /// of them passes, this returns true, and get() throws.
  bool is_ready() const {
    detail::SessionCore& session = detail::held(session_, "Future");
    return result_ && detail::is_ready(session, *result_);
  }

  /// Waits for the call and the calls before it. Throws what failed; if a call before it failed, the same cause.
  R get() {
    detail::held(session_, "Future");
    const auto result = std::exchange(result_, nullptr);
    if (!result) throw Error(ErrorKind::usage, "Future::get was called twice");
    detail::wait_for(*session_, *result);
    return detail::assemble<R>(*result, choice_);
  }

 private:
  std::shared_ptr<detail::SessionCore> session_;
  std::shared_ptr<detail::CallResult> result_;
  const detail::OutputChoice* choice_;
};

/// An object of type T on every worker. Made by Session::replicate; destroyed on the workers when the last handle (and
/// the last function made of its methods) is gone.
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

template <class R, class List>
struct FunctionOf;
template <class R, class... Passed>
struct FunctionOf<R, TypeList<Passed...>> {
  using type = Function<R, Passed...>;
};
template <class Pointer>
using FunctionFor =
    typename FunctionOf<typename BodyTraits<Pointer>::ResultType, typename BodyTraits<Pointer>::Sig::Passed>::type;

}  // namespace detail
}  // namespace syncrun
