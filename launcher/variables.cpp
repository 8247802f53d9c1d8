// Shared variables: the master's side of copies that live with the workers, and of what goes to and fro.

#include "launcher/variables.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <new>

#include "common/errors.hpp"
#include "common/extents.hpp"
#include "common/memory_limit.hpp"
#include "common/rows.hpp"
#include "common/variable_entry.hpp"
#include "launcher/mapped_data.hpp"
#include "launcher/rows_check.hpp"
#include "syncrun/session.hpp"
#include "syncrun/updates.hpp"

namespace syncrun::detail {

namespace {

using Entry = SessionCore::Entry;

// Growth of all copies together from here on is held against the memory limit before any worker allocates.
constexpr std::size_t kCheckedFrom = std::size_t{8} << 20U;

struct Part {
  std::uint64_t offset = 0;  // in the segment; 0: only the shape changes
  Extents extents{};
  bool takes_part = true;
  bool is_zero = false;
};

/// What goes to, or comes from, the copies of one variable.
struct Transfer {
  VariableRecord* variable;
  std::vector<Part> parts;  // by rank
};

}  // namespace

// ---- helpers --------------------------------------------------------------------------------------------------

void check_rank(const SessionCore& session, int rank, const char* what) {
  if (rank < 0 || rank >= session.world_size()) {
    throw_usage(std::string(what) + " wants a rank from 0 to " + std::to_string(session.world_size() - 1) + ", got " +
                std::to_string(rank));
  }
}

void check_growth(const VariableRecord& variable, std::span<const std::size_t> bytes, OldCopies old) {
  const auto* copies = variable.session->segment().at<VariableEntry>(variable.entry)->copies();
  std::size_t growth = 0;
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    const bool is_in_host_memory = variable.session->device_kind(static_cast<int>(rank)) == DeviceKind::cpu;
    const bool grows = old == OldCopies::kept || bytes[rank] > copies[rank].capacity_bytes;
    if (is_in_host_memory && grows) growth += bytes[rank];
  }
  if (growth >= kCheckedFrom) check_memory_available(growth, "the copies of shared variable '" + variable.name + "'");
}

void read_extents(VariableRecord& variable) {
  const auto* copies = variable.session->segment().at<VariableEntry>(variable.entry)->copies();
  for (std::size_t rank = 0; rank < variable.extents.size(); ++rank) {
    Extents& extents = variable.extents[rank];
    const bool had_elements = elements_in({extents.data(), variable.dimensions}) != 0;
    extents = copies[rank].extents;
    // The rank gave up its old copy and got no memory for a new one.
    if (had_elements && copies[rank].capacity_bytes == 0) variable.assigned.remove(rank);
  }
}

Extents equal_extents(const VariableRecord& variable, const char* what) {
  for (std::size_t rank = 1; rank < variable.extents.size(); ++rank) {
    if (variable.extents[rank] == variable.extents[0]) continue;
    const auto text = [&](std::size_t r) {
      return syncrun::to_string({variable.extents[r].data(), variable.dimensions});
    };
    throw_usage(std::string(what) + " of '" + variable.name + "' wants equal shapes on all ranks, got " + text(0) +
                " on rank 0 and " + text(rank) + " on rank " + std::to_string(rank));
  }
  return variable.extents[0];
}

Extents extents_together(const VariableRecord& variable, const char* what) {
  // Ranks that hold nothing do not count for the shape of a row.
  Extents all{};
  bool any = false;
  for (const Extents& own : variable.extents) {
    if (own[0] == 0) continue;
    if (any && !std::equal(own.begin() + 1, own.begin() + variable.dimensions, all.begin() + 1)) {
      throw_usage(std::string(what) + " of '" + variable.name + "' wants rows of one shape, got copies of shape " +
                  syncrun::to_string({all.data(), variable.dimensions}) + " and " +
                  syncrun::to_string({own.data(), variable.dimensions}));
    }
    const std::int64_t rows = all[0] + own[0];
    all = own;
    all[0] = rows;
    any = true;
  }
  return any ? all : variable.extents[0];
}

