#pragma once

// Tells a nursery how to start the workers of a session, and notes their deaths.

#include <atomic>
#include <string>
#include <vector>

#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "launcher/pool/successor.hpp"
#include "launcher/process/child_watcher.hpp"
#include "launcher/settings/settings.hpp"

namespace syncrun::detail {

/// Notes in the control block that the worker of this rank was lost, and wakes everything that waits there. Any thread
/// may call it.
void note_loss(const ControlBlock& control, int rank) noexcept;

/// Notes losses in the control block. A nursery counts its children from 0, so each of them is the local rank of a
/// worker on this node.
class WorkerWatcher final : public ChildWatcher {
 public:
  /// Refers to the first two arguments as long as it lives.
  WorkerWatcher(const Settings& settings, const Segment& segment, ControlBlock control)
      : settings_(settings), segment_(segment), control_(control) {}

  int size() const override { return place().local_size; }
  std::string describe() const override { return "the workers"; }
  SpawnRequest request_for(int local_rank, const Ends& ends) const override;
  std::string tag_of(int local_rank) const override;
  std::string log_of(int local_rank) const override;
  bool has_descriptors() const noexcept override { return segment_.is_intact(); }
  void on_start(int local_rank, pid_t pid) noexcept override { slot(local_rank).pid.store(pid); }
  void on_loss(int local_rank) noexcept override { note_loss(control_, place().rank(local_rank)); }
  pthread_mutex_t* life_of(int local_rank) noexcept override { return &slot(local_rank).life; }

  /// SpawnRequest::dies_earlier_by of the workers that are started from now on. Any thread may call both.
  int dies_earlier_by() const noexcept { return dies_earlier_by_.load(); }
  void set_dies_earlier_by(int thousandths) noexcept { dies_earlier_by_.store(thousandths); }

  /// The lost workers have been reaped. Removes the notes of losses from the control block, except those of other
  /// workers that were lost since. In a session on several nodes, the workers may be on any of them.
  void forget_losses(const std::vector<Successor>& successors) noexcept;

 private:
  const NodePlace& place() const noexcept { return control_.header().place; }
  WorkerSlot& slot(int local_rank) const noexcept { return control_.worker(place().rank(local_rank)); }

  const Settings& settings_;
  const Segment& segment_;
  ControlBlock control_;
  std::atomic<int> dies_earlier_by_{kDiesEarlierBy};
};

}  // namespace syncrun::detail
