#include "worker/call/shared_variables.hpp"

#include <cerrno>
#include <deque>
#include <string>
#include <utility>

#include "common/arrays/extents.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::worker::call {

namespace {

/// Groups collectives on several variables, so that the communicator can run them as one.
class CommGroup {
 public:
  CommGroup(comm::CommCore& comm, std::size_t operations) : comm_(comm), is_open_(operations > 1) {
    if (is_open_) comm_.begin_group();
  }
  ~CommGroup() {
    if (is_open_) comm_.drop_group();
  }
  CommGroup(const CommGroup&) = delete;
  CommGroup& operator=(const CommGroup&) = delete;
  void end() {
    if (std::exchange(is_open_, false)) comm_.end_group();
  }

 private:
  comm::CommCore& comm_;
  bool is_open_;
};

void* allocate_copy(devices::DeviceMemory& memory, int rank, std::size_t bytes) {
  return memory.allocate(bytes, os::SharedHeap::Contents::any,
                         "a shared variable's copy on rank " + std::to_string(rank));
}

/// One variable in a collective, on this rank. The collective works on `values`. This is the copy itself, or second
/// memory if the copy must stay as it is.
///
///   stage() for all -> run() for all, in a group -> settle() for all -> the device finishes -> take_fresh() for all
class CollectiveCopy {
 public:
  CollectiveCopy(const process::Attachment& attachment, devices::DeviceMemory& memory, comm::CommCore& comm,
                 const protocol::CollectivePayload& command, const protocol::CollectiveSlot& slot)
      : attachment_(attachment),
        memory_(memory),
        comm_(comm),
        command_(command),
        slot_(slot),
        entry_(*attachment.segment.at<protocol::VariableEntry>(slot.variable)),
        copy_(entry_.copies()[attachment.rank]),
        elements_(arrays::elements_in({copy_.extents.data(), entry_.dimensions})),
        bytes_(elements_ * size_of(entry_.dtype)) {}
  ~CollectiveCopy() {
    if (fresh_ != nullptr) memory_.release(fresh_);
  }
  CollectiveCopy(const CollectiveCopy&) = delete;
  CollectiveCopy& operator=(const CollectiveCopy&) = delete;

  protocol::VariableCopy& copy() noexcept { return copy_; }
  std::uint64_t variable() const noexcept { return slot_.variable; }
  const protocol::VariableEntry& entry() const noexcept { return entry_; }

  /// Allocates device memory, which may fail on one rank only, and brings the values to where the collective needs
  /// them.
  void stage() {
    values_ = own();
    if (command_.collective == protocol::CollectiveKind::all_gather) {
      values_ = fresh_ = allocate(division().all_bytes());
    } else if (command_.collective == protocol::CollectiveKind::reduce_scatter && slot_.to != 0 &&
               !attachment_.segment.contains(values_)) {
      values_ = fresh_ = allocate(bytes_);  // the copy stays as it is
      memory_.copy_within(fresh_, own(), bytes_);
    }
  }

  void run(const comm::RankWeights& weights) {
    const bool is_divided = command_.collective == protocol::CollectiveKind::all_gather ||
                            command_.collective == protocol::CollectiveKind::reduce_scatter;
    comm_.count(is_divided ? division().all_bytes() : bytes_);
    switch (command_.collective) {
      case protocol::CollectiveKind::all_reduce:
        return comm_.all_reduce(values_, elements_, entry_.dtype, command_.reduction, weights);
      case protocol::CollectiveKind::reduce:
        return comm_.reduce(values_, elements_, entry_.dtype, command_.reduction, weights, command_.root);
      case protocol::CollectiveKind::reduce_scatter:
        return comm_.reduce_scatter(values_, part(), division(), entry_.dtype, command_.reduction, weights);
      case protocol::CollectiveKind::broadcast: return comm_.broadcast(values_, elements_, entry_.dtype, command_.root);
      case protocol::CollectiveKind::all_gather: return comm_.all_gather(part(), values_, division());
      case protocol::CollectiveKind::barrier: return comm_.barrier();
      case protocol::CollectiveKind::gather:
      case protocol::CollectiveKind::scatter: break;
    }
    throw Error(ErrorKind::system, "the master has asked for a collective that variables do not have");
  }

