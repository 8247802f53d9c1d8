// Values, on the master's side: what the handles call.

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/arrays/extents.hpp"
#include "common/os/memory_limit.hpp"
#include "common/protocol/variable_entry.hpp"
#include "common/text/errors.hpp"
#include "common/text/numbers.hpp"
#include "launcher/api/call_values.hpp"
#include "launcher/data/mapped_data.hpp"
#include "launcher/data/rows_on_nodes.hpp"
#include "launcher/records/variables.hpp"
#include "launcher/session/session_core.hpp"
#include "launcher/values/value_copies.hpp"
#include "launcher/variables/transfers.hpp"
#include "syncrun/asynchronous.hpp"
#include "syncrun/device.hpp"
#include "syncrun/device_memory.hpp"

namespace syncrun::detail {

namespace {

using Entry = SessionCore::Entry;

/// Memory of the host for a value is checked against the limit from this size on.
constexpr std::size_t kHostCopyCheckedFrom = std::size_t{8} << 20U;

void check_is_of_session(const SessionCore& session, const Device& device, const char* what) {
  check_rank(session.world_size(), device.rank(), what);
}

std::shared_ptr<VariableRecord> make_known(const std::shared_ptr<SessionCore>& session, DType dtype,
                                           std::span<const std::int64_t> extents, std::string_view name) {
  auto record = make_value_record(session, dtype, extents.size(), name);
  std::copy(extents.begin(), extents.end(), record->value->extents.begin());
  return record;
}

/// Memory of the host for values of this size. `name` is that of the Value.
HostCopy make_host_copy(SessionCore& session, std::size_t bytes, const std::string& name) {
  const std::string what = "the host copy of value '" + name + "'";
  if (bytes >= kHostCopyCheckedFrom) check_memory_available(bytes, what);
  HostCopy host;
  host.offset = session.commands().allocate(bytes, SharedHeap::Contents::any, what);
  session.heap().send_by_rows(host.offset);
  host.bytes = bytes;
  host.is_valid = true;
  return host;
}

/// A new Value gets memory of the host for its values.
std::byte* give_host_copy(SessionCore& session, VariableRecord& record) {
  record.value->host = make_host_copy(session, bytes_of(record, record.value->extents), record.name);
  return session.segment().at(record.value->host.offset);
}

/// Whether the worker may free the copy now. Workers of other nodes do not know which copies they may free.
bool can_be_dropped(const SessionCore& session, VariableCopy& copy, int rank) noexcept {
  return session.node_of(rank) == 0 && SpareCopy(copy).is_spare();
}

/// How many bytes the worker of the rank could free now.
std::size_t spare_bytes_on(SessionCore& session, int rank) {
  std::size_t bytes = 0;
  session.registry().for_each_variable([&](const VariableRecord& variable) {
    VariableCopy& copy = session.segment().at<VariableEntry>(variable.entry)->copies()[rank];
    if (can_be_dropped(session, copy, rank)) bytes += copy.capacity_bytes;
  });
  return bytes;
}

/// Called before a copy comes to a rank. Checks the memory limit before the worker allocates, if the size is known and
/// the memory is that of this machine.
void check_memory_for_copy(SessionCore& session, const VariableRecord& variable, int rank) {
  if (variable.value->maker != 0 || session.rank_devices().kind_of(rank) != DeviceKind::cpu) return;
  if (session.node_of(rank) != 0) return;
  const std::size_t bytes = bytes_of(variable, variable.value->extents);
  const VariableCopy& copy = session.segment().at<VariableEntry>(variable.entry)->copies()[rank];
  if (bytes < kHostCopyCheckedFrom || bytes <= copy.capacity_bytes) return;
  const std::string what = "the copy of value '" + variable.name + "' on rank " + std::to_string(rank);
  const auto check = [&] { check_memory_available(bytes, spare_bytes_on(session, rank), what); };
  try {
    return check();
  } catch (const Error&) {
    session.commands().drain_all();  // workers may be about to free what the program no longer needs
  }
  check();
}

/// Brings a copy to the rank, unless it has one. The copy is needed until the next mark_spare_copies().
void bring(SessionCore& session, const std::shared_ptr<VariableRecord>& variable, int rank) {
  if (claim_copy(session.commands(), *variable, rank)) return;
  check_memory_for_copy(session, *variable, rank);
  const std::string warning = bring_copy(session.commands(), variable, rank);
  if (!warning.empty()) session.logger().warn(warning);
}

/// Brings the values of a new Value to the rank. The memory of the host is freed when they have arrived.
void bring_and_forget_host(SessionCore& session, const std::shared_ptr<VariableRecord>& variable, int rank) {
  bring(session, variable, rank);
  HostCopy& host = variable->value->host;
  session.calls().in_flight(session.calls().last_published()).temporaries.push_back(host.offset);
  host = {};
  variable->value->copies[static_cast<std::size_t>(rank)].source = ValueState::kNowhere;
  mark_spare_copies(session.commands(), *variable);
}

/// A copy, and how the master gets the values of it.
struct Reach {
  int place;              // a rank or kHost
  bool is_memory;         // the master can read it as soon as `written` is over. Else it needs a command of the rank
  std::uint64_t written;  // the last command that writes it
  std::size_t calls;      // for which it waits
};

/// A host copy that is on its way may be left out.
enum class HostCopies : std::uint8_t { all, only_complete };

/// The copy whose values the master gets soonest. The master reads the memory of CPU devices of its own machine. They may
/// run calls meanwhile: a call in flight that writes the value has left no other copy valid.
Reach nearest_copy(SessionCore& session, VariableRecord& variable, HostCopies host_copies = HostCopies::all) {
  const CallTable& calls = session.calls();
  const ValueState& value = *variable.value;
  std::optional<Reach> nearest;
  const auto consider = [&](const Reach& other) {
    const auto cost = [&](const Reach& reach) {
      return 2 * reach.calls + (reach.is_memory && !calls.is_in_flight(reach.written) ? 0 : 1);
    };
    if (!nearest || cost(other) < cost(*nearest)) nearest = other;
  };
  // A wait for a command of the rank deals with a loss.
  const bool has_lost_worker = session.commands().has_lost_worker();
  const auto consider_rank = [&](int rank) {
    const ValueCopy& copy = value.copies[static_cast<std::size_t>(rank)];
    if (!copy.is_valid) return;
    const bool is_cpu = session.rank_devices().kind_of(rank) == DeviceKind::cpu;
    const bool is_memory = is_cpu && session.node_of(rank) == 0 && !has_lost_worker;
    const std::uint64_t last = is_memory ? copy.written : calls.last_published();
    consider({rank, is_memory, copy.written, calls.unfinished_calls_on(rank, last)});
  };
  const HostCopy& host = value.host;
  const int home = claim_home(session.commands(), variable);
  const Reach on_host{ValueState::kHost, true, host.written, calls.unfinished_calls_on(host.written_by, host.written)};
  if (host.is_valid && (host_copies == HostCopies::all || !calls.is_in_flight(host.written))) consider(on_host);
  if (home != ValueState::kHost) consider_rank(home);
  for (const int rank : session.all_ranks()) consider_rank(rank);
  return nearest.value_or(on_host);
}

/// The memory of a copy that the master can read, and that has its values. Null if the worker has dropped it.
const std::byte* claim_memory(SessionCore& session, VariableRecord& variable, int place) {
  if (place == ValueState::kHost) return session.segment().at(variable.value->host.offset);
  if (!claim_copy(session.commands(), variable, place)) return nullptr;
  return session.segment().at(session.segment().at<VariableEntry>(variable.entry)->copies()[place].place);
}

/// The result of a fetch of values that the master can read.
std::shared_ptr<CallResult> fetched_from(const VariableRecord& variable, const std::byte* memory) {
  auto result = std::make_shared<CallResult>();
  result->outputs.resize(1);
  result->outputs[0].extents = variable.value->extents;
  const std::size_t bytes = bytes_of(variable, variable.value->extents);
  result->outputs[0].buffer = allocate_on_heap(bytes);
  if (bytes != 0) std::memcpy(result->outputs[0].buffer.data(), memory, bytes);
  result->finished = true;
  return result;
}

}  // namespace

std::shared_ptr<VariableRecord> make_value_record(const std::shared_ptr<SessionCore>& session, DType dtype,
                                                  std::size_t dimensions, std::string_view name) {
  const auto world_size = static_cast<std::size_t>(session->world_size());
  auto record = std::make_shared<VariableRecord>();
  record->entry =
      session->heap().allocate(VariableEntry::bytes(session->world_size()), SharedHeap::Contents::zero, "a value");
  record->session = session;
  record->dtype = dtype;
  record->dimensions = static_cast<std::uint8_t>(dimensions);
  record->copies.change() = CopyFacts(world_size);
  record->value = std::make_unique<ValueState>(world_size);
  auto& entry = *session->segment().at<VariableEntry>(record->entry);
  entry.id = session->registry().new_id();
  entry.dtype = dtype;
  entry.dimensions = record->dimensions;
  record->name = name.empty() ? "value #" + std::to_string(entry.id) : std::string(name);
  session->registry().add(record);
  return record;
}

std::shared_ptr<VariableRecord> make_value(const std::shared_ptr<SessionCore>& session, DType dtype,
                                           std::span<const std::int64_t> extents, const void* values,
                                           const Device* device, std::string_view name) {
  const Entry guard(*session);
  if (device != nullptr) check_is_of_session(*session, *device, "value()");
  auto record = make_known(session, dtype, extents, name);
  std::byte* const to = give_host_copy(*session, *record);
  if (record->value->host.bytes != 0) std::memcpy(to, values, record->value->host.bytes);
  if (device != nullptr) bring_and_forget_host(*session, record, device->rank());
  return record;
}

std::shared_ptr<VariableRecord> make_value(const std::shared_ptr<SessionCore>& session,
                                           const std::shared_ptr<DataRecord>& data, const Device* device,
                                           std::string_view name) {
  const Entry guard(*session);
  if (data->session != session) throw_usage("value(): the Data is of another session");
  if (data->is_open_for_writing) throw_usage("value(): the Data is open for writing: end the write guard first");
  check_has_all_rows(*data);
  if (device != nullptr) check_is_of_session(*session, *device, "value()");
  auto record = make_known(session, data->dtype, {data->extents.data(), data->dimensions}, name);
  std::byte* const to = give_host_copy(*session, *record);
  const std::size_t bytes = record->value->host.bytes;
  if (data->file) {
    data->file->file().read(0, to, bytes);
    data->file->file().check_unchanged();
  } else if (bytes != 0) {
    std::memcpy(to, session->segment().at(data->offset), bytes);
  }
  if (device != nullptr) bring_and_forget_host(*session, record, device->rank());
  return record;
}

void bring_value(const std::shared_ptr<VariableRecord>& variable, const Device& device) {
  SessionCore& session = *variable->session;
  const Entry guard(session);
  check_is_of_session(session, device, "to()");
  check_is_usable(session.commands(), *variable);
  const auto& pinned = variable->value->pinned;
  if (pinned && *pinned != device.rank()) {
    throw_usage("value '" + variable->name + "' is pinned to rank " + std::to_string(*pinned) +
                ": unpin it before you bring it to rank " + std::to_string(device.rank()));
  }
  bring(session, variable, device.rank());
  mark_spare_copies(session.commands(), *variable);
}

void bring_value_to_host(const std::shared_ptr<VariableRecord>& variable) {
  SessionCore& session = *variable->session;
  const Entry guard(session);
  check_is_usable(session.commands(), *variable);
  settle_extents(session.commands(), *variable);
  bring_to_host(session.commands(), variable);
  mark_spare_copies(session.commands(), *variable);
}

Extents extents_of_value(VariableRecord& variable) {
  SessionCore& session = *variable.session;
  const Entry guard(session);
  settle_extents(session.commands(), variable);
  return variable.value->extents;
}

void set_value(const std::shared_ptr<VariableRecord>& variable, std::span<const std::int64_t> extents,
               const void* values) {
  SessionCore& session = *variable->session;
  const Entry guard(session);
  Extents all{};
  std::copy(extents.begin(), extents.end(), all.begin());
  const HostCopy host = make_host_copy(session, checked_bytes(variable->dtype, extents), variable->name);
  if (host.bytes != 0) std::memcpy(session.segment().at(host.offset), values, host.bytes);
  replace_values(session.commands(), *variable, all, host);
  if (!variable->value->pinned) return;
  bring(session, variable, *variable->value->pinned);
  mark_spare_copies(session.commands(), *variable);
}

void get_value(const std::shared_ptr<VariableRecord>& variable, void* values) {
  SessionCore& session = *variable->session;
  const Entry guard(session);
  CommandRunner& commands = session.commands();
  check_is_usable(commands, *variable);
  settle_extents(commands, *variable);
  const std::size_t bytes = bytes_of(*variable, variable->value->extents);
  if (bytes == 0) return;
  for (;;) {
    check_is_usable(commands, *variable);  // again: each wait may collect a failure, or deal with a loss
    const Reach from = nearest_copy(session, *variable);
    if (from.is_memory && session.calls().is_in_flight(from.written)) {
      commands.await(from.written);
    } else if (from.is_memory) {
      const std::byte* const memory = claim_memory(session, *variable, from.place);
      if (memory == nullptr) continue;
      std::memcpy(values, memory, bytes);
      break;
    } else if (claim_copy(commands, *variable, from.place) && !commands.make_room(RankSet::only(from.place))) {
      const FetchedCopy copy(commands, *variable, from.place, "get");
      std::memcpy(values, copy.values(), bytes);
      break;
    }
  }
  mark_spare_copies(commands, *variable);
}

Fetched launch_get_value(const std::shared_ptr<VariableRecord>& variable) {
  SessionCore& session = *variable->session;
  const Entry guard(session);
  CommandRunner& commands = session.commands();
  check_is_usable(commands, *variable);
  settle_extents(commands, *variable);
  std::shared_ptr<CallResult> result;
  while (!result) {
    check_is_usable(commands, *variable);  // again, as in get_value()
    const Reach from = nearest_copy(session, *variable, HostCopies::only_complete);
    const bool is_over = !session.calls().is_in_flight(from.written);
    if (from.is_memory && is_over) {
      const std::byte* const memory = claim_memory(session, *variable, from.place);
      if (memory != nullptr) result = fetched_from(*variable, memory);
    } else if (from.place == ValueState::kHost) {
      commands.await(from.written);
    } else if (claim_copy(commands, *variable, from.place) && !commands.make_room(RankSet::only(from.place))) {
      result = launch_fetch(commands, variable, from.place);
    }
  }
  mark_spare_copies(commands, *variable);
  return {variable->session, std::move(result)};
}

std::vector<Device> devices_with(const VariableRecord& variable) {
  const Entry guard(*variable.session);
  std::vector<Device> devices;
  VariableCopy* const copies = variable.session->segment().at<VariableEntry>(variable.entry)->copies();
  for (const int rank : variable.session->all_ranks()) {
    const bool is_valid = variable.value->copies[static_cast<std::size_t>(rank)].is_valid;
    if (is_valid && !SpareCopy(copies[rank]).was_dropped()) devices.push_back(device_of(*variable.session, rank));
  }
  return devices;
}

bool is_on_host(const VariableRecord& variable) {
  const Entry guard(*variable.session);
  return variable.value->host.is_valid;
}

void pin_value(const std::shared_ptr<VariableRecord>& variable, const Device& device) {
  SessionCore& session = *variable->session;
  const Entry guard(session);
  check_is_of_session(session, device, "pin()");
  check_is_usable(session.commands(), *variable);
  bring(session, variable, device.rank());
  variable->value->pinned = device.rank();
  mark_spare_copies(session.commands(), *variable);  // but not this copy
}

DeviceMemory memory_of(SessionCore& session, const Device& device) {
  const Entry guard(session);
  check_is_of_session(session, device, "memory()");
  const int rank = device.rank();
  const HeapLoan size(session.commands(), sizeof(MemorySize), "the size of a device's memory");
  CommandRunner& commands = session.commands();
  commands.run_system(commands.settle(RankSet::only(rank)), "memory", "",
                      [&](CommandHead& command, InFlight&) { command.begin<MemoryPayload>().to = size.offset(); });
  session.commands().collect_complete();  // copies that have arrived may take the place of others
  const auto& reported = *session.segment().at<MemorySize>(size.offset());
  DeviceMemory memory{.total_bytes = reported.total_bytes, .free_bytes = reported.free_bytes, .arrays = {}};
  session.registry().for_each_variable([&](const VariableRecord& variable) {
    VariableCopy& copy = session.segment().at<VariableEntry>(variable.entry)->copies()[rank];
    if (copy.capacity_bytes == 0) return;
    memory.arrays.push_back({.name = variable.name,
                             .bytes = copy.capacity_bytes,
                             .is_value = variable.value != nullptr,
                             .can_be_dropped = can_be_dropped(session, copy, rank)});
  });
  std::stable_sort(memory.arrays.begin(), memory.arrays.end(),
                   [](const ArrayInMemory& a, const ArrayInMemory& b) { return a.bytes > b.bytes; });
  return memory;
}

void expect_moves(VariableRecord& variable) {
  const Entry guard(*variable.session);
  variable.value->moves_are_expected = true;
}

void set_name(VariableRecord& value, std::string_view name) {
  const Entry guard(*value.session);
  value.name = std::string(name);
}

void unpin_value(VariableRecord& variable) {
  const Entry guard(*variable.session);
  variable.value->pinned.reset();
  mark_spare_copies(variable.session->commands(), variable);
}

bool replaces_lost_workers(const SessionCore& session) noexcept {
  return session.settings().on_worker_lost == OnWorkerLost::respawn;
}

void restore_value(const std::shared_ptr<VariableRecord>& variable, const void* values) noexcept try {
  SessionCore& session = *variable->session;
  const Entry guard(session);
  const ValueState& value = *variable->value;
  if (!value.failure) return;
  const HostCopy host = make_host_copy(session, bytes_of(*variable, value.extents), variable->name);
  if (host.bytes != 0) std::memcpy(session.segment().at(host.offset), values, host.bytes);
  replace_values(session.commands(), *variable, value.extents, host);
} catch (const std::exception&) {
  // The value stays lost, and says so.
}

void check_rounds(const char* what, std::span<const Device> devices, std::int64_t rounds) {
  if (devices.empty()) throw_usage(std::string(what) + " requires one device or more, got none");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (std::size_t other = 0; other < i; ++other) {
      if (devices[other].asked_for() == devices[i].asked_for()) {
        throw_usage(std::string(what) + " requires each device once, got '" + devices[i].asked_for() + "' twice");
      }
    }
  }
  if (rounds < 0) throw_usage(std::string(what) + ": rounds is at least 0, got " + std::to_string(rounds));
}

void check_moving_rate(double rate) {
  if (rate > 0 && rate <= 1) return;
  throw_usage("easgd: moving_rate is above 0 and at most 1, got " + number_text(rate));
}

}  // namespace syncrun::detail
