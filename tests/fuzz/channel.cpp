// The frames that come through the pipe of a task: any bytes, frames with any header, frames sent and received, and the
// values in a frame.

#include "common/protocol/channel.hpp"

#include <sys/socket.h>

#include <algorithm>

#include "syncrun/detail/construct.hpp"
#include "tests/fuzz/fuzzing.hpp"

namespace {

using namespace syncrun::detail;
constexpr os::Milliseconds kLimit{10'000};  // no test waits for another process

/// Sends the bytes, ends the connection, and receives frames until end of file.
void receive_all(std::span<const std::byte> bytes) {
  auto [from, to] = protocol::Channel::make_ends();
  const auto sent = ::send(from.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return;  // more than a socket accepts at once
  from.reset();
  protocol::Channel channel(std::move(to));
  os::Patience patience(kLimit);
  fuzzing::accepts(syncrun::ErrorKind::system, [&] {
    protocol::Frame frame{};
    while (channel.receive(frame, patience) == protocol::Channel::Outcome::done) {
      fuzzing::expect(frame.bytes.size() <= bytes.size(), "no more than was sent");
    }
  });
}

/// A header like those of Channel. The first bytes of the input are its kind and its length.
std::vector<std::byte> with_magic(std::span<const std::byte> bytes) {
  constexpr std::uint32_t kFrameMagic = 0x53594e43;
  std::vector<std::byte> all;
  put_argument(all, kFrameMagic);
  all.insert(all.end(), bytes.begin(), bytes.end());
  return all;
}

void there_and_back(std::span<const std::byte> bytes) {
  auto [from, to] = protocol::Channel::make_ends();
  protocol::Channel sender(std::move(from));
  protocol::Channel receiver(std::move(to));
  os::Patience patience(kLimit);
  if (bytes.size() > 4096) return;  // nobody receives during the send
  fuzzing::expect(sender.send(protocol::FrameKind::result, bytes, patience) == protocol::Channel::Outcome::done,
                  "a small frame is sent");
  protocol::Frame frame{};
  fuzzing::expect(receiver.receive(frame, patience) == protocol::Channel::Outcome::done, "and received");
  fuzzing::expect(frame.kind == protocol::FrameKind::result &&
                      std::equal(frame.bytes.begin(), frame.bytes.end(), bytes.begin(), bytes.end()),
                  "as it was");
}

template <class T>
void take(std::span<const std::byte> bytes) {
  fuzzing::accepts(syncrun::ErrorKind::system, [&] {
    const std::span<const std::byte> all = bytes;
    const T value = take_argument<T>(bytes);
    std::vector<std::byte> again;
    put_argument(again, value);
    fuzzing::expect(again.size() + bytes.size() == all.size() && std::equal(again.begin(), again.end(), all.begin()),
                    "a value is written as it was read");
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  receive_all(bytes);
  receive_all(with_magic(bytes));
  there_and_back(bytes);
  take<std::string>(bytes);
  take<std::vector<std::uint32_t>>(bytes);
  take<std::uint64_t>(bytes);
  return 0;
}
