#pragma once

// A fixture for tests of what the ranks of a session do together. Each rank is a thread, and all share one control
// block.

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "common/os/segment.hpp"
#include "worker/comm/collectives.hpp"
#include "worker/comm/rendezvous.hpp"

namespace syncrun::detail {

inline constexpr std::uint64_t kMeetingCommand = 5;

class NotInterrupted final : public worker::process::Interruption {
 public:
  bool is_set() const noexcept override { return false; }
  [[noreturn]] void raise() const override { throw std::logic_error("it is not set"); }
};

inline const NotInterrupted kNothing;
inline const worker::process::WaitLimits kEndless{kNothing};

/// Makes the attachment of a rank to the session. It has its own mapping of the segment.
inline worker::process::Attachment attach_to(const os::Segment& segment, int world_size, int rank,
                                             const protocol::NodePlace& place) {
  worker::process::Attachment attachment;
  attachment.rank = rank;
  attachment.world_size = world_size;
  attachment.place = place;
  attachment.segment =
      os::Segment::attach(os::FileDescriptor(::fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0)), segment.bytes());
  attachment.control = protocol::ControlBlock(attachment.segment.base(), world_size);
  return attachment;
}

/// One rank, with the objects through which it works with its peers.
struct MeetingRank {
  MeetingRank(const os::Segment& segment, int world_size, int rank)
      : attachment(attach_to(segment, world_size, rank, protocol::NodePlace::alone(world_size))) {}
  MeetingRank(const MeetingRank&) = delete;
  MeetingRank& operator=(const MeetingRank&) = delete;

  worker::process::Attachment attachment;
  worker::comm::Meetings meetings{attachment, os::WaitPolicy::yielding()};
  worker::comm::SegmentRendezvous rendezvous{attachment, meetings};
  worker::comm::CpuComm comm{attachment, meetings, kNothing};
};

/// Three ranks. All of them have begun the command kMeetingCommand.
class RanksAsThreads : public testing::Test {
 protected:
  static constexpr int kWorldSize = 3;

  RanksAsThreads()
      : segment_(os::Segment::create(os::Segment::kSmallestReservation)), control_(segment_.base(), kWorldSize) {
    control_.header().arenas_offset = std::uint64_t{16} << 20U;
    control_.header().arena_bytes = std::uint64_t{4} << 20U;
    for (int rank = 0; rank < kWorldSize; ++rank) ranks_.emplace_back(segment_, kWorldSize, rank);
    begin(kMeetingCommand, protocol::RankSet::all(kWorldSize));
  }

  /// Makes these ranks begin a command. The others skip it.
  void begin(std::uint64_t id, const protocol::RankSet& ranks) {
    protocol::Command& command = control_.command_in(id);
    command.id = id;
    command.ranks = ranks;
    for (const int rank : ranks) {
      MeetingRank& own = ranks_[static_cast<std::size_t>(rank)];
      own.meetings.begin(own.attachment.control.command_in(id));
    }
  }
  /// Makes this rank leave the command: it goes to no further meeting of it.
  void leave(std::uint64_t id, int rank) {
    MeetingRank& own = ranks_[static_cast<std::size_t>(rank)];
    own.meetings.leave(own.attachment.control.command_in(id));
  }
  /// Marks a command as done on this rank, and rings its peers.
  void finish(std::uint64_t id, int rank) {
    control_.worker(rank).done.store(id);
    control_.header().to_peers.ring();
  }

  /// Runs `body(rank)` on one thread for each of the ranks. Returns the text that each one threw, in the order of the
  /// ranks, or "" for a rank that threw nothing.
  std::vector<std::string> on_ranks(const protocol::RankSet& ranks, const std::function<void(MeetingRank&)>& body) {
    std::vector<std::string> thrown(static_cast<std::size_t>(ranks.count()));
    std::vector<std::jthread> threads;
    for (const int rank : ranks) {
      threads.emplace_back([&, rank] {
        try {
          body(ranks_[static_cast<std::size_t>(rank)]);
        } catch (const std::exception& error) {
          thrown[static_cast<std::size_t>(ranks.position_of(rank))] = error.what();
        }
      });
    }
    threads.clear();
    return thrown;
  }
  std::vector<std::string> on_every_rank(const std::function<void(MeetingRank&)>& body) {
    return on_ranks(protocol::RankSet::all(kWorldSize), body);
  }
  static std::vector<std::string> all(const std::string& text) { return std::vector<std::string>(kWorldSize, text); }

  os::Segment segment_;
  protocol::ControlBlock control_;
  std::deque<MeetingRank> ranks_;
};

}  // namespace syncrun::detail
