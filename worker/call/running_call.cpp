#include "worker/call/running_call.hpp"

#include <utility>

#include "common/arrays/extents.hpp"
#include "common/arrays/mapped_file.hpp"
#include "common/protocol/call_shares.hpp"
#include "common/protocol/function_entry.hpp"
#include "common/protocol/variable_entry.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

RunningCall::RunningCall(const WorkerParts& parts) noexcept
    : attachment_(parts.attachment),
      device_(parts.device),
      comms_(parts.comms),
      gpu_(parts.device.gpu()),
      arena_(parts.arena),
      files_(parts.files),
      outgoing_(parts.outgoing),
      variables_(parts.variables),
      is_on_one_node_(attachment_.place.nodes <= 1) {}

// ---- rows -----------------------------------------------------------------------------------------------------

void RunningCall::begin(const Command& command, std::uint64_t id) {
  if (std::exchange(are_recordings_stale_, false)) forget_recordings();
  command_ = &command;
  begun_ = id;
  call_ = &command.call();
  slice_index_ = -1;
  slice_ = {};
  first_row_of_call_ = 0;
  update_arguments_ = 0;
  comm_ = &comms_.of(command);
  shares_outputs_ = device_.shares_before_reducing() || command.comm.path() == CommPath::host;
  // In a body's first run, libraries may load code and thereby wait for the device. During this time, the device must
  // not wait for a peer.
  bucket_start_ = call_->is_first ? BucketStart::after_body : BucketStart::when_ready;
  const int rank = attachment_.rank;
  share_ = share_in(command);
  if (has_rows() && call_->rows_are_local) {
    for (const int other : command.ranks) {
      if (other < rank) first_row_of_call_ += local_rows(other);
    }
  }
  user_comm_.emplace(comm(), weights_);
}

/// This rank's part of a command's rows. If the rows are those of its own copies, this is valid only while the command
/// runs.
RowRange RunningCall::share_in(const Command& command) const {
  const int rank = attachment_.rank;
  const CallPayload& call = command.call();
  if (call.rows < 0) return {0, 0};
  if (call.rows_are_local) return {0, local_rows(rank)};
  return share_in_call(attachment_.segment, call, command.ranks, rank);
}

void RunningCall::bring_ahead(const Command& command, std::uint64_t id) {
  if (command.call().rows_are_local) return;  // the copies may have changed by then
  const RowRange share = share_in(command);
  const RowRange first = share_of(share.count(), command.call().rows < 0 ? 1 : command.call().slices, 0);
  const RowRange slice{share.begin + first.begin, share.begin + first.end};
  try {
    device_.begin_ahead(id);
    for (std::size_t i = 0; i < command.call().arguments_count; ++i) {
      switch (command.arguments[i].kind) {
        case ArgumentKind::scattered: bring_rows(command, i, slice); break;
        case ArgumentKind::broadcast: bring_whole(command, i); break;
        case ArgumentKind::device_scalar: bring_scalar(command, i); break;
        default: break;
      }
    }
    device_.end_ahead();
  } catch (const Error&) {
    device_.drop_ahead();  // this failure does not belong to the current call
  }
}

void RunningCall::discard() noexcept {
  for (auto& output : outputs_) {
    if (output.shared != 0) arena_.free(output.shared, SharedHeap::Giveback::later);
    output = PendingOutput{};
  }
  for (auto& update : updates_) {
    if (update.total != nullptr) device_.release(update.total);
    if (update.value != nullptr) device_.release(update.value);
    update = PendingUpdate{};
  }
}

const RowsSlot& RunningCall::local_selection(int rank) const noexcept {
  if (call_->batch_s_by_rank == 0) return call_->batch_s;
  return attachment_.segment.at<const RowsSlot>(call_->batch_s_by_rank)[rank];
}

std::int64_t RunningCall::local_rows(int rank) const {
  const RowsSlot& selection = local_selection(rank);
  // If the slot belongs to the rank alone, it has the number of rows also if all are selected. The copy of a peer may not
  // have its shape yet.
  if (selection.kind != Rows::Kind::all || call_->batch_s_by_rank != 0) return selection.count();
  for (std::size_t i = 0; i < call_->arguments_count; ++i) {
    const ArgumentSlot& slot = command_->arguments[i];
    if (slot.kind == ArgumentKind::sliced) return copy_of(slot, rank).extents[0];
  }
  return 0;
}

bool RunningCall::next_slice() {
  if (slice_index_ >= 0) finish_slice();
  const std::int64_t slices = has_rows() ? call_->slices : 1;
  while (++slice_index_ < slices) {
    if (has_rows()) {
      const RowRange part = share_of(share_.count(), slices, slice_index_);
      slice_ = {share_.begin + part.begin, share_.begin + part.end};
      if (slice_.count() == 0 && !command_->has_comm) continue;
    }
    weights_.own = slice_rows();
    if (command_->has_comm) weights_.all = rows_of_all();
    key_.clear();
    attachment_.enter(begun_, Phase::function);
    attachment_.note(begun_, Phase::inputs);  // arguments are bound within the phase `function`
    return true;
  }
  return false;
}