std::string not_assigned(const VariableRecord& variable, const RankSet& wanted) {
  if (!variable.assigned.any()) {
    return "'" + variable.name + "' has no shape yet: give it one with broadcast, scatter or set first";
  }
  std::string ranks;
  int count = 0;
  for (const int rank : wanted) {
    if (variable.assigned.has(static_cast<std::size_t>(rank))) continue;
    ranks += (count++ == 0 ? "" : ", ") + std::to_string(rank);
  }
  return "'" + variable.name + "' has no values on rank" + (count == 1 ? " " : "s ") + ranks +
         " (nothing was assigned there, or the worker is new): use set there, or broadcast or scatter, first";
}

std::string names_of(VariableList variables) {
  std::string names;
  for (const auto& variable : variables) names += (names.empty() ? "" : ", ") + variable->name;
  return names;
}

// ---- birth and death ------------------------------------------------------------------------------------------

namespace {

/// A call in flight may be the last to hold a variable of the name.
void check_name_is_free(SessionCore& session, std::string_view name) {
  if (name.empty() || !session.registry().names().is_taken(name)) return;
  session.drain_all();
  if (!session.registry().names().is_taken(name)) return;
  throw_usage("there is a shared variable named '" + std::string(name) +
              "' already: names are unique among the variables alive (find_shared finds it)");
}

}  // namespace

std::shared_ptr<VariableRecord> make_variable(const std::shared_ptr<SessionCore>& session, DType dtype,
                                              std::size_t dimensions, std::string_view name) {
  const Entry guard(*session);
  check_name_is_free(*session, name);
  const auto world_size = static_cast<std::size_t>(session->world_size());
  auto record = std::make_shared<VariableRecord>();
  record->entry = session->heap().allocate(VariableEntry::bytes(session->world_size()), SharedHeap::Contents::zero,
                                           "a shared variable");
  record->session = session;
  record->dtype = dtype;
  record->dimensions = static_cast<std::uint8_t>(dimensions);
  record->extents.resize(world_size);
  record->assigned = AssignedRanks(world_size);
  auto& entry = *session->segment().at<VariableEntry>(record->entry);
  entry.id = session->registry().new_id();
  entry.dtype = dtype;
  entry.dimensions = record->dimensions;
  record->name = name.empty() ? "variable #" + std::to_string(entry.id) : std::string(name);
  if (!name.empty()) session->registry().names().add(record);
  session->registry().add(record);
  return record;
}

VariableRecord::~VariableRecord() {
  if (!session || !session->is_open()) return;
  // The workers' memory goes with the next entry into the session: a destructor starts no call.
  SessionCore* core = session.get();
  core->registry().release_later([core, entry_offset = entry] {
    auto& entry = *core->segment().at<VariableEntry>(entry_offset);
    core->run_system("free", "a variable", [&](Command& command, InFlight&) {
      entry.is_freed = true;
      auto& transfer = command.begin<TransferPayload>(CommandKind::transfer);
      transfer.direction = TransferDirection::to_variable;
      transfer.variables_count = 1;
      TransferSlot* slots = entry.last_transfer(core->world_size());
      transfer.parts = core->segment().offset_of(slots);
      for (int rank = 0; rank < core->world_size(); ++rank) slots[rank] = {entry_offset, 0, {}, true, false};
    });
    core->registry().forget_variable(entry_offset);
    core->heap().free(entry_offset, SharedHeap::Giveback::later);
  });
}

// ---- transfers ------------------------------------------------------------------------------------------------

