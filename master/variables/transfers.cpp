#include "master/variables/transfers.hpp"

#include <cstring>
#include <string>

#include "common/arrays/extents.hpp"
#include "common/os/memory_limit.hpp"
#include "common/protocol/variable_entry.hpp"
#include "common/text/errors.hpp"
#include "common/text/joined.hpp"
#include "master/calls/call_rows.hpp"
#include "master/data/mapped_data.hpp"
#include "master/records/variables.hpp"
#include "master/values/value_copies.hpp"

namespace syncrun::detail::master::variables {

namespace {

// If all copies together grow by this much or more, the growth is checked against the memory limit before any worker
// allocates.
constexpr std::size_t kCheckedGrowthBytes = std::size_t{8} << 20U;

std::string names_of(const std::vector<Transfer>& transfers) {
  return text::joined(transfers, ", ", [](const Transfer& transfer) { return transfer.variable->name; });
}

/// The ranks that take part in a transfer of any variable.
protocol::RankSet ranks_of(const std::vector<Transfer>& transfers) {
  protocol::RankSet ranks;
  for (const auto& transfer : transfers) {
    for (std::size_t rank = 0; rank < transfer.parts.size(); ++rank) {
      if (transfer.parts[rank].takes_part) ranks.add(static_cast<int>(rank));
    }
  }
  return ranks;
}

/// The next command reads or overwrites the copies. A worker does not drop that of a Value before this command.
void depend_on_copies(calls::SystemCommands& commands, const Transfer& transfer) {
  commands.follow(transfer.variable->writes);
  if (!transfer.variable->value) return;
  for (std::size_t rank = 0; rank < transfer.parts.size(); ++rank) {
    if (!transfer.parts[rank].takes_part) continue;
    values::depend_on_copy(commands, *transfer.variable, static_cast<int>(rank), values::Access::reads);
    transfer.variable->value->copies[rank].used = commands.calls().last_published() + 1;
  }
}

struct Temporaries {
  os::SharedHeap& heap;
  std::vector<std::uint64_t> offsets;
  ~Temporaries() {
    for (const auto offset : offsets) heap.free(offset, os::SharedHeap::Giveback::later);
  }
};

Extents extents_of(const Delivery& delivery) { return delivery.data ? delivery.data->extents : delivery.extents; }

const arrays::MappedFile* mapped_file_of(const Delivery& delivery) {
  return delivery.data && delivery.data->file ? &delivery.data->file->file() : nullptr;
}

}  // namespace

// ---- what copies are ------------------------------------------------------------------------------------------

void check_growth(calls::SystemCommands& commands, const records::VariableRecord& variable,
                  std::span<const std::size_t> bytes, OldCopies old) {
  const auto* copies = commands.segment().at<protocol::VariableEntry>(variable.entry)->copies();
  std::size_t growth = 0;
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    // The ranks of other nodes check the memory of their node when they allocate.
    const int number = static_cast<int>(rank);
    const bool is_in_host_memory =
        commands.devices().kind_of(number) == DeviceKind::cpu && commands.calls().node_of(number) == 0;
    const bool grows = old == OldCopies::kept || bytes[rank] > copies[rank].capacity_bytes;
    if (is_in_host_memory && grows) growth += bytes[rank];
  }
  if (growth < kCheckedGrowthBytes) return;
  os::check_memory_available(growth, "the copies of shared variable '" + variable.name + "'");
}

void read_extents(const os::Segment& segment, records::VariableRecord& variable) {
  const auto* copies = segment.at<protocol::VariableEntry>(variable.entry)->copies();
  records::CopyFacts& facts = variable.copies.change();
  for (std::size_t rank = 0; rank < facts.extents.size(); ++rank) {
    Extents& extents = facts.extents[rank];
    const bool had_elements = arrays::elements_in({extents.data(), variable.dimensions}) != 0;
    extents = copies[rank].extents;
    // The rank has freed its old copy and got no memory for a new one.
    if (had_elements && copies[rank].capacity_bytes == 0) facts.assigned.remove(rank);
  }
}

