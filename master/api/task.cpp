// Tasks: the master's side.

#include "syncrun/task.hpp"

#include <unistd.h>

#include <deque>

#include "common/os/environment.hpp"
#include "common/os/fork_guard.hpp"
#include "common/protocol/channel.hpp"
#include "common/protocol/helper_spec.hpp"
#include "common/protocol/process_role.hpp"
#include "common/text/errors.hpp"
#include "master/calls/body_entry.hpp"
#include "master/failures/lost_child.hpp"
#include "master/helper_processes/helper_watcher.hpp"
#include "master/process/child_end.hpp"
#include "master/process/debugger.hpp"
#include "master/process/nursery.hpp"
#include "master/settings/settings.hpp"
#include "syncrun/detail/master_interface.hpp"

namespace syncrun::detail {

namespace {

using Bytes = std::vector<std::byte>;
using Timeout = std::optional<os::Milliseconds>;

class TaskWatcher final : public master::helper_processes::HelperWatcher {
 public:
  TaskWatcher(master::helper_processes::HelperPlan plan, std::string name, const protocol::Channel& channel)
      : master::helper_processes::HelperWatcher(std::move(plan)), name_(std::move(name)), channel_(channel) {}
  std::string describe() const override { return "task '" + name_ + "'"; }
  std::string tag_of(int) const override { return "[" + name_ + "] "; }
  /// A reader that waits for a message gets the messages that were sent, and then end of file. This works even if
  /// another process still has the task's end open.
  void on_loss(int) noexcept override { channel_.end_receiving(); }

 private:
  std::string name_;
  const protocol::Channel& channel_;
};

}  // namespace

//   running --result--> returned --its process has ended--> given
//   running --failure, end of file--> failed
class TaskCore {
 public:
  TaskCore(const HelperBody& body, const TaskOptions& options, std::span<const std::byte> arguments);
  ~TaskCore() { abandon(); }
  TaskCore(const TaskCore&) = delete;
  TaskCore& operator=(const TaskCore&) = delete;

  const std::string& name() const noexcept { return name_; }
  int pid() const noexcept { return watcher_->pid(0); }

  void send(std::span<const std::byte> bytes, const Timeout& timeout);
  std::optional<Bytes> receive(const Timeout& timeout);
  bool is_ready();
  void end_sending();
  Bytes result(const Timeout& timeout);
  void abandon() noexcept;

 private:
  enum class State : std::uint8_t { running, returned, given, failed };

  /// How long a wait may take, and the option or argument that sets this.
  struct Limit {
    os::Milliseconds time;
    std::string set_by;
  };

  void check_process() const;
  void check_usable() const;
  Limit limit_of(const Timeout& timeout, const char* member) const;
  template <class Attempt>
  protocol::Channel::Outcome attempt(os::Milliseconds limit, Attempt&& attempt);
  bool take_frame(const Limit& limit, const std::string& what);
  bool accept(protocol::Frame& frame);
  void fail(const Error& error);
  void await_end();
  std::string describe() const { return "task '" + name_ + "' (pid " + std::to_string(pid()) + ")"; }
  Failure blame() const;
  Error lost_error(const std::string& where, std::optional<std::string> cause = {});
  Error failure_error(std::span<const std::byte> bytes) const;
  Error timeout_error(const std::string& what, const Limit& limit);