namespace {

std::string names_of(const std::vector<Transfer>& transfers) {
  std::string names;
  for (const auto& transfer : transfers) names += (names.empty() ? "" : ", ") + transfer.variable->name;
  return names;
}

void run_transfers(SessionCore& session, const char* what, TransferDirection direction,
                   const std::vector<Transfer>& transfers) {
  session.run_system(what, names_of(transfers), [&](Command& command, InFlight& in_flight) {
    const auto world_size = static_cast<std::size_t>(session.world_size());
    auto& payload = command.begin<TransferPayload>(CommandKind::transfer);
    payload.direction = direction;
    payload.variables_count = static_cast<std::uint32_t>(transfers.size());
    if (direction == TransferDirection::to_variable) {
      for (const auto& transfer : transfers) in_flight.writes.push_back(transfer.variable->name);
    }
    payload.parts = session.heap().allocate(sizeof(TransferSlot) * transfers.size() * world_size,
                                            SharedHeap::Contents::any, "a transfer");
    in_flight.temporaries.push_back(payload.parts);
    auto* slot = session.segment().at<TransferSlot>(payload.parts);
    for (const auto& transfer : transfers) {
      for (const Part& part : transfer.parts) {
        *slot++ = {transfer.variable->entry, part.offset, part.extents, part.takes_part, part.is_zero};
      }
    }
  });
}

void to_variables(SessionCore& session, const char* what, const std::vector<Transfer>& transfers) {
  for (const auto& transfer : transfers) {
    std::vector<std::size_t> bytes;
    for (const Part& part : transfer.parts) {
      bytes.push_back(part.takes_part ? bytes_of(*transfer.variable, part.extents) : 0);
    }
    check_growth(*transfer.variable, bytes, OldCopies::reused);
  }
  try {
    run_transfers(session, what, TransferDirection::to_variable, transfers);
  } catch (...) {
    // Some ranks may have taken part and others not.
    if (session.is_open()) {
      for (const auto& transfer : transfers) read_extents(*transfer.variable);
    }
    throw;
  }
  for (const auto& transfer : transfers) {
    VariableRecord& variable = *transfer.variable;
    read_extents(variable);
    for (std::size_t rank = 0; rank < transfer.parts.size(); ++rank) {
      if (transfer.parts[rank].takes_part) variable.assigned.add(rank);
    }
    variable.is_replicated = false;
  }
}

/// Values on their way: where they are in the segment, and their shape.
struct Source {
  std::uint64_t offset = 0;
  Extents extents{};
};

/// Brings values to shared memory, unless they are there.
class Sources {
 public:
  explicit Sources(SessionCore& session) : session_(session) {}

  Source add(const VariableRecord& variable, const void* values, const Extents& extents) {
    if (session_.segment().contains(values)) return {session_.segment().offset_of(values), extents};
    const std::size_t bytes = bytes_of(variable, extents);
    const HeapLoan& staging = staged_.emplace_back(session_, bytes, "values on their way to the workers");
    if (bytes != 0) std::memcpy(staging.data(), values, bytes);
    return {staging.offset(), extents};
  }
  Source add(const Delivery& delivery) {
    if (const MappedFile* const file = file_of(delivery))
      return add_of_file(*delivery.variable, *file, 0, extents_of(delivery));
    return add(*delivery.variable, values_of(delivery), extents_of(delivery));
  }
  /// Selected rows only; a slice of what is in shared memory already stays where it is.
  Source add_rows(const Delivery& delivery, const Rows& rows, const char* what) {
    if (rows.kind() == Rows::Kind::all) return add(delivery);
    const VariableRecord& variable = *delivery.variable;
    Extents extents = extents_of(delivery);
    const std::string option = std::string(what) + " of '" + variable.name + "': batch";
    Temporaries temporaries{session_, {}};
    const RowsSlot selected =
        write_selection(rows, extents[0], option.c_str(), "the array", session_, temporaries.offsets);
    const auto* from = static_cast<const std::byte*>(values_of(delivery));
    const std::size_t row_bytes = row_bytes_of(variable.dtype, {extents.data(), variable.dimensions});
    extents[0] = selected.count();
    const MappedFile* const file = file_of(delivery);
    if (selected.kind != Rows::Kind::list) {
      const std::size_t begin = static_cast<std::size_t>(selected.begin) * row_bytes;
      if (file != nullptr) return add_of_file(variable, *file, begin, extents);
      return add(variable, from + static_cast<std::size_t>(selected.begin) * row_bytes, extents);
    }
    const HeapLoan& staging =
        staged_.emplace_back(session_, bytes_of(variable, extents), "selected rows on their way to the workers");
    std::byte* to = staging.data();
    const auto* const indices = session_.segment().at<const std::int64_t>(selected.offset);
    if (file != nullptr) {
      const auto count = static_cast<std::size_t>(selected.count());
      file->read_rows(row_bytes, {indices, count}, 0, to, count * row_bytes);
      return {staging.offset(), extents};
    }
    for (std::int64_t i = 0; i < selected.count() && row_bytes != 0; ++i, to += row_bytes) {
      std::memcpy(to, from + static_cast<std::size_t>(indices[i]) * row_bytes, row_bytes);
    }
    return {staging.offset(), extents};
  }

