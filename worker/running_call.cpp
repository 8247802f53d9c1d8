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
  share_ = share_in(command);
  if (has_rows() && command.rows_are_local) {
    for (int other = first_participant(); other < rank; ++other) first_row_of_call_ += local_rows(other);
  }
  user_comm_.emplace(comm());
}

/// This rank's part of a command's rows; not for rows of its own copies, before the command runs.
RowRange RunningCall::share_in(const Command& command) const {
  const int rank = worker_.attachment().rank;
  if (command.rows < 0) return {0, 0};
  if (command.rows_are_local) return {0, local_rows(rank)};
  if (command.target >= 0) return {0, command.rows};
  return share_of(command.rows, worker_.attachment().world_size, rank);
}

void RunningCall::bring_ahead(const Command& command) {
  if (command.rows_are_local) return;  // the copies may be others by then
  const RowRange share = share_in(command);
  const RowRange first = share_of(share.count(), command.rows < 0 ? 1 : command.slices, 0);
  const RowRange slice{share.begin + first.begin, share.begin + first.end};
  worker_.device().begin_ahead(command.id);
  for (std::size_t i = 0; i < command.arguments_count; ++i) {
    switch (command.arguments[i].kind) {
      case ArgumentKind::scattered: bring_rows(command, i, slice); break;
      case ArgumentKind::broadcast: bring_whole(command, i); break;
      case ArgumentKind::device_scalar: bring_scalar(command, i); break;
      default: break;
    }
  }
  worker_.device().end_ahead();
}

void RunningCall::discard() noexcept {
  for (auto& output : outputs_) {
    if (output.shared != 0) worker_.arena().free(output.shared, SharedHeap::Giveback::later);
    output = PendingOutput{};
  }
  for (auto& update : updates_) {
    if (update.total != nullptr) worker_.device().release(update.total);
    if (update.value != nullptr) worker_.device().release(update.value);
    update = PendingUpdate{};
  }
}

CommCore& RunningCall::comm() noexcept {
  const bool is_alone = command_->target >= 0 || worker_.attachment().world_size == 1;
  return is_alone ? worker_.device().solo() : worker_.device().comm();
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
    if (command_->has_comm) comm().all_rows = rows_of_all();
    key_.clear();
    worker_.set_phase(Phase::function);
    return true;
  }
  return false;
}

/// Rows of the current slice on all ranks of the communicator.
std::int64_t RunningCall::rows_of_all() const {
  const int world_size = participants();
  if (!has_rows()) return world_size;
  if (world_size == 1) return slice_.count();
  std::int64_t all = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const std::int64_t share =
        command_->rows_are_local ? local_rows(rank) : share_of(command_->rows, world_size, rank).count();
    all += share_of(share, command_->slices, slice_index_).count();
  }
  return all;
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
  const RawRows rows = slot.kind == ArgumentKind::sliced ? sliced_rows(argument, slot) : scattered_rows(argument, slot);
  note_argument(rows.rows.data, rows.rows.extents);
  return rows;
}

void* RunningCall::bring_rows(const Command& command, std::size_t argument, RowRange rows) {
  const ArgumentSlot& slot = command.arguments[argument];
  const auto& segment = worker_.attachment().segment;
  const SharedRows all{segment.at(slot.offset), row_bytes_of(slot.dtype, {slot.extents.data(), slot.dimensions}),
                       slot.extents[0]};
  if (command.batch.kind != Rows::Kind::list) {
    return worker_.device().take_rows(argument, all, command.batch.begin + rows.begin, rows.count());
  }
  const auto* indices = segment.at<const std::int64_t>(command.batch.offset) + rows.begin;
  return worker_.device().gather_rows(argument, all, {indices, static_cast<std::size_t>(rows.count())});
}

void* RunningCall::bring_whole(const Command& command, std::size_t argument) {
  const ArgumentSlot& slot = command.arguments[argument];
  const std::span<const std::int64_t> extents(slot.extents.data(), slot.dimensions);
  const SharedRows all{worker_.attachment().segment.at(slot.offset), row_bytes_of(slot.dtype, extents),
                       extents.empty() ? 1 : extents[0]};
  return worker_.device().take_rows(argument, all, 0, all.rows);
}

