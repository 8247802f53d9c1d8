#pragma once

// What a worker does for its next command while the device computes.

#include <cstdint>

#include "worker/call/call_inputs.hpp"
#include "worker/call/shared_variables.hpp"
#include "worker/loop/inbox.hpp"

namespace syncrun::detail::worker::loop {

class LookAhead {
 public:
  LookAhead(const process::Attachment& attachment, const Inbox& inbox, call::VariableCopies& variables,
            call::CallInputs& inputs) noexcept
      : attachment_(attachment), inbox_(inbox), variables_(variables), inputs_(inputs) {}

  /// Called when a command begins. `call` is null if it is not a call.
  void begin(const protocol::Command* call) noexcept { call_ = call; }
  /// Copies the inputs of the next command to the device, if the master has already published that command.
  void copy_inputs();

 private:
  bool start_move_ahead(const protocol::Command& command);

  const process::Attachment& attachment_;
  const Inbox& inbox_;
  call::VariableCopies& variables_;
  call::CallInputs& inputs_;
  std::uint64_t last_ = 0;                   // the last command whose inputs were copied ahead
  const protocol::Command* call_ = nullptr;  // the call that runs
};

}  // namespace syncrun::detail::worker::loop