  /// Brings the part of a divided result to the front of the copy, or to where the master reads it. Source and
  /// destination do not overlap, because a share is never longer than the distance from its begin to the front.
  void settle() {
    if (command_.collective != protocol::CollectiveKind::reduce_scatter) return;
    const std::size_t bytes = division().bytes(comm_.rank());
    if (slot_.to != 0) {
      const bool has_arrived = attachment_.segment.contains(values_);
      if (!has_arrived) memory_.copy_out(at_own_place(attachment_.segment.at(slot_.to)), at_own_place(values_), bytes);
    } else if (part() != values_) {
      memory_.copy_within(own(), part(), bytes);
    }
  }

  /// Returns the memory that replaces that of the copy, or null if the copy keeps its memory.
  void* take_fresh() noexcept {
    return command_.collective == protocol::CollectiveKind::all_gather ? std::exchange(fresh_, nullptr) : nullptr;
  }
  /// The shape of the copy after the collective.
  std::array<std::int64_t, kMaxDimensions> extents_after() const noexcept {
    auto extents = copy_.extents;
    switch (command_.collective) {
      case protocol::CollectiveKind::broadcast:
      case protocol::CollectiveKind::all_gather: return slot_.extents;
      case protocol::CollectiveKind::reduce_scatter:
        if (slot_.to == 0) extents[0] = arrays::share_of(slot_.extents[0], comm_.world_size(), comm_.rank()).count();
        return extents;
      case protocol::CollectiveKind::barrier:
      case protocol::CollectiveKind::all_reduce:
      case protocol::CollectiveKind::reduce:
      case protocol::CollectiveKind::gather:
      case protocol::CollectiveKind::scatter: break;
    }
    return extents;
  }

 private:
  void* own() const noexcept { return copy_.capacity_bytes == 0 ? nullptr : memory_.at(copy_.place); }
  void* allocate(std::size_t bytes) { return allocate_copy(memory_, attachment_.rank, bytes); }
  comm::Division division() const noexcept {
    const auto* lengths = attachment_.segment.at<const std::int64_t>(slot_.lengths);
    return {{lengths, static_cast<std::size_t>(comm_.world_size())}, size_of(entry_.dtype)};
  }
  std::byte* at_own_place(void* whole) const noexcept {
    return static_cast<std::byte*>(whole) + division().begin_bytes(comm_.rank());
  }

  /// This rank's part of the divided array.
  void* part() const noexcept {
    if (command_.collective == protocol::CollectiveKind::all_gather) return own();
    const bool arrives = slot_.to != 0 && attachment_.segment.contains(values_);
    return at_own_place(arrives ? attachment_.segment.at(slot_.to) : values_);
  }

  const process::Attachment& attachment_;
  devices::DeviceMemory& memory_;
  comm::CommCore& comm_;  // of the command's ranks. Roots and parts are numbered in it
  const protocol::CollectivePayload& command_;
  const protocol::CollectiveSlot& slot_;
  protocol::VariableEntry& entry_;
  protocol::VariableCopy& copy_;
  std::size_t elements_;
  std::size_t bytes_;
  void* values_ = nullptr;
  void* fresh_ = nullptr;
};

}  // namespace

