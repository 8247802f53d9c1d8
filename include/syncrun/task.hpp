#pragma once

// Tasks: one function, run beside the program in a process of its own, with a pipe to it in both directions.

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/helper.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/error.hpp"

namespace syncrun {

/// A function that runs in a process of its own, and the master's end of its pipe: sends In, receives Out, gets R in the
/// end. Made by task(). Master only, from one thread at a time. If the function throws, the next member that waits throws
/// that as an Error (function) with its text. If the process dies it is Error (worker_lost) with the task's name, the
/// process id, the cause and the last lines it wrote. The `timeout` of a member is the deadline of that wait; 0 turns it
/// off; left out: TaskOptions::timeout.
template <class R, class In, class Out>
class Task {
  static constexpr bool kHasPipe = !std::is_void_v<In>;

 public:
  explicit Task(std::shared_ptr<detail::TaskCore> core) noexcept : core_(std::move(core)) {}
  /// Without get() before: kills the process, with all that it has started.
  ~Task() {
    if (core_) detail::abandon_task(*core_);
  }
  Task(Task&&) noexcept = default;
  Task& operator=(Task&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }

  /// Blocks while the pipe is full. Throws Error: usage (the function has returned, get() or end_messages() was called),
  /// timeout (the task does not receive; where a part was sent already, the pipe takes no more), or as above.
  template <class T = In>
    requires kHasPipe
  void send(const std::type_identity_t<T>& message, std::optional<std::chrono::milliseconds> timeout = {}) {
    detail::send_to_task(held(), detail::to_bytes<T>(message), timeout);
  }
  /// The next message; nothing once the function has returned and all of its messages were received. Throws Error:
  /// timeout (which can be tried again), usage (after get()), or as above.
  template <class T = Out>
    requires kHasPipe
  std::optional<T> receive(std::optional<std::chrono::milliseconds> timeout = {}) {
    return detail::decode<T>(detail::receive_from_task(held(), timeout));
  }
  /// True when receive() will not wait: a message is there, or the task has ended (returned, thrown, died). False while it
  /// runs and nothing has arrived, and after get(). Never waits. get() may still wait for the process of a task that has
  /// returned to end. Throws Error: usage (the handle was moved from).
  bool is_ready() { return detail::is_ready(held()); }
  /// The task's receive() gives nothing from here on, once it has what was sent.
  void end_messages()
    requires kHasPipe
  {
    detail::end_sending(held());
  }

  /// Ends the messages, waits for the function to return and for its process to end, and gives what it returned. Messages
  /// that nobody has received are dropped. Once. Throws Error: timeout (can be tried again), usage (the second time), or
  /// as above.
  R get(std::optional<std::chrono::milliseconds> timeout = {}) {
    const auto bytes = detail::result_of(held(), timeout);
    if constexpr (!std::is_void_v<R>) return detail::from_bytes<R>(bytes);
  }

  const std::string& name() const { return detail::name_of(held()); }
  /// Of its process.
  int pid() const { return detail::pid_of(held()); }

 private:
  detail::TaskCore& held() const { return detail::held(core_, "Task"); }

  std::shared_ptr<detail::TaskCore> core_;
};

/// The task's end of its pipe: a parameter `Pipe<In, Out>&` of its function, which receives In and sends Out. Messages are
/// trivially copyable values, strings, or vectors of trivially copyable elements. Used in the function's own thread.
template <class In, class Out>
class Pipe {
  static_assert(detail::kIsMessage<In> && detail::kIsMessage<Out>,
                "messages cross processes as bytes: trivially copyable values, std::string or std::vector of trivially "
                "copyable elements");

 public:
  explicit Pipe(detail::PipeCore& core) noexcept : core_(&core) {}
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  /// Blocks while the pipe is full.
  void send(const Out& message) { detail::send_message(*core_, detail::to_bytes(message)); }
  /// The next message; nothing once the master has no more (Task::end_messages, Task::get). Blocks for as long as it
  /// takes, or throws Error (timeout).
  std::optional<In> receive(std::optional<std::chrono::milliseconds> timeout = {}) {
    return detail::decode<In>(detail::receive_message(*core_, timeout));
  }

 private:
  detail::PipeCore* core_;
};

/// Options of a task.
struct TaskOptions {
  /// For messages, its lines of output and its process's name. Empty: the function's own.
  std::string name{};
  /// Variables added to its environment, or replaced in it, before the process starts.
  std::vector<std::pair<std::string, std::string>> environment{};
  /// Deadline of every wait of the master's for this task: send, receive, get. 0 turns it off. Left out: SYNCRUN_TIMEOUT,
  /// else 10 minutes.
  std::optional<std::chrono::milliseconds> timeout{};
  /// How long its process may take to end once its function has returned, before it is killed.
  std::chrono::milliseconds grace{5000};
};

namespace detail {

/// From a task's function to its Task and its thunk.
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

/// Starts `function(arguments...)`, or `function(pipe, arguments...)` with a `Pipe<In, Out>&`, in a process of its own: the
/// program once more, which comes as far as run() or serve_if_worker() and then runs the function instead of the program.
/// A function or a captureless lambda; arguments and result are what a message may be. With a session or without; not in
/// a worker. Throws Error: usage (bad options), system (no process), timeout.
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
