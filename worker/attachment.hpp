#pragma once

// How a worker comes into its session: the environment its master gave it, the segment, and its tie to the master.

#include <exception>
#include <optional>
#include <string>

#include "common/control_block.hpp"
#include "common/file_descriptor.hpp"
#include "common/function_entry.hpp"
#include "common/phase_hook.hpp"
#include "common/segment.hpp"
#include "common/timeline.hpp"

namespace syncrun::detail {

/// A worker's place in its session.
struct Attachment {
  int rank = 0;
  int world_size = 0;
  std::string device;
  Segment segment;
  ControlBlock control;
  Timeline* timeline = nullptr;           // this rank's, where a profile is wanted
  const PhaseHook* phase_hook = nullptr;  // this rank's, where there is one: in tests

  WorkerSlot& slot() const noexcept { return control.worker(rank); }
  /// What this rank is doing: for whoever asks after a failure, and for a profile.
  void mark(std::uint64_t command, Phase phase) const noexcept {
    slot().progress.store(progress_word(command, phase), std::memory_order_release);
    note(command, phase);
  }
  /// The same where something may go wrong, and tests let it.
  void enter(std::uint64_t command, Phase phase) const {
    mark(command, phase);
    fault_point(command, phase);
  }
  /// As mark(), for a profile only.
  void note(std::uint64_t command, Phase phase) const noexcept {
    if (timeline != nullptr) [[unlikely]]
      timeline->add(progress_word(command, phase));
  }
  /// Where tests let this rank fail; see common/phase_hook.hpp.
  void fault_point(std::uint64_t command, Phase phase) const {
    if (phase_hook != nullptr) [[unlikely]]
      phase_hook->at(command, phase);
  }
  /// The body of a function that runs on this rank's kind of device.
  const BodyEntry& body_of(const FunctionEntry& function) const noexcept {
    return function.bodies[static_cast<std::size_t>(slot().device_kind)];
  }
  std::uint64_t command_in_progress() const noexcept {
    return command_of(slot().progress.load(std::memory_order_relaxed));
  }
};

/// For as long as it lives, a rank is in another phase of its command. What is thrown out of it was thrown in that phase.
class InPhase {
 public:
  InPhase(const Attachment& attachment, Phase phase)
      : attachment_(attachment),
        before_(attachment.slot().progress.load(std::memory_order_relaxed)),
        exceptions_(std::uncaught_exceptions()) {
    attachment_.mark(command_of(before_), phase);
    attachment_.fault_point(command_of(before_), phase);
  }
  ~InPhase() {
    if (std::uncaught_exceptions() == exceptions_) attachment_.mark(command_of(before_), phase_of(before_));
  }
  InPhase(const InPhase&) = delete;
  InPhase& operator=(const InPhase&) = delete;

 private:
  const Attachment& attachment_;
  std::uint64_t before_;
  int exceptions_;
};

/// Nothing, if this process is not a worker. Else attaches to the segment, starts the thread that holds the sign of life
/// and watches the master, and takes the internal variables out of the environment. Throws Error (system, usage).
std::optional<Attachment> attach_if_worker();

}  // namespace syncrun::detail
