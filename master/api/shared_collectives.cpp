// Collectives on shared variables that the master calls. The master checks them, and the workers run each in one
// command.

#include <cstring>
#include <deque>
#include <functional>

#include "common/arrays/reduce.hpp"
#include "common/arrays/row_range.hpp"
#include "common/text/errors.hpp"
#include "master/records/variables.hpp"
#include "master/session/session_core.hpp"
#include "master/variables/transfers.hpp"

namespace syncrun::detail {

namespace {

using Entry = master::session::SessionCore::Entry;

/// The part of one variable in a collective.
struct CollectivePart {
  Extents extents{};  // as in CollectiveSlot
  // the number of elements in the part of each rank; empty if the collective has no parts
  std::vector<std::int64_t> lengths;
  std::uint64_t to = 0;
};

struct Collective {
  const char* what;
  protocol::CollectiveKind kind;
  Reduction reduction = Reduction::gather;
  int root = 0;
  CollectiveOptions options{};
};

/// The ranks that take part in a collective. Its command is sent to them.
const protocol::RankSet& ranks_of_collective(const master::session::SessionCore& session) noexcept {
  return session.all_ranks();
}

void check_operation(const master::records::VariableRecord& variable, const Collective& collective) {
  const auto refuse = [&](const char* why, const std::string& advice) {
    text::throw_usage(std::string(collective.what) + " of '" + variable.name + "': " + why +
                      std::string(to_string(variable.dtype)) + advice);
  };
  const std::string has_no = " has no " + std::string(to_string(collective.reduction));
  if (!arrays::can_reduce(variable.dtype, collective.reduction)) refuse("", has_no);
  const protocol::RankSet& ranks = ranks_of_collective(*variable.session);
  master::devices::CommTable& comms = variable.session->commands().comms();
  const bool by_nccl = collective.options.route == Route::device && comms.is_nccl(comms.choose(ranks), ranks);
  if (by_nccl && !arrays::can_reduce_by_nccl(variable.dtype, collective.reduction)) {
    refuse("in NCCL ", has_no + ": take the way through shared memory, {.route = syncrun::Route::host}");
  }
}

std::uint64_t write_lengths(master::pool::SegmentHeap memory, const std::vector<std::int64_t>& lengths,
                            std::vector<std::uint64_t>& temporaries) {
  if (lengths.empty()) return 0;
  const std::size_t bytes = lengths.size() * sizeof(std::int64_t);
  const std::uint64_t offset = memory.allocate(bytes, "lengths of a collective", temporaries);
  std::memcpy(memory.segment.at(offset), lengths.data(), bytes);
  return offset;
}

/// False if the result goes to the master. The copies then stay unchanged.
bool writes_to_copies(const CollectivePart& part) noexcept { return part.to == 0; }

bool leaves_equal_copies(protocol::CollectiveKind kind) noexcept {
  return kind == protocol::CollectiveKind::broadcast || kind == protocol::CollectiveKind::all_reduce ||
         kind == protocol::CollectiveKind::all_gather;
}

/// Publishes the collective and waits for it.
void run_parts(const Collective& collective, VariableList variables, const master::records::Room& room,
               const std::vector<CollectivePart>& parts) {
  master::calls::SystemCommands& commands = variables.front()->session->commands();
  const auto fill = [&](protocol::CommandHead& command, master::calls::InFlight& in_flight) {
    for (const auto& variable : variables) commands.follow(variable->writes);
    command.has_comm = true;
    command.comm = commands.comms().choose(command.ranks);
    command.wants_vote = commands.comms().is_nccl(command.comm, command.ranks);
    auto& payload = command.begin<protocol::CollectivePayload>();
    payload.collective = collective.kind;
    payload.reduction = collective.reduction;
    payload.root = collective.root;
    payload.route = collective.options.route;
    payload.variables_count = static_cast<std::uint32_t>(variables.size());
    payload.variables = commands.memory().allocate(sizeof(protocol::CollectiveSlot) * variables.size(), "a collective",
                                                   in_flight.temporaries);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      if (writes_to_copies(parts[i])) in_flight.writes.push_back(variables[i]->name);
    }
    auto* slots = commands.segment().at<protocol::CollectiveSlot>(payload.variables);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      slots[i] = {variables[i]->entry, write_lengths(commands.memory(), parts[i].lengths, in_flight.temporaries),
                  parts[i].to, parts[i].extents};
    }
  };
  std::vector<master::variables::Transfer> written;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (writes_to_copies(parts[i])) written.push_back({variables[i].get(), {}});
  }
  const std::uint64_t replacements = commands.replacements();
  master::variables::change_copies(
      commands, room, written,
      leaves_equal_copies(collective.kind) ? master::variables::Leaves::equal_copies
                                           : master::variables::Leaves::other_copies,
      [&] { commands.run_system(room, collective.what, master::records::names_of(variables), fill); });
  if (!leaves_equal_copies(collective.kind)) return;
  for (const master::variables::Transfer& change : written) {
    master::records::CopyFacts& facts = change.variable->copies.change();
    if (!facts.assigned.any()) continue;
    facts.assigned.add_all();
    if (commands.replacements() == replacements) continue;
    // A rank that was replaced during the collective has no values, unless a peer has given it some.
    const Extents equal = *std::max_element(facts.extents.begin(), facts.extents.end());
    for (std::size_t rank = 0; rank < facts.extents.size(); ++rank) {
      if (facts.extents[rank] != equal) facts.assigned.remove(rank);
    }
  }
}