// ---- commands -------------------------------------------------------------------------------------------------

void run_transfers(calls::SystemCommands& commands, const records::Room& room, const char* what,
                   protocol::TransferDirection direction, const std::vector<Transfer>& transfers) {
  commands.run_system(
      room.of(ranks_of(transfers)), what, names_of(transfers),
      [&](protocol::CommandHead& command, calls::InFlight& in_flight) {
        for (const auto& transfer : transfers) depend_on_copies(commands, transfer);
        if (direction == protocol::TransferDirection::to_variable) {
          for (const auto& transfer : transfers) in_flight.writes.push_back(transfer.variable->name);
        }
        auto* slot = calls::begin_transfer(commands, command, in_flight, direction, transfers.size());
        for (const auto& transfer : transfers) {
          for (const TransferPart& part : transfer.parts) {
            *slot++ = {transfer.variable->entry, part.offset, part.extents, part.takes_part, part.is_zero};
          }
        }
      });
}

void change_copies(calls::SystemCommands& commands, const records::Room& room, const std::vector<Transfer>& transfers,
                   Leaves leaves, const std::function<void()>& run) {
  room.check();
  std::vector<bool> were_replicated;
  for (const auto& transfer : transfers) {
    std::vector<std::size_t> bytes;
    for (const TransferPart& part : transfer.parts) {
      bytes.push_back(part.takes_part ? records::bytes_of(*transfer.variable, part.extents) : 0);
    }
    check_growth(commands, *transfer.variable, bytes, OldCopies::reused);
    were_replicated.push_back(transfer.variable->is_replicated);
  }
  // From here on, because a worker may be replaced in the midst of the change.
  for (const auto& transfer : transfers) transfer.variable->is_replicated = leaves == Leaves::equal_copies;
  const std::uint64_t before = commands.calls().last_published();
  const std::uint64_t replacements = commands.replacements();
  try {
    run();
  } catch (...) {
    const bool has_begun = commands.calls().last_published() != before;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      // Some ranks may have done their part and others not.
      transfers[i].variable->is_replicated = !has_begun && were_replicated[i];
      if (commands.is_open()) read_extents(commands.segment(), *transfers[i].variable);
    }
    throw;
  }
  for (const auto& transfer : transfers) {
    read_extents(commands.segment(), *transfer.variable);
    records::CopyFacts& facts = transfer.variable->copies.change();
    for (std::size_t rank = 0; rank < transfer.parts.size(); ++rank) {
      const TransferPart& part = transfer.parts[rank];
      if (!part.takes_part) continue;
      facts.assigned.add(rank);
      // A rank may have done its part and then died before the others had done theirs. The new worker has no values,
      // unless a peer has given it some.
      const bool may_be_new = commands.replacements() != replacements;
      if (may_be_new && facts.extents[rank] != part.extents) facts.assigned.remove(rank);
    }
  }
}

namespace {

/// Whether a rank that has taken part has no values, and had none before: it had done its part, and was then lost and
/// replaced. Nobody has told the program so, because there was nothing to restore.
bool lacks_values(calls::SystemCommands& commands, const std::vector<Transfer>& transfers,
                  const std::vector<records::AssignedRanks>& before) {
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const records::AssignedRanks& assigned = transfers[i].variable->copies(commands.settled()).assigned;
    for (std::size_t rank = 0; rank < transfers[i].parts.size(); ++rank) {
      if (transfers[i].parts[rank].takes_part && !assigned.has(rank) && !before[i].has(rank)) return true;
    }
  }
  return false;
}

