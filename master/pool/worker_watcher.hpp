#pragma once

// Tells a nursery how to start the workers of a session, and notes their deaths.

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "master/devices/binding.hpp"
#include "master/pool/successor.hpp"
#include "master/process/child_watcher.hpp"
#include "master/settings/settings.hpp"

namespace syncrun::detail::master::pool {

/// Notes in the control block that the worker of this rank was lost, and wakes everything that waits there. Any thread
/// may call it.
void note_loss(const protocol::ControlBlock& control, int rank) noexcept;

/// Notes losses in the control block. A nursery counts its children from 0, so each of them is the local rank of a
/// worker on this node.
class WorkerWatcher final : public process::ChildWatcher {
 public:
  /// Refers to the first two arguments as long as it lives. Throws Error (usage) if the workers cannot be bound as the
  /// user has chosen.
  WorkerWatcher(const settings::Settings& settings, const os::Segment& segment, protocol::ControlBlock control)
      : settings_(settings), segment_(segment), control_(control) {}

  int size() const override { return place().local_size; }
  std::string describe() const override { return "the workers"; }
  process::SpawnRequest request_for(int local_rank, const Ends& ends) const override;
  std::string tag_of(int local_rank) const override;
  std::string log_of(int local_rank) const override;
  bool is_shown(int local_rank) const override { return settings_.output.shows(place().rank(local_rank)); }
  process::OutputSettings output_settings() const override { return settings_.output; }
  bool has_descriptors() const noexcept override { return segment_.is_intact(); }
  void on_start(int local_rank, pid_t pid) noexcept override;
  std::string news_of_start(int local_rank, pid_t pid) const override;
  void on_loss(int local_rank) noexcept override { note_loss(control_, place().rank(local_rank)); }
  pthread_mutex_t* life_of(int local_rank) noexcept override { return &slot(local_rank).life; }

  /// SpawnRequest::dies_earlier_by of the workers that are started from now on. Any thread may call both.
  int dies_earlier_by() const noexcept { return dies_earlier_by_.load(); }
  void set_dies_earlier_by(int thousandths) noexcept { dies_earlier_by_.store(thousandths); }

  /// The lost workers have been reaped. Removes the notes of losses from the control block, except those of other
  /// workers that were lost since. In a session on several nodes, the workers may be on any of them.
  void forget_losses(const std::vector<Successor>& successors) noexcept;

 private:
  const protocol::NodePlace& place() const noexcept { return control_.place(); }
  std::span<const devices::DeviceId> devices_here() const noexcept;
  std::string describe_cores(int local_rank, pid_t pid) const;
  protocol::WorkerSlot& slot(int local_rank) const noexcept { return control_.worker(place().rank(local_rank)); }

  const settings::Settings& settings_;
  const os::Segment& segment_;
  protocol::ControlBlock control_;
  devices::Binding binding_;
  std::atomic<int> dies_earlier_by_{process::kDiesEarlierBy};
};

}  // namespace syncrun::detail::master::pool
