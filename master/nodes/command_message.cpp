#include "master/nodes/command_message.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>
#include <variant>

#include "common/arrays/extents.hpp"
#include "common/arrays/mapped_file.hpp"
#include "common/os/memory_limit.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/function_entry.hpp"
#include "master/nodes/transfer_parts.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// Outbox::failed_ns if the rank only shares the failure of another one.
constexpr std::int64_t kNotOwnFailure = std::numeric_limits<std::int64_t>::max();

/// The heap reserves memory for extents of this size and more.
constexpr std::uint64_t kPagedFrom = std::uint64_t{64} << 10U;

/// Reading the limit of memory takes longer than fewer bytes do.
constexpr std::uint64_t kCheckedRowsBytes = std::uint64_t{1} << 20U;

/// Whether an argument of the call is in the bytes of the command.
bool uses_inline_bytes(const protocol::Command& command, const os::Segment& segment) {
  const std::uint64_t begin = segment.offset_of(command.bytes.data());
  const auto* const arguments = command.arguments.data();
  return std::any_of(arguments, arguments + command.call().arguments_count,
                     [&](const protocol::ArgumentSlot& argument) {
                       return argument.offset >= begin && argument.offset < begin + command.bytes.size();
                     });
}

/// The outputs of a call that are arrays and come to the master.
bool is_reported_array(const protocol::Command& command, std::size_t output) {
  const OutputType& type = command.outputs[output];
  return (command.call().wanted_outputs >> output & 1U) != 0 && !type.is_kept && type.dimensions != 0;
}

/// The outputs of a call that stay on the device, as a Value.
bool is_kept(const protocol::Command& command, const protocol::CallPayload& call, std::size_t output) {
  return (call.wanted_outputs >> output & 1U) != 0 && command.outputs[output].is_kept;
}

bool keeps_outputs(const protocol::Command& command, const protocol::CallPayload& call) {
  for (std::size_t i = 0; i < call.outputs_count; ++i) {
    if (is_kept(command, call, i)) return true;
  }
  return false;
}

std::size_t bytes_of(const OutputType& type, const protocol::OutputSlot& slot) {
  return arrays::checked_bytes(type.dtype, {slot.extents.data(), type.dimensions});
}

}  // namespace

// ---- commands -------------------------------------------------------------------------------------------------

namespace {

/// A sender of the same build never names another place.
void check_place(const os::Segment& segment, std::uint64_t offset, std::uint64_t bytes, const char* what) {
  if (offset <= segment.bytes() && bytes <= segment.bytes() - offset) return;
  throw Error(ErrorKind::system, std::string(what) + " came for a place outside the shared memory");
}

/// Rows have a way of their own (RowMirror).
bool is_repeated(const os::HeapChange& change) noexcept {
  switch (change.kind) {
    case os::HeapChange::Kind::reserved:
    case os::HeapChange::Kind::written:
    case os::HeapChange::Kind::freed: return true;
    case os::HeapChange::Kind::mirrored:
    case os::HeapChange::Kind::rows_written:
    case os::HeapChange::Kind::rows_there: return false;
  }
  return false;
}

}  // namespace

void put_heap_changes(MessageWriter& to, const os::Segment& segment, const os::HeapLog& log, std::uint64_t from) {
  std::uint64_t count = 0;
  log.for_each(from, [&](const os::HeapChange& change) { count += is_repeated(change) ? 1 : 0; });
  to.put(count);
  log.for_each(from, [&](const os::HeapChange& change) {
    if (!is_repeated(change)) return;
    to.put(change);
    if (change.kind == os::HeapChange::Kind::written) to.put_bytes({segment.at(change.offset), change.bytes});
  });
}

void apply_heap_changes(MessageReader& from, const os::Segment& segment, os::SharedHeap::Pages pages) {
  for (auto left = from.get<std::uint64_t>(); left != 0; --left) {
    const auto change = from.get<os::HeapChange>();
    check_place(segment, change.offset, change.bytes, "a change of the heap");
    if (change.kind == os::HeapChange::Kind::written) {
      from.get_all(std::span(segment.at(change.offset), change.bytes));
    } else if (change.bytes < kPagedFrom) {
      continue;  // such an extent shares its pages with others
    } else if (change.kind == os::HeapChange::Kind::freed) {
      if (pages == os::SharedHeap::Pages::kept) continue;
      // The pages stay if it fails.
      static_cast<void>(::fallocate(segment.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                    static_cast<off_t>(change.offset), static_cast<off_t>(change.bytes)));
    } else {
      segment.reserve(change.offset, change.bytes, "what the master has allocated");
    }
  }
}