/// `plan(room)` returns the transfers to these variables. They are made again for a worker that has missed the first ones.
template <class Plan>
void make_transfers(calls::SystemCommands& commands, const char* what, const protocol::RankSet& ranks,
                    const std::vector<records::VariableRecord*>& variables, Leaves leaves, const Plan& plan) {
  // Other ranks may still read the shape of a copy: it tells them which rows of the variable are theirs.
  const std::vector<const void*> records(variables.begin(), variables.end());
  bool lacks = false;
  do {
    commands.when_settled(ranks, records, [&](const records::Room& room) {
      // After the wait, in which a rank may have lost what it had.
      std::vector<records::AssignedRanks> before;
      for (const records::VariableRecord* variable : variables) before.push_back(variable->copies(room).assigned);
      const std::vector<Transfer>& transfers = plan(room);
      change_copies(commands, room, transfers, leaves,
                    [&] { run_transfers(commands, room, what, protocol::TransferDirection::to_variable, transfers); });
      lacks = lacks_values(commands, transfers, before);
    });
  } while (lacks);
}

}  // namespace

void to_variables(calls::SystemCommands& commands, const char* what, const std::vector<Transfer>& transfers,
                  Leaves leaves) {
  std::vector<records::VariableRecord*> variables;
  for (const auto& transfer : transfers) variables.push_back(transfer.variable);
  make_transfers(commands, what, ranks_of(transfers), variables, leaves,
                 [&](const records::Room&) -> const std::vector<Transfer>& { return transfers; });
}

void to_variables(calls::SystemCommands& commands, const char* what, records::VariableRecord& variable, Leaves leaves,
                  const std::function<std::vector<TransferPart>(const records::Room&)>& plan) {
  make_transfers(commands, what, commands.all_ranks(), {&variable}, leaves, [&](const records::Room& room) {
    return std::vector<Transfer>{{&variable, plan(room)}};
  });
}

FetchedCopy::FetchedCopy(calls::SystemCommands& commands, records::VariableRecord& variable, int rank,
                         const char* what) {
  commands.when_settled(protocol::RankSet::only(rank), {}, [&](const records::Room& room) {
    records::check_not_lost(variable, room, protocol::RankSet::only(rank), what);
    extents_ = variable.extents_on(room, static_cast<std::size_t>(rank));
    bytes_ = records::bytes_of(variable, extents_);
    if (bytes_ == 0) return;
    staging_.emplace(commands, bytes_, "values on their way from a worker");
    run_transfers(commands, room, what, protocol::TransferDirection::from_variable,
                  {{&variable, only_on(commands.world_size(), rank, {staging_->offset(), extents_, true})}});
  });
}

std::shared_ptr<CallResult> launch_fetch(calls::SystemCommands& commands,
                                         const std::shared_ptr<records::VariableRecord>& variable, int rank) {
  const records::Room room = commands.settle(protocol::RankSet::only(rank));
  records::check_not_lost(*variable, room, room.ranks(), "get_async");
  const Extents& extents = variable->extents_on(room, static_cast<std::size_t>(rank));
  const std::size_t bytes = records::bytes_of(*variable, extents);
  auto result = std::make_shared<CallResult>();
  result->outputs.resize(1);
  result->outputs[0].extents = extents;
  if (bytes == 0) {
    result->finished = true;
    return result;
  }
  result->outputs[0].buffer = allocate_on_heap(bytes);
  const Transfer transfer{variable.get(), only_on(commands.world_size(), rank, {0, extents, true})};
  const std::uint64_t id = commands.launch_system(
      room, "get", variable->name, [&](protocol::CommandHead& command, calls::InFlight& in_flight) {
        // Not SystemCommands::allocate, which may run another command while this one is being written.
        in_flight.fetched =
            commands.memory().allocate(bytes, "values on their way from a worker", in_flight.temporaries);
        commands.heap().send_by_rows(in_flight.fetched);
        in_flight.arguments[0].variable = variable;
        in_flight.arguments_count = 1;
        depend_on_copies(commands, transfer);
        calls::begin_transfer(commands, command, in_flight, protocol::TransferDirection::from_variable)[rank] = {
            variable->entry, in_flight.fetched, extents, true, false};
      });
  if (!commands.calls().is_in_flight(id)) return result;
  calls::InFlight& in_flight = commands.calls().in_flight(id);
  in_flight.kept_result = result;
  in_flight.result = result.get();
  return result;
}

