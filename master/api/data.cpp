// Data: arrays in the master's heap.

#include "syncrun/data.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/arrays/extents.hpp"
#include "common/os/memory_limit.hpp"
#include "common/text/errors.hpp"
#include "common/text/numbers.hpp"
#include "master/calls/describe.hpp"
#include "master/data/mapped_data.hpp"
#include "master/data/rows_on_nodes.hpp"
#include "master/session/session_core.hpp"
#include "syncrun/session.hpp"

namespace syncrun::detail {

namespace {

// Freeing fewer bytes than this does not justify unpinning, because everything else must then be pinned again.
constexpr std::size_t kUnpinnedFrom = std::size_t{64} << 20U;

std::span<const std::int64_t> extents_span(const master::records::DataRecord& record) {
  return {record.extents.data(), record.dimensions};
}

void check_closed_for_writing(const master::records::DataRecord& record) {
  if (record.is_open_for_writing)
    text::throw_usage(master::calls::describe_data(record) + " is open for writing: end the write guard first");
}

/// Waits for the calls that read the array.
void await_readers(master::records::DataRecord& record) { record.session->commands().await_users(&record); }

void give_back(master::records::DataRecord& record) {
  record.file.reset();
  if (record.lease) record.lease.reset();
  else if (record.capacity_bytes != 0) record.session->heap().free(record.offset, os::SharedHeap::Giveback::now);
  record.capacity_bytes = 0;
  record.offset = 0;
}

void set_extents(master::records::DataRecord& record, std::span<const std::int64_t> extents) {
  std::copy(extents.begin(), extents.end(), record.extents.begin());
}

/// "Data 'x' of shape [2, 3]", "a Data of shape [2, 3]".
std::string what_is_allocated(const master::records::DataRecord& record, std::span<const std::int64_t> extents) {
  return (record.name.empty() ? "a Data" : master::calls::describe_data(record)) + " of shape " +
         syncrun::to_string(extents);
}

/// The number of bytes to allocate for an array, with room to grow.
std::size_t oversized(std::size_t bytes, double oversize) {
  constexpr double kMost = 0x1p62;
  const double wanted = static_cast<double>(bytes) * oversize;
  const bool is_factor_too_large = wanted > kMost && static_cast<double>(bytes) <= kMost;
  if (!(oversize >= 1) || is_factor_too_large) {
    text::throw_usage("Allocation::oversize is a factor from 1, got " + number_text(oversize) + " for " +
                      std::to_string(bytes) + " bytes");
  }
  if (wanted > kMost) return bytes;  // more than any machine has, so the allocation fails with its own message
  return std::max(bytes, static_cast<std::size_t>(wanted));
}

/// Bytes [begin, begin + count) of the array have changed.
void note_written(const master::records::DataRecord& record, std::size_t begin, std::size_t count) {
  if (count != 0) record.session->heap().note_rows_written(record.offset + begin, count);
}

/// Allocates `capacity` bytes. Copies the first `kept` bytes from the old memory. The rest is zero.
void reallocate(master::records::DataRecord& record, std::span<const std::int64_t> extents, std::size_t capacity,
                std::size_t kept) {
  auto& session = *record.session;
  const std::uint64_t offset =
      session.commands().allocate(capacity, os::SharedHeap::Contents::zero, what_is_allocated(record, extents));
  session.heap().send_by_rows(offset);
  if (kept != 0) std::memcpy(session.segment().at(offset), session.segment().at(record.offset), kept);
  give_back(record);
  record.offset = offset;
  record.capacity_bytes = capacity;
}

}  // namespace

master::records::DataRecord::~DataRecord() {
  // No call reads it any more, since calls in flight hold the record themselves.
  if (session && session->is_open() && capacity_bytes != 0 && !lease)
    session->give_up(offset, os::SharedHeap::Giveback::now);
}

std::shared_ptr<master::records::DataRecord> make_data(const std::shared_ptr<master::session::SessionCore>& session,
                                                       DType dtype, std::span<const std::int64_t> extents,
                                                       const void* values, std::string_view name) {
  const master::session::SessionCore::Entry entry(*session);
  const std::size_t bytes = arrays::checked_bytes(dtype, extents);
  auto record = std::make_shared<master::records::DataRecord>();
  record->session = session;
  record->name = name;
  record->dtype = dtype;
  record->dimensions = static_cast<std::uint8_t>(extents.size());
  if (bytes != 0) {
    const auto contents = values == nullptr ? os::SharedHeap::Contents::zero : os::SharedHeap::Contents::any;
    record->offset = session->commands().allocate(bytes, contents, what_is_allocated(*record, extents));
    record->capacity_bytes = bytes;
    session->heap().send_by_rows(record->offset);
    if (values != nullptr) std::memcpy(session->segment().at(record->offset), values, bytes);
  }
  set_extents(*record, extents);
  return record;
}

void set_data(master::records::DataRecord& record, std::span<const std::int64_t> extents, const void* values,
              double oversize) {
  const master::session::SessionCore::Entry entry(*record.session);
  check_closed_for_writing(record);
  master::data::check_can_change(record);
  const std::size_t bytes = arrays::checked_bytes(record.dtype, extents);
  const std::size_t capacity = oversized(bytes, oversize);
  await_readers(record);
  if (bytes > record.capacity_bytes) reallocate(record, extents, capacity, 0);
  if (bytes != 0) std::memmove(record.session->segment().at(record.offset), values, bytes);
  note_written(record, 0, bytes);
  set_extents(record, extents);
  record.rows_on_nodes.clear();
}

void set_rows_of_data(master::records::DataRecord& record, std::int64_t first_row, std::size_t elements,
                      const void* values) {
  const master::session::SessionCore::Entry entry(*record.session);
  check_closed_for_writing(record);
  master::data::check_can_change(record);
  master::data::check_has_all_rows(record);
  const std::size_t row_bytes = arrays::row_bytes_of(record.dtype, extents_span(record));
  const std::size_t bytes = elements * size_of(record.dtype);
  if (row_bytes == 0 ? bytes != 0 : bytes % row_bytes != 0) {
    text::throw_usage("rows of " + master::calls::describe_data(record) + " have " +
                      std::to_string(row_bytes / size_of(record.dtype)) + " elements each, got " +
                      std::to_string(elements) + " in all");
  }
  if (bytes == 0) return;
  const auto count = static_cast<std::int64_t>(bytes / row_bytes);
  std::int64_t end = 0;
  if (__builtin_add_overflow(first_row, count, &end)) {
    text::throw_usage(master::calls::describe_data(record) + ": no array has " + std::to_string(count) +
                      " rows from row " + std::to_string(first_row) + " on");
  }
  check_rows(record, {first_row, end});
  await_readers(record);
  const std::size_t at = static_cast<std::size_t>(first_row) * row_bytes;
  std::memmove(record.session->segment().at(record.offset) + at, values, bytes);
  note_written(record, at, bytes);
}

void resize_data(master::records::DataRecord& record, std::span<const std::int64_t> extents, double oversize) {
  const master::session::SessionCore::Entry entry(*record.session);
  check_closed_for_writing(record);
  master::data::check_can_change(record);
  master::data::check_has_all_rows(record);
  const std::size_t bytes = arrays::checked_bytes(record.dtype, extents);
  const std::size_t now = arrays::checked_bytes(record.dtype, extents_span(record));
  const std::size_t capacity = oversized(bytes, oversize);
  await_readers(record);
  if (bytes > record.capacity_bytes) {
    reallocate(record, extents, capacity, now);
  } else if (bytes > now) {
    std::memset(record.session->segment().at(record.offset + now), 0, bytes - now);
    note_written(record, now, bytes - now);
  }
  set_extents(record, extents);
}

void free_data(master::records::DataRecord& record) {
  const master::session::SessionCore::Entry entry(*record.session);
  check_closed_for_writing(record);
  await_readers(record);
  const bool is_much = record.capacity_bytes >= kUnpinnedFrom && !record.lease;
  give_back(record);
  record.extents[0] = 0;
  record.rows_on_nodes.clear();
  if (is_much) record.session->commands().give_back_pages();
}

RawArray array_of(const master::records::DataRecord& record) {
  record.session->check_open();
  master::data::check_has_all_rows(record);
  // The pages are read-only. The handle gives only read access to them.
  if (record.file) return {const_cast<std::byte*>(record.file->file().elements()), record.extents};
  return {record.session->segment().at(record.offset), record.extents};
}

const Extents& extents_of(const master::records::DataRecord& record) {
  record.session->check_open();
  return record.extents;
}

Slice rows_of_node(const master::records::DataRecord& record, int node) {
  record.session->check_open();
  const int nodes = static_cast<int>(record.session->settings().nodes.size());
  if (node < 0 || node >= nodes) {
    text::throw_usage("rows_of_node requires a node from 0 to " + std::to_string(nodes - 1) + ", got " +
                      std::to_string(node));
  }
  if (record.rows_on_nodes.empty()) return {0, record.extents[0]};
  const arrays::RowRange& rows = record.rows_on_nodes[static_cast<std::size_t>(node)];
  return {rows.begin, rows.end};
}

const std::string& name_of(const master::records::DataRecord& record) noexcept { return record.name; }

std::size_t capacity_bytes_of(const master::records::DataRecord& record) {
  record.session->check_open();
  return record.capacity_bytes;
}

void check_rows(const master::records::DataRecord& record, Slice rows) {
  if (rows.begin >= 0 && rows.begin <= rows.end && rows.end <= record.extents[0]) return;
  text::throw_usage(master::calls::describe_data(record) + " has " + std::to_string(record.extents[0]) +
                    " rows, got the slice [" + std::to_string(rows.begin) + ", " + std::to_string(rows.end) + ")");
}

void check_element(const master::records::DataRecord& record, std::span<const std::int64_t> index,
                   std::span<const bool> is_beyond) {
  const auto is_there = [&](std::size_t i) { return index[i] >= 0 && index[i] < record.extents[i]; };
  std::size_t i = 0;
  while (i < index.size() && is_there(i)) ++i;
  if (i == index.size()) return;
  std::string place;
  for (i = 0; i < index.size(); ++i) {
    place += (i == 0 ? "[" : ", ");
    place += is_beyond[i] ? std::to_string(static_cast<std::uint64_t>(index[i])) : std::to_string(index[i]);
  }
  text::throw_usage(master::calls::describe_data(record) + " has shape " + syncrun::to_string(extents_span(record)) +
                    ", got the element at " + place + "]");
}

/// While the guard exists, no call uses the array. So its rows count as changed from here on.
RawArray begin_write(master::records::DataRecord& record) {
  const master::session::SessionCore::Entry entry(*record.session);
  check_closed_for_writing(record);
  master::data::check_can_change(record);
  master::data::check_has_all_rows(record);
  await_readers(record);
  record.is_open_for_writing = true;
  note_written(record, 0, record.capacity_bytes);
  return {record.session->segment().at(record.offset), record.extents};
}

void end_write(master::records::DataRecord& record) noexcept { record.is_open_for_writing = false; }

}  // namespace syncrun::detail