 private:
  struct Temporaries {
    SessionCore& session;
    std::vector<std::uint64_t> offsets;
    ~Temporaries() {
      for (const auto offset : offsets) session.heap().free(offset, SharedHeap::Giveback::later);
    }
  };
  static Extents extents_of(const Delivery& delivery) {
    return delivery.data ? delivery.data->extents : delivery.extents;
  }
  static const MappedFile* file_of(const Delivery& delivery) {
    return delivery.data && delivery.data->file ? &delivery.data->file->file() : nullptr;
  }
  /// Read, not copied from the mapping: where the file has nothing any more, that is an error and no signal.
  Source add_of_file(const VariableRecord& variable, const MappedFile& file, std::size_t at, const Extents& extents) {
    const std::size_t bytes = bytes_of(variable, extents);
    const HeapLoan& staging = staged_.emplace_back(session_, bytes, "values on their way to the workers");
    file.read(at, staging.data(), bytes);
    return {staging.offset(), extents};
  }
  const void* values_of(const Delivery& delivery) const {
    return delivery.data ? array_of(*delivery.data).data : delivery.values;
  }

  SessionCore& session_;
  std::deque<HeapLoan> staged_;
};

/// Everything about them that can be known to be wrong.
void check_deliveries(SessionCore& session, std::span<const Delivery> deliveries, const char* what) {
  for (const auto& delivery : deliveries) {
    if (!delivery.data) continue;
    if (delivery.data->session.get() != &session) throw_usage(std::string(what) + ": the Data is of another session");
    if (delivery.data->is_open_for_writing) {
      throw_usage(std::string(what) + ": the Data is open for writing: end the write guard first");
    }
    if (delivery.data->file) delivery.data->file->file().check_length();
  }
}

std::vector<Part> whole_for_all(const SessionCore& session, const Source& source) {
  return {static_cast<std::size_t>(session.world_size()), Part{source.offset, source.extents, true}};
}

std::vector<Part> scatter_parts(const VariableRecord& variable, const Source& source) {
  const int world_size = variable.session->world_size();
  const std::size_t row_bytes = row_bytes_of(variable.dtype, {source.extents.data(), variable.dimensions});
  std::vector<Part> parts(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    const RowRange rows = share_of(source.extents[0], world_size, rank);
    Part& part = parts[static_cast<std::size_t>(rank)];
    part.extents = source.extents;
    part.extents[0] = rows.count();
    part.offset = source.offset + static_cast<std::uint64_t>(rows.begin) * row_bytes;
  }
  return parts;
}

std::vector<Part> only_on(const VariableRecord& variable, int rank, const Part& part) {
  std::vector<Part> parts(variable.extents.size(), Part{0, {}, false});
  parts[static_cast<std::size_t>(rank)] = part;
  return parts;
}

}  // namespace

