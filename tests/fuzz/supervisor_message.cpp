// The messages of a master to `syncrun`: any datagram, and messages sent and received.

#include <sys/socket.h>

#include <array>

#include "common/protocol/supervisor_link.hpp"
#include "tests/fuzz/fuzzing.hpp"

using namespace syncrun::detail;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::array<int, 2> ends{};
  fuzzing::expect(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, "a pair of sockets");
  const os::FileDescriptor receiver(ends[0]);
  os::FileDescriptor sender(ends[1]);

  fuzzing::expect(!protocol::receive_from_master(receiver.get()), "no message where none was sent");
  if (size != 0 && ::send(sender.get(), data, size, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
    const auto message = protocol::receive_from_master(receiver.get());
    fuzzing::expect(!message || message->text.size() < size, "no more text than was sent");
  }

  const std::string text(fuzzing::text_of(data, size));
  const int number = size == 0 ? -1 : data[0] << 16;
  const protocol::SupervisorLink link(std::move(sender));
  if (!link.send({protocol::SupervisorMessage::Kind::verdict, number, text})) return 0;
  const auto message = protocol::receive_from_master(receiver.get());
  fuzzing::expect(message.has_value(), "what was sent arrives");
  fuzzing::expect(message->kind == protocol::SupervisorMessage::Kind::verdict && message->number == number,
                  "as it was sent");
  fuzzing::expect(text.starts_with(message->text) && (text.size() > 16000 || text == message->text), "with its text");
  return 0;
}
