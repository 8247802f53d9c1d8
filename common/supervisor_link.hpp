#pragma once

// What the master tells `syncrun`, when that is what started it: that it is a Syncrun program, who its workers are (so
// that nothing outlives the job, whoever dies first), and the verdict to print last. One datagram a message, over a
// socket that the master inherits by number in SYNCRUN_SUPERVISOR_FD.

#include <unistd.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/file_descriptor.hpp"

namespace syncrun::detail {

struct SupervisorMessage {
  enum class Kind : char {
    hello = 'H',    ///< The program has come as far as syncrun::serve_if_worker, which syncrun::run calls first.
    worker = 'W',   ///< number: pid (and process group) of a new worker.
    ended = 'E',    ///< number: pid of a worker that was reaped.
    verdict = 'V',  ///< text: why the program failed; printed by `syncrun` as its last line.
  };
  Kind kind;
  int number = 0;
  std::string text;
};

/// The master's end. Without `syncrun` there is none, and sending does nothing.
class SupervisorLink {
 public:
  SupervisorLink() = default;
  explicit SupervisorLink(FileDescriptor socket) noexcept : socket_(std::move(socket)), owner_(::getpid()) {}
  /// Takes the socket over from the environment, once: the variable is unset.
  static SupervisorLink from_environment();

  bool is_connected() const noexcept { return socket_.is_open(); }
  /// Never blocks and never throws. False if it did not reach the supervisor: the program runs without one,
  /// it is gone or no longer reads, the program has closed the socket, or this process is a child that the program forked. Only a
  /// verdict needs another way then; a supervisor that is gone has its own way of ending the job.
  bool send(const SupervisorMessage& message) const noexcept;

 private:
  KeptDescriptor socket_;
  pid_t owner_ = -1;
};

/// The link of this process; made by serve_if_worker, which run() calls first, before any session.
const SupervisorLink& supervisor_link();

/// `syncrun`'s end: the next message, or nothing if none is waiting or the master closed its end.
std::optional<SupervisorMessage> receive_from_master(int socket);

}  // namespace syncrun::detail