void put_rows(MessageWriter& to, const os::Segment& segment, std::span<const SegmentRange> rows) {
  to.put(rows.size());
  for (const SegmentRange& range : rows) {
    to.put(range);
    if (!is_bulk(range)) to.put_bytes({segment.at(range.begin), range.count()});
  }
}

namespace {

/// The bytes of a part of the segment that have no memory yet.
std::uint64_t bytes_without_memory(const os::Segment& segment, const SegmentRange& range) {
  std::uint64_t bytes = 0;
  auto at = static_cast<off_t>(range.begin);
  const auto end = static_cast<off_t>(range.end);
  while (at < end) {
    const off_t hole = ::lseek(segment.fd(), at, SEEK_HOLE);
    if (hole < 0 || hole >= end) break;
    const off_t data = ::lseek(segment.fd(), hole, SEEK_DATA);
    at = data < 0 ? end : std::min(data, end);
    bytes += static_cast<std::uint64_t>(at - hole);
  }
  return bytes;
}

}  // namespace

/// A control group does not refuse memory, but kills a process that uses too much. So this checks before the rows come.
void take_rows(MessageReader& from, const os::Segment& segment,
               const std::function<void(std::span<std::byte> bulk)>& receive) {
  std::uint64_t needed = 0;
  for (auto left = from.get<std::size_t>(); left != 0; --left) {
    const auto range = from.get<SegmentRange>();
    check_place(segment, range.begin, range.end - range.begin, "rows");
    const std::span to(segment.at(range.begin), range.count());
    if (range.count() >= kCheckedRowsBytes) {
      needed += bytes_without_memory(segment, range);
      os::check_memory_available(needed, "the room for rows on this node");
    }
    if (is_bulk(range)) receive(to);
    else from.get_all(to);
  }
}

void put_command_of_all(MessageWriter& to, const protocol::ControlBlock& control, const os::Segment& segment,
                        std::size_t slot) {
  const protocol::Command& command = control.command_in(slot);
  to.put(slot, command.id, static_cast<const protocol::CommandHead&>(command));
  if (command.kind != protocol::CommandKind::call) return;
  const protocol::CallPayload& call = command.call();
  to.put_all(std::span(command.outputs).first(call.outputs_count));
  to.put_all(std::span(command.arguments).first(call.arguments_count));
  if (keeps_outputs(command, call)) to.put_all(std::span(command.kept).first(call.outputs_count));
  const bool has_bytes = uses_inline_bytes(command, segment);
  to.put(has_bytes);
  if (has_bytes) to.put(command.bytes);
}

void put_places(MessageWriter& to, const protocol::ControlBlock& control, std::size_t slot,
                const protocol::NodePlace& node) {
  const protocol::Command& command = control.command_in(slot);
  for (const int rank : node.ranks_of(command.ranks)) to.put(command.places[static_cast<std::size_t>(rank)]);
}

void put_command(MessageWriter& to, const protocol::ControlBlock& control, const os::Segment& segment, std::size_t slot,
                 const protocol::NodePlace& node) {
  put_command_of_all(to, control, segment, slot);
  put_places(to, control, slot, node);
}

namespace {

template <class... Payloads>
bool has_payload_of_its_kind(const protocol::CommandHead& head, const std::variant<Payloads...>* payload) {
  return ((head.kind == Payloads::kKind && std::holds_alternative<Payloads>(*payload)) || ...);
}

/// The numbers in the message of a command that are used as places or as sizes. A sender of the same build never sends
/// others. Does not check what stands at these places, which has come as changes of the heap.
class CommandCheck {
 public:
  CommandCheck(const protocol::ControlBlock& control, const os::Segment& segment)
      : segment_(segment), ranks_(static_cast<std::uint64_t>(control.world_size())) {}

  void check_head(const protocol::CommandHead& head) const {
    check_list(head.dependencies, head.dependencies_count, sizeof(protocol::Dependency), "dependencies");
    require(has_payload_of_its_kind(head, &head.payload));
    if (const auto* const call = std::get_if<protocol::CallPayload>(&head.payload)) check(*call, head.ranks.count());
    else std::visit([this](const auto& payload) { check(payload); }, head.payload);
  }

