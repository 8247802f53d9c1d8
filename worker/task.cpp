// A task's process: its end of the pipe, and the way its function's end reaches the master.

#include <cstdio>
#include <cstdlib>

#include "common/environment.hpp"
#include "common/errors.hpp"
#include "syncrun/task.hpp"
#include "worker/failure.hpp"
#include "worker/helper.hpp"
#include "worker/parent_link.hpp"
#include "worker/parentage.hpp"
#include "worker/pipe_core.hpp"
#include "worker/user_code.hpp"

namespace syncrun::detail {

namespace {

/// Only the master has deadlines of its own accord: when it is gone, so is this process.
Patience endless() noexcept { return Patience(Milliseconds(0)); }

}  // namespace

void send_message(PipeCore& pipe, std::span<const std::byte> bytes) {
  end_if_forked();
  Patience patience = endless();
  if (pipe.channel().send(FrameKind::message, bytes, patience) == Channel::Outcome::done) return;
  throw Error(ErrorKind::system, "nobody is left at the other end of the pipe of task '" + pipe.name() + "'", EPIPE);
}

std::optional<std::vector<std::byte>> receive_message(PipeCore& pipe, std::optional<Milliseconds> timeout) {
  end_if_forked();
  Patience patience = timeout ? Patience(std::max(*timeout, Milliseconds(1))) : endless();
  Frame frame{};
  switch (pipe.channel().receive(frame, patience)) {
    case Channel::Outcome::done: return std::move(frame.bytes);
    case Channel::Outcome::closed: return std::nullopt;
    case Channel::Outcome::expired: break;
  }
  throw Error(ErrorKind::timeout,
              "task '" + pipe.name() + "' received no message within " + std::to_string(timeout->count()) + " ms");
}

int serve_task(const ReceivedOrder& received, FileDescriptor socket) {
  PipeCore pipe(std::string(get_text(received.order.name)),
                take_descriptor(environment::kChannelFd, "the pipe to the master"));
  live_while_open(std::move(socket), nullptr);
  FrameKind kind = FrameKind::result;
  std::vector<std::byte> bytes;
  try {
    HelperCall call(received.arguments, nullptr, &pipe);
    run_order(received, call);
    bytes = call.result();
  } catch (...) {
    const CaughtFailure failure = current_failure(ThrownThrough::user_code);
    kind = FrameKind::failure;
    put_argument(bytes, failure.kind);
    put_argument(bytes, failure.native_code);
    put_argument(bytes, failure.text);
  }
  std::fflush(stdout);  // what it has said is there when its result is
  Patience patience = endless();
  const bool is_told = pipe.channel().send(kind, bytes, patience) == Channel::Outcome::done;
  return is_told ? 0 : 1;
}

}  // namespace syncrun::detail
