#include "master/api/call_values.hpp"

#include <string>

#include "common/text/errors.hpp"
#include "common/text/log.hpp"
#include "master/calls/describe.hpp"
#include "master/dispatch/command_dispatcher.hpp"
#include "master/values/value_copies.hpp"

namespace syncrun::detail {

namespace {

master::values::Access access_of(const ArgumentType& type) noexcept {
  return master::records::is_written(type.kind) ? master::values::Access::writes : master::values::Access::reads;
}

}  // namespace

/// Calls `visit(value, index)` for each argument that is a Value.
template <class Visit>
void CallValues::for_each(Visit&& visit) {
  for (std::size_t i = 0; i < in_flight_.arguments_count; ++i) {
    const std::shared_ptr<master::records::VariableRecord>& variable = in_flight_.arguments[i].variable;
    if (variable && variable->value) visit(variable, i);
  }
}

std::exception_ptr CallValues::check(const protocol::RankSet& ranks) {
  std::exception_ptr failure;
  for_each([&](const std::shared_ptr<master::records::VariableRecord>& variable, std::size_t index) {
    const auto argument = [&] { return master::calls::describe_argument(function_, index, variable->name); };
    if (access_of(function_.signature.arguments[index]) == master::values::Access::writes && !ranks.is_single()) {
      text::throw_usage(argument() + " is a Value, and " + std::to_string(ranks.count()) +
                        " ranks would write it: write a Value on one device (f.on(device)), or pass a Shared");
    }
    master::values::check_is_whole(commands_, *variable);
    const auto& pinned = variable->value->pinned;
    if (pinned && ranks != protocol::RankSet::only(*pinned)) {
      text::throw_usage(argument() + " is pinned to rank " + std::to_string(*pinned) +
                        ", and the call would move it: run the call there, or unpin the value");
    }
    if (!failure) failure = master::values::unseen_failure(commands_, *variable);
  });
  return failure;
}

bool CallValues::needs_copies(const protocol::RankSet& ranks) {
  bool needs = false;
  for_each([&](const std::shared_ptr<master::records::VariableRecord>& variable, std::size_t) {
    for (const int rank : ranks) needs = !master::values::claim_copy(commands_, *variable, rank) || needs;
  });
  return needs;
}

std::exception_ptr CallValues::bring(protocol::RankSet ranks) {
  if (!needs_copies(ranks)) return nullptr;
  master::dispatch::CommandDispatcher::Pause pause(commands_);
  // A wait may collect a failure, or deal with a loss. Some of the copies may then be gone.
  while (bring_missing(ranks) || commands_.make_room(ranks)) {
    if (auto failure = check(ranks)) return failure;
  }
  pause.end();
  return nullptr;
}

/// Returns whether a copy was missing.
bool CallValues::bring_missing(const protocol::RankSet& ranks) {
  bool brings = false;
  for_each([&](const std::shared_ptr<master::records::VariableRecord>& variable, std::size_t) {
    for (const int rank : ranks) {
      if (master::values::claim_copy(commands_, *variable, rank)) continue;
      const std::string warning = master::values::bring_copy(commands_, variable, rank);
      if (!warning.empty()) logger_.warn(warning);
      brings = true;
    }
  });
  return brings;
}

void CallValues::depend(const protocol::RankSet& ranks) {
  for_each([&](const std::shared_ptr<master::records::VariableRecord>& variable, std::size_t index) {
    const master::values::Access access = access_of(function_.signature.arguments[index]);
    for (const int rank : ranks) master::values::depend_on_copy(commands_, *variable, rank, access);
  });
}

void CallValues::note(const protocol::RankSet& ranks, std::uint64_t command) {
  for_each([&](const std::shared_ptr<master::records::VariableRecord>& variable, std::size_t index) {
    const master::values::Access access = access_of(function_.signature.arguments[index]);
    for (const int rank : ranks) master::values::note_use(commands_, *variable, rank, access, command);
    master::values::mark_spare_copies(commands_, *variable);
  });
  for (const auto& made : in_flight_.made) {
    master::records::ValueState& value = *made->value;
    value.maker = command;
    value.made_on = value.home = ranks.first();
    master::records::ValueCopy& copy = value.copies[static_cast<std::size_t>(value.home)];
    copy.is_valid = true;
    copy.written = copy.used = command;
  }
}

void CallValues::make(const protocol::CallPayload& call, const protocol::RankSet& ranks, CallResult& result,
                      protocol::Command& slot) {
  const auto& outputs = function_.signature.outputs;
  result.kept.resize(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].is_kept || (call.wanted_outputs >> i & 1U) == 0) continue;
    const auto refuse = [&](const std::string& why) {
      text::throw_usage(master::calls::describe_output(function_, i) + " of '" + function_.name + "' is a Keep, and " +
                        why);
    };
    if (!ranks.is_single()) {
      refuse(std::to_string(ranks.count()) + " ranks run the call: call it on one device (f.on(device))");
    }
    if (call.slices != 1) refuse("the call has " + std::to_string(call.slices) + " slices: leave slices out");
    auto made = make_value_record(function_.session, outputs[i].dtype, outputs[i].dimensions, {});
    made->value->made_by = function_.name;
    slot.kept[i] = made->entry;
    in_flight_.made.push_back(made);
    result.kept[i] = std::move(made);
  }
}

}  // namespace syncrun::detail
