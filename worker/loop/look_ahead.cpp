#include "worker/loop/look_ahead.hpp"

#include <algorithm>
#include <span>

#include "syncrun/error.hpp"

namespace syncrun::detail::worker::loop {

void LookAhead::copy_inputs() {
  const protocol::InboxEntry next{inbox_.next().load(std::memory_order_acquire)};
  if (next.command() <= inbox_.current() || next.command() == last_) return;
  const protocol::Command& command = attachment_.control.command_in(next.slot());
  if (command.kind == protocol::CommandKind::move && !start_move_ahead(command)) return;  // perhaps later
  last_ = next.command();
  if (command.kind == protocol::CommandKind::call) inputs_.bring_ahead(command, next.command());
}

/// Starts to copy a Value from another rank while the call that runs computes. The other rank must be done with the
/// value, and the call must not use the copy. Commands before the call are complete.
bool LookAhead::start_move_ahead(const protocol::Command& command) {
  if (call_ == nullptr || !inbox_.are_earlier_done(command) || inbox_.depends_on_a_failure(command) ||
      inbox_.has_lost_a_rank(command))
    return false;
  if (inbox_.source_on_other_node(command)) return false;
  const std::uint64_t variable = command.as<protocol::MovePayload>().variable;
  const std::span arguments(call_->arguments.data(), call_->call().arguments_count);
  const bool is_in_use = std::any_of(arguments.begin(), arguments.end(), [&](const protocol::ArgumentSlot& argument) {
    return argument.offset == variable;
  });
  if (is_in_use) return false;
  try {
    return variables_.start_move_ahead(command);
  } catch (const Error&) {
    return false;  // this failure does not belong to the call
  }
}

}  // namespace syncrun::detail::worker::loop