/// Makes the parts of all variables from what is known of their copies.
using Plan = std::function<std::vector<CollectivePart>(const master::records::Room&)>;

void run(const Collective& collective, VariableList variables, const Plan& plan) {
  master::calls::SystemCommands& commands = variables.front()->session->commands();
  std::vector<const void*> users;  // as before a transfer
  for (const auto& variable : variables) users.push_back(variable.get());
  if (auto* const links = variables.front()->session->node_links())
    links->prepare(ranks_of_collective(*variables.front()->session));
  commands.when_settled(ranks_of_collective(*variables.front()->session), users,
                        [&](const master::records::Room& room) { run_parts(collective, variables, room, plan(room)); });
}

/// The extents of the variables, which must be equal on all ranks.
std::vector<CollectivePart> reduced_parts(VariableList variables, const master::records::Settled& settled,
                                          const Collective& collective) {
  std::vector<CollectivePart> parts;
  for (const auto& variable : variables)
    parts.push_back({master::records::equal_extents(*variable, settled, collective.what), {}, 0});
  return parts;
}

void reduce_all(const Collective& collective, VariableList variables) {
  for (const auto& variable : variables) check_operation(*variable, collective);
  run(collective, variables,
      [&](const master::records::Room& room) { return reduced_parts(variables, room, collective); });
}

/// Each rank gets its share of the rows.
void divide_rows(const master::records::VariableRecord& variable, CollectivePart& part) {
  const int world_size = variable.session->world_size();
  const auto each = static_cast<std::int64_t>(
      arrays::row_bytes_of(variable.dtype, {part.extents.data(), variable.dimensions}) / size_of(variable.dtype));
  for (int rank = 0; rank < world_size; ++rank) {
    part.lengths.push_back(arrays::share_of(part.extents[0], world_size, rank).count() * each);
  }
}

void check_growth_of_all(const master::records::VariableRecord& variable, const Extents& extents,
                         master::variables::OldCopies old) {
  const std::vector<std::size_t> bytes(static_cast<std::size_t>(variable.session->world_size()),
                                       master::records::bytes_of(variable, extents));
  master::variables::check_growth(variable.session->commands(), variable, bytes, old);
}

}  // namespace

void broadcast_copies(VariableList variables, int root, const CollectiveOptions& options) {
  master::session::SessionCore& session = *variables.front()->session;
  const Entry guard(session);
  master::records::check_rank(session.world_size(), root, "broadcast");
  const auto plan = [&](const master::records::Room& room) {
    std::vector<CollectivePart> parts;
    for (const auto& variable : variables) {
      const master::records::CopyFacts& facts = variable->copies(room);
      if (!facts.assigned.has(static_cast<std::size_t>(root))) {
        text::throw_usage("broadcast from rank " + std::to_string(root) + ": " +
                          master::records::not_assigned(*variable, room, protocol::RankSet::only(root)));
      }
      const Extents& extents = facts.extents[static_cast<std::size_t>(root)];
      check_growth_of_all(*variable, extents, master::variables::OldCopies::reused);
      parts.push_back({extents, {}, 0});
    }
    return parts;
  };
  run({.what = "broadcast", .kind = protocol::CollectiveKind::broadcast, .root = root, .options = options}, variables,
      plan);
}

