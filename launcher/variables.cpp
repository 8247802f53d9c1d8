// Shared variables: the master's side of copies that live with the workers.

#include <cstring>
#include <memory>
#include <new>

#include "common/errors.hpp"
#include "common/extents.hpp"
#include "common/memory_limit.hpp"
#include "common/reduce.hpp"
#include "common/rows.hpp"
#include "launcher/session_core.hpp"
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

std::size_t bytes_of(const VariableRecord& variable, const Extents& extents) {
  return checked_bytes(variable.dtype, {extents.data(), variable.dimensions});
}

Extents to_extents(std::span<const std::int64_t> extents) {
  Extents all{};
  std::copy(extents.begin(), extents.end(), all.begin());
  return all;
}

void check_rank(const SessionCore& session, int rank, const char* what) {
  if (rank < 0 || rank >= session.world_size()) {
    throw_usage(std::string(what) + " wants a rank from 0 to " + std::to_string(session.world_size() - 1) + ", got " +
                std::to_string(rank));
  }
}

void check_growth(VariableRecord& variable, const std::vector<Part>& parts) {
  if (variable.session->device_kind() == DeviceKind::cuda) return;  // not in the machine's memory
  const auto* copies = variable.session->segment().at<VariableEntry>(variable.entry)->copies();
  std::size_t growth = 0;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const std::size_t bytes = parts[rank].takes_part ? bytes_of(variable, parts[rank].extents) : 0;
    if (bytes > copies[rank].capacity_bytes) growth += bytes;
  }
  if (growth >= kCheckedFrom) check_memory_available(growth, "the copies of shared variable '" + variable.name + "'");
}

/// What the copies are now, by their own account. No call may be in flight.
void read_extents(VariableRecord& variable) {
  const auto* copies = variable.session->segment().at<VariableEntry>(variable.entry)->copies();
  for (std::size_t rank = 0; rank < variable.extents.size(); ++rank) variable.extents[rank] = copies[rank].extents;
}

void run_transfer(VariableRecord& variable, const char* what, TransferDirection direction,
                  const std::vector<Part>& parts) {
  SessionCore& session = *variable.session;
  session.run_system(what, variable.name, [&](Command& command, SessionCore::InFlight& in_flight) {
    command.kind = CommandKind::transfer;
    command.direction = direction;
    command.variable = variable.entry;
    command.transfers =
        session.heap().allocate(sizeof(TransferSlot) * parts.size(), SharedHeap::Contents::any, "a transfer");
    in_flight.temporaries.push_back(command.transfers);
    auto* slots = session.segment().at<TransferSlot>(command.transfers);
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      slots[rank] = {parts[rank].offset, parts[rank].extents, parts[rank].takes_part, parts[rank].is_zero};
    }
  });
}

void transfer(VariableRecord& variable, const char* what, TransferDirection direction, const std::vector<Part>& parts) {
  if (direction == TransferDirection::to_variable) check_growth(variable, parts);
  try {
    run_transfer(variable, what, direction, parts);
  } catch (...) {
    // Some ranks may have taken part and others not.
    if (variable.session->is_open()) read_extents(variable);
    throw;
  }
  if (direction == TransferDirection::to_variable) {
    read_extents(variable);
    variable.has_shape = true;
  }
}

