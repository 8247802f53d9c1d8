// The process of a task: its end of the pipe, and how it reports the end of its function to the master.

#include <cstdio>
#include <cstdlib>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "syncrun/task.hpp"
#include "worker/helper_processes/helper.hpp"
#include "worker/helper_processes/pipe_core.hpp"
#include "worker/process/failure.hpp"
#include "worker/process/parent_link.hpp"
#include "worker/process/parentage.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun::detail {

namespace {

/// No limit, because only the master has deadlines. When the master dies, this process ends too.
os::Patience endless() noexcept { return os::Patience(os::Milliseconds(0)); }

}  // namespace

void send_message(worker::helper_processes::PipeCore& pipe, std::span<const std::byte> bytes) {
  worker::process::end_if_forked();
  os::Patience patience = endless();
  if (pipe.channel().send(protocol::FrameKind::message, bytes, patience) == protocol::Channel::Outcome::done) return;
  throw Error(ErrorKind::system, "nobody is left at the other end of the pipe of task '" + pipe.name() + "'", EPIPE);
}

std::optional<std::vector<std::byte>> receive_message(worker::helper_processes::PipeCore& pipe,
                                                      std::optional<os::Milliseconds> timeout) {
  worker::process::end_if_forked();
  os::Patience patience = timeout ? os::Patience(std::max(*timeout, os::Milliseconds(1))) : endless();
  protocol::Frame frame{};
  switch (pipe.channel().receive(frame, patience)) {
    case protocol::Channel::Outcome::done: return std::move(frame.bytes);
    case protocol::Channel::Outcome::closed: return std::nullopt;
    case protocol::Channel::Outcome::expired: break;
  }
  throw Error(ErrorKind::timeout,
              "task '" + pipe.name() + "' received no message within " + std::to_string(timeout->count()) + " ms");
}

}  // namespace syncrun::detail

namespace syncrun::detail::worker::helper_processes {

int serve_task(const protocol::ReceivedSpec& received, os::FileDescriptor socket) {
  worker::helper_processes::PipeCore pipe(
      std::string(text::get_text(received.spec.name)),
      worker::process::take_descriptor(environment::kChannelFd, "the pipe to the master"));
  worker::process::live_while_open(std::move(socket), nullptr);
  protocol::FrameKind kind = protocol::FrameKind::result;
  std::vector<std::byte> bytes;
  try {
    HelperCall call(received.arguments, nullptr, &pipe);
    worker::helper_processes::run_function(received, call);
    bytes = call.result();
  } catch (...) {
    const worker::process::CaughtFailure failure =
        worker::process::current_failure(worker::process::ThrownThrough::user_code);
    kind = protocol::FrameKind::failure;
    put_argument(bytes, failure.kind);
    put_argument(bytes, failure.native_code);
    put_argument(bytes, failure.text);
  }
  worker::process::end_if_forked();  // the destructor of the function's exception may have forked
  std::fflush(stdout);               // the task's output must be complete before its result arrives
  os::Patience patience = endless();
  const bool is_told = pipe.channel().send(kind, bytes, patience) == protocol::Channel::Outcome::done;
  return is_told ? 0 : 1;
}

}  // namespace syncrun::detail::worker::helper_processes
