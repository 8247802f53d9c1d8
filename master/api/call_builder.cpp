// The master's side of one call. Arguments are checked and written into the command. The command is published only
// after all checks have passed.

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <string>

#include "common/arrays/extents.hpp"
#include "common/text/errors.hpp"
#include "master/api/call_values.hpp"
#include "master/calls/body_check.hpp"
#include "master/calls/call_rows.hpp"
#include "master/calls/describe.hpp"
#include "master/data/mapped_data.hpp"
#include "master/data/rows_on_nodes.hpp"
#include "master/records/variables.hpp"
#include "master/session/session_core.hpp"
#include "master/values/value_copies.hpp"
#include "syncrun/detail/handle.hpp"

namespace syncrun::detail {

namespace {
constexpr const char* kMovedFrom = " is a handle that was moved from: pass the one that it was moved to";
}  // namespace

struct CallBuilder::State {
  explicit State(master::session::SessionCore& session) : entry(session) {}
  master::session::SessionCore::Entry entry;
  protocol::CommandHead* command = nullptr;
  protocol::Command* slot = nullptr;      // for the arguments and outputs of the call
  protocol::CallPayload* call = nullptr;  // the payload of `command`
  master::calls::InFlight* in_flight = nullptr;
  std::size_t inline_used = 0;
  bool is_published = false;
  bool has_values = false;                          // an argument is a Value
  bool has_rows_on_nodes = false;                   // of an argument, each node has only some rows
  std::optional<master::records::Settled> settled;  // since the last wait; what was checked is still so
  master::calls::CallRows rows;
};

CallBuilder::State& CallBuilder::state() noexcept { return *std::launder(reinterpret_cast<State*>(state_.data())); }

CallBuilder::CallBuilder(const std::shared_ptr<master::records::FunctionRecord>& function, std::span<const int> ranks,
                         const CallOptions& options, const OutputChoice* choice)
    : session_(held(function, "Function").session.get()), function_(function.get()), options_(&options) {
  static_assert(sizeof(State) <= sizeof(state_) && alignof(State) <= alignof(std::max_align_t));
  State& state = *new (state_.data()) State(*session_);
  try {
    master::dispatch::CommandDispatcher& commands = session_->commands();
    if (auto* const links = session_->node_links(); links != nullptr && function_->signature.has_comm) [[unlikely]]
      links->prepare(ranks.empty() ? session_->all_ranks() : set_of(ranks));
    state.command =
        &(ranks.empty() ? commands.next_command(session_->all_ranks()) : commands.next_command(set_of(ranks)));
    state.settled.emplace(commands.waits_so_far());
    state.slot = &session_->calls().next_slot();
    state.call = &state.command->begin<protocol::CallPayload>();
    state.in_flight = &session_->calls().next_in_flight();
    state.in_flight->function = function;
    if (choice != nullptr) state.call->wanted_outputs = choice->mask;
  } catch (...) {
    state.~State();
    throw;
  }
}

protocol::RankSet CallBuilder::set_of(std::span<const int> ranks) const {
  protocol::RankSet set;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= session_->world_size()) {
      text::throw_usage("on_rank requires a rank from 0 to " + std::to_string(session_->world_size() - 1) + ", got " +
                        std::to_string(rank));
    }
    set.add(rank);
  }
  return set;
}

CallBuilder::~CallBuilder() {
  State& state = this->state();
  if (!state.is_published) session_->commands().discard_next();
  state.~State();
}

// ---- arguments ------------------------------------------------------------------------------------------------

void CallBuilder::add_data(const std::shared_ptr<master::records::DataRecord>& data, DataRows rows) {
  State& state = this->state();
  const std::size_t index = arguments_++;
  const ArgumentType& type = function_->signature.arguments[index];
  if (!data) text::throw_usage(master::calls::describe_argument(*function_, index) + kMovedFrom);
  if (data->session.get() != session_) {
    text::throw_usage(master::calls::describe_argument(*function_, index, data->name) + " is of another session");
  }
  if (data->is_open_for_writing) {
    text::throw_usage(master::calls::describe_argument(*function_, index, data->name) +
                      " is open for writing: end the write guard first");
  }
  if (data->file) data->file->file().check_unchanged();
  state.slot->arguments[index] = {.kind = type.kind,
                                  .dtype = type.dtype,
                                  .dimensions = type.dimensions,
                                  .is_minibatch = rows == DataRows::of_the_batch,
                                  .offset = data->offset,
                                  .file = data->file ? data->file->entry() : 0,
                                  .extents = data->extents};
  if (!data->rows_on_nodes.empty()) [[unlikely]]
    state.has_rows_on_nodes = true;
  if (type.kind == ArgumentKind::scattered) state.rows.add_scattered(*function_, *data, index, rows);
  state.in_flight->arguments[index].data = data;
  state.in_flight->arguments_count = index + 1;
}