/// The number of rows that a rank of the call has in the current slice.
std::int64_t RunningCall::slice_rows_of(int rank) const {
  if (!has_rows()) return 1;
  const RankSet& ranks = command_->ranks;
  if (ranks.is_single()) return slice_.count();
  const std::int64_t share =
      call_->rows_are_local ? local_rows(rank) : share_in_call(attachment_.segment, *call_, ranks, rank).count();
  return share_of(share, call_->slices, slice_index_).count();
}

std::int64_t RunningCall::rows_of_all() const {
  std::int64_t all = 0;
  for (const int rank : command_->ranks) all += slice_rows_of(rank);
  return all;
}

SliceRows RunningCall::rows_of_slice() const noexcept {
  if (!has_rows()) return {0, 1, true};
  return {slice_.begin - share_.begin, slice_.count(), slice_index_ + 1 == call_->slices};
}

void RunningCall::average_over_slices() {
  check_files();  // the average changes the parameters of every rank
  if (!has_rows()) return;
  weights_.own = share_.count();
  weights_.all = call_->rows;
}

/// The gradient is averaged in buckets only if all ranks have one slice. With more slices, the gradient is incomplete
/// until the last one is added.
void RunningCall::begin_gradient(const GradientPlace& place, GradientParts average) {
  const bool is_one_slice = !has_rows() || call_->slices == 1;
  const bool in_buckets = average == GradientParts::in_buckets && is_one_slice && comm().has_background();
  if (in_buckets) {
    rows_by_rank_.clear();
    for (const int rank : command_->ranks) rows_by_rank_.push_back(slice_rows_of(rank));
    weights_.by_rank = rows_by_rank_;
  }
  step_gradient_.begin(comm(), weights_, place, in_buckets ? bucket_bytes() : 0, bucket_start_);
}

/// The size of buckets with which the body of the train step was made.
std::size_t RunningCall::bucket_bytes() const noexcept {
  return attachment_.body_of(*attachment_.segment.at<const FunctionEntry>(call_->function)).bucket_bytes;
}

void RunningCall::finish_slice() {
  if (update_arguments_ == 0) return;
  for (std::size_t i = 0; i < call_->arguments_count; ++i) {
    PendingUpdate& update = updates_[i];
    if ((update_arguments_ >> i & 1U) == 0 || !update.is_written) continue;
    update.is_written = false;
    const ArgumentSlot& slot = command_->arguments[i];
    const std::size_t elements = update.bytes / size_of(slot.dtype);
    if (slice_rows() == 0) continue;  // a rank without rows does not count
    const ElementTypes types{slot.dtype, type_over_slices(slot.dtype)};
    if (update.rows == 0 && types.from == types.to) {
      std::swap(update.total, update.value);
    } else if (update.rows == 0) {
      const std::size_t bytes = elements * size_of(types.to);
      update.total = device_.allocate(bytes, SharedHeap::Contents::any, "an update over slices");
      device_.convert(types, update.value, update.total, elements);
    } else {
      device_.accumulate(slot.dtype, slot.reduction, update.total, update.value, weights_of(update.rows, slice_rows()),
                         elements);
    }
    update.rows += slice_rows();
  }
}

// ---- arguments ------------------------------------------------------------------------------------------------

VariableCopy& RunningCall::copy_of(const ArgumentSlot& slot, int rank) const {
  return attachment_.segment.at<VariableEntry>(slot.offset)->copies()[rank];
}

RawRows RunningCall::rows(std::size_t argument) {
  const ArgumentSlot& slot = command_->arguments[argument];
  const RawRows rows = slot.kind == ArgumentKind::sliced ? sliced_rows(argument, slot) : scattered_rows(argument, slot);
  note_argument(rows.rows.data, rows.rows.extents);
  return rows;
}

SharedRows RunningCall::array_of(const ArgumentSlot& slot) {
  const std::span<const std::int64_t> extents(slot.extents.data(), slot.dimensions);
  const std::size_t row_bytes = row_bytes_of(slot.dtype, extents);
  const std::int64_t rows = extents.empty() ? 1 : extents[0];
  const auto& segment = attachment_.segment;
  if (slot.file == 0) return {segment.at(slot.offset), row_bytes, rows};
  const MappedFile& file = files_.at(*segment.at<const FileEntry>(slot.file));
  return {file.elements(), row_bytes, rows, &file};
}