  void check_call(const protocol::Command& command, const protocol::CallPayload& call) const {
    for (const protocol::ArgumentSlot& argument : std::span(command.arguments).first(call.arguments_count)) {
      require(argument.dimensions <= kMaxDimensions);
      switch (argument.kind) {
        case ArgumentKind::local:
        case ArgumentKind::local_read:
        case ArgumentKind::sliced:
        case ArgumentKind::update: check_variable(argument.offset); break;
        default: check_place(segment_, argument.offset, argument.bytes, "an argument");
      }
      check_list(argument.file, argument.file == 0 ? 0 : 1, sizeof(arrays::FileEntry), "a file of rows");
    }
    for (std::size_t i = 0; i < call.outputs_count; ++i) {
      require(command.outputs[i].dimensions <= kMaxDimensions);
      if (is_kept(command, call, i)) check_variable(command.kept[i]);
    }
  }

 private:
  static void require(bool is_valid) {
    if (!is_valid) throw Error(ErrorKind::system, "a command came with numbers out of range");
  }
  void check_list(std::uint64_t offset, std::uint64_t count, std::size_t bytes_of_one, const char* what) const {
    require(count <= segment_.bytes() / bytes_of_one);
    check_place(segment_, offset, count * bytes_of_one, what);
  }
  void check_variable(std::uint64_t offset) const {
    check_place(segment_, offset, protocol::VariableEntry::bytes(static_cast<int>(ranks_)), "a variable");
  }
  void check_rank(std::int32_t rank) const { require(rank >= 0 && static_cast<std::uint64_t>(rank) < ranks_); }
  void check_rows(const protocol::RowsSlot& rows) const {
    if (rows.kind != Rows::Kind::list) return;
    require(rows.begin == 0 && rows.end >= 0);
    check_list(rows.offset, static_cast<std::uint64_t>(rows.end), sizeof(std::int64_t), "a list of rows");
  }

  void check(const protocol::CallPayload& call, int ranks) const {
    require(call.outputs_count <= kMaxOutputs && call.arguments_count <= kMaxArguments);
    require(call.slices >= 1);
    check_list(call.function, 1, sizeof(protocol::FunctionEntry), "a function");
    check_rows(call.batch);
    check_rows(call.batch_s);
    if (call.batch_s_by_rank != 0)
      check_list(call.batch_s_by_rank, ranks_, sizeof(protocol::RowsSlot), "rows of ranks");
    if (call.share_begins != 0)
      check_list(call.share_begins, static_cast<std::uint64_t>(ranks) + 1, sizeof(std::int64_t), "shares of ranks");
  }
  void check(const protocol::TransferPayload& transfer) const {
    check_list(transfer.parts, transfer.variables_count * ranks_, sizeof(protocol::TransferSlot), "parts");
  }
  void check(const protocol::CollectivePayload& collective) const {
    check_rank(collective.root);
    check_list(collective.variables, collective.variables_count, sizeof(protocol::CollectiveSlot), "variables");
  }
  void check(const protocol::FilesPayload& files) const {
    check_variable(files.variable);
    check_list(files.slots, ranks_, sizeof(protocol::FilesSlot), "pieces of files");
    check_place(segment_, files.folder.offset, files.folder.bytes, "a folder");
    check_place(segment_, files.id.offset, files.id.bytes, "the id of a folder");
    if (files.hashes != 0) check_list(files.hashes, 2 * ranks_, sizeof(std::uint64_t), "hashes of pieces");
  }
  void check(const protocol::LookPayload& look) const {
    check_list(look.question, 1, sizeof(arrays::FileQuestion), "a question about files");
    check_list(look.answers, ranks_, sizeof(arrays::FileFacts), "answers about files");
  }
  void check(const protocol::ConnectPayload& connect) const {
    check_list(connect.answers, ranks_, sizeof(protocol::ConnectAnswer), "answers about connections");
  }
  void check(const protocol::MovePayload& move) const {
    check_rank(move.from);
    check_variable(move.variable);
  }
  void check(const protocol::FreePayload& free) const { check_variable(free.first); }
  void check(const protocol::MemoryPayload& memory) const {
    check_list(memory.to, 1, sizeof(protocol::MemorySize), "the size of memory");
  }
  void check(const protocol::CallPayload&) const {}
  void check(const protocol::DestroyPayload&) const {}
  void check(const protocol::UnpinPayload&) const {}
  void check(const protocol::UnmapPayload&) const {}
  void check(const protocol::ClosePayload&) const {}

