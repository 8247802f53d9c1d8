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
#include "master/api/call_values.hpp"
#include "master/data/mapped_data.hpp"
#include "master/data/rows_on_nodes.hpp"
#include "master/records/variables.hpp"
#include "master/session/session_core.hpp"
#include "master/values/value_copies.hpp"
#include "master/variables/transfers.hpp"
#include "syncrun/asynchronous.hpp"
#include "syncrun/device.hpp"
#include "syncrun/device_memory.hpp"

namespace syncrun::detail {

namespace {

using Entry = master::session::SessionCore::Entry;

/// Memory of the host for a value is checked against the limit from this size on.
constexpr std::size_t kHostCopyCheckedFrom = std::size_t{8} << 20U;

void check_is_of_session(const master::session::SessionCore& session, const Device& device, const char* what) {
  master::records::check_rank(session.world_size(), device.rank(), what);
}

std::shared_ptr<master::records::VariableRecord> make_known(
    const std::shared_ptr<master::session::SessionCore>& session, DType dtype, std::span<const std::int64_t> extents,
    std::string_view name) {
  auto record = make_value_record(session, dtype, extents.size(), name);
  std::copy(extents.begin(), extents.end(), record->value->extents.begin());
  return record;
}

/// Memory of the host for values of this size. `name` is that of the Value.
master::records::HostCopy make_host_copy(master::session::SessionCore& session, std::size_t bytes,
                                         const std::string& name) {
  const std::string what = "the host copy of value '" + name + "'";
  if (bytes >= kHostCopyCheckedFrom) os::check_memory_available(bytes, what);
  master::records::HostCopy host;
  host.offset = session.commands().allocate(bytes, os::SharedHeap::Contents::any, what);
  session.heap().send_by_rows(host.offset);
  host.bytes = bytes;
  host.is_valid = true;
  return host;
}

/// A new Value gets memory of the host for its values.
std::byte* give_host_copy(master::session::SessionCore& session, master::records::VariableRecord& record) {
  record.value->host = make_host_copy(session, master::records::bytes_of(record, record.value->extents), record.name);
  return session.segment().at(record.value->host.offset);
}

/// Whether the worker may free the copy now. Workers of other nodes do not know which copies they may free.
bool can_be_dropped(const master::session::SessionCore& session, protocol::VariableCopy& copy, int rank) noexcept {
  return session.node_of(rank) == 0 && protocol::SpareCopy(copy).is_spare();
}

/// How many bytes the worker of the rank could free now.
std::size_t spare_bytes_on(master::session::SessionCore& session, int rank) {
  std::size_t bytes = 0;
  session.registry().for_each_variable([&](const master::records::VariableRecord& variable) {
    protocol::VariableCopy& copy = session.segment().at<protocol::VariableEntry>(variable.entry)->copies()[rank];
    if (can_be_dropped(session, copy, rank)) bytes += copy.capacity_bytes;
  });
  return bytes;
}

/// Called before a copy comes to a rank. Checks the memory limit before the worker allocates, if the size is known and
/// the memory is that of this machine.
void check_memory_for_copy(master::session::SessionCore& session, const master::records::VariableRecord& variable,
                           int rank) {
  if (variable.value->maker != 0 || session.rank_devices().kind_of(rank) != DeviceKind::cpu) return;
  if (session.node_of(rank) != 0) return;
  const std::size_t bytes = master::records::bytes_of(variable, variable.value->extents);
  const protocol::VariableCopy& copy = session.segment().at<protocol::VariableEntry>(variable.entry)->copies()[rank];
  if (bytes < kHostCopyCheckedFrom || bytes <= copy.capacity_bytes) return;
  const std::string what = "the copy of value '" + variable.name + "' on rank " + std::to_string(rank);
  const auto check = [&] { os::check_memory_available(bytes, spare_bytes_on(session, rank), what); };
  try {
    return check();
  } catch (const Error&) {
    session.commands().drain_all();  // workers may be about to free what the program no longer needs
  }
  check();
}

/// Brings a copy to the rank, unless it has one. The copy is needed until the next mark_spare_copies().
void bring(master::session::SessionCore& session, const std::shared_ptr<master::records::VariableRecord>& variable,
           int rank) {
  if (master::values::claim_copy(session.commands(), *variable, rank)) return;
  check_memory_for_copy(session, *variable, rank);
  const std::string warning = master::values::bring_copy(session.commands(), variable, rank);
  if (!warning.empty()) session.logger().warn(warning);
}

/// Brings the values of a new Value to the rank. The memory of the host is freed when they have arrived.
void bring_and_forget_host(master::session::SessionCore& session,
                           const std::shared_ptr<master::records::VariableRecord>& variable, int rank) {
  bring(session, variable, rank);
  master::records::HostCopy& host = variable->value->host;
  session.calls().in_flight(session.calls().last_published()).temporaries.push_back(host.offset);
  host = {};
  variable->value->copies[static_cast<std::size_t>(rank)].source = master::records::ValueState::kNowhere;
  master::values::mark_spare_copies(session.commands(), *variable);
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
Reach nearest_copy(master::session::SessionCore& session, master::records::VariableRecord& variable,
                   HostCopies host_copies = HostCopies::all) {
  const master::calls::CommandTable& calls = session.calls();
  const master::records::ValueState& value = *variable.value;
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
    const master::records::ValueCopy& copy = value.copies[static_cast<std::size_t>(rank)];
    if (!copy.is_valid) return;
    const bool is_cpu = session.rank_devices().kind_of(rank) == DeviceKind::cpu;
    const bool is_memory = is_cpu && session.node_of(rank) == 0 && !has_lost_worker;
    const std::uint64_t last = is_memory ? copy.written : calls.last_published();
    consider({rank, is_memory, copy.written, calls.unfinished_calls_on(rank, last)});
  };
  const master::records::HostCopy& host = value.host;
  const int home = master::values::claim_home(session.commands(), variable);
  const Reach on_host{master::records::ValueState::kHost, true, host.written,
                      calls.unfinished_calls_on(host.written_by, host.written)};
  if (host.is_valid && (host_copies == HostCopies::all || !calls.is_in_flight(host.written))) consider(on_host);
  if (home != master::records::ValueState::kHost) consider_rank(home);
  for (const int rank : session.all_ranks()) consider_rank(rank);
  return nearest.value_or(on_host);
}

/// The memory of a copy that the master can read, and that has its values. Null if the worker has dropped it.
const std::byte* claim_memory(master::session::SessionCore& session, master::records::VariableRecord& variable,
                              int place) {
  if (place == master::records::ValueState::kHost) return session.segment().at(variable.value->host.offset);
  if (!master::values::claim_copy(session.commands(), variable, place)) return nullptr;
  return session.segment().at(session.segment().at<protocol::VariableEntry>(variable.entry)->copies()[place].place);
}

/// The result of a fetch of values that the master can read.
std::shared_ptr<CallResult> fetched_from(const master::records::VariableRecord& variable, const std::byte* memory) {
  auto result = std::make_shared<CallResult>();
  result->outputs.resize(1);
  result->outputs[0].extents = variable.value->extents;
  const std::size_t bytes = master::records::bytes_of(variable, variable.value->extents);
  result->outputs[0].buffer = allocate_on_heap(bytes);
  if (bytes != 0) std::memcpy(result->outputs[0].buffer.data(), memory, bytes);
  result->finished = true;
  return result;
}

}  // namespace

std::shared_ptr<master::records::VariableRecord> make_value_record(
    const std::shared_ptr<master::session::SessionCore>& session, DType dtype, std::size_t dimensions,
    std::string_view name) {
  const auto world_size = static_cast<std::size_t>(session->world_size());
  auto record = std::make_shared<master::records::VariableRecord>();
  record->entry = session->heap().allocate(protocol::VariableEntry::bytes(session->world_size()),
                                           os::SharedHeap::Contents::zero, "a value");
  record->session = session;
  record->dtype = dtype;
  record->dimensions = static_cast<std::uint8_t>(dimensions);
  record->copies.change() = master::records::CopyFacts(world_size);
  record->value = std::make_unique<master::records::ValueState>(world_size);
  auto& entry = *session->segment().at<protocol::VariableEntry>(record->entry);
  entry.id = session->registry().new_id();
  entry.dtype = dtype;
  entry.dimensions = record->dimensions;
  record->name = name.empty() ? "value #" + std::to_string(entry.id) : std::string(name);
  session->registry().add(record);
  return record;
}

std::shared_ptr<master::records::VariableRecord> make_value(
    const std::shared_ptr<master::session::SessionCore>& session, DType dtype, std::span<const std::int64_t> extents,
    const void* values, const Device* device, std::string_view name) {
  const Entry guard(*session);
  if (device != nullptr) check_is_of_session(*session, *device, "value()");
  auto record = make_known(session, dtype, extents, name);
  std::byte* const to = give_host_copy(*session, *record);
  if (record->value->host.bytes != 0) std::memcpy(to, values, record->value->host.bytes);
  if (device != nullptr) bring_and_forget_host(*session, record, device->rank());
  return record;
}

std::shared_ptr<master::records::VariableRecord> make_value(
    const std::shared_ptr<master::session::SessionCore>& session,
    const std::shared_ptr<master::records::DataRecord>& data, const Device* device, std::string_view name) {
  const Entry guard(*session);
  if (data->session != session) text::throw_usage("value(): the Data is of another session");
  if (data->is_open_for_writing) text::throw_usage("value(): the Data is open for writing: end the write guard first");
  master::data::check_has_all_rows(*data);
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

void bring_value(const std::shared_ptr<master::records::VariableRecord>& variable, const Device& device) {
  master::session::SessionCore& session = *variable->session;
  const Entry guard(session);
  check_is_of_session(session, device, "to()");
  master::values::check_is_usable(session.commands(), *variable);
  const auto& pinned = variable->value->pinned;
  if (pinned && *pinned != device.rank()) {
    text::throw_usage("value '" + variable->name + "' is pinned to rank " + std::to_string(*pinned) +
                      ": unpin it before you bring it to rank " + std::to_string(device.rank()));
  }
  bring(session, variable, device.rank());
  master::values::mark_spare_copies(session.commands(), *variable);
}

void bring_value_to_host(const std::shared_ptr<master::records::VariableRecord>& variable) {
  master::session::SessionCore& session = *variable->session;
  const Entry guard(session);
  master::values::check_is_usable(session.commands(), *variable);
  master::values::settle_extents(session.commands(), *variable);
  master::values::bring_to_host(session.commands(), variable);
  master::values::mark_spare_copies(session.commands(), *variable);
}

Extents extents_of_value(master::records::VariableRecord& variable) {
  master::session::SessionCore& session = *variable.session;
  const Entry guard(session);
  master::values::settle_extents(session.commands(), variable);
  return variable.value->extents;
}

void set_value(const std::shared_ptr<master::records::VariableRecord>& variable, std::span<const std::int64_t> extents,
               const void* values) {
  master::session::SessionCore& session = *variable->session;
  const Entry guard(session);
  Extents all{};
  std::copy(extents.begin(), extents.end(), all.begin());
  const master::records::HostCopy host =
      make_host_copy(session, arrays::checked_bytes(variable->dtype, extents), variable->name);
  if (host.bytes != 0) std::memcpy(session.segment().at(host.offset), values, host.bytes);
  master::values::replace_values(session.commands(), *variable, all, host);
  if (!variable->value->pinned) return;
  bring(session, variable, *variable->value->pinned);
  master::values::mark_spare_copies(session.commands(), *variable);
}

void get_value(const std::shared_ptr<master::records::VariableRecord>& variable, void* values) {
  master::session::SessionCore& session = *variable->session;
  const Entry guard(session);
  master::dispatch::CommandDispatcher& commands = session.commands();
  master::values::check_is_usable(commands, *variable);
  master::values::settle_extents(commands, *variable);
  const std::size_t bytes = master::records::bytes_of(*variable, variable->value->extents);
  if (bytes == 0) return;
  for (;;) {
    master::values::check_is_usable(commands,
                                    *variable);  // again: each wait may collect a failure, or deal with a loss
    const Reach from = nearest_copy(session, *variable);
    if (from.is_memory && session.calls().is_in_flight(from.written)) {
      commands.await(from.written);
    } else if (from.is_memory) {
      const std::byte* const memory = claim_memory(session, *variable, from.place);
      if (memory == nullptr) continue;
      std::memcpy(values, memory, bytes);
      break;
    } else if (master::values::claim_copy(commands, *variable, from.place) &&
               !commands.make_room(protocol::RankSet::only(from.place))) {
      const master::variables::FetchedCopy copy(commands, *variable, from.place, "get");
      std::memcpy(values, copy.values(), bytes);
      break;
    }
  }
  master::values::mark_spare_copies(commands, *variable);
}

Fetched launch_get_value(const std::shared_ptr<master::records::VariableRecord>& variable) {
  master::session::SessionCore& session = *variable->session;
  const Entry guard(session);
  master::dispatch::CommandDispatcher& commands = session.commands();
  master::values::check_is_usable(commands, *variable);
  master::values::settle_extents(commands, *variable);
  std::shared_ptr<CallResult> result;
  while (!result) {
    master::values::check_is_usable(commands, *variable);  // again, as in get_value()
    const Reach from = nearest_copy(session, *variable, HostCopies::only_complete);
    const bool is_over = !session.calls().is_in_flight(from.written);
    if (from.is_memory && is_over) {
      const std::byte* const memory = claim_memory(session, *variable, from.place);
      if (memory != nullptr) result = fetched_from(*variable, memory);
    } else if (from.place == master::records::ValueState::kHost) {
      commands.await(from.written);
    } else if (master::values::claim_copy(commands, *variable, from.place) &&
               !commands.make_room(protocol::RankSet::only(from.place))) {
      result = master::variables::launch_fetch(commands, variable, from.place);
    }
  }
  master::values::mark_spare_copies(commands, *variable);
  return {variable->session, std::move(result)};
}

std::vector<Device> devices_with(const master::records::VariableRecord& variable) {
  const Entry guard(*variable.session);
  std::vector<Device> devices;
  protocol::VariableCopy* const copies =
      variable.session->segment().at<protocol::VariableEntry>(variable.entry)->copies();
  for (const int rank : variable.session->all_ranks()) {
    const bool is_valid = variable.value->copies[static_cast<std::size_t>(rank)].is_valid;
    if (is_valid && !protocol::SpareCopy(copies[rank]).was_dropped())
      devices.push_back(device_of(*variable.session, rank));
  }
  return devices;
}

bool is_on_host(const master::records::VariableRecord& variable) {
  const Entry guard(*variable.session);
  return variable.value->host.is_valid;
}

void pin_value(const std::shared_ptr<master::records::VariableRecord>& variable, const Device& device) {
  master::session::SessionCore& session = *variable->session;
  const Entry guard(session);
  check_is_of_session(session, device, "pin()");
  master::values::check_is_usable(session.commands(), *variable);
  bring(session, variable, device.rank());
  variable->value->pinned = device.rank();
  master::values::mark_spare_copies(session.commands(), *variable);  // but not this copy
}

DeviceMemory memory_of(master::session::SessionCore& session, const Device& device) {
  const Entry guard(session);
  check_is_of_session(session, device, "memory()");
  const int rank = device.rank();
  const master::calls::HeapLoan size(session.commands(), sizeof(protocol::MemorySize), "the size of a device's memory");
  master::dispatch::CommandDispatcher& commands = session.commands();
  commands.run_system(commands.settle(protocol::RankSet::only(rank)), "memory", "",
                      [&](protocol::CommandHead& command, master::calls::InFlight&) {
                        command.begin<protocol::MemoryPayload>().to = size.offset();
                      });
  session.commands().collect_complete();  // copies that have arrived may take the place of others
  const auto& reported = *session.segment().at<protocol::MemorySize>(size.offset());
  DeviceMemory memory{.total_bytes = reported.total_bytes, .free_bytes = reported.free_bytes, .arrays = {}};
  session.registry().for_each_variable([&](const master::records::VariableRecord& variable) {
    protocol::VariableCopy& copy = session.segment().at<protocol::VariableEntry>(variable.entry)->copies()[rank];
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

void expect_moves(master::records::VariableRecord& variable) {
  const Entry guard(*variable.session);
  variable.value->moves_are_expected = true;
}

void set_name(master::records::VariableRecord& value, std::string_view name) {
  const Entry guard(*value.session);
  value.name = std::string(name);
}

void unpin_value(master::records::VariableRecord& variable) {
  const Entry guard(*variable.session);
  variable.value->pinned.reset();
  master::values::mark_spare_copies(variable.session->commands(), variable);
}

bool replaces_lost_workers(const master::session::SessionCore& session) noexcept {
  return session.settings().on_worker_lost == OnWorkerLost::respawn;
}

void restore_value(const std::shared_ptr<master::records::VariableRecord>& variable, const void* values) noexcept try {
  master::session::SessionCore& session = *variable->session;
  const Entry guard(session);
  const master::records::ValueState& value = *variable->value;
  if (!value.failure) return;
  const master::records::HostCopy host =
      make_host_copy(session, master::records::bytes_of(*variable, value.extents), variable->name);
  if (host.bytes != 0) std::memcpy(session.segment().at(host.offset), values, host.bytes);
  master::values::replace_values(session.commands(), *variable, value.extents, host);
} catch (const std::exception&) {
  // The value stays lost, and says so.
}

void check_rounds(const char* what, std::span<const Device> devices, std::int64_t rounds) {
  if (devices.empty()) text::throw_usage(std::string(what) + " requires one device or more, got none");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (std::size_t other = 0; other < i; ++other) {
      if (devices[other].asked_for() == devices[i].asked_for()) {
        text::throw_usage(std::string(what) + " requires each device once, got '" + devices[i].asked_for() + "' twice");
      }
    }
  }
  if (rounds < 0) text::throw_usage(std::string(what) + ": rounds is at least 0, got " + std::to_string(rounds));
}

void check_moving_rate(double rate) {
  if (rate > 0 && rate <= 1) return;
  text::throw_usage("easgd: moving_rate is above 0 and at most 1, got " + number_text(rate));
}

}  // namespace syncrun::detail
