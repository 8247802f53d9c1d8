#pragma once

// The call that a worker is running: its rows on this rank, its arguments, and what it has computed so far.

#include <cstdint>
#include <optional>
#include <string>

#include "common/protocol/function_entry.hpp"
#include "syncrun/gradient_ready.hpp"
#include "worker/call/call_inputs.hpp"
#include "worker/call/call_outputs.hpp"
#include "worker/call/call_slices.hpp"
#include "worker/call/call_updates.hpp"
#include "worker/call/recordings.hpp"
#include "worker/call/step_gradient.hpp"
#include "worker/devices/communicators.hpp"

namespace syncrun::detail::worker::call {

/// The Comm& of a body. Programs cannot make one.
class UserComm final : public Comm {
 public:
  UserComm(comm::CommCore& core, const comm::RankWeights& weights) noexcept : Comm(core, weights) {}
};

class RunningCall {
 public:
  /// The parts of its worker that a call uses. They outlive it. See CallInputs and CallOutputs.
  RunningCall(const process::Attachment& attachment, const devices::DeviceParts& device, devices::Communicators& comms,
              MappedFiles& files, comm::OutgoingMemory& outgoing, VariableCopies& variables) noexcept;

  /// Starts the command with this number.
  void begin(const protocol::Command& command, std::uint64_t id);
  bool binds_arguments() const noexcept { return slices_.call().arguments_count != 0; }
  /// See WorkerCall::next_slice.
  bool next_slice();
  /// Hands over the memory of the outputs, which is freed after the master has consumed the command. Forgets the rest.
  void end(std::uint64_t command);
  /// Frees what a failed call has computed.
  void discard() noexcept;

  const CallSlices& slices() const noexcept { return slices_; }
  CallInputs& inputs() noexcept { return inputs_; }
  CallUpdates& updates() noexcept { return updates_; }
  CallOutputs& outputs() noexcept { return outputs_; }
  Recordings& recordings() noexcept { return recordings_; }

  Comm& user_comm() noexcept { return *user_comm_; }
  GradientReady& gradient_ready() noexcept { return gradient_ready_; }
  void average_over_slices();
  void weigh_slice(double weight) noexcept { slices_.weigh(weight); }
  std::int64_t first_element_of_step() const noexcept { return body_entry().first; }
  void begin_gradient(const GradientPlace& place, GradientParts parts, Reduction reduction);
  bool end_gradient() { return gradient_.finish(); }
  void note_update() noexcept { may_have_updated_ = true; }
  /// Whether a step may have begun to write parameters and state in the command with this number.
  bool may_have_updated(std::uint64_t id) const noexcept { return slices_.id() == id && may_have_updated_; }
  /// Runs a slice of a replayable function; see Recordings::replay.
  std::string replay(const Recordings::Work& work, Capture capture) {
    return recordings_.replay(work, capture, slices_.command().has_comm ? comm_ : nullptr);
  }

 private:
  const protocol::BodyEntry& body_entry() const noexcept;

  const process::Attachment& attachment_;
  devices::Communicators& comms_;
  comm::CommCore* comm_ = nullptr;  // of the command's ranks
  std::optional<UserComm> user_comm_;
  StepGradient gradient_;
  GradientReady gradient_ready_{gradient_};
  CallSlices slices_;
  CallOutputs outputs_;
  Recordings recordings_;
  CallInputs inputs_;
  CallUpdates updates_;
  bool is_gpu_;
  bool may_have_updated_ = false;
};

}  // namespace syncrun::detail::worker::call
