#pragma once

// A Channel sends and receives whole messages (frames) over a stream socket. It connects the master with one of its
// tasks, in both directions. Every wait has a limit.

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "common/os/wait.hpp"

namespace syncrun::detail::protocol {

enum class FrameKind : std::uint32_t {
  message,
  result,   ///< The value that the task's function has returned.
  failure,  ///< The task's function has thrown. Contains a ChannelFailure and a text.
};

struct Frame {
  FrameKind kind;
  std::vector<std::byte> bytes;
};

/// One end of a channel. One thread uses it, except that any thread may call end_receiving.
class Channel {
 public:
  enum class Outcome : std::uint8_t {
    done,
    closed,   ///< The other end is closed.
    expired,  ///< Patience is over. A frame that was received in part is continued by the next call.
  };

  Channel() = default;
  explicit Channel(os::FileDescriptor socket) noexcept : socket_(std::move(socket)) {}

  /// Makes the two ends of a new channel. Throws Error (system).
  static std::array<os::FileDescriptor, 2> make_ends();

  /// Blocks until the socket has taken the whole frame. If patience ends in the middle of a frame, the channel cannot
  /// send any more, and later calls return closed. Throws Error (system).
  Outcome send(FrameKind kind, std::span<const std::byte> bytes, os::Patience& patience);
  /// Blocks until a whole frame has arrived. Throws Error (system), also if the bytes that arrive are not a frame.
  Outcome receive(Frame& frame, os::Patience& patience);

  /// Ends sending. The other end receives what was sent, and then end of file.
  void end_sending() noexcept;
  /// Ends receiving. The receiver of this end gets what has already arrived, and then end of file. Any thread.
  void end_receiving() const noexcept;
  /// True if a frame was sent only in part.
  bool is_torn() const noexcept { return is_torn_; }

 private:
  struct Header {
    std::uint32_t magic;
    FrameKind kind;
    std::uint64_t bytes;
  };
  static constexpr std::uint32_t kFrameMagic = 0x53594e43;

  Outcome send_parts(std::span<iovec> parts, os::Patience& patience, bool& any);
  Outcome fill(void* to, std::size_t bytes, std::size_t& filled, os::Patience& patience);
  bool await(short events, os::Patience& patience) const;
  void check_socket() const;

  os::KeptDescriptor socket_;
  bool is_torn_ = false;
  Header header_{};  // of the frame that is arriving
  std::size_t header_filled_ = 0;
  std::vector<std::byte> arriving_;
  std::size_t filled_ = 0;
};

}  // namespace syncrun::detail::protocol