void broadcast_values(std::span<const Delivery> deliveries) {
  SessionCore& session = *deliveries.front().variable->session;
  const Entry guard(session);
  check_deliveries(session, deliveries, "broadcast");
  Sources sources(session);
  std::vector<Transfer> transfers;
  for (const auto& delivery : deliveries) {
    transfers.push_back({delivery.variable.get(), whole_for_all(session, sources.add(delivery))});
  }
  to_variables(session, "broadcast", transfers);
  for (const auto& delivery : deliveries) delivery.variable->is_replicated = true;
}

void scatter_values(std::span<const Delivery> deliveries, const ScatterOptions& options) {
  SessionCore& session = *deliveries.front().variable->session;
  const Entry guard(session);
  check_deliveries(session, deliveries, "scatter");
  Sources sources(session);
  std::vector<Transfer> transfers;
  for (const auto& delivery : deliveries) {
    const Source rows = sources.add_rows(delivery, options.batch, "scatter");
    transfers.push_back({delivery.variable.get(), scatter_parts(*delivery.variable, rows)});
  }
  to_variables(session, "scatter", transfers);
}

void zero_like(VariableRecord& variable, const VariableRecord& like, Zeros zeros) {
  SessionCore& session = *variable.session;
  const Entry guard(session);
  if (like.session != variable.session) throw_usage("'" + like.name + "' is of another session");
  if (!like.assigned.any()) throw_usage(not_assigned(like, session.all_ranks()));
  std::vector<Part> parts;
  for (int rank = 0; rank < session.world_size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    Part& part =
        parts.emplace_back(Part{.extents = like.extents[at], .takes_part = like.assigned.has(at), .is_zero = true});
    if (zeros == Zeros::like_its_share) part.extents[0] = share_of(part.extents[0], session.world_size(), rank).count();
  }
  to_variables(session, "zeros", {{&variable, std::move(parts)}});
  variable.is_replicated = zeros == Zeros::like_all && like.is_replicated;
}

void set_on_rank(VariableRecord& variable, int rank, std::span<const std::int64_t> extents, const void* values) {
  SessionCore& session = *variable.session;
  const Entry guard(session);
  check_rank(session, rank, "set");
  Extents all{};
  std::copy(extents.begin(), extents.end(), all.begin());
  Sources sources(session);
  const Source source = sources.add(variable, values, all);
  to_variables(session, "set", {{&variable, only_on(variable, rank, {source.offset, source.extents, true})}});
}

void fetch_copy(VariableRecord& variable, int rank, std::uint64_t to) {
  const Extents& extents = variable.extents[static_cast<std::size_t>(rank)];
  run_transfers(*variable.session, "get", TransferDirection::from_variable,
                {{&variable, only_on(variable, rank, {to, extents, true})}});
}

void place_copy(VariableRecord& variable, int rank, std::uint64_t from, const Extents& extents) {
  to_variables(*variable.session, "set", {{&variable, only_on(variable, rank, {from, extents, true})}});
}

void get_from_rank(VariableRecord& variable, int rank, void* values) {
  SessionCore& session = *variable.session;
  const Entry guard(session);
  check_rank(session, rank, "get");
  const Extents& extents = variable.extents[static_cast<std::size_t>(rank)];
  const std::size_t bytes = bytes_of(variable, extents);
  if (bytes == 0) return;
  const HeapLoan staging(session, bytes, "values on their way from a worker");
  fetch_copy(variable, rank, staging.offset());
  std::memcpy(values, staging.data(), bytes);
}

