#pragma once

// Task: a function that runs in its own process at the same time as the program. A pipe can carry messages in both
// directions.

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/helper.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/error.hpp"

namespace syncrun {

/// A function that runs in its own process, and the master's end of its pipe. The master sends messages of type In,
/// receives messages of type Out, and gets a result of type R at the end. The function task() makes a Task. For the
/// master only, from one thread at a time.
///
/// If the function throws, the next member that waits throws Error (function) with the text of the exception. If the
/// process dies, the next member that waits throws Error (worker_lost). This error contains the task's name, its
/// process id, the cause of its death and the last lines of its standard error. The argument `timeout` of a member is
/// the deadline of that member's wait. 0 turns it off. Left out: TaskOptions::timeout.
template <class R, class In, class Out>
class Task {
  static constexpr bool kHasPipe = !std::is_void_v<In>;

 public:
  explicit Task(std::shared_ptr<detail::TaskCore> core) noexcept : core_(std::move(core)) {}
  /// If get() was not called, kills the task's process and all processes that it started.
  ~Task() {
    if (core_) detail::abandon_task(*core_);
  }
  Task(Task&&) noexcept = default;
  Task& operator=(Task&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }

  /// Sends a message. Blocks while the pipe is full. Throws Error: usage (the function has returned, or get() or
  /// end_messages() was called), timeout (the task does not receive messages), and the errors above. If the deadline
  /// passes after a part of the message was sent, the pipe accepts no more messages.
  template <class T = In>
    requires kHasPipe
  void send(const std::type_identity_t<T>& message, std::optional<std::chrono::milliseconds> timeout = {}) {
    detail::send_to_task(held(), detail::to_bytes<T>(message), timeout);
  }
  /// Returns the next message of the task. Waits until there is one. If the function has returned and all its messages
  /// have been received, returns nothing. Throws Error: timeout (the caller can try again), usage (after get()), and
  /// the errors above.
  template <class T = Out>
    requires kHasPipe
  std::optional<T> receive(std::optional<std::chrono::milliseconds> timeout = {}) {
    return detail::decode<T>(detail::receive_from_task(held(), timeout));
  }
  /// Returns true if receive() would not wait: a message has arrived, or the function has returned or thrown, or the
  /// process has died. Returns false after get(). Never waits. Even if the function has returned, get() may still wait
  /// for the end of the process. Throws Error (usage) if the handle was moved from.
  bool is_ready() { return detail::is_ready(held()); }
  /// Ends the messages to the task. In the task, Pipe::receive first returns the messages that were sent before, and
  /// then nothing.
  void end_messages()
    requires kHasPipe
  {
    detail::end_sending(held());
  }

  /// Ends the messages, waits until the function has returned and its process has ended, and returns the function's
  /// result. Drops the task's messages that the master has not received. Works once. Throws Error: timeout (the caller
  /// can try again), usage (at a second call), and the errors above.
  R get(std::optional<std::chrono::milliseconds> timeout = {}) {
    const auto bytes = detail::result_of(held(), timeout);
    if constexpr (!std::is_void_v<R>) return detail::from_bytes<R>(bytes);
  }

  /// The name of the task in error messages.
  const std::string& name() const { return detail::name_of(held()); }
  /// The id of the task's process.
  int pid() const { return detail::pid_of(held()); }

 private:
  detail::TaskCore& held() const { return detail::held(core_, "Task"); }

  std::shared_ptr<detail::TaskCore> core_;
};

/// The task's end of the pipe. The task's function gets it as its parameter `Pipe<In, Out>&`. The function receives
/// messages of type In and sends messages of type Out. Messages are trivially copyable values, strings, or vectors of
/// trivially copyable elements. Only the thread that runs the function may use the pipe.
template <class In, class Out>
class Pipe {
  static_assert(detail::kIsMessage<In> && detail::kIsMessage<Out>,
                "messages cross processes as bytes: trivially copyable values, std::string or std::vector of trivially "
                "copyable elements");

 public:
  explicit Pipe(detail::PipeCore& core) noexcept : core_(&core) {}
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  /// Sends a message. Blocks while the pipe is full.
  void send(const Out& message) { detail::send_message(*core_, detail::to_bytes(message)); }
  /// Returns the next message of the master. Waits until there is one. If the master has ended its messages
  /// (Task::end_messages, Task::get) and all have been received, returns nothing. Without `timeout`, the wait has no
  /// limit. With `timeout`, throws Error (timeout) if there is no message in that time.
  std::optional<In> receive(std::optional<std::chrono::milliseconds> timeout = {}) {
    return detail::decode<In>(detail::receive_message(*core_, timeout));
  }

