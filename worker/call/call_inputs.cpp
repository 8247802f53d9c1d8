#include "worker/call/call_inputs.hpp"

#include <span>

#include "common/arrays/extents.hpp"
#include "common/arrays/mapped_file.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::worker::call {

void CallInputs::bring_ahead(const protocol::Command& command, std::uint64_t id) {
  if (command.call().rows_are_local) return;  // the copies may have changed by then
  const arrays::RowRange slice = slices_.first_slice_of(command);
  try {
    stage_.begin_ahead(id);
    for (std::size_t i = 0; i < command.call().arguments_count; ++i) {
      switch (command.arguments[i].kind) {
        case ArgumentKind::scattered: bring_rows(command, i, slice); break;
        case ArgumentKind::broadcast: bring_whole(command, i); break;
        case ArgumentKind::device_scalar: bring_scalar(command, i); break;
        case ArgumentKind::value:
        case ArgumentKind::per_worker:
        case ArgumentKind::local:
        case ArgumentKind::local_read:
        case ArgumentKind::sliced:
        case ArgumentKind::text:
        case ArgumentKind::update: break;  // they are in host memory, or on the device already
      }
    }
    stage_.end_ahead();
  } catch (const Error&) {
    stage_.abandon();  // this failure does not belong to the current call
  }
}

devices::SharedRows CallInputs::array_of(const protocol::ArgumentSlot& slot) {
  const std::span<const std::int64_t> extents(slot.extents.data(), slot.dimensions);
  const std::size_t row_bytes = arrays::row_bytes_of(slot.dtype, extents);
  const std::int64_t rows = extents.empty() ? 1 : extents[0];
  const auto& segment = attachment_.segment;
  if (slot.file == 0) return {segment.at(slot.offset), row_bytes, rows};
  const arrays::MappedFile& file = files_.at(*segment.at<const arrays::FileEntry>(slot.file));
  return {file.elements(), row_bytes, rows, &file};
}

/// Checks all files of arguments. A file may become shorter while it is read. Devices that copy from it notice that,
/// others do not.
void CallInputs::check_files() const {
  for (std::size_t i = 0; i < slices_.call().arguments_count; ++i) {
    const protocol::ArgumentSlot& slot = slices_.command().arguments[i];
    const bool is_data = slot.kind == ArgumentKind::scattered || slot.kind == ArgumentKind::broadcast;
    if (!is_data || slot.file == 0) continue;
    files_.check(attachment_.segment.at<const arrays::FileEntry>(slot.file)->id);
  }
}

void* CallInputs::bring_rows(const protocol::Command& command, std::size_t argument, arrays::RowRange rows) {
  const protocol::ArgumentSlot& slot = command.arguments[argument];
  const protocol::RowsSlot& batch = command.call().batch;
  const devices::SharedRows all = array_of(slot);
  if (slot.is_minibatch || batch.kind != Rows::Kind::list) {
    const std::int64_t begin = slot.is_minibatch ? 0 : batch.begin;
    return stage_.bring(argument, all, {nullptr, begin + rows.begin, rows.count()});
  }
  const auto* indices = attachment_.segment.at<const std::int64_t>(batch.offset) + rows.begin;
  return stage_.bring(argument, all, {indices, 0, rows.count()});
}

void* CallInputs::bring_whole(const protocol::Command& command, std::size_t argument) {
  const devices::SharedRows all = array_of(command.arguments[argument]);
  return stage_.bring(argument, all, {nullptr, 0, all.rows});
}

const void* CallInputs::bring_scalar(const protocol::Command& command, std::size_t argument) {
  const protocol::ArgumentSlot& slot = command.arguments[argument];
  return stage_.bring_scalar(argument, attachment_.segment.at(slot.offset), slot.bytes);
}

RawRows CallInputs::rows(std::size_t argument) {
  const protocol::ArgumentSlot& slot = slices_.command().arguments[argument];
  if (attachment_.totals != nullptr && slot.kind != ArgumentKind::sliced) [[unlikely]]
    count_rows(slot, slices_.range().count());
  RawArray rows = slot.kind == ArgumentKind::sliced
                      ? sliced_rows(argument, slot)
                      : RawArray{bring_rows(slices_.command(), argument, slices_.range()), slot.extents};
  rows.extents[0] = slices_.range().count();
  recordings_.note_argument(rows.data, rows.extents);
  return {rows, slices_.first_row()};
}

void CallInputs::count_rows(const protocol::ArgumentSlot& slot, std::int64_t rows) const noexcept {
  const std::size_t row_bytes = arrays::row_bytes_of(slot.dtype, {slot.extents.data(), slot.dimensions});
  attachment_.count(protocol::Count::input_bytes, static_cast<std::size_t>(rows) * row_bytes);
}

/// The extents are those of the whole copy.
RawArray CallInputs::sliced_rows(std::size_t argument, const protocol::ArgumentSlot& slot) {
  const protocol::VariableCopy& copy = attachment_.own_copy(slot.offset);
  const protocol::RowsSlot& selection = slices_.selection_of(attachment_.rank);
  const std::size_t row_bytes = arrays::row_bytes_of(slot.dtype, {copy.extents.data(), slot.dimensions});
  const SliceRows rows = slices_.in_share();  // among this rank's selected rows
  auto* array = static_cast<std::byte*>(memory_.at(copy.place));
  if (selection.kind != Rows::Kind::list)
    return {array + static_cast<std::size_t>(selection.begin + rows.before) * row_bytes, copy.extents};
  const auto* indices = attachment_.segment.at<const std::int64_t>(selection.offset) + rows.before;
  const std::span<const std::int64_t> of_slice(indices, static_cast<std::size_t>(rows.count));
  return {stage_.gather_local(argument, array, row_bytes, of_slice), copy.extents};
}

RawArray CallInputs::whole(std::size_t argument) {
  const protocol::ArgumentSlot& slot = slices_.command().arguments[argument];
  RawArray array;
  if (slot.kind == ArgumentKind::broadcast) {
    array = {bring_whole(slices_.command(), argument), slot.extents};
    if (attachment_.totals != nullptr) [[unlikely]]
      count_rows(slot, slot.dimensions == 0 ? 1 : slot.extents[0]);
  } else {
    const protocol::VariableCopy& copy = attachment_.own_copy(slot.offset);
    array = {memory_.at(copy.place), copy.extents};
  }
  recordings_.note_argument(array.data, array.extents);
  return array;
}

ScalarPlaces CallInputs::scalar(std::size_t argument) {
  const void* place = bring_scalar(slices_.command(), argument);
  recordings_.note_argument(place, {});
  return {place, value(argument), recordings_.is_capturing()};
}

std::string_view CallInputs::text(std::size_t argument) const {
  const protocol::ArgumentSlot& slot = slices_.command().arguments[argument];
  return {attachment_.segment.at<const char>(slot.offset), slot.bytes};
}

const void* CallInputs::value(std::size_t argument) const {
  const protocol::ArgumentSlot& slot = slices_.command().arguments[argument];
  const std::byte* values = attachment_.segment.at(slot.offset);
  if (slot.kind == ArgumentKind::per_worker) values += slot.bytes * static_cast<std::size_t>(attachment_.rank);
  return values;
}

}  // namespace syncrun::detail::worker::call
