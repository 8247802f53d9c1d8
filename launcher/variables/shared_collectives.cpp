// Collectives on shared variables that the master calls. The master checks them, and the workers run each in one
// command.

#include <cstring>
#include <deque>

#include "common/arrays/reduce.hpp"
#include "common/arrays/rows.hpp"
#include "common/text/errors.hpp"
#include "launcher/session/session_core.hpp"
#include "launcher/variables/transfers.hpp"
#include "launcher/variables/variables.hpp"

namespace syncrun::detail {

namespace {

using Entry = SessionCore::Entry;

/// The part of one variable in a collective.
struct CollectivePart {
  Extents extents{};  // as in CollectiveSlot
  // the number of elements in the part of each rank; empty if the collective has no parts
  std::vector<std::int64_t> lengths;
  std::uint64_t to = 0;
};

struct Collective {
  const char* what;
  CollectiveKind kind;
  Reduction reduction = Reduction::gather;
  int root = 0;
  CollectiveOptions options{};
};

/// The ranks that take part in a collective. Its command is sent to them.
const RankSet& ranks_of_collective(const SessionCore& session) noexcept { return session.all_ranks(); }

void check_operation(const VariableRecord& variable, const Collective& collective) {
  const auto refuse = [&](const char* why, const std::string& advice) {
    throw_usage(std::string(collective.what) + " of '" + variable.name + "': " + why +
                std::string(to_string(variable.dtype)) + advice);
  };
  const std::string has_no = " has no " + std::string(to_string(collective.reduction));
  if (!can_reduce(variable.dtype, collective.reduction)) refuse("", has_no);
  const RankSet& ranks = ranks_of_collective(*variable.session);
  CommTable& comms = variable.session->commands().comms();
  const bool by_nccl = collective.options.route == Route::device && comms.is_nccl(comms.choose(ranks), ranks);
  if (by_nccl && !can_reduce_by_nccl(variable.dtype, collective.reduction)) {
    refuse("in NCCL ", has_no + ": take the way through shared memory, {.route = syncrun::Route::host}");
  }
}

std::uint64_t write_lengths(SegmentHeap memory, const std::vector<std::int64_t>& lengths,
                            std::vector<std::uint64_t>& temporaries) {
  if (lengths.empty()) return 0;
  const std::size_t bytes = lengths.size() * sizeof(std::int64_t);
  const std::uint64_t offset = memory.heap.allocate(bytes, SharedHeap::Contents::any, "lengths of a collective");
  temporaries.push_back(offset);
  std::memcpy(memory.segment.at(offset), lengths.data(), bytes);
  return offset;
}

/// False if the result goes to the master. The copies then stay unchanged.
bool writes_to_copies(const CollectivePart& part) noexcept { return part.to == 0; }

bool leaves_equal_copies(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::broadcast || kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_gather;
}

void run(const Collective& collective, VariableList variables, const std::vector<CollectivePart>& parts) {
  SystemCommands& commands = variables.front()->session->commands();
  const auto read_all = [&] {
    for (const auto& variable : variables) read_extents(commands.segment(), *variable);
  };
  for (const auto& variable : variables) commands.await_users(variable.get());  // as before a transfer
  try {
    const RankSet ranks = ranks_of_collective(*variables.front()->session);
    commands.run_system(collective.what, names_of(variables), ranks, [&](CommandHead& command, InFlight& in_flight) {
      for (const auto& variable : variables) commands.follow(variable->writes);
      command.has_comm = true;
      command.comm = commands.comms().choose(command.ranks);
      command.wants_vote = commands.comms().is_nccl(command.comm, command.ranks);
      auto& payload = command.begin<CollectivePayload>();
      payload.collective = collective.kind;
      payload.reduction = collective.reduction;
      payload.root = collective.root;
      payload.route = collective.options.route;
      payload.variables_count = static_cast<std::uint32_t>(variables.size());
      payload.variables = commands.heap().allocate(sizeof(CollectiveSlot) * variables.size(), SharedHeap::Contents::any,
                                                   "a collective");
      in_flight.temporaries.push_back(payload.variables);
      for (std::size_t i = 0; i < variables.size(); ++i) {
        if (writes_to_copies(parts[i])) in_flight.writes.push_back(variables[i]->name);
      }
      auto* slots = commands.segment().at<CollectiveSlot>(payload.variables);
      for (std::size_t i = 0; i < variables.size(); ++i) {
        slots[i] = {variables[i]->entry, write_lengths(commands.memory(), parts[i].lengths, in_flight.temporaries),
                    parts[i].to, parts[i].extents};
      }
    });
  } catch (...) {
    if (commands.is_open()) read_all();  // shapes may have changed on some ranks only
    throw;
  }
  read_all();
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (!writes_to_copies(parts[i])) continue;
    variables[i]->is_replicated = leaves_equal_copies(collective.kind);
    if (leaves_equal_copies(collective.kind) && variables[i]->assigned.any()) variables[i]->assigned.add_all();
  }
}

/// The extents of the variables, which must be equal on all ranks. Checks that their type has the reduction.
std::vector<CollectivePart> reduced_parts(VariableList variables, const Collective& collective) {
  std::vector<CollectivePart> parts;
  for (const auto& variable : variables) {
    check_operation(*variable, collective);
    parts.push_back({equal_extents(*variable, collective.what), {}, 0});
  }
  return parts;
}

/// Each rank gets its share of the rows.
void divide_rows(const VariableRecord& variable, CollectivePart& part) {
  const int world_size = variable.session->world_size();
  const auto each = static_cast<std::int64_t>(row_bytes_of(variable.dtype, {part.extents.data(), variable.dimensions}) /
                                              size_of(variable.dtype));
  for (int rank = 0; rank < world_size; ++rank) {
    part.lengths.push_back(share_of(part.extents[0], world_size, rank).count() * each);
  }
}

}  // namespace