const void* RunningCall::bring_scalar(const Command& command, std::size_t argument) {
  const ArgumentSlot& slot = command.arguments[argument];
  return worker_.device().take_scalar(argument, worker_.attachment().segment.at(slot.offset), slot.bytes);
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
  const auto& segment = worker_.attachment().segment;
  const VariableCopy& copy = copy_of(slot, worker_.attachment().rank);
  const RowsSlot& selection = local_selection(worker_.attachment().rank);
  RawRows result;
  result.rows.extents = copy.extents;
  result.rows.extents[0] = slice_.count();
  result.first_row = first_row();
  const std::size_t row_bytes = row_bytes_of(slot.dtype, {copy.extents.data(), slot.dimensions});
  const std::int64_t begin = slice_.begin - share_.begin;  // among this rank's selected rows
  auto* array = static_cast<std::byte*>(worker_.device().at(copy.place));
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
  const RawArray array = whole_array(argument);
  note_argument(array.data, array.extents);
  return array;
}

RawArray RunningCall::whole_array(std::size_t argument) {
  const ArgumentSlot& slot = command_->arguments[argument];
  if (slot.kind != ArgumentKind::local) return {bring_whole(*command_, argument), slot.extents};
  const VariableCopy& copy = copy_of(slot, worker_.attachment().rank);
  return {worker_.device().at(copy.place), copy.extents};
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
  note_argument(pending.value, copy.extents);
  update_arguments_ |= 1U << argument;
  return {{worker_.device().at(copy.place), copy.extents}, {pending.value, copy.extents}};
}

const void* RunningCall::scalar(std::size_t argument) {
  const void* place = bring_scalar(*command_, argument);
  note_argument(place, {});
  return place;
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
  if (recording_ != nullptr) {
    throw_usage("output " + std::to_string(output) +
                " of a replayable function is a number that the host knows, which would be the same for ever: return "
                "Output::in_device_memory");
  }
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
  if (elements_in(extents) != 0 && buffer.data() == nullptr) {
    throw_usage("output " + std::to_string(output) +
                " was returned without memory: construct it with the worker and its shape");
  }
  if (recording_ == nullptr) return take_output(output, type, extents, std::move(buffer));
  if (buffer.data() != nullptr && buffer.context() != &worker_.device()) {
    throw_usage("output " + std::to_string(output) +
                " of a replayable function was made of host memory, which would keep this call's values for ever: "
                "construct it with the worker and its shape");
  }
  recording_->outputs.push_back({output, type, {extents.begin(), extents.end()}, std::move(buffer), nullptr});
}

/// Adds a slice's output to those before.
void RunningCall::take_output(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents,
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

  if (type.reduction == Reduction::gather) {
    pending.piece_rows.push_back(extents[0]);
    pending.pieces.push_back(std::move(buffer));
  } else if (pending.slices == 0) {
    pending.buffer = worker_.device().adopt_output(std::move(buffer));
  } else {
    buffer = worker_.device().adopt_output(std::move(buffer));
    worker_.device().accumulate(type.dtype, type.reduction, pending.buffer.data(), buffer.data(),
                                weights_of(pending.rows, rows), elements_in(extents));
  }
  pending.rows += rows;
  ++pending.slices;
}

/// Device memory that is somebody else's.
OutputBuffer RunningCall::borrowed(void* memory, std::size_t bytes) noexcept {
  return {memory, bytes, [](void*, void*) noexcept {}, &worker_.device()};
}

/// A number in device memory is handled as an array of one until it is delivered: where it is, if there is one slice, as
/// nothing runs any more that could change it.
void RunningCall::accept_device_scalar(std::size_t output, const OutputType& type, const void* place) {
  if (recording_ != nullptr) {
    recording_->outputs.push_back({output, type, {}, {}, place});
    return;
  }
  Device& device = worker_.device();
  const std::size_t bytes = size_of(type.dtype);
  const bool will_be_copied = !device.shares_before_reducing();  // else what is shared is freed when it was consumed
  if (command_->slices <= 1 && will_be_copied)
    return take_output(output, type, {}, borrowed(const_cast<void*>(place), bytes));
  OutputBuffer buffer = device.allocate_output(bytes);
  device.copy_within(buffer.data(), place, bytes);
  take_output(output, type, {}, std::move(buffer));
}

