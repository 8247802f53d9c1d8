#pragma once

// Lets the ranks of a session exchange small values before they have another way to communicate, for example to make a
// communicator of their GPUs or to map each other's memory. A rank can leave a value for the others, fetch the value of
// another rank, or wait for all ranks.

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/comm/meetings.hpp"
#include "worker/process/interruption.hpp"

namespace syncrun::detail::worker::comm {

/// Used by the thread that serves calls, within a command. Members throw what the interruption raises, and Error
/// (timeout) after the deadline.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// The maximum length of a value.
  static constexpr std::size_t kMostBytes = protocol::kRendezvousBytes;

  /// Leaves a value for the others under `key`. The key must not be 0, and must be new on this rank. The value stays
  /// until this rank leaves the next one. The caller must make sure that the others have fetched it by then. Throws
  /// Error (usage) if the value is too long.
  virtual void put(std::uint64_t key, std::span<const std::byte> value, const process::WaitLimits& limits) = 0;
  /// Waits until rank `from` has left a value under `key`, and copies it to `value`. `value` must have the length of
  /// that value.
  virtual void get(int from, std::uint64_t key, std::span<std::byte> value, const process::WaitLimits& limits) = 0;
  /// Returns when every rank has called it for the same purpose. Throws Error (usage) on every rank if some ranks have
  /// called it for another purpose or have called a collective instead.
  virtual void barrier(protocol::MeetingPurpose purpose, const process::WaitLimits& limits) = 0;
};

/// Uses the control block: values are in the slots of the ranks, and the barrier is one of the command's meetings.
class SegmentRendezvous final : public Rendezvous {
 public:
  SegmentRendezvous(const process::Attachment& attachment, Meetings& meetings) noexcept
      : attachment_(attachment), meetings_(meetings) {}

  void put(std::uint64_t key, std::span<const std::byte> value, const process::WaitLimits& limits) override;
  void get(int from, std::uint64_t key, std::span<std::byte> value, const process::WaitLimits& limits) override;
  void barrier(protocol::MeetingPurpose purpose, const process::WaitLimits& limits) override;

 private:
  const process::Attachment& attachment_;
  Meetings& meetings_;
};

}  // namespace syncrun::detail::worker::comm
