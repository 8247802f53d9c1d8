#pragma once

// Direct connections of the rank that leads its node to the leaders of the other nodes. Blocks of an exchange go over them
// in place of the way through the processes that carry messages (NodeLink). Only the thread of the worker uses them.
//
//   leader --socket--> leader        without them: leader -> segment -> carrier --MPI--> carrier -> segment -> leader

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/node_request.hpp"
#include "common/protocol/rank_set.hpp"
#include "worker/process/interruption.hpp"

namespace syncrun::detail::worker::comm {

/// What comes before the bytes of a block.
struct FrameHeader {
  std::uint64_t command;
  std::uint64_t step;  // the number of the exchange in the command
  std::uint64_t bytes;
};

/// One connection. A frame of an abandoned command stays whole: the sender sends the rest of it, with any bytes, before the
/// next frame. The receiver drops it.
class LeaderLink {
 public:
  /// `who` names the rank at the other end in messages.
  LeaderLink(int rank, std::string who, os::FileDescriptor socket)
      : rank_(rank), who_(std::move(who)), socket_(std::move(socket)) {}

  int rank() const noexcept { return rank_; }
  const std::string& who() const noexcept { return who_; }
  int fd() const noexcept { return socket_.get(); }
  bool is_intact() const noexcept { return socket_.is_intact(); }
  /// Why the connection is no longer in use. Empty if it is.
  const std::string& broken() const noexcept { return broken_; }
  /// For how long the other end has not been there. 0 if the connection is in use.
  os::Clock::duration broken_for(os::Clock::time_point now) const noexcept {
    return broken_.empty() ? os::Clock::duration::zero() : now - broken_since_;
  }
  void note_broken(std::string why, os::Clock::duration ago = {}) {
    broken_ = std::move(why);
    broken_since_ = os::Clock::now() - ago;
  }

  /// Begins to send a block, and to receive one for the same exchange. Both blocks stay where they are until is_done().
  void begin(const FrameHeader& out, const std::byte* from, std::byte* to, std::size_t to_bytes);
  /// Sends and receives what is possible now. Returns whether it was anything. Throws Error (system) if the other end does
  /// not keep to the protocol.
  bool move();
  bool has_sent() const noexcept { return sent_ == out_bytes(); }
  bool has_received() const noexcept { return has_received_; }
  bool is_done() const noexcept { return has_sent() && has_received_; }
  /// The other end has sent a frame of a later command. So none comes any more for this one.
  bool is_ahead() const noexcept { return is_ahead_; }

  /// From now on, the kernel asks for signs of life (keep-alive) after the connection was idle for so long. If none comes for
  /// `silence`, the connection is broken.
  void ask_for_life(std::chrono::seconds idle, std::chrono::milliseconds silence) noexcept;
  /// Whether what was sent was not acknowledged for so long. Called again and again during a long wait.
  bool is_silent(os::Clock::time_point now, std::chrono::milliseconds silence) noexcept;

 private:
  /// A frame that is partly sent.
  struct Rest {
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
  };
  std::size_t out_bytes() const noexcept { return sizeof(FrameHeader) + out_.bytes; }
  bool send();
  bool receive();
  bool begin_frame();
  long receive_into(std::byte* to, std::size_t bytes);
  void note_error(int error);

  int rank_;
  std::string who_;
  os::KeptDescriptor socket_;
  std::string broken_;
  os::Clock::time_point broken_since_{};

  FrameHeader old_header_{};  // of the frame in rest_
  std::array<Rest, 2> rest_{};
  FrameHeader out_{};
  const std::byte* from_ = nullptr;
  std::size_t sent_ = sizeof(FrameHeader);  // of out_ and its block

  std::array<std::byte, 4096> buffer_;  // what has come beyond the frame in progress
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool is_in_frame_ = false;
  FrameHeader in_{};         // the frame in progress
  std::size_t left_ = 0;     // of it
  std::byte* to_ = nullptr;  // where the next bytes of it go; null: they are dropped
  FrameHeader awaited_{};
  std::byte* room_ = nullptr;
  std::size_t room_bytes_ = 0;
  bool has_received_ = true;
  bool is_ahead_ = false;

  std::chrono::seconds idle_{0};  // as ask_for_life() was told last
  std::optional<os::Clock::time_point> unacknowledged_since_;
};

/// The links of one leader to those of all other nodes.
class LeaderLinks {
 public:
  /// `silence` is how long the other end of a link may be silent while this rank waits for it. It is longer than that for a
  /// node, so that the agents are the first to name a lost node.
  LeaderLinks(std::string who, std::vector<LeaderLink> links, std::chrono::milliseconds silence);

  /// The links that a command uses: those to these ranks, of which one is `own`.
  void begin(const protocol::RankSet& ranks, int own);
  /// Begins to exchange blocks with the ranks of begin(). `blocks` has one NodeBlock for each, in order; its own is not used.
  /// `base` is where their offsets begin. The exchange before is complete, or was given up. Throws Error (system) if the
  /// program has closed a descriptor.
  void begin_exchange(std::uint64_t command, std::uint64_t step, std::span<const protocol::NodeBlock> blocks,
                      std::byte* base);

  /// What a wait for the end of an exchange asks and tells its caller.
  class Caller {
   public:
    virtual ~Caller() = default;
    /// The wait is long. Called again and again. `is_missing` says for each rank of begin() whether its block has not come, or
    /// it has not taken the one for it.
    virtual void note_long_wait(const std::vector<bool>& is_missing) = 0;
    /// Whether the wait is over because of what the caller has learned.
    virtual bool is_over() const = 0;
  };
  /// Waits until all blocks have come and all have left. Throws what interrupts the wait, Error (timeout) after the deadline,
  /// and Error (system) if a connection has broken, and nothing interrupts the wait for `silence` after that.
  void end_exchange(os::WaitPolicy& policy, const process::WaitLimits& limits, Caller& caller);

 private:
  bool move();
  bool is_done() const noexcept;
  bool has_been_broken(os::Clock::time_point now) const noexcept;
  void sleep(std::chrono::milliseconds limit) const;
  void look(os::Clock::time_point now, Caller& caller);
  void stop_watching() noexcept;
  [[noreturn]] void throw_broken() const;

  std::string who_;  // this rank, in messages
  std::vector<LeaderLink> links_;
  std::chrono::milliseconds silence_;
  std::vector<LeaderLink*> used_;  // by the command, in order
  std::size_t own_ = 0;            // the position of this rank, which has no link
  bool is_watching_ = false;
};

}  // namespace syncrun::detail::worker::comm