namespace {

void launch_copy(calls::SystemCommands& commands, const records::Room& room,
                 const std::shared_ptr<records::VariableRecord>& variable, int from, int to) {
  const std::uint64_t id = commands.launch_system(
      room, "copy", variable->name, [&](protocol::CommandHead& command, calls::InFlight& in_flight) {
        in_flight.arguments[0].variable = variable;
        in_flight.arguments_count = 1;
        in_flight.brings_to = records::Destination::rank(to);
        in_flight.writes.push_back(variable->name);
        commands.follow(variable->writes, protocol::RankSet::only(from));
        for (const std::uint64_t write : variable->writes.calls) {
          const bool is_in_flight = commands.calls().is_in_flight(write);
          if (is_in_flight && commands.calls().command(write).ranks.has(from)) {
            commands.calls().wait_for(write, from, calls::Requirement::success);
          }
        }
        auto& payload = command.begin<protocol::MovePayload>();
        payload.variable = variable->entry;
        payload.from = from;
      });
  records::CopyFacts& facts = variable->copies.change();
  facts.extents[static_cast<std::size_t>(to)] = facts.extents[static_cast<std::size_t>(from)];
  facts.assigned.add(static_cast<std::size_t>(to));
  variable->is_replicated = false;
  variable->writes.copies.push_back({id, to, from});
  commands.calls().note_write(variable->writes, id);
}

}  // namespace

void copy_variable(calls::SystemCommands& commands, const std::shared_ptr<records::VariableRecord>& variable, int from,
                   int to) {
  const auto at = [](int rank) { return static_cast<std::size_t>(rank); };
  const auto changes_shape = [&](const records::Settled& settled) {
    const auto& extents = variable->copies(settled).extents;
    return extents[at(to)] != extents[at(from)];
  };
  // Other ranks may still read the shape of the copy, as before a transfer.
  const bool has_no_users = changes_shape(commands.settled());
  const void* const record = variable.get();
  std::span<const void* const> users(&record, has_no_users ? 1 : 0);
  commands.when_settled(protocol::RankSet::only(to), users, [&](const records::Room& room) {
    if (!has_no_users && changes_shape(room))
      return copy_variable(commands, variable, from, to);  // because of the wait
    const records::CopyFacts& facts = variable->copies(room);
    if (!facts.assigned.has(at(from)))
      text::throw_usage("copy: " + records::not_assigned(*variable, room, protocol::RankSet::only(from)));
    std::vector<std::size_t> bytes(static_cast<std::size_t>(commands.world_size()));
    bytes[at(to)] = records::bytes_of(*variable, facts.extents[at(from)]);
    check_growth(commands, *variable, bytes, OldCopies::reused);
    launch_copy(commands, room, variable, from, to);
  });
}

void place_copy(calls::SystemCommands& commands, records::VariableRecord& variable, int rank, std::uint64_t from,
                const Extents& extents) {
  to_variables(commands, "set", {{&variable, only_on(commands.world_size(), rank, {from, extents, true})}},
               Leaves::other_copies);
}

// ---- values on their way --------------------------------------------------------------------------------------

Source Sources::add(const records::VariableRecord& variable, const void* values, const Extents& extents) {
  if (commands_.segment().contains(values)) return {commands_.segment().offset_of(values), extents};
  const std::size_t bytes = records::bytes_of(variable, extents);
  const calls::HeapLoan& staging = staged_.emplace_back(commands_, bytes, "values on their way to the workers");
  if (bytes != 0) std::memcpy(staging.data(), values, bytes);
  return {staging.offset(), extents};
}

Source Sources::add(const Delivery& delivery) {
  if (const arrays::MappedFile* const file = mapped_file_of(delivery))
    return add_of_file(*delivery.variable, *file, 0, extents_of(delivery));
  return add(*delivery.variable, values_of(delivery), extents_of(delivery));
}

