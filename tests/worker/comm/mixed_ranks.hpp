#pragma once

// A fixture for tests of ranks with devices of different kinds. Ranks 0 and 2 have a device whose memory is not host
// memory, and rank 1 has a CPU device. Each rank is a thread.

#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "tests/worker/comm/ranks_as_threads.hpp"
#include "tests/worker/devices/off_host_device.hpp"
#include "worker/comm/communicators.hpp"

namespace syncrun::detail {

/// One rank with its device and its communicators.
class MixedRank {
 public:
  explicit MixedRank(MeetingRank& parts)
      : parts_(parts), kind_(parts.attachment.slot().device_kind), arena_(arena_of(parts.attachment)) {
    if (kind_ == DeviceKind::cpu) {
      device_ = make_cpu_device({parts.attachment, arena_, parts.comm, nullptr, parts.rendezvous, kNothing, [] {}, {}});
    } else {
      device_ = std::make_unique<test::OffHostDevice>(parts.attachment.segment, arena_, device_comm_);
    }
    comms_.emplace(parts.attachment, arena_, parts.comm, *device_);
  }
  MixedRank(const MixedRank&) = delete;
  MixedRank& operator=(const MixedRank&) = delete;

  int rank() const { return parts_.attachment.rank; }
  bool is_cpu() const { return kind_ == DeviceKind::cpu; }
  const Attachment& attachment() const { return parts_.attachment; }
  SharedHeap& arena() { return arena_; }
  WorkerDevice& device() { return *device_; }
  /// The device, if it is not a CPU device.
  test::OffHostDevice& off_host() { return dynamic_cast<test::OffHostDevice&>(*device_); }
  Communicators& comms() { return *comms_; }

  /// Puts values into device memory, in the order of the device's work.
  template <class T>
  T* put(const std::vector<T>& values) {
    auto* const to = static_cast<T*>(
        device_->allocate(values.size() * sizeof(T) + 1, SharedHeap::Contents::any, "values of a test"));
    if (is_cpu()) std::copy(values.begin(), values.end(), to);
    else off_host().enqueue([=] { std::copy(values.begin(), values.end(), test::host_view(to)); });
    return to;
  }
  /// The values in device memory once the device has finished.
  template <class T>
  std::vector<T> get(const T* from, std::size_t count) {
    device_->finish();
    const T* const begin = is_cpu() ? from : test::host_view(from);
    return {begin, begin + count};
  }

 private:
  static SharedHeap arena_of(const Attachment& attachment) {
    return {attachment.segment, attachment.control.arena_at(attachment.rank) + CpuComm::kReservedBytes,
            attachment.control.header().arena_bytes - CpuComm::kReservedBytes};
  }

  MeetingRank& parts_;
  DeviceKind kind_;
  SharedHeap arena_;
  SoloComm device_comm_;  // stands for that of the GPUs
  std::unique_ptr<WorkerDevice> device_;
  std::optional<Communicators> comms_;
};

class MixedRanks : public RanksAsThreads {
 protected:
  MixedRanks() {
    control_.header().arena_bytes = std::uint64_t{16} << 20U;
    for (const int rank : {0, 2}) control_.worker(rank).device_kind = DeviceKind::cuda;
    for (MeetingRank& parts : ranks_) mixed_.emplace_back(parts);
  }

  std::vector<std::string> on_all(const std::function<void(MixedRank&)>& body) {
    return on_every_rank([&](MeetingRank& rank) { body(at(rank.attachment.rank)); });
  }
  MixedRank& at(int rank) { return mixed_[static_cast<std::size_t>(rank)]; }
  static RankSet everyone() { return RankSet::all(kWorldSize); }
  /// A command of these ranks.
  static CommandHead command_of(const RankSet& ranks, CommChoice comm = CommChoice::host()) {
    CommandHead command;
    command.ranks = ranks;
    command.comm = comm;
    return command;
  }

  std::deque<MixedRank> mixed_;
};

}  // namespace syncrun::detail
