#pragma once

// One worker: its device, its communicator, the objects that live on it, and the call it is running.

#include <cstdint>
#include <memory>
#include <optional>

#include "worker/call/copy_files.hpp"
#include "worker/call/mapped_files.hpp"
#include "worker/call/running_call.hpp"
#include "worker/call/shared_variables.hpp"
#include "worker/comm/host_side.hpp"
#include "worker/devices/communicators.hpp"
#include "worker/devices/device.hpp"
#include "worker/loop/body_tools.hpp"
#include "worker/loop/inbox.hpp"
#include "worker/loop/loaded_functions.hpp"
#include "worker/loop/look_ahead.hpp"
#include "worker/process/attachment.hpp"
#include "worker/process/failure.hpp"

namespace syncrun::detail::worker::loop {

class CommandLoop {
 public:
  explicit CommandLoop(process::Attachment& attachment);
  CommandLoop(const CommandLoop&) = delete;
  CommandLoop& operator=(const CommandLoop&) = delete;

  /// Serves commands until the session ends; returns the exit code.
  int serve();

  // For bodies and their thunks.
  const process::Attachment& attachment() const noexcept { return attachment_; }
  const devices::DeviceParts& device() const noexcept { return parts_; }
  /// The same of a GPU. Throws Error (usage) on a CPU device.
  const devices::DeviceParts& gpu() const;
  call::RunningCall& running() noexcept { return running_; }
  BodyTools& tools() noexcept { return tools_; }

 private:
  void set_phase(protocol::Phase phase) noexcept { attachment_.mark(inbox_.current(), phase); }
  void enter_phase(protocol::Phase phase) { attachment_.enter(inbox_.current(), phase); }
  void give_up_for_loss(protocol::Command& command);
  void execute(protocol::Command& command);
  void run_call(protocol::Command& command);
  void count_call() noexcept;
  std::int64_t own_ns();
  void complete_call(protocol::Command& command, protocol::Outbox& outbox);
  void cast_vote(const protocol::Command& command, protocol::Vote vote) noexcept;
  std::optional<process::CaughtFailure> missing_file();
  void note_failure_elsewhere(const protocol::Command& command) noexcept;
  void report_failure(protocol::Command& command, const process::CaughtFailure& failure);
  void finish(const protocol::Command& command) noexcept;

  process::Attachment& attachment_;
  protocol::ControlHeader& header_;
  comm::HostSide host_;
  call::MappedFiles files_{attachment_.place};  // the device reads them
  std::unique_ptr<devices::WorkerDevice> device_;
  const devices::DeviceParts parts_;
  devices::Communicators comms_;
  call::VariableCopies variables_;
  call::CopyFiles copy_files_;
  call::RunningCall running_;
  Inbox inbox_;
  LookAhead ahead_;
  LoadedFunctions functions_;
  BodyTools tools_;  // the last: the destructors of replicated objects may use the other members
};

}  // namespace syncrun::detail::worker::loop
