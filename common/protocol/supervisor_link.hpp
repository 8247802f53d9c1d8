#pragma once

// The messages of the master to `syncrun`, if `syncrun` has started it. The master reports that it is a Syncrun
// program, which processes are its workers, and why the program failed. `syncrun` uses the list of workers to end them
// if the master dies. Each message is one packet of a socket. The master inherits the socket, and SYNCRUN_SUPERVISOR_FD
// contains its number.

#include <unistd.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/os/file_descriptor.hpp"

namespace syncrun::detail::protocol {

struct SupervisorMessage {
  enum class Kind : char {
    hello = 'H',  ///< The program has called syncrun::serve_if_worker. (syncrun::run calls it first.) text: the version
                  ///< of its library. The first libraries sent no text.
    worker = 'W',   ///< number: pid and process group of a new worker.
    ended = 'E',    ///< number: pid of a worker that was reaped.
    verdict = 'V',  ///< text: why the program failed. `syncrun` prints it as its last line.
    details = 'D',  ///< text: the details of the error that the next verdict is about, as FailureDetails encodes them.
    note = 'N',     ///< text: another fault, which `syncrun` prints after the reason for which the program failed.
    stops = 'S',    ///< The program ends by itself after a request to stop (syncrun::stop_requested).
  };
  Kind kind;
  int number = 0;
  std::string text;
};

/// Names and values, such as "rank" and "2": what is known of an error besides its message. A value may have lines.
using FailureDetails = std::vector<std::pair<std::string, std::string>>;
std::string encoded(const FailureDetails& details);
FailureDetails decoded_details(std::string_view text);

/// The master's end of the socket. Without `syncrun` it is not connected, and send() does nothing.
class SupervisorLink {
 public:
  SupervisorLink() = default;
  explicit SupervisorLink(os::FileDescriptor socket) noexcept : socket_(std::move(socket)), owner_(::getpid()) {}
  /// Takes the socket from the environment, and unsets the variable. Prints a warning and returns an unconnected link
  /// if the variable does not refer to such a socket.
  static SupervisorLink from_environment();

  bool is_connected() const noexcept { return socket_.is_open(); }
  /// Sends a message. Never blocks. Returns false if the message was not sent: there is no `syncrun`, it has ended or
  /// does not read, the program has closed the socket, or this process is a child that the program has forked. The
  /// caller then has to report a verdict in another way. Other messages may be lost: if `syncrun` is gone, the job ends
  /// without it.
  bool send(const SupervisorMessage& message) const noexcept;

 private:
  os::KeptDescriptor socket_;
  pid_t owner_ = -1;
};

/// The link of this process. The first call makes it. serve_if_worker makes this call before there is any session.
const SupervisorLink& supervisor_link();

/// `syncrun` calls this with its end of the socket. Returns the next message. Empty if no message is waiting, or the
/// master has closed its end.
std::optional<SupervisorMessage> receive_from_master(int socket);

}  // namespace syncrun::detail::protocol