void CallBuilder::add_value(const void* value, std::size_t bytes) { put_bytes(value, bytes, bytes); }

void CallBuilder::add_text(std::optional<std::string_view> text) {
  if (!text) {
    text::throw_usage(master::calls::describe_argument(*function_, arguments_) +
                      " requires a text, got a null pointer: pass \"\" for an empty text");
  }
  put_bytes(text->data(), text->size(), text->size());
}

void CallBuilder::add_per_worker(const void* values, std::size_t count, std::size_t bytes_each) {
  if (count != static_cast<std::size_t>(session_->world_size())) {
    text::throw_usage(master::calls::describe_argument(*function_, arguments_) + " requires one value per rank, " +
                      std::to_string(session_->world_size()) + " in all, got " + std::to_string(count));
  }
  put_bytes(values, count * bytes_each, bytes_each);
}

/// Small values are stored in the command itself, large ones in the heap.
void CallBuilder::put_bytes(const void* bytes, std::size_t count, std::size_t bytes_each) {
  State& state = this->state();
  const std::size_t index = arguments_++;
  std::byte* to = nullptr;
  if (state.inline_used + count <= protocol::kInlineBytes) {
    to = state.slot->bytes.data() + state.inline_used;
    state.inline_used += (count + 15) / 16 * 16;
  } else {
    to = session_->segment().at(
        session_->memory().allocate(count, "the arguments of a call", state.in_flight->temporaries));
  }
  state.slot->arguments[index] = {.kind = function_->signature.arguments[index].kind,
                                  .offset = session_->segment().offset_of(to),
                                  .bytes = bytes_each};
  if (count != 0) std::memcpy(to, bytes, count);
}

/// Checks that every rank of the call has a copy, possibly with zero rows, because the body gets a view of it.
void CallBuilder::check_assigned(const master::records::VariableRecord& variable, std::size_t argument) {
  const protocol::RankSet& ranks = state().command->ranks;
  const master::records::Settled& settled = *state().settled;
  const master::records::AssignedRanks& assigned = variable.copies(settled).assigned;
  if (assigned.all()) return;
  for (const int rank : ranks) {
    if (assigned.has(static_cast<std::size_t>(rank))) continue;
    text::throw_usage(master::calls::describe_argument(*function_, argument) + ": variable " +
                      master::records::not_assigned(variable, settled, ranks));
  }
}

/// After a wait, the arguments so far may no longer be as they were checked. Returns whether something has changed.
bool CallBuilder::check_again() {
  State& state = this->state();
  if (state.settled->renew()) return false;
  for (std::size_t i = 0; i < state.in_flight->arguments_count; ++i) {
    const auto& variable = state.in_flight->arguments[i].variable;
    if (variable && !variable->value) check_assigned(*variable, i);
  }
  return true;
}

/// The call reads rows of a Value, so it requires the extents.
void CallBuilder::settle(master::records::VariableRecord& value) {
  if (value.value->maker == 0) return;
  master::dispatch::CommandDispatcher::Pause pause(session_->commands());
  master::values::settle_extents(session_->commands(), value);
  pause.end();
  check_again();
}

