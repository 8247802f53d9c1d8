// Shared variables: the master's side. The workers hold the copies. The functions here create variables, free them, and
// move values.

#include "master/records/variables.hpp"
#include "common/text/joined.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <new>

#include "common/arrays/extents.hpp"
#include "common/arrays/row_range.hpp"
#include "common/protocol/variable_entry.hpp"
#include "common/text/errors.hpp"
#include "master/data/mapped_data.hpp"
#include "master/data/rows_on_nodes.hpp"
#include "master/session/session_core.hpp"
#include "master/variables/transfers.hpp"
#include "syncrun/session.hpp"
#include "syncrun/updates.hpp"

namespace syncrun::detail {

namespace {

using Entry = master::session::SessionCore::Entry;

}  // namespace

// ---- helpers --------------------------------------------------------------------------------------------------

void master::records::check_rank(int world_size, int rank, const char* what) {
  if (rank < 0 || rank >= world_size) {
    text::throw_usage(std::string(what) + " requires a rank from 0 to " + std::to_string(world_size - 1) + ", got " +
                      std::to_string(rank));
  }
}

void master::records::check_not_lost(const master::records::VariableRecord& variable,
                                     const master::records::Settled& settled, const protocol::RankSet& ranks,
                                     const char* what) {
  const master::records::AssignedRanks& assigned = variable.copies(settled).assigned;
  if (!assigned.has_lost_any()) return;
  for (const int rank : ranks) {
    if (!assigned.has_lost(static_cast<std::size_t>(rank))) continue;
    text::throw_usage(std::string(what) + ": " + master::records::not_assigned(variable, settled, ranks));
  }
}

Extents master::records::equal_extents(const master::records::VariableRecord& variable,
                                       const master::records::Settled& settled, const char* what) {
  const std::vector<Extents>& extents = variable.copies(settled).extents;
  master::records::check_not_lost(variable, settled, protocol::RankSet::all(static_cast<int>(extents.size())), what);
  for (std::size_t rank = 1; rank < extents.size(); ++rank) {
    if (extents[rank] == extents[0]) continue;
    const auto text = [&](std::size_t r) { return syncrun::to_string({extents[r].data(), variable.dimensions}); };
    text::throw_usage(std::string(what) + " of '" + variable.name + "' requires equal shapes on all ranks, got " +
                      text(0) + " on rank 0 and " + text(rank) + " on rank " + std::to_string(rank));
  }
  return extents[0];
}

Extents master::records::extents_together(const master::records::VariableRecord& variable,
                                          const master::records::Settled& settled, const char* what) {
  const std::vector<Extents>& extents = variable.copies(settled).extents;
  master::records::check_not_lost(variable, settled, protocol::RankSet::all(static_cast<int>(extents.size())), what);
  // Ranks without rows do not count for the shape of a row.
  Extents all{};
  bool any = false;
  for (const Extents& own : extents) {
    if (own[0] == 0) continue;
    if (any && !std::equal(own.begin() + 1, own.begin() + variable.dimensions, all.begin() + 1)) {
      text::throw_usage(std::string(what) + " of '" + variable.name +
                        "' requires rows of one shape, got copies of shape " +
                        syncrun::to_string({all.data(), variable.dimensions}) + " and " +
                        syncrun::to_string({own.data(), variable.dimensions}));
    }
    const std::int64_t rows = all[0] + own[0];
    all = own;
    all[0] = rows;
    any = true;
  }
  return any ? all : extents[0];
}

std::string master::records::not_assigned(const master::records::VariableRecord& variable,
                                          const master::records::Settled& settled, const protocol::RankSet& wanted) {
  const master::records::AssignedRanks& assigned = variable.copies(settled).assigned;
  if (!assigned.any() && !assigned.has_lost_any()) {
    return "'" + variable.name + "' has no shape yet: give it one with broadcast, scatter or set first";
  }
  std::string ranks;
  int count = 0;
  bool is_lost = false;
  for (const int rank : wanted) {
    if (assigned.has(static_cast<std::size_t>(rank))) continue;
    ranks += (count++ == 0 ? "" : ", ") + std::to_string(rank);
    is_lost = is_lost || assigned.has_lost(static_cast<std::size_t>(rank));
  }
  return "'" + variable.name + "' has no values on rank" + (count == 1 ? " " : "s ") + ranks +
         (is_lost ? " (lost: the worker was lost and replaced, or a call failed that was to write them)"
                  : " (nothing was assigned there)") +
         ": use set there, or broadcast or scatter, first";
}

std::string master::records::names_of(VariableList variables) {
  return text::joined(variables, ", ", [](const auto& variable) { return variable->name; });
}

// ---- making and freeing ---------------------------------------------------------------------------------------

namespace {

/// Waits for the calls in flight if the name is taken, because one of them may be the last user of the variable.
void check_name_is_free(master::session::SessionCore& session, std::string_view name) {
  if (name.empty() || !session.registry().names().is_taken(name)) return;
  session.commands().drain_all();
  if (!session.registry().names().is_taken(name)) return;
  text::throw_usage("there is a shared variable named '" + std::string(name) +
                    "' already: names are unique among the variables alive (find_shared finds it)");
}

}  // namespace

std::shared_ptr<master::records::VariableRecord> make_variable(
    const std::shared_ptr<master::session::SessionCore>& session, DType dtype, std::size_t dimensions,
    std::string_view name) {
  const Entry guard(*session);
  check_name_is_free(*session, name);
  const auto world_size = static_cast<std::size_t>(session->world_size());
  auto record = std::make_shared<master::records::VariableRecord>();
  record->entry = session->heap().allocate(protocol::VariableEntry::bytes(session->world_size()),
                                           os::SharedHeap::Contents::zero, "a shared variable");
  record->session = session;
  record->dtype = dtype;
  record->dimensions = static_cast<std::uint8_t>(dimensions);
  record->copies.change() = master::records::CopyFacts(world_size);
  auto& entry = *session->segment().at<protocol::VariableEntry>(record->entry);
  entry.id = session->registry().new_id();
  entry.dtype = dtype;
  entry.dimensions = record->dimensions;
  record->name = name.empty() ? "variable #" + std::to_string(entry.id) : std::string(name);
  if (!name.empty()) session->registry().names().add(record);
  session->registry().add(record);
  return record;
}

// ---- transfers ------------------------------------------------------------------------------------------------

namespace {

/// Checks everything that can be checked before values are moved.
void check_deliveries(master::session::SessionCore& session, std::span<const Delivery> deliveries, const char* what) {
  for (const auto& delivery : deliveries) {
    if (!delivery.data) continue;
    if (delivery.data->session.get() != &session)
      text::throw_usage(std::string(what) + ": the Data is of another session");
    if (delivery.data->is_open_for_writing) {
      text::throw_usage(std::string(what) + ": the Data is open for writing: end the write guard first");
    }
    master::data::check_has_all_rows(*delivery.data);
    if (delivery.data->file) delivery.data->file->file().check_unchanged();
  }
}

}  // namespace

void broadcast_values(std::span<const Delivery> deliveries) {
  master::session::SessionCore& session = *deliveries.front().variable->session;
  const Entry guard(session);
  check_deliveries(session, deliveries, "broadcast");
  master::variables::Sources sources(session.commands());
  std::vector<master::variables::Transfer> transfers;
  for (const auto& delivery : deliveries) {
    transfers.push_back(
        {delivery.variable.get(), master::variables::whole_for_all(session.world_size(), sources.add(delivery))});
  }
  master::variables::to_variables(session.commands(), "broadcast", transfers, master::variables::Leaves::equal_copies);
}

void scatter_values(std::span<const Delivery> deliveries, const ScatterOptions& options) {
  master::session::SessionCore& session = *deliveries.front().variable->session;
  const Entry guard(session);
  check_deliveries(session, deliveries, "scatter");
  master::variables::Sources sources(session.commands());
  std::vector<master::variables::Transfer> transfers;
  for (const auto& delivery : deliveries) {
    const master::variables::Source rows = sources.add_rows(delivery, options.batch, "scatter");
    const master::records::VariableRecord& variable = *delivery.variable;
    const master::calls::RowWeights weights =
        variable.has_equal_shares ? master::calls::RowWeights() : session.weights();
    transfers.push_back(
        {delivery.variable.get(), master::variables::shares_for_all(session.all_ranks(), weights, variable, rows)});
  }
  master::variables::to_variables(session.commands(), "scatter", transfers, master::variables::Leaves::other_copies);
}

void zero_like(master::records::VariableRecord& variable, const master::records::VariableRecord& like, Zeros zeros,
               std::int64_t elements) {
  master::session::SessionCore& session = *variable.session;
  const Entry guard(session);
  if (like.session != variable.session) text::throw_usage("'" + like.name + "' is of another session");
  const bool leaves_equal = zeros == Zeros::like_all && like.is_replicated;
  const auto plan = [&](const master::records::Room& room) {
    const master::records::CopyFacts& facts = like.copies(room);
    if (!facts.assigned.any()) text::throw_usage(master::records::not_assigned(like, room, session.all_ranks()));
    std::vector<master::variables::TransferPart> parts;
    for (int rank = 0; rank < session.world_size(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      master::variables::TransferPart& part = parts.emplace_back(master::variables::TransferPart{
          .extents = facts.extents[at], .takes_part = facts.assigned.has(at), .is_zero = true});
      if (elements >= 0) part.extents[0] = elements;
      if (zeros == Zeros::like_its_share)
        part.extents[0] = arrays::share_of(part.extents[0], session.world_size(), rank).count();
    }
    return parts;
  };
  master::variables::to_variables(
      session.commands(), "zeros", variable,
      leaves_equal ? master::variables::Leaves::equal_copies : master::variables::Leaves::other_copies, plan);
  variable.has_equal_shares = zeros == Zeros::like_its_share;
}

void zero_where_gone(master::records::VariableRecord& variable, std::int64_t elements) {
  master::session::SessionCore& session = *variable.session;
  const Entry guard(session);
  const auto plan = [&](const master::records::Room& room) {
    const master::records::CopyFacts& facts = variable.copies(room);
    std::vector<master::variables::TransferPart> parts;
    for (int rank = 0; rank < session.world_size(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      parts.push_back({.extents = {elements}, .takes_part = !facts.assigned.has(at), .is_zero = true});
    }
    return parts;
  };
  if (variable.copies(session.commands().settled()).assigned.all()) return;
  master::variables::to_variables(session.commands(), "zeros", variable, master::variables::Leaves::other_copies, plan);
}

void set_on_rank(const Delivery& delivery, int rank, const ScatterOptions& options) {
  master::session::SessionCore& session = *delivery.variable->session;
  const Entry guard(session);
  master::records::check_rank(session.world_size(), rank, "set");
  check_deliveries(session, {&delivery, 1}, "set");
  master::variables::Sources sources(session.commands());
  const master::variables::Source source = sources.add_rows(delivery, options.batch, "set");
  master::variables::to_variables(
      session.commands(), "set",
      {{delivery.variable.get(),
        master::variables::only_on(session.world_size(), rank, {source.offset, source.extents, true})}},
      master::variables::Leaves::other_copies);
}

void get_from_rank(master::records::VariableRecord& variable, int rank, const ArrayMaker& maker) {
  master::session::SessionCore& session = *variable.session;
  const Entry guard(session);
  master::records::check_rank(session.world_size(), rank, "get");
  const master::variables::FetchedCopy copy(session.commands(), variable, rank, "get");
  void* const values = maker.make(copy.extents());
  if (copy.bytes() != 0) std::memcpy(values, copy.values(), copy.bytes());
}

Fetched launch_get(const std::shared_ptr<master::records::VariableRecord>& variable, int rank) {
  master::session::SessionCore& session = *variable->session;
  const Entry guard(session);
  master::records::check_rank(session.world_size(), rank, "get_async");
  return {variable->session, master::variables::launch_fetch(session.commands(), variable, rank)};
}

namespace {

void copy_through_host(master::session::SessionCore& session, master::records::VariableRecord& variable, int from,
                       int to) {
  const master::variables::FetchedCopy copy(session.commands(), variable, from, "copy");
  master::variables::place_copy(session.commands(), variable, to, copy.offset(), copy.extents());
}

}  // namespace

void copy_between_ranks(const std::shared_ptr<master::records::VariableRecord>& variable, int from, int to) {
  master::session::SessionCore& session = *variable->session;
  const Entry guard(session);
  master::records::check_rank(session.world_size(), from, "copy");
  master::records::check_rank(session.world_size(), to, "copy");
  const master::records::Settled settled = session.commands().settled();
  const bool has_source = variable->copies(settled).assigned.has(static_cast<std::size_t>(from));
  if (!has_source)
    text::throw_usage("copy: " + master::records::not_assigned(*variable, settled, protocol::RankSet::only(from)));
  if (from == to) return;
  if (session.rank_devices().go_through_host(from, to)) return copy_through_host(session, *variable, from, to);
  master::variables::copy_variable(session.commands(), variable, from, to);
}

namespace {

/// The extents of all copies as one array, with the ranks as the first dimension.
Extents stacked_extents(const master::records::VariableRecord& variable, const master::records::Settled& settled) {
  const Extents own = master::records::equal_extents(variable, settled, "gather_stacked");
  Extents stacked{variable.session->world_size()};
  std::copy(own.begin(), own.end() - 1, stacked.begin() + 1);
  return stacked;
}

}  // namespace

void gather_to(VariableList variables, Gathered form, std::span<const ArrayMaker> makers) {
  master::session::SessionCore& session = *variables.front()->session;
  const Entry guard(session);
  session.commands().when_settled(session.all_ranks(), {}, [&](const master::records::Room& room) {
    std::deque<master::calls::HeapLoan> staged;
    std::vector<std::size_t> sizes;
    std::vector<Extents> shapes;
    std::vector<master::variables::Transfer> transfers;
    for (const auto& variable : variables) {
      shapes.push_back(form == Gathered::stacked ? stacked_extents(*variable, room)
                                                 : master::records::extents_together(*variable, room, "gather"));
      std::vector<master::variables::TransferPart> parts;
      std::size_t bytes = 0;
      for (const Extents& extents : variable->copies(room).extents) {
        parts.push_back({bytes, extents, extents[0] != 0});
        bytes += master::records::bytes_of(*variable, extents);
      }
      const master::calls::HeapLoan& staging =
          staged.emplace_back(session.commands(), bytes, "values on their way from the workers");
      for (auto& part : parts) part.offset += staging.offset();
      sizes.push_back(bytes);
      transfers.push_back({variable.get(), std::move(parts)});
    }
    master::variables::run_transfers(session.commands(), room, "gather", protocol::TransferDirection::from_variable,
                                     transfers);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      void* const values = makers[i].make(shapes[i]);
      if (sizes[i] != 0) std::memcpy(values, staged[i].data(), sizes[i]);
    }
  });
}

// ---- inspection -----------------------------------------------------------------------------------------------

Extents extents_of(const master::records::VariableRecord& variable, int rank) {
  const Entry guard(*variable.session);
  master::records::check_rank(variable.session->world_size(), rank, "a shared variable");
  return variable.extents_on(variable.session->commands().settled(), static_cast<std::size_t>(rank));
}

std::vector<Extents> all_extents(const master::records::VariableRecord& variable) {
  const Entry guard(*variable.session);
  return variable.copies(variable.session->commands().settled()).extents;
}

void master::records::check_equal_copies(const master::records::VariableRecord& variable, const char* what) {
  const Entry guard(*variable.session);
  static_cast<void>(master::records::equal_extents(variable, variable.session->commands().settled(), what));
}

const std::string& name_of(const master::records::VariableRecord& variable) noexcept { return variable.name; }

// ---- names ----------------------------------------------------------------------------------------------------

std::string unused_name(master::session::SessionCore& session, const std::string& name) {
  const Entry guard(session);
  std::string unused = name;
  for (int count = 2; session.registry().names().is_taken(unused); ++count) unused = name + "#" + std::to_string(count);
  return unused;
}

std::shared_ptr<master::records::VariableRecord> find_variable(const master::session::SessionCore& session,
                                                               std::string_view name, DType dtype,
                                                               std::size_t dimensions) {
  session.check_open();
  auto variable = session.registry().names().get(name, "find_shared");
  if (variable->dtype != dtype || variable->dimensions != dimensions) {
    text::throw_usage("find_shared: '" + variable->name + "' is of " +
                      arrays::describe_type(variable->dtype, variable->dimensions) + ", asked for as of " +
                      arrays::describe_type(dtype, dimensions));
  }
  return variable;
}

std::vector<std::shared_ptr<master::records::VariableRecord>> resolve(const master::session::SessionCore& session,
                                                                      std::span<const AnyShared> variables,
                                                                      const char* what) {
  session.check_open();
  if (variables.empty()) text::throw_usage(std::string(what) + " requires at least one variable, got none");
  std::vector<std::shared_ptr<master::records::VariableRecord>> records;
  for (const auto& variable : variables) {
    auto record = HandleAccess::record(variable) ? HandleAccess::record(variable)
                                                 : session.registry().names().get(HandleAccess::name(variable), what);
    if (record->session.get() != &session) {
      text::throw_usage(std::string(what) + ": variable '" + record->name + "' is of another session");
    }
    if (std::find(records.begin(), records.end(), record) != records.end()) {
      text::throw_usage(std::string(what) + ": variable '" + record->name + "' is given twice in one call");
    }
    records.push_back(std::move(record));
  }
  return records;
}

std::vector<Delivery> resolve(const master::session::SessionCore& session, std::span<const Assignment> assignments,
                              const char* what) {
  std::vector<AnyShared> variables;
  for (const auto& assignment : assignments) variables.push_back(HandleAccess::parts(assignment).variable);
  const auto records = resolve(session, variables, what);
  std::vector<Delivery> deliveries;
  for (std::size_t i = 0; i < assignments.size(); ++i) {
    const auto& assignment = HandleAccess::parts(assignments[i]);
    if (records[i]->dtype != assignment.dtype || records[i]->dimensions != assignment.dimensions) {
      text::throw_usage(std::string(what) + ": '" + records[i]->name + "' is of " +
                        arrays::describe_type(records[i]->dtype, records[i]->dimensions) + ", its values are of " +
                        arrays::describe_type(assignment.dtype, assignment.dimensions));
    }
    deliveries.push_back(assignment.delivery);
    deliveries.back().variable = records[i];
  }
  return deliveries;
}

}  // namespace syncrun::detail