void VariableCopies::run_collective(const protocol::CommandHead& head) {
  const auto& command = head.as<protocol::CollectivePayload>();
  const auto* slots = attachment_.segment.at<const protocol::CollectiveSlot>(command.variables);
  comm::CommCore& comm = command.route == Route::host ? comms_.through_host(head) : comms_.of(head);
  const comm::RankWeights weights{1, head.ranks.count()};  // each copy counts the same

  if (command.collective == protocol::CollectiveKind::broadcast) {
    for (std::uint32_t i = 0; i < command.variables_count; ++i) reshape(slots[i].variable, slots[i].extents);
  }
  std::deque<CollectiveCopy> copies;
  for (std::uint32_t i = 0; i < command.variables_count; ++i) {
    copies.emplace_back(attachment_, memory_, comm, command, slots[i]).stage();
  }
  CommGroup group(comm, copies.size());
  for (auto& copy : copies) copy.run(weights);
  group.end();
  for (auto& copy : copies) copy.settle();
  memory_.finish();
  for (auto& copy : copies) {
    const auto extents = copy.extents_after();
    if (void* const fresh = copy.take_fresh(); fresh != nullptr) {
      release(copy.variable());
      take_memory(copy.variable(), fresh, bytes_of(copy.entry(), extents));
    }
    copy.copy().extents = extents;
  }
}

// ---- memory of copies -----------------------------------------------------------------------------------------

/// Makes sure that the copy has at least this many bytes. Its values are lost if it gets new memory.
void VariableCopies::make_room(std::uint64_t variable, std::size_t bytes) {
  if (bytes <= attachment_.own_copy(variable).capacity_bytes) return;
  release(variable);  // before the allocation: there may be too little memory for both
  take_memory(variable, allocate_copy(memory_, attachment_.rank, bytes), bytes);
}

void VariableCopies::take_memory(std::uint64_t variable, void* memory, std::size_t bytes) {
  protocol::VariableCopy& copy = attachment_.own_copy(variable);
  copy.place = memory_.place_of(memory);
  copy.capacity_bytes = bytes;
  held_.insert(variable);
  copy.exported = peers_.export_memory(memory);
}

void VariableCopies::release(std::uint64_t variable) noexcept {
  release_memory(variable);
  attachment_.own_copy(variable).extents = {};
}

void VariableCopies::release_memory(std::uint64_t variable) noexcept {
  protocol::VariableCopy& copy = attachment_.own_copy(variable);
  if (copy.capacity_bytes != 0) {
    before_release_();
    memory_.release(memory_.at(copy.place));
  }
  copy.place = copy.exported = copy.capacity_bytes = 0;
  held_.erase(variable);
}

void VariableCopies::adopt(std::uint64_t variable, const std::array<std::int64_t, kMaxDimensions>& extents,
                           OutputBuffer buffer) {
  const std::size_t bytes = buffer.bytes();
  if (void* const memory = buffer.detach(); memory != nullptr) take_memory(variable, memory, bytes);
  attachment_.own_copy(variable).extents = extents;
}

std::size_t VariableCopies::drop_spare(std::size_t bytes, std::uint64_t current) noexcept {
  std::size_t freed = 0;
  for (auto at = held_.begin(); at != held_.end() && freed < bytes;) {
    const std::uint64_t variable = *at++;  // release() erases it
    protocol::VariableCopy& copy = attachment_.own_copy(variable);
    auto& entry = *attachment_.segment.at<protocol::VariableEntry>(variable);
    if (!protocol::drop_copy(entry, attachment_.world_size, attachment_.rank, current)) continue;
    freed += copy.capacity_bytes;
    release_memory(variable);  // the master may still read the extents
  }
  return freed;
}

void VariableCopies::free(const protocol::FreePayload& command) noexcept {
  for (std::uint64_t variable = command.first; variable != 0;) {
    const std::uint64_t next = attachment_.segment.at<const protocol::VariableEntry>(variable)->next_freed;
    release(variable);
    variable = next;
  }
}

// ---- transfers ------------------------------------------------------------------------------------------------

