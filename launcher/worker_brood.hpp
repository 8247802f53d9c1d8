#pragma once

// The workers of a session, as its nursery sees them.

#include <string>
#include <vector>

#include "common/control_block.hpp"
#include "common/segment.hpp"
#include "launcher/brood.hpp"
#include "launcher/settings.hpp"

namespace syncrun::detail {

/// The first loss is noted in the control block, and everybody who waits there is woken.
class WorkerBrood final : public Brood {
 public:
  /// Refers to the first two as long as it lives.
  WorkerBrood(const Settings& settings, const Segment& segment, ControlBlock control)
      : settings_(settings), segment_(segment), control_(control) {}

  int size() const override { return control_.world_size(); }
  std::string describe() const override { return "the workers"; }
  SpawnRequest request_for(int rank, const Ends& ends) const override;
  std::string tag_of(int rank) const override { return "[rank " + std::to_string(rank) + "] "; }
  std::string log_of(int rank) const override;
  bool has_descriptors() const noexcept override { return segment_.is_intact(); }
  void on_birth(int rank, pid_t pid) noexcept override { control_.worker(rank).pid.store(pid); }
  void on_loss(int rank) noexcept override;
  pthread_mutex_t* life_of(int rank) noexcept override { return &control_.worker(rank).life; }

  /// The lost ones have been buried: from here on the control block knows of no loss, but for those that came since.
  void forget_losses(const std::vector<int>& buried) noexcept;

 private:
  const Settings& settings_;
  const Segment& segment_;
  ControlBlock control_;
};

}  // namespace syncrun::detail