void CallBuilder::add_variable(const std::shared_ptr<master::records::VariableRecord>& variable) {
  State& state = this->state();
  const std::size_t index = arguments_++;
  const ArgumentType& type = function_->signature.arguments[index];
  if (!variable) text::throw_usage(master::calls::describe_argument(*function_, index) + kMovedFrom);
  if (variable->session.get() != session_) {
    text::throw_usage(master::calls::describe_argument(*function_, index, variable->name) + " is of another session");
  }
  if (variable->value) {
    state.has_values = true;
    if (type.kind == ArgumentKind::sliced) settle(*variable);
  } else {
    check_assigned(*variable, index);
  }
  for (std::size_t other = 0; other < index; ++other) {
    const bool repeats = state.in_flight->arguments[other].variable == variable;
    const bool writes =
        type.kind == ArgumentKind::update || function_->signature.arguments[other].kind == ArgumentKind::update;
    if (repeats && writes) {
      text::throw_usage(master::calls::describe_argument(*function_, index, variable->name) +
                        " is the variable of argument " + std::to_string(other) +
                        " as well: a variable that is updated stands once in a call");
    }
  }
  state.slot->arguments[index] = {.kind = type.kind,
                                  .dtype = type.dtype,
                                  .reduction = type.reduction,
                                  .dimensions = type.dimensions,
                                  .offset = variable->entry};
  if (type.kind == ArgumentKind::sliced) state.rows.add_sliced(*variable, index);
  state.in_flight->arguments[index].variable = variable;
  state.in_flight->arguments_count = index + 1;
}

// ---- publication ----------------------------------------------------------------------------------------------

/// Returns a failure instead if the call depends on a failed one that the program has not seen.
std::exception_ptr CallBuilder::publish(CallResult& result) {
  State& state = this->state();
  protocol::CommandHead& command = *state.command;
  const master::records::FunctionRecord& function = *function_;
  const master::devices::RankDevices& devices = session_->rank_devices();
  master::calls::check_bodies(function.name, function.kinds, devices, command.ranks);
  if (function.object && function.object->failure) [[unlikely]]
    return function.object->failure;
  if (function.object && function.object->history && !function.object->renewed.empty()) [[unlikely]] {
    text::throw_usage(function.name + ": rank " + std::to_string(function.object->renewed.front()) +
                      " is a new worker, whose object was constructed anew. " + function.object->history->advice);
  }
  protocol::CallPayload& call = *state.call;
  call.function = function.entry;
  call.object = function.object ? function.object->id : 0;
  call.arguments_count = static_cast<std::uint8_t>(function.signature.arguments.size());
  call.outputs_count = static_cast<std::uint8_t>(function.signature.outputs.size());
  command.has_comm = function.signature.has_comm;
  master::devices::CommTable& comms = session_->commands().comms();
  command.comm = comms.choose(command.ranks);
  command.wants_vote = function.has_updates || (command.has_comm && comms.is_nccl(command.comm, command.ranks));
  std::copy(function.signature.outputs.begin(), function.signature.outputs.end(), state.slot->outputs.begin());
  if (options_->timeout) {
    if (options_->timeout->count() < 0) {
      text::throw_usage("CallOptions::timeout is at least 0, got " + std::to_string(options_->timeout->count()) +
                        " ms");
    }
    command.timeout_ms = std::min(*options_->timeout, os::Patience::kLongestLimit).count();
  }
  CallValues values(session_->commands(), session_->logger(), function, *state.in_flight);
  if (state.has_values) {  // a Value that was lost has no rows
    if (const auto failure = values.check(command.ranks)) return failure;
  }
  find_rows();
  if (function.keeps_outputs) values.make(call, command.ranks, result, *state.slot);
  if (state.has_values) {
    if (const auto failure = values.bring(command.ranks)) return failure;
    if (check_again()) find_rows();  // bring() may have waited
  }
  call.is_first = function.came_through_after != session_->commands().replacements();
  if (const auto failure = take_dependencies()) return failure;
  if (state.has_values) values.depend(command.ranks);
  state.settled->check();                                                    // nothing has waited since the last check
  if (command.comm.is_linked()) command.comm = comms.choose(command.ranks);  // a wait may have replaced workers
  const std::uint64_t id = session_->commands().publish();
  state.is_published = true;
  if (state.has_values || function.keeps_outputs) values.note(command.ranks, id);
  state.in_flight->for_each_written(
      [&](master::records::WriteLog& writes) { session_->calls().note_write(writes, id); });
  return nullptr;
}

/// Determines the rows of the call from what is known now.
void CallBuilder::find_rows() {
  State& state = this->state();
  protocol::CallPayload& call = *state.call;
  state.rows.finish(*state.settled, *function_, state.command->ranks, session_->weights(), session_->settings().nodes,
                    *options_, session_->memory(), call, state.in_flight->temporaries);
  if (state.has_rows_on_nodes) [[unlikely]]
    check_rows_there();
  if (call.is_measured) check_measurable();
}