void VariableCopies::run_move(const protocol::Command& command) {
  const auto& move = command.as<protocol::MovePayload>();
  if (!attachment_.place.has(move.from)) return take_arrived(command);
  auto& entry = *attachment_.segment.at<protocol::VariableEntry>(move.variable);
  const protocol::VariableCopy& from = entry.copies()[move.from];
  const std::size_t bytes = bytes_of(entry, from.extents);
  protocol::VariableCopy& copy = attachment_.own_copy(move.variable);
  if (!peers_.finish_copy_ahead(command.id)) {
    make_room(move.variable, bytes);
    if (bytes != 0) peers_.copy_from_peer(memory_.at(copy.place), {move.from, from.place, from.exported}, bytes);
    memory_.finish();
  }
  copy.extents = from.extents;
}

/// The values have come from another node, to memory of this one.
void VariableCopies::take_arrived(const protocol::Command& command) {
  const auto& move = command.as<protocol::MovePayload>();
  const auto& entry = *attachment_.segment.at<const protocol::VariableEntry>(move.variable);
  const protocol::ArgumentSlot& values = command.arguments[0];
  const std::size_t bytes = bytes_of(entry, values.extents);
  if (bytes != 0 && values.offset == protocol::Command::kNoMemory) {
    throw Error(ErrorKind::system,
                "this node has too little memory for " + std::to_string(bytes) + " bytes that come from rank " +
                    std::to_string(move.from) + " on another node",
                ENOMEM);
  }
  make_room(move.variable, bytes);
  protocol::VariableCopy& copy = attachment_.own_copy(move.variable);
  if (bytes != 0) memory_.copy_in(memory_.at(copy.place), attachment_.segment.at(values.offset), bytes);
  memory_.finish();
  copy.extents = values.extents;
}

bool VariableCopies::start_move_ahead(const protocol::Command& command) {
  const auto& move = command.as<protocol::MovePayload>();
  auto& entry = *attachment_.segment.at<protocol::VariableEntry>(move.variable);
  const protocol::VariableCopy& from = entry.copies()[move.from];
  const protocol::VariableCopy& copy = attachment_.own_copy(move.variable);
  const std::size_t bytes = bytes_of(entry, from.extents);
  if (bytes == 0 || bytes > copy.capacity_bytes) return false;
  return peers_.start_copy_ahead(command.id, memory_.at(copy.place), {move.from, from.place, from.exported}, bytes);
}

void VariableCopies::run_transfer(const protocol::TransferPayload& command) {
  const auto* parts = attachment_.segment.at<const protocol::TransferSlot>(command.parts) + attachment_.rank;
  for (std::uint32_t i = 0; i < command.variables_count; ++i, parts += attachment_.world_size) {
    if (parts->takes_part) run_part(command.direction, *parts);
  }
  memory_.finish();
}

void VariableCopies::run_part(protocol::TransferDirection direction, const protocol::TransferSlot& part) {
  auto& entry = *attachment_.segment.at<protocol::VariableEntry>(part.variable);
  protocol::VariableCopy& copy = entry.copies()[attachment_.rank];
  const std::size_t bytes = bytes_of(entry, part.extents);
  if (direction == protocol::TransferDirection::from_variable) {
    if (bytes > copy.capacity_bytes) text::throw_usage("a shared variable's copy is smaller than what was asked of it");
    return memory_.copy_out(attachment_.segment.at(part.offset), memory_.at(copy.place), bytes);
  }
  void* const to = reshape(part.variable, part.extents);
  if (part.offset != 0) {
    memory_.copy_in(to, attachment_.segment.at(part.offset), bytes);
    attachment_.count(protocol::Count::input_bytes, bytes);
  }
  if (part.is_zero) memory_.clear(to, bytes);
}

void* VariableCopies::reshape(std::uint64_t variable, const std::array<std::int64_t, kMaxDimensions>& extents) {
  const auto& entry = *attachment_.segment.at<const protocol::VariableEntry>(variable);
  protocol::VariableCopy& copy = attachment_.own_copy(variable);
  const std::size_t bytes = bytes_of(entry, extents);
  make_room(variable, bytes);
  copy.extents = extents;
  return memory_.at(copy.place);
}

}  // namespace syncrun::detail::worker::call
