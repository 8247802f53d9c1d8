#pragma once

// Where the ranks of a session find each other before they can talk in another way: to make a communicator of their GPUs, to
// map each other's memory. A rank leaves a small value for the others, fetches what another one has left, or waits for all.

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/interruption.hpp"
#include "worker/meetings.hpp"

namespace syncrun::detail {

/// Used by the thread that serves calls, in a command. Members throw what the interruption raises, and Error (timeout) after
/// the deadline.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// The longest value.
  static constexpr std::size_t kMostBytes = kRendezvousBytes;

  /// Leaves a value for the others under `key`, which is not 0 and is new on this rank. It stays until this rank leaves the
  /// next one: before that, whoever wants it has fetched it. Throws Error (usage) if it is too long.
  virtual void put(std::uint64_t key, std::span<const std::byte> value, const WaitLimits& limits) = 0;
  /// Waits until rank `from` has left a value under `key`, and copies it to `value`, which has its length.
  virtual void get(int from, std::uint64_t key, std::span<std::byte> value, const WaitLimits& limits) = 0;
  /// Returns when every rank has called it for the same purpose. Throws Error (usage) on every rank where some have come for
  /// another, or have called a collective instead.
  virtual void barrier(MeetingPurpose purpose, const WaitLimits& limits) = 0;
};

/// By the control block: values are in the ranks' slots, and the barrier is one of the command's meetings.
class SegmentRendezvous final : public Rendezvous {
 public:
  SegmentRendezvous(const Attachment& attachment, Meetings& meetings) noexcept
      : attachment_(attachment), meetings_(meetings) {}

  void put(std::uint64_t key, std::span<const std::byte> value, const WaitLimits& limits) override;
  void get(int from, std::uint64_t key, std::span<std::byte> value, const WaitLimits& limits) override;
  void barrier(MeetingPurpose purpose, const WaitLimits& limits) override;

 private:
  const Attachment& attachment_;
  Meetings& meetings_;
};

}  // namespace syncrun::detail
