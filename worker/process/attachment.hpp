#pragma once

// How a worker joins its session: it reads the environment that its master has set, maps the segment, and starts to
// watch the master.

#include <exception>
#include <optional>
#include <string>

#include "common/export_for_cuda.hpp"
#include "common/os/file_descriptor.hpp"
#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "common/protocol/function_entry.hpp"
#include "common/protocol/phase_hook.hpp"
#include "common/protocol/rank_totals.hpp"
#include "common/protocol/timeline.hpp"
#include "common/protocol/variable_entry.hpp"

namespace syncrun::detail::worker::process {

/// A worker's place in its session.
struct Attachment {
  int rank = 0;
  int world_size = 0;
  protocol::NodePlace place;
  std::string device;
  os::Segment segment;
  protocol::ControlBlock control;
  protocol::Timeline* timeline = nullptr;           // of this rank; null if no profile is recorded
  protocol::RankTotals* totals = nullptr;           // of this rank; null if there are no metrics
  bool is_recorded = false;                         // there is a timeline or totals
  const protocol::PhaseHook* phase_hook = nullptr;  // of this rank; null except in tests

  protocol::WorkerSlot& slot() const noexcept { return control.worker(rank); }
  /// Records what this rank is doing. The master reads it after a failure, and profiles and metrics get it too.
  void mark(std::uint64_t command, protocol::Phase phase) const noexcept {
    slot().progress.store(protocol::progress_word(command, phase), std::memory_order_release);
    note(command, phase);
  }
  /// Like mark(), for a phase in which something can fail. Tests can make it fail here.
  void enter(std::uint64_t command, protocol::Phase phase) const {
    mark(command, phase);
    fault_point(command, phase);
  }
  /// Records the phase for profiles and metrics only.
  void note(std::uint64_t command, protocol::Phase phase) const noexcept {
    if (is_recorded) [[unlikely]]
      record(command, phase);
  }
  /// Adds to the totals of this rank, if there are metrics.
  void count(protocol::Count what, std::size_t amount) const noexcept {
    if (totals != nullptr) [[unlikely]]
      totals->add(what, static_cast<std::int64_t>(amount));
  }
  /// A point where tests can make this rank fail; see common/protocol/phase_hook.hpp.
  void fault_point(std::uint64_t command, protocol::Phase phase) const {
    if (phase_hook != nullptr) [[unlikely]]
      phase_hook->at(command, phase);
  }
  /// The body of a function that runs on this rank's kind of device.
  const protocol::BodyEntry& body_of(const protocol::FunctionEntry& function) const noexcept {
    return function.bodies[static_cast<std::size_t>(slot().device_kind)];
  }
  /// This rank's copy of a variable, by the offset of the VariableEntry.
  protocol::VariableCopy& own_copy(std::uint64_t variable) const noexcept {
    return segment.at<protocol::VariableEntry>(variable)->copies()[rank];
  }
  std::uint64_t command_in_progress() const noexcept {
    return protocol::command_of(slot().progress.load(std::memory_order_relaxed));
  }

 private:
  SYNCRUN_EXPORT_FOR_CUDA void record(std::uint64_t command, protocol::Phase phase) const noexcept;
};

/// While an object of this class lives, the rank is in another phase of its command. If an exception destroys the
/// object, the rank stays in that phase, so the failure is reported with it.
class InPhase {
 public:
  InPhase(const Attachment& attachment, protocol::Phase phase)
      : attachment_(attachment),
        before_(attachment.slot().progress.load(std::memory_order_relaxed)),
        exceptions_(std::uncaught_exceptions()) {
    attachment_.mark(protocol::command_of(before_), phase);
    attachment_.fault_point(protocol::command_of(before_), phase);
  }
  ~InPhase() {
    if (std::uncaught_exceptions() == exceptions_)
      attachment_.mark(protocol::command_of(before_), protocol::phase_of(before_));
  }
  InPhase(const InPhase&) = delete;
  InPhase& operator=(const InPhase&) = delete;

 private:
  const Attachment& attachment_;
  std::uint64_t before_;
  int exceptions_;
};

/// If this process is a worker, attaches to the segment and starts the thread that holds the sign of life and watches
/// the master. Also removes the internal variables from the environment. Returns nothing if this process is not a
/// worker. Throws Error (system, usage).
std::optional<Attachment> attach_if_worker();

}  // namespace syncrun::detail::worker::process
