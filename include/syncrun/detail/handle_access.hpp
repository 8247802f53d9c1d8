#pragma once

// What Syncrun's own code reads and makes of the public types, and programs do not.

#include <utility>

namespace syncrun::detail {

struct CallResult;

/// A friend of the public types. Its functions are templates, so this header includes none of them.
struct HandleAccess {
  /// What a handle refers to; null if it was moved from. The library then reports the argument by its name.
  template <class Handle>
  static const auto& record(const Handle& handle) noexcept {
    return handle.record_;
  }
  /// The same, and never null. Throws Error (usage) if the handle was moved from.
  template <class Handle>
  static const auto& checked_record(const Handle& handle) {
    return handle.record();
  }
  /// The name of an AnyShared that has no record.
  template <class Variable>
  static const auto& name(const Variable& variable) noexcept {
    return variable.name_;
  }
  /// The session of a future or a function.
  template <class Handle>
  static const auto& session(const Handle& handle) noexcept {
    return handle.session_;
  }
  /// The handle of a Session.
  template <class Session>
  static const auto& core(const Session& session) noexcept {
    return session.core_;
  }
  /// The loop that runs the body with this CpuWorker or CudaWorker.
  template <class Worker>
  static auto& command_loop(const Worker& worker) noexcept {
    return *worker.core_;
  }
  /// The outputs of a function that the program wants; null means all.
  template <class Function>
  static const auto* choice(const Function& function) noexcept {
    return function.choice_;
  }
  /// The result of a future; null after get().
  template <class Future>
  static auto* result(const Future& future) noexcept {
    return future.result_.get();
  }
  /// The variable of an Assignment, its values, and their type.
  template <class Assignment>
  static const auto& parts(const Assignment& assignment) noexcept {
    return assignment.parts_;
  }
  /// The name and the type of a NamedArray, and the Data or Shared that it refers to.
  template <class Array>
  static const auto& place(const Array& array) noexcept {
    return array.place_;
  }
  /// Makes one call of a function, and returns how long each rank has worked, in ns per row. See Session::balance.
  template <class Function, class... Arguments>
  static auto measure(const Function& function, const Arguments&... arguments) {
    return function.measure(arguments...);
  }

  /// Makes one call of a function or a train step for Session::verify, and leaves the result as it arrives.
  template <class Callee, class... Arguments>
  static void run(Callee& callee, CallResult& result, const Arguments&... arguments) {
    callee.run_once(result, arguments...);
  }
  /// What Session::verify has to know of a train step.
  template <class Step>
  static auto verified(const Step& step) {
    return step.verified();
  }

  /// Three parts of a new layout of a train step's parameters: checks the step, gets its vectors, and sets them.
  template <class Step, class Record>
  static void check_may_move(const Step& step, const Record& params) {
    step.check_may_move(params);
  }
  template <class Step>
  static auto vectors(const Step& step) {
    return step.vectors();
  }
  template <class Step, class Vectors>
  static void lay_out(Step& step, const Vectors& vectors) {
    step.lay_out(vectors);
  }

  /// The memory of an array that a body returns. The array gives it up.
  template <class Result>
  static auto release(Result& result) noexcept {
    return std::move(result.buffer_);
  }
  /// The device address of a number that a body returns. Null if the number is in the object itself.
  template <class Result>
  static auto* number_place(const Result& result) noexcept {
    return result.place_;
  }

  /// Makes an object that programs get from the library.
  template <class T, class... Parts>
  static T make(Parts&&... parts) {
    return T(std::forward<Parts>(parts)...);
  }
};

/// The record of a handle. Throws Error (usage) if the handle was moved from.
template <class Handle>
const auto& record_of(const Handle& handle) {
  return HandleAccess::checked_record(handle);
}

}  // namespace syncrun::detail
