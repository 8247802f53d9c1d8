#pragma once

// Whole messages in both directions over a stream socket, between a master and a task of its. Every wait has an end.

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/file_descriptor.hpp"
#include "common/wait.hpp"

namespace syncrun::detail {

enum class FrameKind : std::uint32_t {
  message,
  result,   ///< The task's function has returned this.
  failure,  ///< It has thrown: a ChannelFailure and a text.
};

struct Frame {
  FrameKind kind;
  std::vector<std::byte> bytes;
};

/// Used by one thread, but for end_receiving.
class Channel {
 public:
  enum class Outcome : std::uint8_t {
    done,
    closed,   ///< The other end is gone.
    expired,  ///< Patience is over. What was received of a frame by then is kept for the next time.
  };

  Channel() = default;
  explicit Channel(FileDescriptor socket) noexcept : socket_(std::move(socket)) {}

  /// The two ends of a new one. Throws Error (system).
  static std::array<FileDescriptor, 2> make_ends();

  /// Blocks until the socket has taken all of it. Once a part of a frame was left behind (expired), the channel is of no
  /// more use for sending: closed.
  Outcome send(FrameKind kind, std::span<const std::byte> bytes, Patience& patience);
  /// Blocks until a whole frame is there. Throws Error (system) if what comes is no frame.
  Outcome receive(Frame& frame, Patience& patience);

  /// The other end receives what was sent, and then end of file.
  void end_sending() noexcept;
  /// Who receives here gets what has arrived, and then end of file. From any thread.
  void end_receiving() const noexcept;
  /// A frame was sent in part.
  bool is_torn() const noexcept { return is_torn_; }

 private:
  struct Header {
    std::uint32_t magic;
    FrameKind kind;
    std::uint64_t bytes;
  };
  static constexpr std::uint32_t kFrameMagic = 0x53594e43;

  Outcome send_parts(std::span<iovec> parts, Patience& patience, bool& any);
  Outcome fill(void* to, std::size_t bytes, std::size_t& filled, Patience& patience);
  bool await(short events, Patience& patience) const;
  void check_socket() const;

  KeptDescriptor socket_;
  bool is_torn_ = false;
  Header header_{};  // of the frame that is arriving
  std::size_t header_filled_ = 0;
  std::vector<std::byte> arriving_;
  std::size_t filled_ = 0;
};

}  // namespace syncrun::detail