/// Checks all files of arguments. A file may become shorter while it is read. Devices that copy from it notice that,
/// others do not.
void RunningCall::check_files() const {
  for (std::size_t i = 0; i < call_->arguments_count; ++i) {
    const ArgumentSlot& slot = command_->arguments[i];
    const bool is_data = slot.kind == ArgumentKind::scattered || slot.kind == ArgumentKind::broadcast;
    if (!is_data || slot.file == 0) continue;
    files_.check(attachment_.segment.at<const FileEntry>(slot.file)->id);
  }
}

void* RunningCall::bring_rows(const Command& command, std::size_t argument, RowRange rows) {
  const ArgumentSlot& slot = command.arguments[argument];
  const auto& segment = attachment_.segment;
  const SharedRows all = array_of(slot);
  if (slot.is_minibatch || command.call().batch.kind != Rows::Kind::list) {
    const std::int64_t begin = slot.is_minibatch ? 0 : command.call().batch.begin;
    return device_.take_rows(argument, all, begin + rows.begin, rows.count());
  }
  const auto* indices = segment.at<const std::int64_t>(command.call().batch.offset) + rows.begin;
  return device_.gather_rows(argument, all, {indices, static_cast<std::size_t>(rows.count())});
}

void* RunningCall::bring_whole(const Command& command, std::size_t argument) {
  const SharedRows all = array_of(command.arguments[argument]);
  return device_.take_rows(argument, all, 0, all.rows);
}

const void* RunningCall::bring_scalar(const Command& command, std::size_t argument) {
  const ArgumentSlot& slot = command.arguments[argument];
  return device_.take_scalar(argument, attachment_.segment.at(slot.offset), slot.bytes);
}

RawRows RunningCall::scattered_rows(std::size_t argument, const ArgumentSlot& slot) {
  RawRows result;
  result.rows.extents = slot.extents;
  result.rows.extents[0] = slice_.count();
  result.rows.data = bring_rows(*command_, argument, slice_);
  result.first_row = first_row();
  return result;
}

RawRows RunningCall::sliced_rows(std::size_t argument, const ArgumentSlot& slot) {
  const auto& segment = attachment_.segment;
  const VariableCopy& copy = copy_of(slot, attachment_.rank);
  const RowsSlot& selection = local_selection(attachment_.rank);
  RawRows result;
  result.rows.extents = copy.extents;
  result.rows.extents[0] = slice_.count();
  result.first_row = first_row();
  const std::size_t row_bytes = row_bytes_of(slot.dtype, {copy.extents.data(), slot.dimensions});
  const std::int64_t begin = slice_.begin - share_.begin;  // among this rank's selected rows
  auto* array = static_cast<std::byte*>(device_.at(copy.place));
  if (selection.kind == Rows::Kind::list) {
    const auto* indices = segment.at<const std::int64_t>(selection.offset) + begin;
    result.rows.data =
        device_.gather_local_rows(argument, array, row_bytes, {indices, static_cast<std::size_t>(slice_.count())});
  } else {
    result.rows.data = array + static_cast<std::size_t>(selection.begin + begin) * row_bytes;
  }
  return result;
}

RawArray RunningCall::whole(std::size_t argument) {
  const RawArray array = whole_array(argument);
  note_argument(array.data, array.extents);
  return array;
}

RawArray RunningCall::whole_array(std::size_t argument) {
  const ArgumentSlot& slot = command_->arguments[argument];
  if (slot.kind == ArgumentKind::broadcast) return {bring_whole(*command_, argument), slot.extents};
  const VariableCopy& copy = copy_of(slot, attachment_.rank);
  return {device_.at(copy.place), copy.extents};
}

RawUpdate RunningCall::update(std::size_t argument) {
  const ArgumentSlot& slot = command_->arguments[argument];
  const VariableCopy& copy = copy_of(slot, attachment_.rank);
  PendingUpdate& pending = updates_[argument];
  pending.bytes = elements_in({copy.extents.data(), slot.dimensions}) * size_of(slot.dtype);
  if (pending.value == nullptr) {
    pending.value = device_.allocate(pending.bytes, SharedHeap::Contents::zero, "an update");
  } else {
    device_.clear(pending.value, pending.bytes);
  }
  pending.is_written = true;
  note_argument(device_.at(copy.place), copy.extents);
  note_argument(pending.value, {});
  update_arguments_ |= 1U << argument;
  return {{device_.at(copy.place), copy.extents}, {pending.value, copy.extents}};
}

const void* RunningCall::scalar(std::size_t argument) {
  const void* place = bring_scalar(*command_, argument);
  note_argument(place, {});
  return place;
}

const void* RunningCall::value(std::size_t argument) const {
  const ArgumentSlot& slot = command_->arguments[argument];
  const std::byte* values = attachment_.segment.at(slot.offset);
  if (slot.kind == ArgumentKind::per_worker) values += slot.bytes * static_cast<std::size_t>(attachment_.rank);
  return values;
}

}  // namespace syncrun::detail