  const os::Segment& segment_;
  std::uint64_t ranks_;
};

std::uint8_t place_in_inbox(MessageReader& from) {
  const auto place = from.get<std::uint8_t>();
  if (place < protocol::kInboxSize) return place;
  throw Error(ErrorKind::system, "a command came for place " + std::to_string(place) + " of an inbox");
}

}  // namespace

std::size_t take_command(MessageReader& from, const protocol::ControlBlock& control, const os::Segment& segment) {
  const auto slot = from.get<std::size_t>();
  if (slot >= control.slots()) throw Error(ErrorKind::system, "a command came for slot " + std::to_string(slot));
  protocol::Command& command = control.command_in(slot);
  command.id = from.get<std::uint64_t>();
  const auto head = from.get<protocol::CommandHead>();
  const CommandCheck check(control, segment);
  check.check_head(head);
  if (head.kind == protocol::CommandKind::call) {
    const protocol::CallPayload& call = head.call();
    from.get_all(std::span(command.outputs).first(call.outputs_count));
    from.get_all(std::span(command.arguments).first(call.arguments_count));
    if (keeps_outputs(command, call)) from.get_all(std::span(command.kept).first(call.outputs_count));
    check.check_call(command, call);
    if (from.get<bool>()) from.get_all(std::span<std::byte>(command.bytes));
  }
  for (const int rank : control.place().ranks_of(head.ranks))
    command.places[static_cast<std::size_t>(rank)] = place_in_inbox(from);
  protocol::put_head(command, head);
  return slot;
}

// ---- reports --------------------------------------------------------------------------------------------------

namespace {

/// A place that has only this rank.
protocol::NodePlace place_of(int rank) noexcept { return {.first_rank = rank, .local_size = 1}; }

/// Calls `visit_copy(copy)` for each copy to which the command may give a shape on this rank, and `visit_values(bytes)` for
/// the bytes of the segment where the rank puts values for the master.
template <class VisitCopy, class VisitValues>
void for_each_change(const os::Segment& segment, const protocol::Command& command, int rank, VisitCopy&& visit_copy,
                     VisitValues&& visit_values) {
  if (const auto* const transfer = std::get_if<protocol::TransferPayload>(&command.payload)) {
    const bool fetches = transfer->direction == protocol::TransferDirection::from_variable;
    for_each_part(segment, command, place_of(rank),
                  [&](int, protocol::VariableEntry& entry, const protocol::TransferSlot& part) {
                    if (fetches) visit_values(std::span(segment.at(part.offset), nodes::bytes_of(entry, part)));
                    else visit_copy(entry.copies()[rank]);
                  });
  } else if (const auto* const collective = std::get_if<protocol::CollectivePayload>(&command.payload)) {
    const auto* const slots = segment.at<const protocol::CollectiveSlot>(collective->variables);
    for (const protocol::CollectiveSlot& slot : std::span(slots, collective->variables_count)) {
      auto& entry = *segment.at<protocol::VariableEntry>(slot.variable);
      visit_copy(entry.copies()[rank]);
      if (slot.to != 0) visit_values(part_of(segment, command, slot, size_of(entry.dtype), rank));
    }
  } else if (const auto* const move = std::get_if<protocol::MovePayload>(&command.payload)) {
    visit_copy(segment.at<protocol::VariableEntry>(move->variable)->copies()[rank]);
  } else if (const auto* const files = std::get_if<protocol::FilesPayload>(&command.payload)) {
    if (files->action == protocol::FilesAction::take)
      visit_copy(segment.at<protocol::VariableEntry>(files->variable)->copies()[rank]);
    if (files->hashes != 0)
      visit_values(std::as_writable_bytes(std::span(segment.at<std::uint64_t>(files->hashes) + rank, 1)));
  } else if (const auto* const look = std::get_if<protocol::LookPayload>(&command.payload)) {
    visit_values(std::as_writable_bytes(std::span(segment.at<arrays::FileFacts>(look->answers) + rank, 1)));
  } else if (const auto* const connect = std::get_if<protocol::ConnectPayload>(&command.payload)) {
    visit_values(std::as_writable_bytes(std::span(segment.at<protocol::ConnectAnswer>(connect->answers) + rank, 1)));
  } else if (const auto* const call = std::get_if<protocol::CallPayload>(&command.payload)) {
    for (std::size_t i = 0; i < call->outputs_count; ++i) {
      if (is_kept(command, *call, i)) visit_copy(segment.at<protocol::VariableEntry>(command.kept[i])->copies()[rank]);
    }
  }
}

/// The shapes of copies go to the master also if the rank has failed: it may have freed its old copy.
void put_changes(MessageWriter& to, const os::Segment& segment, const protocol::Command& command, int rank,
                 protocol::Vote vote) {
  const auto put_copy = [&](const protocol::VariableCopy& copy) { to.put(copy.extents, copy.capacity_bytes); };
  const auto put_values = [&](std::span<const std::byte> values) {
    if (vote != protocol::Vote::failed) to.put_bytes(values);
  };
  for_each_change(segment, command, rank, put_copy, put_values);
}

void take_changes(MessageReader& from, const os::Segment& segment, const protocol::Command& command, int rank,
                  protocol::Vote vote) {
  const auto take_copy = [&](protocol::VariableCopy& copy) { from.get_to(copy.extents, copy.capacity_bytes); };
  const auto take_values = [&](std::span<std::byte> values) {
    if (vote != protocol::Vote::failed) from.get_all(values);
  };
  for_each_change(segment, command, rank, take_copy, take_values);
}

}  // namespace