void RunningCall::concatenate(PendingOutput& pending, const OutputType& type) {
  std::size_t bytes = 0;
  for (const auto& piece : pending.pieces) bytes += piece.bytes();
  pending.extents[0] = std::accumulate(pending.piece_rows.begin(), pending.piece_rows.end(), std::int64_t{0});
  if (pending.pieces.size() == 1) {
    pending.buffer = worker_.device().adopt_output(std::move(pending.pieces.front()));
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

/// Arrays that are combined element by element.
bool RunningCall::is_reduced_by_workers(const OutputType& type) const noexcept {
  return type.dimensions > 0 && type.reduction != Reduction::gather;
}

void RunningCall::deliver(Outbox& outbox) {
  outbox.is_empty = has_rows() && share_.count() == 0;
  outbox.is_large = false;
  outbox.is_reduced = false;
  outbox.rows = has_rows() ? share_.count() : 1;
  if (outbox.is_empty) return worker_.device().finish();
  for (std::size_t i = 0; i < command_->outputs_count; ++i) {
    const OutputType& type = command_->outputs[i];
    if (type.reduction == Reduction::gather) concatenate(outputs_[i], type);
    const bool is_large = outputs_[i].buffer.bytes() > worker_.device().large_output_bytes();
    if (is_large && is_reduced_by_workers(type) && participants() > 1) outbox.is_large = true;
  }
  share_outputs(outbox);
}

void RunningCall::share_outputs(Outbox& outbox) {
  Device& device = worker_.device();
  for (std::size_t i = 0; i < command_->outputs_count; ++i) {
    PendingOutput& pending = outputs_[i];
    const bool stays =
        outbox.is_large && is_reduced_by_workers(command_->outputs[i]) && !device.shares_before_reducing();
    if (!stays) pending.shared = device.share_output(std::move(pending.buffer));
    outbox.outputs[i].extents = pending.extents;
    outbox.outputs[i].offset = pending.shared;
  }
  device.finish();
  for (std::size_t i = 0; i < command_->outputs_count; ++i) {
    if (command_->outputs[i].dimensions != 0) continue;
    const PendingOutput& pending = outputs_[i];
    outbox.outputs[i].scalar = pending.scalar;
    if (pending.shared != 0) {
      std::memcpy(outbox.outputs[i].scalar.data(), worker_.attachment().segment.at(pending.shared),
                  size_of(command_->outputs[i].dtype));
    }
  }
}

/// Whether this rank has a part in reducing outputs, which it knows for sure once every rank has voted: all that
/// computed something then have large ones. A GPU takes part also without rows.
bool RunningCall::may_reduce_outputs(const Outbox& outbox) const noexcept {
  if (participants() == 1) return false;
  if (worker_.device().shares_before_reducing()) return outbox.is_large;
  const auto* const first = command_->outputs.data();
  return std::any_of(first, first + command_->outputs_count,
                     [this](const OutputType& type) { return is_reduced_by_workers(type); });
}

bool RunningCall::all_are_large() const noexcept {
  const auto& control = worker_.attachment().control;
  for (int rank = 0; rank < control.world_size(); ++rank) {
    const Outbox& outbox = control.outbox(command_->id, rank);
    if (!outbox.is_empty && !outbox.is_large) return false;
  }
  return true;
}

int RunningCall::participants() const noexcept { return command_->target < 0 ? worker_.attachment().world_size : 1; }

void RunningCall::commit_updates() {
  if (update_arguments_ == 0) return;
  for (std::size_t i = 0; i < command_->arguments_count; ++i) {
    PendingUpdate& update = updates_[i];
    if (update.rows == 0 || update.total == nullptr) continue;
    const VariableCopy& copy = copy_of(command_->arguments[i], worker_.attachment().rank);
    worker_.device().copy_within(worker_.device().at(copy.place), update.total, update.bytes);
  }
  worker_.device().finish();
}

/// Called by all ranks; those that computed something bring their outputs. If shapes differ, nobody reduces: every rank
/// sees the same, and the master reports it.
void RunningCall::reduce_outputs(Outbox& outbox) {
  if (!all_are_large()) return;
  const auto& attachment = worker_.attachment();
  std::vector<int> ranks;
  double rows = 0;
  for (int rank = 0; rank < attachment.world_size; ++rank) {
    const Outbox& other = attachment.control.outbox(command_->id, rank);
    if (other.is_empty) continue;
    ranks.push_back(rank);
    rows += static_cast<double>(other.rows);
  }
  std::vector<double> weights;
  for (const int rank : ranks) {
    weights.push_back(static_cast<double>(attachment.control.outbox(command_->id, rank).rows) / rows);
  }
  for (std::size_t i = 0; i < command_->outputs_count; ++i) {
    if (is_reduced_by_workers(command_->outputs[i]) && !reduce_output(i, outbox, ranks, weights)) return;
  }
  worker_.device().finish();
  outbox.is_reduced = true;
}

bool RunningCall::reduce_output(std::size_t index, Outbox& outbox, std::span<const int> ranks,
                                std::span<const double> weights) {
  const auto& attachment = worker_.attachment();
  const OutputType& type = command_->outputs[index];
  const auto& extents = attachment.control.outbox(command_->id, ranks.front()).outputs[index].extents;
  std::vector<std::uint64_t> offsets;
  for (const int rank : ranks) {
    const OutputSlot& output = attachment.control.outbox(command_->id, rank).outputs[index];
    if (output.extents != extents) return false;
    offsets.push_back(output.offset);
  }
  const OutputReduction what{type.dtype, type.reduction, elements_in({extents.data(), type.dimensions}),
                             ranks,      weights,        offsets};
  const std::uint64_t result = worker_.device().reduce_output(what, std::move(outputs_[index].buffer));
  if (result != 0) outbox.outputs[index].offset = outputs_[index].shared = result;
  return true;
}

void RunningCall::end(std::uint64_t command) {
  for (std::size_t i = 0; i < command_->outputs_count; ++i) {
    if (outputs_[i].shared != 0) worker_.free_when_consumed(command, outputs_[i].shared);
    outputs_[i] = PendingOutput{};
  }
  if (update_arguments_ != 0) discard();
}

// ---- replay ---------------------------------------------------------------------------------------------------

/// Everything that work on the device can depend on besides the values: each argument's address and shape, and what a
/// body may ask of its worker.
void RunningCall::note_argument(const void* data, std::span<const std::int64_t> extents) {
  if (!worker_.device().captures()) return;
  key_.push_back(reinterpret_cast<std::uintptr_t>(data));
  for (const auto extent : extents) key_.push_back(static_cast<std::uint64_t>(extent));
}

RunningCall::Recording& RunningCall::recording_of(const RecordingKey& key) {
  constexpr std::size_t kMostRecordings = 64;
  const auto found = recordings_.find(key);
  if (found != recordings_.end()) return found->second;
  if (recordings_.size() >= kMostRecordings) {
    recordings_.erase(std::min_element(recordings_.begin(), recordings_.end(), [](const auto& a, const auto& b) {
      return a.second.last_use < b.second.last_use;
    }));
  }
  return recordings_[key];
}

void RunningCall::replay(void (*run)(void* context), void* context) {
  Device& device = worker_.device();
  if (!device.captures()) return run(context);
  device.begin_body();  // inputs arrive outside the graph
  if (command_->has_comm) {
    comm().prepare();
    if (comm().generation() != recorded_generation_) forget_recordings();
    recorded_generation_ = comm().generation();
  }
  key_.push_back(command_->function);
  key_.push_back(command_->object);
  key_.push_back(static_cast<std::uint64_t>(comm().all_rows));
  key_.push_back(static_cast<std::uint64_t>(slice_rows()));
  key_.push_back(static_cast<std::uint64_t>(first_row()));
  key_.push_back(static_cast<std::uint64_t>(slice_index_));
  key_.push_back(static_cast<std::uint64_t>(command_->target));
  Recording& recording = recording_of(key_);
  recording.last_use = command_->id;
  Recording::State state = recording.state;
  // Ranks may be at different shapes or addresses, and NCCL wants all to capture a collective, or none.
  if (command_->has_comm) state = static_cast<Recording::State>(comm().agree(static_cast<std::int64_t>(state)));
  if (state == Recording::State::fresh) {
    recording.state = std::max(recording.state, Recording::State::warm);
    return run(context);
  }
  if (state == Recording::State::warm) record(recording, run, context);
  device.launch(*recording.graph);
  accept_recorded(recording);
}

void RunningCall::record(Recording& recording, void (*run)(void* context), void* context) {
  Device& device = worker_.device();
  recording.outputs.clear();
  recording_ = &recording;
  try {
    device.begin_capture();
    run(context);
    recording.graph = device.end_capture();
    recording.state = Recording::State::recorded;
  } catch (...) {
    recording_ = nullptr;
    device.abandon_capture();
    throw;
  }
  recording_ = nullptr;
}

/// The recording keeps its outputs' memory. Where later slices are added to the first, that is done in a copy.
void RunningCall::accept_recorded(const Recording& recording) {
  Device& device = worker_.device();
  for (const RecordedOutput& recorded : recording.outputs) {
    if (recorded.place != nullptr) {
      accept_device_scalar(recorded.output, recorded.type, recorded.place);
      continue;
    }
    OutputBuffer buffer = borrowed(recorded.buffer.data(), recorded.buffer.bytes());
    if (command_->slices > 1 && buffer.data() != nullptr) {
      OutputBuffer copy = device.allocate_output(buffer.bytes());
      device.copy_within(copy.data(), buffer.data(), buffer.bytes());
      buffer = std::move(copy);
    }
    take_output(recorded.output, recorded.type, recorded.extents, std::move(buffer));
  }
}

}  // namespace syncrun::detail