void gather_to(VariableList variables, std::span<void* const> values) {
  SessionCore& session = *variables.front()->session;
  const Entry guard(session);
  std::deque<HeapLoan> staged;
  std::vector<std::size_t> sizes;
  std::vector<Transfer> transfers;
  for (const auto& variable : variables) {
    std::vector<Part> parts;
    std::size_t bytes = 0;
    for (const Extents& extents : variable->extents) {
      parts.push_back({bytes, extents, extents[0] != 0});
      bytes += bytes_of(*variable, extents);
    }
    const HeapLoan& staging = staged.emplace_back(session, bytes, "values on their way from the workers");
    for (auto& part : parts) part.offset += staging.offset();
    sizes.push_back(bytes);
    transfers.push_back({variable.get(), std::move(parts)});
  }
  run_transfers(session, "gather", TransferDirection::from_variable, transfers);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 0) std::memcpy(values[i], staged[i].data(), sizes[i]);
  }
}

// ---- inspection -----------------------------------------------------------------------------------------------

Extents extents_of(const VariableRecord& variable, int rank) {
  const Entry guard(*variable.session);
  check_rank(*variable.session, rank, "a shared variable");
  return variable.extents[static_cast<std::size_t>(rank)];
}

const std::vector<Extents>& all_extents(const VariableRecord& variable) {
  const Entry guard(*variable.session);
  return variable.extents;
}

Extents common_extents(const VariableRecord& variable, const char* what) {
  const Entry guard(*variable.session);
  return equal_extents(variable, what);
}

Extents gathered_extents(const VariableRecord& variable) {
  const Entry guard(*variable.session);
  return extents_together(variable, "gather");
}

const std::string& name_of(const VariableRecord& variable) noexcept { return variable.name; }

// ---- names ----------------------------------------------------------------------------------------------------

std::string unused_name(SessionCore& session, const std::string& name) {
  const Entry guard(session);
  std::string unused = name;
  for (int count = 2; session.registry().names().is_taken(unused); ++count) unused = name + "#" + std::to_string(count);
  return unused;
}

std::shared_ptr<VariableRecord> find_variable(const SessionCore& session, std::string_view name, DType dtype,
                                              std::size_t dimensions) {
  session.check_open();
  auto variable = session.registry().names().get(name, "find_shared");
  if (variable->dtype != dtype || variable->dimensions != dimensions) {
    throw_usage("find_shared: '" + variable->name + "' is of " + describe_type(variable->dtype, variable->dimensions) +
                ", asked for as of " + describe_type(dtype, dimensions));
  }
  return variable;
}

std::vector<std::shared_ptr<VariableRecord>> resolve(const SessionCore& session, std::span<const AnyShared> variables,
                                                     const char* what) {
  session.check_open();
  if (variables.empty()) throw_usage(std::string(what) + " wants at least one variable, got none");
  std::vector<std::shared_ptr<VariableRecord>> records;
  for (const auto& variable : variables) {
    auto record = variable.record() ? variable.record() : session.registry().names().get(variable.name(), what);
    if (record->session.get() != &session) {
      throw_usage(std::string(what) + ": variable '" + record->name + "' is of another session");
    }
    if (std::find(records.begin(), records.end(), record) != records.end()) {
      throw_usage(std::string(what) + ": variable '" + record->name + "' is given twice in one call");
    }
    records.push_back(std::move(record));
  }
  return records;
}

std::vector<Delivery> resolve(const SessionCore& session, std::span<const Assignment> assignments, const char* what) {
  std::vector<AnyShared> variables;
  for (const auto& assignment : assignments) variables.push_back(assignment.variable());
  const auto records = resolve(session, variables, what);
  std::vector<Delivery> deliveries;
  for (std::size_t i = 0; i < assignments.size(); ++i) {
    const Assignment& assignment = assignments[i];
    if (records[i]->dtype != assignment.dtype() || records[i]->dimensions != assignment.dimensions()) {
      throw_usage(std::string(what) + ": '" + records[i]->name + "' is of " +
                  describe_type(records[i]->dtype, records[i]->dimensions) + ", its values are of " +
                  describe_type(assignment.dtype(), assignment.dimensions()));
    }
    deliveries.push_back(assignment.delivery());
    deliveries.back().variable = records[i];
  }
  return deliveries;
}

}  // namespace syncrun::detail