void put_report(MessageWriter& to, const os::Segment& segment, const protocol::Command& command, int rank,
                const protocol::Outbox& outbox, const protocol::Outbox* reduced) {
  to.put(outbox.vote, outbox.is_empty, outbox.is_fatal, outbox.rows, outbox.weight, outbox.own_ns,
         outbox.reduced_outputs);
  put_changes(to, segment, command, rank, outbox.vote);
  if (outbox.vote == protocol::Vote::failed) {
    to.put(outbox.may_have_updated, outbox.error_kind, outbox.native_code, outbox.failed_ns, outbox.failed_phase,
           outbox.message);
    return;
  }
  if (command.kind == protocol::CommandKind::memory)
    to.put(*segment.at<const protocol::MemorySize>(command.as<protocol::MemoryPayload>().to));
  if (command.kind != protocol::CommandKind::call || outbox.is_empty) return;
  for (std::size_t i = 0; i < command.call().outputs_count; ++i) {
    to.put(outbox.outputs[i]);
    if (!is_reported_array(command, i)) continue;
    const protocol::Outbox* const source = outbox.has_reduced(i) ? reduced : &outbox;
    to.put(source != nullptr);
    if (source != nullptr)
      to.put_bytes({segment.at(source->outputs[i].offset), bytes_of(command.outputs[i], outbox.outputs[i])});
  }
}

void take_report(MessageReader& from, const os::Segment& segment, const protocol::Command& command, int rank,
                 protocol::Outbox& outbox, const std::function<std::uint64_t(std::size_t bytes)>& place_for) {
  from.get_to(outbox.vote, outbox.is_empty, outbox.is_fatal, outbox.rows, outbox.weight, outbox.own_ns,
              outbox.reduced_outputs);
  outbox.is_large = false;
  take_changes(from, segment, command, rank, outbox.vote);
  if (outbox.vote == protocol::Vote::failed) {
    from.get_to(outbox.may_have_updated, outbox.error_kind, outbox.native_code);
    // Clocks of different nodes are not compared. So the failure whose report arrives first is the first one.
    const bool is_own = from.get<std::int64_t>() != kNotOwnFailure;
    outbox.failed_ns = is_own ? os::Clock::now().time_since_epoch().count() : kNotOwnFailure;
    from.get_to(outbox.failed_phase, outbox.message);
    return;
  }
  if (command.kind == protocol::CommandKind::memory)
    *segment.at<protocol::MemorySize>(command.as<protocol::MemoryPayload>().to) = from.get<protocol::MemorySize>();
  if (command.kind != protocol::CommandKind::call || outbox.is_empty) return;
  for (std::size_t i = 0; i < command.call().outputs_count; ++i) {
    protocol::OutputSlot& output = outbox.outputs[i];
    output = from.get<protocol::OutputSlot>();
    if (!is_reported_array(command, i)) continue;
    const std::size_t bytes = from.get<bool>() ? bytes_of(command.outputs[i], output) : 0;
    output.offset = bytes == 0 ? 0 : place_for(bytes);
    const auto values = from.get_bytes(bytes);
    if (output.offset != 0) std::copy(values.begin(), values.end(), segment.at(output.offset));
  }
}

}  // namespace syncrun::detail::master::nodes
