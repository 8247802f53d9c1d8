// The worker branch of a Syncrun program.

#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>

#include "common/os/environment.hpp"
#include "common/protocol/process_role.hpp"
#include "common/protocol/supervisor_link.hpp"
#include "common/text/errors.hpp"
#include "common/text/log.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/run.hpp"
#include "syncrun/version.hpp"
#include "worker/helper_processes/helper.hpp"
#include "worker/loop/command_loop.hpp"
#include "worker/process/parent_link.hpp"
#include "worker/process/parentage.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun {

namespace {

int report_start_failure(detail::protocol::WorkerSlot* slot, const std::string& what) {
  if (slot != nullptr) {
    detail::text::put_text(slot->reason, what);
    slot->start.store(detail::protocol::StartState::failed, std::memory_order_seq_cst);
  }
  std::fprintf(stderr, "%s%s\n", detail::protocol::kCannotStart.data(), what.c_str());
  return 1;
}

/// Reports an error that belongs to no call: before the first call, or between two calls.
int report_end(detail::protocol::WorkerSlot& slot, const std::string& what) {
  if (slot.start.load() == detail::protocol::StartState::starting) return report_start_failure(&slot, what);
  detail::text::put_text(slot.reason, what);
  std::fprintf(stderr, "syncrun worker: cannot go on: %s\n", what.c_str());
  return 1;
}

}  // namespace

namespace detail {

/// Without this, every worker would run the program itself and start its own workers, without end.
void refuse_in_worker() {
  if (!worker::process::is_called_helper() && !worker::process::is_called_worker()) return;
  const bool is_helper = worker::process::is_called_helper();
  std::string why = is_helper ? "this process is a producer or a task of another one and must not start its own"
                              : "this process is a worker of another session and must not open one";
  why += ": call syncrun::serve_if_worker(argc, argv) first thing in main, or use syncrun::run";
  protocol::WorkerSlot* slot = nullptr;
  try {
    if (is_helper) {
      static worker::process::Parentage* const parentage =
          new worker::process::Parentage(worker::process::take_parentage());  // stays open until the process ends
      static_cast<void>(parentage);
    } else {
      static worker::process::Attachment* const attachment =
          new worker::process::Attachment(*worker::process::attach_if_worker());  // stays mapped until the process ends
      slot = &attachment->slot();
    }
  } catch (const Error& error) {                               // the message then goes to standard error only
    if (error.kind() == ErrorKind::usage) why = error.what();  // the variables are wrong: it is not a child of a master
  } catch (const std::exception&) {
  }
  if (!is_helper) ::_exit(report_start_failure(slot, why));
  std::fputs(detail::text::own_line(LogLevel::error, why).c_str(), stderr);
  ::_exit(1);
}

}  // namespace detail

std::optional<int> serve_if_worker(int, char**) {
  detail::environment::take_options_of_job();
  if (const auto code = detail::worker::helper_processes::serve_if_helper()) return code;
  // Never destroyed: the sign of life must stay mapped until the kernel has marked it. The pointer is static, so that
  // leak checkers do not report it.
  static detail::worker::process::Attachment* attachment = nullptr;
  try {
    auto attached = detail::worker::process::attach_if_worker();
    if (!attached) {
      if (const auto code = detail::protocol::serve_if_agent()) return code;
      detail::protocol::supervisor_link().send({detail::protocol::SupervisorMessage::Kind::hello, 0, version()});
      return std::nullopt;
    }
    attachment = new detail::worker::process::Attachment(std::move(*attached));
    detail::protocol::become_worker();
    detail::worker::process::watch_user_code(
        "rank " + std::to_string(attachment->rank) + " (" + attachment->device + ")", &attachment->slot().reason);
  } catch (...) {
    return report_start_failure(nullptr, detail::text::describe_current_exception());
  }
  detail::worker::process::flush_lines();
  try {
    detail::worker::loop::CommandLoop core(*attachment);
    return core.serve();
  } catch (...) {
    return report_end(attachment->slot(), detail::text::describe_current_exception());
  }
}

}  // namespace syncrun