/// Memory in the heap for as long as this lives.
class Staging {
 public:
  Staging(SessionCore& session, std::size_t bytes, const char* what)
      : session_(session), offset_(session.heap().allocate(bytes, SharedHeap::Contents::any, what)) {}
  ~Staging() {
    if (session_.is_open()) session_.heap().free(offset_, SharedHeap::Giveback::now);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  std::uint64_t offset() const noexcept { return offset_; }
  std::byte* data() const noexcept { return session_.segment().at(offset_); }

 private:
  SessionCore& session_;
  std::uint64_t offset_;
};

/// Hands `parts` of values in ordinary or in shared memory to the copies. Offsets in `parts` are relative to `values`.
void send(VariableRecord& variable, const char* what, const void* values, std::size_t bytes, std::vector<Part> parts) {
  SessionCore& session = *variable.session;
  std::optional<Staging> staging;
  std::uint64_t base = 0;
  if (session.segment().contains(values)) {
    base = session.segment().offset_of(values);
  } else {
    staging.emplace(session, bytes, "values on their way to the workers");
    if (bytes != 0) std::memcpy(staging->data(), values, bytes);
    base = staging->offset();
  }
  for (auto& part : parts) part.offset += base;
  transfer(variable, what, TransferDirection::to_variable, parts);
}

std::vector<Part> scatter_parts(const VariableRecord& variable, std::span<const std::int64_t> extents) {
  const int world_size = variable.session->world_size();
  const std::size_t row_bytes = row_bytes_of(variable.dtype, extents);
  std::vector<Part> parts(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    const RowRange rows = share_of(extents[0], world_size, rank);
    Part& part = parts[static_cast<std::size_t>(rank)];
    part.extents = to_extents(extents);
    part.extents[0] = rows.count();
    part.offset = static_cast<std::uint64_t>(rows.begin) * row_bytes;
  }
  return parts;
}

void check_equal_shapes(const VariableRecord& variable, const char* what) {
  for (std::size_t rank = 1; rank < variable.extents.size(); ++rank) {
    if (variable.extents[rank] == variable.extents[0]) continue;
    const auto text = [&](std::size_t r) {
      return syncrun::to_string({variable.extents[r].data(), variable.dimensions});
    };
    throw_usage(std::string(what) + " of '" + variable.name + "' wants equal shapes on all ranks, got " + text(0) +
                " on rank 0 and " + text(rank) + " on rank " + std::to_string(rank));
  }
}

void run_collective(VariableRecord& variable, const char* what, CollectiveKind kind, Reduction reduction, int root) {
  variable.session->run_system(what, variable.name, [&](Command& command, SessionCore::InFlight&) {
    command.kind = CommandKind::collective;
    command.variable = variable.entry;
    command.collective = kind;
    command.reduction = reduction;
    command.root = root;
    command.has_comm = true;
    command.wants_vote = variable.session->device_kind() == DeviceKind::cuda;
  });
}

}  // namespace

// ---- birth and death ------------------------------------------------------------------------------------------

std::shared_ptr<VariableRecord> make_variable(const std::shared_ptr<SessionCore>& session, DType dtype,
                                              std::size_t dimensions, std::string_view name) {
  const Entry guard(*session);
  const auto world_size = static_cast<std::size_t>(session->world_size());
  auto record = std::make_shared<VariableRecord>();
  record->entry = session->heap().allocate(VariableEntry::bytes(session->world_size()), SharedHeap::Contents::zero,
                                           "a shared variable");
  record->session = session;
  record->dtype = dtype;
  record->dimensions = static_cast<std::uint8_t>(dimensions);
  record->extents.resize(world_size);
  auto& entry = *session->segment().at<VariableEntry>(record->entry);
  entry.id = session->new_id();
  entry.dtype = dtype;
  entry.dimensions = record->dimensions;
  record->name = name.empty() ? "variable #" + std::to_string(entry.id) : std::string(name);
  return record;
}

VariableRecord::~VariableRecord() {
  if (!session || !session->is_open()) return;
  // The workers' memory goes with the next entry into the session: a destructor starts no call.
  SessionCore* core = session.get();
  core->release_later([core, entry_offset = entry] {
    auto& entry = *core->segment().at<VariableEntry>(entry_offset);
    core->run_system("free", "a variable", [&](Command& command, SessionCore::InFlight&) {
      entry.is_freed = true;
      command.kind = CommandKind::transfer;
      command.direction = TransferDirection::to_variable;
      command.variable = entry_offset;
      TransferSlot* slots = entry.last_transfer(core->world_size());
      command.transfers = core->segment().offset_of(slots);
      for (int rank = 0; rank < core->world_size(); ++rank) slots[rank].takes_part = true;
    });
    core->heap().free(entry_offset, SharedHeap::Giveback::later);
  });
}

// ---- operations -----------------------------------------------------------------------------------------------

void broadcast_values(VariableRecord& variable, std::span<const std::int64_t> extents, const void* values) {
  const Entry guard(*variable.session);
  Part part;
  part.extents = to_extents(extents);
  std::vector<Part> parts(static_cast<std::size_t>(variable.session->world_size()), part);
  send(variable, "broadcast", values, bytes_of(variable, part.extents), std::move(parts));
}

void broadcast_from(VariableRecord& variable, int root) {
  const Entry guard(*variable.session);
  check_rank(*variable.session, root, "broadcast");
  std::vector<Part> parts(static_cast<std::size_t>(variable.session->world_size()));
  for (auto& part : parts) part.extents = variable.extents[static_cast<std::size_t>(root)];
  parts[static_cast<std::size_t>(root)].takes_part = false;
  transfer(variable, "broadcast", TransferDirection::to_variable, parts);
  run_collective(variable, "broadcast", CollectiveKind::broadcast, Reduction::sum, root);
}

void scatter_values(VariableRecord& variable, std::span<const std::int64_t> extents, const void* values) {
  const Entry guard(*variable.session);
  send(variable, "scatter", values, checked_bytes(variable.dtype, extents), scatter_parts(variable, extents));
}