void broadcast_copies(VariableList variables, int root, const CollectiveOptions& options) {
  SessionCore& session = *variables.front()->session;
  const Entry guard(session);
  check_rank(session.world_size(), root, "broadcast");
  std::vector<CollectivePart> parts;
  for (const auto& variable : variables) {
    if (!variable->assigned.has(static_cast<std::size_t>(root))) {
      throw_usage("broadcast from rank " + std::to_string(root) + ": " + not_assigned(*variable, RankSet::only(root)));
    }
    const Extents& extents = variable->extents[static_cast<std::size_t>(root)];
    const std::vector<std::size_t> bytes(variable->extents.size(), bytes_of(*variable, extents));
    check_growth(variable->session->commands(), *variable, bytes, OldCopies::reused);
    parts.push_back({extents, {}, 0});
  }
  run({.what = "broadcast", .kind = CollectiveKind::broadcast, .root = root, .options = options}, variables, parts);
}

void all_reduce_copies(VariableList variables, Reduction reduction, const CollectiveOptions& options) {
  const Entry guard(*variables.front()->session);
  const Collective collective{
      .what = "all_reduce", .kind = CollectiveKind::all_reduce, .reduction = reduction, .options = options};
  run(collective, variables, reduced_parts(variables, collective));
}

void reduce_copies(VariableList variables, Reduction reduction, int root, const CollectiveOptions& options) {
  const Entry guard(*variables.front()->session);
  check_rank(variables.front()->session->world_size(), root, "reduce");
  const Collective collective{
      .what = "reduce", .kind = CollectiveKind::reduce, .reduction = reduction, .root = root, .options = options};
  run(collective, variables, reduced_parts(variables, collective));
}

/// A reduce_scatter that writes its parts one after the other into memory that the master sees.
void reduce_to_master(VariableList variables, Reduction reduction, const CollectiveOptions& options,
                      std::span<void* const> values) {
  SessionCore& session = *variables.front()->session;
  const Entry guard(session);
  const Collective collective{
      .what = "reduce", .kind = CollectiveKind::reduce_scatter, .reduction = reduction, .options = options};
  std::vector<CollectivePart> parts = reduced_parts(variables, collective);
  std::deque<HeapLoan> results;
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const auto elements = static_cast<std::int64_t>(
        // divided by elements, not by rows, since there may be only one row
        elements_in({parts[i].extents.data(), variables[i]->dimensions}));
    for (int rank = 0; rank < session.world_size(); ++rank) {
      parts[i].lengths.push_back(share_of(elements, session.world_size(), rank).count());
    }
    sizes.push_back(bytes_of(*variables[i], parts[i].extents));
    parts[i].to = results.emplace_back(session.commands(), sizes[i], "a result on its way from the workers").offset();
  }
  run(collective, variables, parts);
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (sizes[i] != 0) std::memcpy(values[i], results[i].data(), sizes[i]);
  }
}

void reduce_scatter_copies(VariableList variables, Reduction reduction, const CollectiveOptions& options) {
  const Entry guard(*variables.front()->session);
  const Collective collective{
      .what = "reduce_scatter", .kind = CollectiveKind::reduce_scatter, .reduction = reduction, .options = options};
  std::vector<CollectivePart> parts = reduced_parts(variables, collective);
  for (std::size_t i = 0; i < variables.size(); ++i) divide_rows(*variables[i], parts[i]);
  run(collective, variables, parts);
}

void all_gather_copies(VariableList variables, const CollectiveOptions& options) {
  const Entry guard(*variables.front()->session);
  std::vector<CollectivePart> parts;
  for (const auto& variable : variables) {
    CollectivePart part{extents_together(*variable, "all_gather"), {}, 0};
    for (const Extents& own : variable->extents) {
      part.lengths.push_back(static_cast<std::int64_t>(elements_in({own.data(), variable->dimensions})));
    }
    const std::vector<std::size_t> bytes(variable->extents.size(), bytes_of(*variable, part.extents));
    check_growth(variable->session->commands(), *variable, bytes, OldCopies::kept);
    parts.push_back(std::move(part));
  }
  run({.what = "all_gather", .kind = CollectiveKind::all_gather, .options = options}, variables, parts);
}

}  // namespace syncrun::detail
