// The process of a task: its end of the pipe, and how it reports the end of its function to the master.

#include <cstdio>
#include <cstdlib>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "syncrun/task.hpp"
#include "worker/helpers/helper.hpp"
#include "worker/helpers/pipe_core.hpp"
#include "worker/place/failure.hpp"
#include "worker/place/parent_link.hpp"
#include "worker/place/parentage.hpp"
#include "worker/place/user_code.hpp"

namespace syncrun::detail {

namespace {

/// No limit, because only the master has deadlines. When the master dies, this process ends too.
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

int serve_task(const ReceivedSpec& received, FileDescriptor socket) {
  PipeCore pipe(std::string(get_text(received.spec.name)),
                take_descriptor(environment::kChannelFd, "the pipe to the master"));
  live_while_open(std::move(socket), nullptr);
  FrameKind kind = FrameKind::result;
  std::vector<std::byte> bytes;
  try {
    HelperCall call(received.arguments, nullptr, &pipe);
    run_function(received, call);
    bytes = call.result();
  } catch (...) {
    const CaughtFailure failure = current_failure(ThrownThrough::user_code);
    kind = FrameKind::failure;
    put_argument(bytes, failure.kind);
    put_argument(bytes, failure.native_code);
    put_argument(bytes, failure.text);
  }
  end_if_forked();      // the destructor of the function's exception may have forked
  std::fflush(stdout);  // the task's output must be complete before its result arrives
  Patience patience = endless();
  const bool is_told = pipe.channel().send(kind, bytes, patience) == Channel::Outcome::done;
  return is_told ? 0 : 1;
}

}  // namespace syncrun::detail