void scatter_data(VariableRecord& variable, const DataRecord& data) {
  const Entry guard(*variable.session);
  if (data.session != variable.session) throw_usage("scatter: the Data is of another session");
  if (data.is_open_for_writing) throw_usage("scatter: the Data is open for writing: end the write guard first");
  const std::span<const std::int64_t> extents(data.extents.data(), data.dimensions);
  send(variable, "scatter", variable.session->segment().at(data.offset), checked_bytes(data.dtype, extents),
       scatter_parts(variable, extents));
}

void zero_like(VariableRecord& variable, const VariableRecord& like, Zeros zeros) {
  const Entry guard(*variable.session);
  if (like.session != variable.session) throw_usage("'" + like.name + "' is of another session");
  if (!like.has_shape) {
    throw_usage("'" + like.name + "' has no shape yet: give it one with broadcast, scatter or set first");
  }
  const int world_size = variable.session->world_size();
  std::vector<Part> parts(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    Part& part = parts[static_cast<std::size_t>(rank)];
    part.extents = like.extents[static_cast<std::size_t>(rank)];
    if (zeros == Zeros::like_its_share) part.extents[0] = share_of(part.extents[0], world_size, rank).count();
    part.is_zero = true;
  }
  transfer(variable, "zeros", TransferDirection::to_variable, parts);
}

void all_reduce_variable(VariableRecord& variable, Reduction reduction) {
  const Entry guard(*variable.session);
  check_equal_shapes(variable, "all_reduce");
  if (!can_reduce(variable.dtype, reduction)) {
    throw_usage("all_reduce of '" + variable.name + "': " + std::string(to_string(variable.dtype)) + " has no " +
                std::string(to_string(reduction)));
  }
  run_collective(variable, "all_reduce", CollectiveKind::all_reduce, reduction, 0);
}

void set_on_rank(VariableRecord& variable, int rank, std::span<const std::int64_t> extents, const void* values) {
  const Entry guard(*variable.session);
  check_rank(*variable.session, rank, "set");
  std::vector<Part> parts(static_cast<std::size_t>(variable.session->world_size()));
  for (auto& part : parts) part.takes_part = false;
  Part& own = parts[static_cast<std::size_t>(rank)];
  own.takes_part = true;
  own.extents = to_extents(extents);
  const std::size_t bytes = bytes_of(variable, own.extents);
  send(variable, "set", values, bytes, std::move(parts));
}

Extents extents_of(const VariableRecord& variable, int rank) {
  const Entry guard(*variable.session);
  check_rank(*variable.session, rank, "a shared variable");
  return variable.extents[static_cast<std::size_t>(rank)];
}

Extents gathered_extents(const VariableRecord& variable) {
  const Entry guard(*variable.session);
  // Ranks that hold nothing do not count for the shape of a row.
  Extents all{};
  bool any = false;
  for (std::size_t rank = 0; rank < variable.extents.size(); ++rank) {
    const Extents& own = variable.extents[rank];
    if (own[0] == 0) continue;
    if (any && !std::equal(own.begin() + 1, own.begin() + variable.dimensions, all.begin() + 1)) {
      throw_usage("gather of '" + variable.name + "' wants rows of one shape, got copies of shape " +
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

void get_from_rank(VariableRecord& variable, int rank, void* values) {
  const Entry guard(*variable.session);
  check_rank(*variable.session, rank, "get");
  const std::size_t bytes = bytes_of(variable, variable.extents[static_cast<std::size_t>(rank)]);
  if (bytes == 0) return;
  const Staging staging(*variable.session, bytes, "values on their way from a worker");
  std::vector<Part> parts(static_cast<std::size_t>(variable.session->world_size()));
  for (auto& part : parts) part.takes_part = false;
  parts[static_cast<std::size_t>(rank)] = {staging.offset(), variable.extents[static_cast<std::size_t>(rank)], true};
  transfer(variable, "get", TransferDirection::from_variable, parts);
  std::memcpy(values, staging.data(), bytes);
}

void gather_to(VariableRecord& variable, void* values) {
  const Entry guard(*variable.session);
  std::vector<Part> parts(variable.extents.size());
  std::size_t bytes = 0;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    parts[rank] = {bytes, variable.extents[rank], variable.extents[rank][0] != 0};
    bytes += bytes_of(variable, variable.extents[rank]);
  }
  if (bytes == 0) return;
  const Staging staging(*variable.session, bytes, "values on their way from the workers");
  for (auto& part : parts) part.offset += staging.offset();
  transfer(variable, "gather", TransferDirection::from_variable, parts);
  std::memcpy(values, staging.data(), bytes);
}

const std::string& name_of(const VariableRecord& variable) noexcept { return variable.name; }

}  // namespace syncrun::detail
