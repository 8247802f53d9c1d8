#pragma once

// Replicated functions, as the master calls them. Made by Session::function. Master only.

#include <memory>
#include <string>
#include <utility>

#include "syncrun/detail/signature.hpp"
#include "syncrun/error.hpp"
#include "syncrun/options.hpp"

namespace syncrun {

/// The result of a call in flight. `get()` once. A dropped future is waited for at the next blocking call or close.
template <class R>
class Future {
 public:
  Future(std::shared_ptr<detail::SessionCore> session, std::shared_ptr<detail::CallResult> result) noexcept
      : session_(std::move(session)), result_(std::move(result)) {}

  /// True when get() will not block; false once it was called.
  bool is_ready() const { return result_ && detail::is_ready(*session_, *result_); }

  /// Waits for the call and the calls before it. Throws what failed; if a call before it failed, the same cause.
  R get() {
    const auto result = std::exchange(result_, nullptr);
    if (!result) throw Error(ErrorKind::usage, "Future::get was called twice");
    detail::wait_for(*session_, *result);
    return detail::assemble<R>(*result);
  }

 private:
  std::shared_ptr<detail::SessionCore> session_;
  std::shared_ptr<detail::CallResult> result_;
};

/// A function that runs on every worker at once, each on its own rows. R is its result, Passed are the parameters that
/// the caller passes: the signature of the body without CpuWorker& and Comm&. A handle: cheap to copy.
template <class R, class... Passed>
class Function {
 public:
  Function(std::shared_ptr<detail::SessionCore> session, std::shared_ptr<detail::FunctionRecord> record,
           int target = -1) noexcept
      : session_(std::move(session)), record_(std::move(record)), target_(target) {}

  /// Checks the arguments, runs the function on the workers and returns the reduced result. Blocks. Throws Error:
  /// usage (nothing was started), function (a worker threw; the session goes on), worker_lost or timeout (the session
  /// is over).
  R operator()(typename detail::Parameter<Passed>::Passed... arguments, const CallOptions& options = {}) const {
    detail::CallBuilder call(record_, target_, options);
    (detail::Parameter<Passed>::add(call, arguments), ...);
    detail::CallResult result;
    call.run(result);
    return detail::assemble<R>(result);
  }

  /// The same without waiting. Several calls can be in flight; they run in order. Throws Error (usage) at once.
  [[nodiscard]] Future<R> async(typename detail::Parameter<Passed>::Passed... arguments,
                                const CallOptions& options = {}) const {
    detail::CallBuilder call(record_, target_, options);
    (detail::Parameter<Passed>::add(call, arguments), ...);
    return Future<R>(session_, call.launch());
  }

  /// The function on one device only, computing all rows there: `f.on_rank(0)(x, y)`.
  [[nodiscard]] Function on_rank(int rank) const {
    if (rank < 0) throw Error(ErrorKind::usage, "on_rank wants a rank from 0, got " + std::to_string(rank));
    return Function(session_, record_, rank);
  }

  const std::string& name() const noexcept { return detail::name_of(*record_); }

 private:
  std::shared_ptr<detail::SessionCore> session_;
  std::shared_ptr<detail::FunctionRecord> record_;
  int target_;
};

/// An object of type T on every worker. Made by Session::replicate; destroyed on the workers when the last handle (and
/// the last function made of its methods) is gone.
template <class T>
class Replicated {
 public:
  explicit Replicated(std::shared_ptr<detail::ObjectRecord> record) noexcept : record_(std::move(record)) {}
  const std::shared_ptr<detail::ObjectRecord>& record() const noexcept { return record_; }

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
