#include "worker/running_call.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "common/errors.hpp"
#include "common/extents.hpp"
#include "common/reduce.hpp"
#include "worker/worker_core.hpp"

namespace syncrun::detail {

namespace {

// Outputs up to here are combined by the master; above, each worker reduces its part.
constexpr std::size_t kLargeOutputBytes = std::size_t{16} << 10U;

/// What slices so far, and the one at hand, count in an average.
constexpr std::array<double, 2> weights_of(std::int64_t rows_before, std::int64_t rows) noexcept {
  const auto all = static_cast<double>(rows_before + rows);
  return {static_cast<double>(rows_before) / all, static_cast<double>(rows) / all};
}

}  // namespace

// ---- rows -----------------------------------------------------------------------------------------------------

void RunningCall::begin(const Command& command) {
  command_ = &command;
  slice_index_ = -1;
  slice_ = {};
  first_row_of_call_ = 0;
  update_arguments_ = 0;
  const int rank = worker_.attachment().rank;
  if (!has_rows()) {
    share_ = {0, 0};
  } else if (command.rows_are_local) {
    share_ = {0, local_rows(rank)};
    for (int other = first_participant(); other < rank; ++other) first_row_of_call_ += local_rows(other);
  } else if (command.target >= 0) {
    share_ = {0, command.rows};
  } else {
    share_ = share_of(command.rows, worker_.attachment().world_size, rank);
  }
  user_comm_.emplace(comm());
}

void RunningCall::discard() noexcept {
  for (auto& output : outputs_) output = PendingOutput{};
  for (auto& update : updates_) {
    if (update.total != nullptr) worker_.device().release(update.total);
    if (update.value != nullptr) worker_.device().release(update.value);
    update = PendingUpdate{};
  }
}

CommCore& RunningCall::comm() noexcept {
  if (command_->target >= 0 || worker_.attachment().world_size == 1) return worker_.solo();
  return worker_.peers();
}

const RowsSlot& RunningCall::local_selection(int rank) const noexcept {
  if (command_->batch_s_by_rank == 0) return command_->batch_s;
  return worker_.attachment().segment.at<const RowsSlot>(command_->batch_s_by_rank)[rank];
}

std::int64_t RunningCall::local_rows(int rank) const {
  const RowsSlot& selection = local_selection(rank);
  if (selection.kind != Rows::Kind::all) return selection.count();
  for (std::size_t i = 0; i < command_->arguments_count; ++i) {
    const ArgumentSlot& slot = command_->arguments[i];
    if (slot.kind == ArgumentKind::sliced) return copy_of(slot, rank).extents[0];
  }
  return 0;
}

bool RunningCall::next_slice() {
  if (slice_index_ >= 0) finish_slice();
  const std::int64_t slices = has_rows() ? command_->slices : 1;
  while (++slice_index_ < slices) {
    if (has_rows()) {
      const RowRange part = share_of(share_.count(), slices, slice_index_);
      slice_ = {share_.begin + part.begin, share_.begin + part.end};
      if (slice_.count() == 0 && !command_->has_comm) continue;
    }
    comm().rows = slice_rows();
    worker_.set_phase(Phase::function);
    return true;
  }
  return false;
}

void RunningCall::finish_slice() {
  if (update_arguments_ == 0) return;
  for (std::size_t i = 0; i < command_->arguments_count; ++i) {
    PendingUpdate& update = updates_[i];
    if ((update_arguments_ >> i & 1U) == 0 || !update.is_written) continue;
    update.is_written = false;
    const ArgumentSlot& slot = command_->arguments[i];
    const std::size_t elements = update.bytes / size_of(slot.dtype);
    if (slice_rows() == 0) continue;  // a rank without rows has nothing to say
    if (update.rows == 0) {
      std::swap(update.total, update.value);
    } else {
      worker_.device().accumulate(slot.dtype, slot.reduction, update.total, update.value,
                                  weights_of(update.rows, slice_rows()), elements);
    }
    update.rows += slice_rows();
  }
}

// ---- arguments ------------------------------------------------------------------------------------------------

VariableCopy& RunningCall::copy_of(const ArgumentSlot& slot, int rank) const {
  return worker_.attachment().segment.at<VariableEntry>(slot.offset)->copies()[rank];
}

RawRows RunningCall::rows(std::size_t argument) {
  const ArgumentSlot& slot = command_->arguments[argument];
  return slot.kind == ArgumentKind::sliced ? sliced_rows(argument, slot) : scattered_rows(argument, slot);
}

RawRows RunningCall::scattered_rows(std::size_t argument, const ArgumentSlot& slot) {
  const auto& segment = worker_.attachment().segment;
  const RowsSlot& batch = command_->batch;
  RawRows result;
  result.rows.extents = slot.extents;
  result.rows.extents[0] = slice_.count();
  result.first_row = first_row();
  const std::size_t row_bytes = row_bytes_of(slot.dtype, {slot.extents.data(), slot.dimensions});
  const std::byte* array = segment.at(slot.offset);
  if (batch.kind == Rows::Kind::list) {
    const auto* indices = segment.at<const std::int64_t>(batch.offset) + slice_.begin;
    result.rows.data =
        worker_.device().gather_rows(argument, array, row_bytes, {indices, static_cast<std::size_t>(slice_.count())});
  } else {
    result.rows.data =
        worker_.device().take_rows(argument, array, row_bytes, batch.begin + slice_.begin, slice_.count());
  }
  return result;
}

RawRows RunningCall::sliced_rows(std::size_t argument, const ArgumentSlot& slot) {
  const auto& segment = worker_.attachment().segment;
  const VariableCopy& copy = copy_of(slot, worker_.attachment().rank);
  const RowsSlot& selection = local_selection(worker_.attachment().rank);
  RawRows result;
  result.rows.extents = copy.extents;
  result.rows.extents[0] = slice_.count();
  result.first_row = first_row();
  const std::size_t row_bytes = row_bytes_of(slot.dtype, {copy.extents.data(), slot.dimensions});
  const std::int64_t begin = slice_.begin - share_.begin;  // among this rank's selected rows
  std::byte* array = segment.at(copy.offset);
  if (selection.kind == Rows::Kind::list) {
    const auto* indices = segment.at<const std::int64_t>(selection.offset) + begin;
    result.rows.data = worker_.device().gather_local_rows(argument, array, row_bytes,
                                                          {indices, static_cast<std::size_t>(slice_.count())});
  } else {
    result.rows.data = array + static_cast<std::size_t>(selection.begin + begin) * row_bytes;
  }
  return result;
}

RawArray RunningCall::whole(std::size_t argument) {
  const ArgumentSlot& slot = command_->arguments[argument];
  const auto& segment = worker_.attachment().segment;
  if (slot.kind == ArgumentKind::local) {
    const VariableCopy& copy = copy_of(slot, worker_.attachment().rank);
    return {segment.at(copy.offset), copy.extents};
  }
  const std::span<const std::int64_t> extents(slot.extents.data(), slot.dimensions);
  return {worker_.device().take_rows(argument, segment.at(slot.offset), row_bytes_of(slot.dtype, extents), 0,
                                     slot.extents[0]),
          slot.extents};
}

RawUpdate RunningCall::update(std::size_t argument) {
  const ArgumentSlot& slot = command_->arguments[argument];
  const VariableCopy& copy = copy_of(slot, worker_.attachment().rank);
  PendingUpdate& pending = updates_[argument];
  pending.bytes = elements_in({copy.extents.data(), slot.dimensions}) * size_of(slot.dtype);
  if (pending.value == nullptr) {
    pending.value = worker_.device().allocate(pending.bytes, SharedHeap::Contents::zero, "an update");
  } else {
    worker_.device().clear(pending.value, pending.bytes);
  }
  pending.is_written = true;
  update_arguments_ |= 1U << argument;
  return {{worker_.attachment().segment.at(copy.offset), copy.extents}, {pending.value, copy.extents}};
}

const void* RunningCall::value(std::size_t argument) const {
  const ArgumentSlot& slot = command_->arguments[argument];
  const std::byte* values = worker_.attachment().segment.at(slot.offset);
  if (slot.kind == ArgumentKind::per_worker) values += slot.bytes * static_cast<std::size_t>(worker_.attachment().rank);
  return values;
}

// ---- outputs --------------------------------------------------------------------------------------------------

namespace {

template <class T>
void average_scalar(std::array<std::byte, 8>& total, double& sum, const void* value, double rows_before, double rows) {
  T number;
  std::memcpy(&number, value, sizeof(T));
  if (rows_before == 0) {
    std::memcpy(total.data(), value, sizeof(T));
    sum = static_cast<double>(number) * rows;
    return;
  }
  sum += static_cast<double>(number) * rows;
  const T mean = static_cast<T>(sum / (rows_before + rows));
  std::memcpy(total.data(), &mean, sizeof(T));
}

}  // namespace

void RunningCall::accept_scalar(std::size_t output, const OutputType& type, const void* value) {
  PendingOutput& pending = outputs_[output];
  const std::int64_t rows = slice_rows();
  if (rows == 0) return;
  if (type.reduction == Reduction::avg) {
    const auto before = static_cast<double>(pending.rows);
    const auto weight = static_cast<double>(rows);
    switch (type.dtype) {
      case DType::float16: average_scalar<float16>(pending.scalar, pending.average, value, before, weight); break;
      case DType::bfloat16: average_scalar<bfloat16>(pending.scalar, pending.average, value, before, weight); break;
      case DType::float32: average_scalar<float>(pending.scalar, pending.average, value, before, weight); break;
      default: average_scalar<double>(pending.scalar, pending.average, value, before, weight); break;
    }
  } else if (pending.slices == 0) {
    std::memcpy(pending.scalar.data(), value, size_of(type.dtype));
  } else {
    const std::array<const void*, 2> sources{pending.scalar.data(), value};
    const std::array<void*, 1> destinations{pending.scalar.data()};
    reduce_elements(type.dtype, type.reduction, destinations, sources, {}, 1);
  }
  pending.rows += rows;
  ++pending.slices;
}

void RunningCall::accept(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents,
                         OutputBuffer buffer) {
  PendingOutput& pending = outputs_[output];
  const std::int64_t rows = slice_rows();
  if (rows == 0) return;
  const std::ptrdiff_t first_checked = type.reduction == Reduction::gather ? 1 : 0;
  if (pending.slices == 0) {
    std::copy(extents.begin(), extents.end(), pending.extents.begin());
  } else if (!std::equal(extents.begin() + first_checked, extents.end(), pending.extents.begin() + first_checked)) {
    throw_usage("output " + std::to_string(output) + " has shape " + syncrun::to_string(extents) + " in slice " +
                std::to_string(slice_index_) + " and " + syncrun::to_string({pending.extents.data(), type.dimensions}) +
                " before");
  }
  if (elements_in(extents) != 0 && buffer.data() == nullptr) {
    throw_usage("output " + std::to_string(output) +
                " was returned without memory: construct it with the worker and "
                "its shape");
  }

  if (type.reduction == Reduction::gather) {
    pending.piece_rows.push_back(extents[0]);
    pending.pieces.push_back(std::move(buffer));
  } else if (pending.slices == 0) {
    pending.buffer = into_shared_memory(std::move(buffer));
  } else {
    worker_.device().accumulate(type.dtype, type.reduction, pending.buffer.data(), buffer.data(),
                                weights_of(pending.rows, rows), elements_in(extents));
  }
  pending.rows += rows;
  ++pending.slices;
}

OutputBuffer RunningCall::into_shared_memory(OutputBuffer buffer) {
  if (buffer.data() == nullptr || worker_.attachment().segment.contains(buffer.data())) return buffer;
  OutputBuffer shared = worker_.device().allocate_output(buffer.bytes());
  std::memcpy(shared.data(), buffer.data(), buffer.bytes());
  return shared;
}

void RunningCall::concatenate(PendingOutput& pending, const OutputType& type) {
  std::size_t bytes = 0;
  for (const auto& piece : pending.pieces) bytes += piece.bytes();
  pending.extents[0] = std::accumulate(pending.piece_rows.begin(), pending.piece_rows.end(), std::int64_t{0});
  if (pending.pieces.size() == 1) {
    pending.buffer = into_shared_memory(std::move(pending.pieces.front()));
  } else if (bytes != 0) {
    pending.buffer = worker_.device().allocate_output(bytes);
    auto* to = static_cast<std::byte*>(pending.buffer.data());
    for (std::size_t i = 0; i < pending.pieces.size(); ++i) {
      const std::size_t piece_bytes = static_cast<std::size_t>(pending.piece_rows[i]) *
                                      row_bytes_of(type.dtype, {pending.extents.data(), type.dimensions});
      worker_.device().copy_within(to, pending.pieces[i].data(), piece_bytes);
      to += piece_bytes;
    }
  }
}

void RunningCall::finish_output(std::size_t index, PendingOutput& pending, OutputSlot& slot) {
  const OutputType& type = command_->outputs[index];
  if (type.dimensions == 0) {
    slot.scalar = pending.scalar;
    return;
  }
  if (type.reduction == Reduction::gather) concatenate(pending, type);
  slot.extents = pending.extents;
  slot.offset = pending.buffer.data() == nullptr ? 0 : worker_.attachment().segment.offset_of(pending.buffer.data());
}

bool RunningCall::deliver(Outbox& outbox) {
  worker_.device().finish();
  outbox.is_empty = has_rows() && share_.count() == 0;
  outbox.is_reduced = false;
  outbox.rows = has_rows() ? share_.count() : 1;
  bool is_large = false;
  for (std::size_t i = 0; i < command_->outputs_count && !outbox.is_empty; ++i) {
    finish_output(i, outputs_[i], outbox.outputs[i]);
    const OutputType& type = command_->outputs[i];
    is_large = is_large || (type.dimensions > 0 && type.reduction != Reduction::gather &&
                            outputs_[i].buffer.bytes() > kLargeOutputBytes);
  }
  return is_large && participants() > 1;
}

int RunningCall::participants() const noexcept { return command_->target < 0 ? worker_.attachment().world_size : 1; }

void RunningCall::commit_updates() {
  for (std::size_t i = 0; i < command_->arguments_count; ++i) {
    PendingUpdate& update = updates_[i];
    if (update.rows == 0 || update.total == nullptr) continue;
    const ArgumentSlot& slot = command_->arguments[i];
    worker_.device().copy_within(worker_.attachment().segment.at(copy_of(slot, worker_.attachment().rank).offset),
                                 update.total, update.bytes);
  }
  worker_.device().finish();
}

/// Each rank that computed something reduces its part of every reduced output, into the first such rank's memory. If
/// shapes differ, nobody reduces: every rank sees the same, and the master reports it.
void RunningCall::reduce_outputs() {
  const auto& attachment = worker_.attachment();
  std::vector<int> ranks;
  double rows = 0;
  for (int rank = 0; rank < attachment.world_size; ++rank) {
    const Outbox& outbox = attachment.control.outbox(command_->id, rank);
    if (outbox.is_empty) continue;
    ranks.push_back(rank);
    rows += static_cast<double>(outbox.rows);
  }
  const auto own = std::find(ranks.begin(), ranks.end(), attachment.rank);
  if (own == ranks.end()) return;

  std::vector<double> weights;
  for (const int rank : ranks) {
    weights.push_back(static_cast<double>(attachment.control.outbox(command_->id, rank).rows) / rows);
  }
  for (std::size_t i = 0; i < command_->outputs_count; ++i) {
    const OutputType& type = command_->outputs[i];
    if (type.dimensions == 0 || type.reduction == Reduction::gather) continue;
    std::vector<const void*> sources;
    for (const int rank : ranks) {
      const OutputSlot& output = attachment.control.outbox(command_->id, rank).outputs[i];
      if (output.extents != attachment.control.outbox(command_->id, ranks.front()).outputs[i].extents) return;
      sources.push_back(attachment.segment.at(output.offset));
    }
    const std::size_t elements = elements_in({outputs_[i].extents.data(), type.dimensions});
    const RowRange part =
        share_of(static_cast<std::int64_t>(elements), static_cast<std::int64_t>(ranks.size()), own - ranks.begin());
    const std::size_t skipped_bytes = static_cast<std::size_t>(part.begin) * size_of(type.dtype);
    for (auto& source : sources) source = static_cast<const std::byte*>(source) + skipped_bytes;
    void* to = const_cast<void*>(sources.front());
    reduce_elements(type.dtype, type.reduction, {&to, 1}, sources, weights, static_cast<std::size_t>(part.count()));
  }
  attachment.control.outbox(command_->id, attachment.rank).is_reduced = true;
}

void RunningCall::end(std::uint64_t command) {
  for (std::size_t i = 0; i < command_->outputs_count; ++i) {
    if (outputs_[i].buffer.data() != nullptr) {
      worker_.free_when_consumed(command, worker_.attachment().segment.offset_of(outputs_[i].buffer.detach()));
    }
    outputs_[i] = PendingOutput{};
  }
  if (update_arguments_ != 0) discard();
}

}  // namespace syncrun::detail