 private:
  detail::PipeCore* core_;
};

/// Options of a task.
struct TaskOptions {
  /// The name of the task in error messages. Syncrun also writes it in front of each line of the task's output, and
  /// uses it as the name of the process. Empty: the name of the function.
  std::string name{};
  /// Environment variables of the task's process. Syncrun adds or replaces these variables before it starts the
  /// process.
  std::vector<std::pair<std::string, std::string>> environment{};
  /// Deadline of every wait of the master for this task: in send(), receive() and get(). 0 turns it off. Left out: the
  /// value of the environment variable SYNCRUN_TIMEOUT if it is set, else 10 minutes.
  std::optional<std::chrono::milliseconds> timeout{};
  /// How long the task's process may take to end after its function has returned. After this time, Syncrun kills the
  /// process.
  std::chrono::milliseconds grace{5000};
};

namespace detail {

/// Derives the Task and the thunk from the type of a task's function.
template <class Pointer>
struct TaskBody {
  static_assert(kAlwaysFalse<Pointer>, "a task is a function or a captureless lambda");
};

template <class R, class... P>
struct TaskBody<R (*)(P...)> {
  using type = Task<R, void, void>;
  using Pointer = R (*)(P...);
  template <class... Arguments>
  static constexpr bool kTakes = std::is_invocable_v<Pointer, Arguments...>;
  template <class... Arguments>
  static void run(HelperCall& call, const BodyPointer& body) {
    const auto function = from_body_pointer<Pointer>(body);
    if constexpr (std::is_void_v<R>) call_with_arguments<R, Arguments...>(call, function);
    else call.keep_result(to_bytes<R>(call_with_arguments<R, Arguments...>(call, function)));
  }
};

template <class R, class In, class Out, class... P>
struct TaskBody<R (*)(Pipe<In, Out>&, P...)> {
  using type = Task<R, In, Out>;
  using Pointer = R (*)(Pipe<In, Out>&, P...);
  template <class... Arguments>
  static constexpr bool kTakes = std::is_invocable_v<Pointer, Pipe<In, Out>&, Arguments...>;
  template <class... Arguments>
  static void run(HelperCall& call, const BodyPointer& body) {
    const auto function = from_body_pointer<Pointer>(body);
    Pipe<In, Out> pipe(call.pipe());
    if constexpr (std::is_void_v<R>) call_with_arguments<R, Arguments...>(call, function, pipe);
    else call.keep_result(to_bytes<R>(call_with_arguments<R, Arguments...>(call, function, pipe)));
  }
};

template <class R, class... P>
struct TaskBody<R (*)(P...) noexcept> : TaskBody<R (*)(P...)> {};

template <class R>
inline constexpr bool kIsTaskResult = std::is_void_v<R> || kIsMessage<R>;

}  // namespace detail

/// Starts a function in its own process and returns the Task. The process calls `function(arguments...)`, or
/// `function(pipe, arguments...)` if the first parameter is a `Pipe<In, Out>&`. The process starts the
/// same executable, so it begins with main(). When main() calls run() or serve_if_worker(), that function calls
/// `function` and ends the process. So the process never runs the program that was passed to run().
/// `function` is an ordinary function or a captureless lambda. The arguments and the result can have the same types as
/// messages. The master can call task() with or without an open session. A worker cannot call it. Throws Error: usage
/// (bad options), system (the process cannot be started), timeout.
///
///   auto task = syncrun::task(validate, {.name = "validation"}, "weights.bin");
template <class F, class... Arguments>
auto task(F function, const TaskOptions& options = {}, const Arguments&... arguments) {
  const auto pointer = detail::as_pointer(function);
  using Body = detail::TaskBody<std::remove_const_t<decltype(pointer)>>;
  static_assert(Body::template kTakes<detail::Stored<Arguments>...>,
                "these arguments do not fit the task's function (literals arrive as std::string)");
  static_assert(
      []<class R, class In, class Out>(std::type_identity<Task<R, In, Out>>) {
        return detail::kIsTaskResult<R>;
      }(std::type_identity<typename Body::type>{}),
      "a task returns nothing or what a message may be");
  detail::refuse_in_worker();
  const detail::HelperBody body{&Body::template run<detail::Stored<Arguments>...>, detail::to_body_pointer(pointer)};
  return typename Body::type(detail::start_task(body, options, detail::bytes_of(arguments...)));
}

}  // namespace syncrun