Source Sources::add_rows(const Delivery& delivery, const Rows& rows, const char* what) {
  if (rows.kind() == Rows::Kind::all) return add(delivery);
  const records::VariableRecord& variable = *delivery.variable;
  Extents extents = extents_of(delivery);
  const std::string option = std::string(what) + " of '" + variable.name + "': batch";
  Temporaries temporaries{commands_.heap(), {}};
  const protocol::RowsSlot selected =
      calls::write_selection(rows, extents[0], option.c_str(), "the array", commands_.memory(), temporaries.offsets);
  const auto* from = static_cast<const std::byte*>(values_of(delivery));
  const std::size_t row_bytes = arrays::row_bytes_of(variable.dtype, {extents.data(), variable.dimensions});
  extents[0] = selected.count();
  const arrays::MappedFile* const file = mapped_file_of(delivery);
  if (selected.kind != Rows::Kind::list) {
    const std::size_t begin = static_cast<std::size_t>(selected.begin) * row_bytes;
    if (file != nullptr) return add_of_file(variable, *file, begin, extents);
    return add(variable, from + static_cast<std::size_t>(selected.begin) * row_bytes, extents);
  }
  const calls::HeapLoan& staging = staged_.emplace_back(commands_, records::bytes_of(variable, extents),
                                                        "selected rows on their way to the workers");
  std::byte* to = staging.data();
  const auto* const indices = commands_.segment().at<const std::int64_t>(selected.offset);
  if (file != nullptr) {
    const auto count = static_cast<std::size_t>(selected.count());
    file->read_rows(row_bytes, {indices, count}, 0, to, count * row_bytes);
    file->check_unchanged();
    return {staging.offset(), extents};
  }
  for (std::int64_t i = 0; i < selected.count() && row_bytes != 0; ++i, to += row_bytes) {
    std::memcpy(to, from + static_cast<std::size_t>(indices[i]) * row_bytes, row_bytes);
  }
  return {staging.offset(), extents};
}

/// Reads the file instead of copying from the mapping. If the file has become shorter, read reports an error, while an
/// access to the mapping would raise a signal.
Source Sources::add_of_file(const records::VariableRecord& variable, const arrays::MappedFile& file, std::size_t at,
                            const Extents& extents) {
  const std::size_t bytes = records::bytes_of(variable, extents);
  const calls::HeapLoan& staging = staged_.emplace_back(commands_, bytes, "values on their way to the workers");
  file.read(at, staging.data(), bytes);
  file.check_unchanged();
  return {staging.offset(), extents};
}

const void* Sources::values_of(const Delivery& delivery) const {
  return delivery.data ? commands_.segment().at(delivery.data->offset) : delivery.values;
}

// ---- parts ----------------------------------------------------------------------------------------------------

std::vector<TransferPart> whole_for_all(int world_size, const Source& source) {
  return {static_cast<std::size_t>(world_size), TransferPart{source.offset, source.extents, true}};
}

std::vector<TransferPart> shares_for_all(const protocol::RankSet& all, const calls::RowWeights& weights,
                                         const records::VariableRecord& variable, const Source& source) {
  const std::size_t row_bytes = arrays::row_bytes_of(variable.dtype, {source.extents.data(), variable.dimensions});
  std::vector<TransferPart> parts(static_cast<std::size_t>(all.count()));
  std::vector<std::int64_t> begins(parts.size() + 1);
  weights.divide(source.extents[0], all, begins);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    TransferPart& part = parts[rank];
    part.extents = source.extents;
    part.extents[0] = begins[rank + 1] - begins[rank];
    part.offset = source.offset + static_cast<std::uint64_t>(begins[rank]) * row_bytes;
  }
  return parts;
}

std::vector<TransferPart> only_on(int world_size, int rank, const TransferPart& part) {
  std::vector<TransferPart> parts(static_cast<std::size_t>(world_size), TransferPart{0, {}, false});
  parts[static_cast<std::size_t>(rank)] = part;
  return parts;
}

}  // namespace syncrun::detail::master::variables
