// Data: arrays in the master's heap.

#include "syncrun/data.hpp"

#include <cstring>
#include <string>

#include "common/errors.hpp"
#include "common/extents.hpp"
#include "launcher/session_core.hpp"
#include "syncrun/session.hpp"

namespace syncrun::detail {

namespace {

// Less than this is not worth pinning everything else again.
constexpr std::size_t kUnpinnedFrom = std::size_t{64} << 20U;

std::span<const std::int64_t> extents_span(const DataRecord& record) {
  return {record.extents.data(), record.dimensions};
}

void check_closed_for_writing(const DataRecord& record) {
  if (record.is_open_for_writing) throw_usage("this Data is open for writing: end the write guard first");
}

/// Waits for the calls that read it.
void await_readers(DataRecord& record) {
  if (record.last_use > record.session->last_drained()) record.session->drain(record.last_use);
}

void give_back(DataRecord& record) {
  if (record.lease) record.lease.reset();
  else if (record.capacity_bytes != 0) record.session->heap().free(record.offset, SharedHeap::Giveback::now);
  record.capacity_bytes = 0;
  record.offset = 0;
}

void set_extents(DataRecord& record, std::span<const std::int64_t> extents) {
  std::copy(extents.begin(), extents.end(), record.extents.begin());
}

/// New memory for `bytes`, of which the first `kept` are those of now; the rest is zero.
void reallocate(DataRecord& record, std::size_t bytes, std::size_t kept) {
  auto& session = *record.session;
  const std::uint64_t offset = session.allocate(bytes, SharedHeap::Contents::zero, "a Data");
  if (kept != 0) std::memcpy(session.segment().at(offset), session.segment().at(record.offset), kept);
  give_back(record);
  record.offset = offset;
  record.capacity_bytes = bytes;
}

}  // namespace

DataRecord::~DataRecord() {
  // Nobody can read it any more: calls in flight hold the record themselves.
  if (session && session->is_open() && capacity_bytes != 0 && !lease)
    session->give_up(offset, SharedHeap::Giveback::now);
}

void check_count(std::size_t count, std::span<const std::int64_t> extents) {
  const std::size_t wanted = checked_bytes(DType::uint8, extents);
  if (count != wanted) {
    throw_usage("shape " + syncrun::to_string(extents) + " wants " + std::to_string(wanted) + " values, got " +
                std::to_string(count));
  }
}

std::size_t checked_size(DType dtype, std::span<const std::int64_t> extents) { return checked_bytes(dtype, extents); }

std::shared_ptr<DataRecord> make_data(const std::shared_ptr<SessionCore>& session, DType dtype,
                                      std::span<const std::int64_t> extents, const void* values) {
  const SessionCore::Entry entry(*session);
  const std::size_t bytes = checked_bytes(dtype, extents);
  auto record = std::make_shared<DataRecord>();
  record->session = session;
  record->dtype = dtype;
  record->dimensions = static_cast<std::uint8_t>(extents.size());
  if (bytes != 0) {
    const auto contents = values == nullptr ? SharedHeap::Contents::zero : SharedHeap::Contents::any;
    record->offset = session->allocate(bytes, contents, "a Data of shape " + syncrun::to_string(extents));
    record->capacity_bytes = bytes;
    if (values != nullptr) std::memcpy(session->segment().at(record->offset), values, bytes);
  }
  set_extents(*record, extents);
  return record;
}

void set_data(DataRecord& record, std::span<const std::int64_t> extents, const void* values) {
  const SessionCore::Entry entry(*record.session);
  check_closed_for_writing(record);
  const std::size_t bytes = checked_bytes(record.dtype, extents);
  await_readers(record);
  if (bytes > record.capacity_bytes) reallocate(record, bytes, 0);
  if (bytes != 0) std::memmove(record.session->segment().at(record.offset), values, bytes);
  set_extents(record, extents);
}

void resize_data(DataRecord& record, std::span<const std::int64_t> extents) {
  const SessionCore::Entry entry(*record.session);
  check_closed_for_writing(record);
  const std::size_t bytes = checked_bytes(record.dtype, extents);
  const std::size_t now = checked_bytes(record.dtype, extents_span(record));
  await_readers(record);
  if (bytes > record.capacity_bytes) {
    reallocate(record, bytes, now);
  } else if (bytes > now) {
    std::memset(record.session->segment().at(record.offset + now), 0, bytes - now);
  }
  set_extents(record, extents);
}

void free_data(DataRecord& record) {
  const SessionCore::Entry entry(*record.session);
  check_closed_for_writing(record);
  await_readers(record);
  const bool is_much = record.capacity_bytes >= kUnpinnedFrom && !record.lease;
  give_back(record);
  record.extents[0] = 0;
  if (is_much) record.session->give_back_pages();
}

RawArray array_of(const DataRecord& record) {
  record.session->check_open();
  return {record.session->segment().at(record.offset), record.extents};
}

RawArray begin_write(DataRecord& record) {
  const SessionCore::Entry entry(*record.session);
  check_closed_for_writing(record);
  await_readers(record);
  record.is_open_for_writing = true;
  return {record.session->segment().at(record.offset), record.extents};
}

void end_write(DataRecord& record) noexcept { record.is_open_for_writing = false; }

OutputBuffer OutputBuffer::on_heap(std::size_t bytes, Contents contents) {
  if (bytes == 0) return {};
  void* memory = ::operator new(bytes, std::align_val_t(64));
  if (contents == Contents::zero) std::memset(memory, 0, bytes);
  return {memory, bytes, [](void* data, void*) noexcept { ::operator delete(data, std::align_val_t(64)); }, nullptr};
}

}  // namespace syncrun::detail