void all_reduce_copies(VariableList variables, Reduction reduction, const CollectiveOptions& options) {
  const Entry guard(*variables.front()->session);
  reduce_all(
      {.what = "all_reduce", .kind = protocol::CollectiveKind::all_reduce, .reduction = reduction, .options = options},
      variables);
}

void reduce_copies(VariableList variables, Reduction reduction, int root, const CollectiveOptions& options) {
  const Entry guard(*variables.front()->session);
  master::records::check_rank(variables.front()->session->world_size(), root, "reduce");
  reduce_all({.what = "reduce",
              .kind = protocol::CollectiveKind::reduce,
              .reduction = reduction,
              .root = root,
              .options = options},
             variables);
}

/// A reduce_scatter that writes its parts one after the other into memory that the master sees.
void reduce_to_master(VariableList variables, Reduction reduction, const CollectiveOptions& options,
                      std::span<const ArrayMaker> makers) {
  master::session::SessionCore& session = *variables.front()->session;
  const Entry guard(session);
  const Collective collective{
      .what = "reduce", .kind = protocol::CollectiveKind::reduce_scatter, .reduction = reduction, .options = options};
  for (const auto& variable : variables) check_operation(*variable, collective);
  std::deque<master::calls::HeapLoan> results;
  std::vector<Extents> shapes;
  run(collective, variables, [&](const master::records::Room& room) {
    results.clear();
    shapes.clear();
    std::vector<CollectivePart> parts = reduced_parts(variables, room, collective);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const auto elements = static_cast<std::int64_t>(
          // divided by elements, not by rows, since there may be only one row
          arrays::elements_in({parts[i].extents.data(), variables[i]->dimensions}));
      for (int rank = 0; rank < session.world_size(); ++rank) {
        parts[i].lengths.push_back(arrays::share_of(elements, session.world_size(), rank).count());
      }
      shapes.push_back(parts[i].extents);
      const std::size_t bytes = master::records::bytes_of(*variables[i], parts[i].extents);
      parts[i].to = results.emplace_back(session.commands(), bytes, "a result on its way from the workers").offset();
    }
    return parts;
  });
  for (std::size_t i = 0; i < variables.size(); ++i) {
    void* const values = makers[i].make(shapes[i]);
    const std::size_t bytes = master::records::bytes_of(*variables[i], shapes[i]);
    if (bytes != 0) std::memcpy(values, results[i].data(), bytes);
  }
}

void reduce_scatter_copies(VariableList variables, Reduction reduction, const CollectiveOptions& options) {
  const Entry guard(*variables.front()->session);
  const Collective collective{.what = "reduce_scatter",
                              .kind = protocol::CollectiveKind::reduce_scatter,
                              .reduction = reduction,
                              .options = options};
  for (const auto& variable : variables) check_operation(*variable, collective);
  run(collective, variables, [&](const master::records::Room& room) {
    std::vector<CollectivePart> parts = reduced_parts(variables, room, collective);
    for (std::size_t i = 0; i < variables.size(); ++i) divide_rows(*variables[i], parts[i]);
    return parts;
  });
}

void all_gather_copies(VariableList variables, const CollectiveOptions& options) {
  const Entry guard(*variables.front()->session);
  const auto plan = [&](const master::records::Room& room) {
    std::vector<CollectivePart> parts;
    for (const auto& variable : variables) {
      CollectivePart part{master::records::extents_together(*variable, room, "all_gather"), {}, 0};
      for (const Extents& own : variable->copies(room).extents) {
        part.lengths.push_back(static_cast<std::int64_t>(arrays::elements_in({own.data(), variable->dimensions})));
      }
      check_growth_of_all(*variable, part.extents, master::variables::OldCopies::kept);
      parts.push_back(std::move(part));
    }
    return parts;
  };
  run({.what = "all_gather", .kind = protocol::CollectiveKind::all_gather, .options = options}, variables, plan);
}

}  // namespace syncrun::detail