  std::string name_;
  os::Milliseconds timeout_{};
  os::Milliseconds grace_{};
  os::ForkGuard fork_guard_;
  protocol::Channel channel_;
  std::optional<TaskWatcher> watcher_;
  std::unique_ptr<master::process::Nursery> nursery_;
  State state_ = State::running;
  bool has_ended_messages_ = false;
  std::deque<Bytes> inbox_;  // messages that came before the program asked for them
  Bytes result_;
  std::optional<Error> error_;
};

// ---- starting -------------------------------------------------------------------------------------------------

TaskCore::TaskCore(const HelperBody& body, const TaskOptions& options, std::span<const std::byte> arguments)
    : name_(master::calls::choose_name(options.name, body.pointer, "a task")) {
  master::helper_processes::check_name(options.name, "TaskOptions::name");
  master::helper_processes::check_variables(options.environment, "TaskOptions::environment");
  timeout_ = master::settings::resolve_timeout(options.timeout, "TaskOptions::timeout");
  grace_ = master::settings::check_timeout(options.grace, "TaskOptions::grace");

  os::open_missing_standard_streams();
  protocol::HelperSpec spec{};
  spec.kind = protocol::HelperKind::task;
  spec.body = master::calls::describe_body(reinterpret_cast<const void*>(body.thunk), body.pointer);
  text::put_text(spec.name, name_);
  auto [own_end, tasks_end] = protocol::Channel::make_ends();
  channel_ = protocol::Channel(std::move(own_end));
  master::helper_processes::HelperPlan plan;
  plan.spec = protocol::write_spec(spec, arguments);
  plan.environment = options.environment;
  plan.variables = {{environment::kChannelFd, std::to_string(tasks_end.get())}};
  plan.inherited = {tasks_end.get()};
  watcher_.emplace(std::move(plan), name_, channel_);
  nursery_ = std::make_unique<master::process::Nursery>(*watcher_, grace_, protocol::supervisor_link());
  nursery_->spawn_all(master::settings::resolve_start_timeout({}, ""), environment::kStartTimeout);
}

/// Kills the task if it is left.
void TaskCore::abandon() noexcept {
  // only the process that created them has the thread and the task
  if (!fork_guard_.is_here()) static_cast<void>(nursery_.release());
  nursery_.reset();
}

// ---- waiting --------------------------------------------------------------------------------------------------

void TaskCore::check_process() const {
  if (!fork_guard_.is_here())
    text::throw_usage("this process was forked from the one that started task '" + name_ + "'");
}

void TaskCore::check_usable() const {
  check_process();
  if (state_ == State::given) text::throw_usage("task '" + name_ + "' is over: get() was called");
}

TaskCore::Limit TaskCore::limit_of(const Timeout& timeout, const char* member) const {
  if (!timeout) return {timeout_, "TaskOptions::timeout"};
  const std::string argument = std::string("the timeout argument of Task::") + member;
  return {master::settings::check_timeout(*timeout, argument), argument};
}

/// Deadlines do not run under a debugger.
template <class Attempt>
protocol::Channel::Outcome TaskCore::attempt(os::Milliseconds limit, Attempt&& attempt) {
  for (;;) {
    os::Patience patience(limit);
    const protocol::Channel::Outcome outcome = attempt(patience);
    if (outcome != protocol::Channel::Outcome::expired || !master::process::is_debugged(*nursery_)) return outcome;
  }
}

/// Waits for the next frame from the task. Returns true if it was a message, which is now in the inbox, and false if
/// the task has ended. If the deadline passes, `what` says in the error what did not happen.
bool TaskCore::take_frame(const Limit& limit, const std::string& what) {
  protocol::Frame frame{};
  const auto receive = [&](os::Patience& patience) { return channel_.receive(frame, patience); };
  switch (attempt(limit.time, receive)) {
    case protocol::Channel::Outcome::expired: throw timeout_error(what, limit);
    case protocol::Channel::Outcome::closed: fail(lost_error("before it had returned")); return false;
    case protocol::Channel::Outcome::done: break;
  }
  return accept(frame);
}

/// Returns true if a message is now in the inbox, and false if the task has ended.
bool TaskCore::accept(protocol::Frame& frame) {
  switch (frame.kind) {
    case protocol::FrameKind::message: inbox_.push_back(std::move(frame.bytes)); return true;
    case protocol::FrameKind::result:
      result_ = std::move(frame.bytes);
      state_ = State::returned;
      return false;
    case protocol::FrameKind::failure: fail(failure_error(frame.bytes)); return false;
  }
  throw Error(ErrorKind::system, "task '" + name_ + "' sent what this program does not know");
}

void TaskCore::send(std::span<const std::byte> bytes, const Timeout& timeout) {
  check_usable();
  if (has_ended_messages_) text::throw_usage("task '" + name_ + "' was told that there are no more messages");
  const Limit limit = limit_of(timeout, "send");
  const std::string what =
      "did not take a message of " + std::to_string(bytes.size()) + " bytes, since it does not receive,";
  if (state_ == State::running) {
    const auto send = [&](os::Patience& patience) {
      return channel_.send(protocol::FrameKind::message, bytes, patience);
    };
    const protocol::Channel::Outcome outcome = attempt(limit.time, send);
    if (outcome == protocol::Channel::Outcome::done) return;
    if (outcome == protocol::Channel::Outcome::expired) throw timeout_error(what, limit);
    if (channel_.is_torn()) {
      text::throw_usage("task '" + name_ + "' takes no more messages: one was sent in part when its deadline came");
    }
  }
  while (state_ == State::running && take_frame(limit, what)) {
  }
  if (error_) throw *error_;
  text::throw_usage("task '" + name_ + "' has returned, and takes no more messages");
}

std::optional<Bytes> TaskCore::receive(const Timeout& timeout) {
  check_usable();
  if (state_ == State::running && inbox_.empty()) take_frame(limit_of(timeout, "receive"), "sent no message");
  if (!inbox_.empty()) {
    Bytes bytes = std::move(inbox_.front());
    inbox_.pop_front();
    return bytes;
  }
  if (error_) throw *error_;
  return std::nullopt;
}

/// Reads what has arrived, without waiting. receive() finds out how a task died, because that takes a while.
bool TaskCore::is_ready() {
  check_process();
  if (state_ == State::given) return false;
  if (state_ != State::running || !inbox_.empty()) return true;
  protocol::Frame frame{};
  os::Patience none = os::Patience::none();
  const protocol::Channel::Outcome outcome = channel_.receive(frame, none);
  if (outcome == protocol::Channel::Outcome::done) accept(frame);
  return outcome != protocol::Channel::Outcome::expired;
}

void TaskCore::end_sending() {
  check_usable();
  has_ended_messages_ = true;
  channel_.end_sending();
}

Bytes TaskCore::result(const Timeout& timeout) {
  const Limit limit = limit_of(timeout, "get");  // first, because it may refuse the timeout
  end_sending();
  while (state_ == State::running) {
    take_frame(limit, "did not return");
    inbox_.clear();
  }
  if (error_) throw *error_;
  await_end();
  return std::move(result_);
}

/// The function has returned. Waits for the end of the process.
void TaskCore::await_end() {
  nursery_->expect_ends();
  if (const auto bad = master::process::await_expected_ends(*nursery_, grace_)) {
    fail(lost_error("after it had returned", bad->cause));
    throw *error_;
  }
  nursery_.reset();
  state_ = State::given;
}

// ---- failures -------------------------------------------------------------------------------------------------

void TaskCore::fail(const Error& error) {
  error_ = error;
  state_ = State::failed;
}

Failure TaskCore::blame() const {
  Failure failure;
  failure.pid = pid();
  failure.call = name_;
  failure.phase = "task";
  return failure;
}

Error TaskCore::lost_error(const std::string& where, std::optional<std::string> cause) {
  return master::failures::lost_helper(
      *nursery_, 0, {.who = describe(), .tag = name_, .where = where, .failure = blame()}, std::move(cause));
}

Error TaskCore::failure_error(std::span<const std::byte> bytes) const {
  const auto kind = take_argument<ErrorKind>(bytes);
  const int native_code = take_argument<int>(bytes);
  Failure failure = blame();
  failure.cause = take_argument<std::string>(bytes);
  const std::string message = describe() + " failed: " + failure.cause;
  return {kind, message, std::move(failure), native_code};
}

Error TaskCore::timeout_error(const std::string& what, const Limit& limit) {
  Failure failure = blame();
  failure.cause = "deadline";
  std::string message = describe() + " " + what + " within " + std::to_string(limit.time.count()) + " ms";
  if (const int signal = nursery_->stop_signal(0)) message += ": it is stopped by " + text::signal_name(signal);
  return {ErrorKind::timeout, message + " (" + limit.set_by + " sets another limit)", std::move(failure)};
}

// ---- the interface -------------------------------------------------------------------------------------------------

std::shared_ptr<TaskCore> start_task(const HelperBody& body, const TaskOptions& options,
                                     std::span<const std::byte> arguments) {
  if (protocol::is_in_worker()) text::throw_usage("a task is started by the program itself, and not in a worker");
  return std::make_shared<TaskCore>(body, options, arguments);
}

void abandon_task(TaskCore& task) noexcept { task.abandon(); }
void send_to_task(TaskCore& task, std::span<const std::byte> bytes, Timeout timeout) { task.send(bytes, timeout); }
std::optional<Bytes> receive_from_task(TaskCore& task, Timeout timeout) { return task.receive(timeout); }
bool is_ready(TaskCore& task) { return task.is_ready(); }
void end_sending(TaskCore& task) { task.end_sending(); }
Bytes result_of(TaskCore& task, Timeout timeout) { return task.result(timeout); }
const std::string& name_of(const TaskCore& task) noexcept { return task.name(); }
int pid_of(const TaskCore& task) noexcept { return task.pid(); }

}  // namespace syncrun::detail