/// Refuses a call whose ranks read rows that are not on their node.
void CallBuilder::check_rows_there() {
  const State& state = this->state();
  for (std::size_t i = 0; i < function_->signature.arguments.size(); ++i) {
    const protocol::ArgumentSlot& slot = state.slot->arguments[i];
    if (slot.kind != ArgumentKind::scattered && slot.kind != ArgumentKind::broadcast) continue;
    const master::records::DataRecord& data = *state.in_flight->arguments[i].data;
    if (data.rows_on_nodes.empty()) continue;
    master::data::check_rows_on_nodes(data, master::calls::describe_argument(*function_, i, data.name), slot,
                                      session_->segment(), *state.call, state.command->ranks,
                                      session_->settings().nodes);
  }
}

/// Balance requires a time per row of each rank of the session.
void CallBuilder::check_measurable() {
  const State& state = this->state();
  const protocol::RankSet& ranks = state.command->ranks;
  const master::records::FunctionRecord& function = *function_;
  if (ranks.count() != session_->world_size()) {
    text::throw_usage("balance measures all " + std::to_string(session_->world_size()) + " ranks, but '" +
                      function.name + "' runs on " + std::to_string(ranks.count()) +
                      ": pass the function without on_rank or on");
  }
  const bool has_gpus = session_->rank_devices().kinds_of(ranks).has(DeviceKind::cuda);
  if (function.signature.has_comm && has_gpus && !ranks.is_single()) {
    text::throw_usage(
        "balance requires the time of a body without its collectives, but '" + function.name +
        "' has a Comm& and runs on GPUs, where collectives are part of the stream: pass a function without a "
        "Comm& that computes the same rows");
  }
  state.rows.check_measurable(*state.settled, function, ranks, *options_, *state.call);
}

/// The call depends on the calls that wrote what it uses. Returns a failure among these that the program has not seen.
std::exception_ptr CallBuilder::take_dependencies() {
  master::dispatch::CommandDispatcher& commands = session_->commands();
  std::exception_ptr failure;
  const auto depend_on = [&](const master::records::WriteLog& writes) {
    if (writes.calls.empty() && writes.failures.empty()) return;
    if (const auto unseen = commands.depend_on(writes); unseen && !failure) failure = unseen;
  };
  const auto& types = function_->signature.arguments;
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (!master::records::is_variable(types[i].kind)) continue;
    const master::records::VariableRecord& variable = *state().in_flight->arguments[i].variable;
    if (variable.value) continue;  // CallValues does it
    depend_on(variable.writes);
    if (master::records::is_written(types[i].kind) && !variable.writes.copies.empty())
      commands.wait_for_copies(variable.writes);
  }
  if (function_->object) depend_on(function_->object->writes);
  return failure;
}

void CallBuilder::run(CallResult& result) {
  state().in_flight->result = &result;
  result.error = publish(result);
  if (!result.error) session_->commands().await(session_->calls().last_published());
  if (!result.error) return;
  session_->calls().failures().has_surfaced(result.error);
  std::rethrow_exception(result.error);
}

std::vector<double> CallBuilder::measure() {
  State& state = this->state();
  state.call->is_measured = true;
  CallResult result;
  run(result);
  // The outboxes stay as they are until the master publishes another command.
  std::vector<double> ns_per_row;
  for (int rank = 0; rank < session_->world_size(); ++rank) {
    const protocol::Outbox& outbox = session_->control().outbox(*state.slot, rank);
    ns_per_row.push_back(static_cast<double>(std::max<std::int64_t>(outbox.own_ns, 1)) /
                         static_cast<double>(outbox.rows));
  }
  return ns_per_row;
}

std::shared_ptr<CallResult> CallBuilder::launch() {
  auto result = std::make_shared<CallResult>();
  state().in_flight->result = result.get();
  state().in_flight->kept_result = result;
  result->error = publish(*result);
  if (result->error) {
    master::records::UnseenFailures& failures = session_->calls().failures();
    failures.note_unfetched(result->error, result);
    // As if the call had run and failed: calls that use what it was to write fail too.
    const auto failure = failures.note(result->error);
    const protocol::RankSet& ranks = state().command->ranks;
    state().in_flight->for_each_written([&](master::records::WriteLog& writes) {
      writes.failures.push_back({ranks, failure});
    });
  }
  result->finished = result->error != nullptr;
  return result;
}

}  // namespace syncrun::detail
