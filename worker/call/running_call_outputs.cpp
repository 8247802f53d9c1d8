// The outputs of a call: accepted slice by slice, shared, reduced.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "common/arrays/extents.hpp"
#include "common/arrays/reduce.hpp"
#include "common/protocol/variable_entry.hpp"
#include "common/text/errors.hpp"
#include "worker/call/running_call.hpp"
#include "worker/devices/shared_outputs.hpp"

namespace syncrun::detail {

namespace {

/// Adds a slice's value to the average of the slices before. `total` has the type T.
template <class T>
void average_scalar(std::array<std::byte, 8>& total, double& sum, T value, double rows_before, double rows) {
  sum += static_cast<double>(value) * rows;
  const T mean = rows_before == 0 ? value : static_cast<T>(sum / (rows_before + rows));
  std::memcpy(total.data(), &mean, sizeof(T));
}

}  // namespace

void RunningCall::accept_scalar(std::size_t output, const OutputType& type, const void* value) {
  if (!wants(output)) return;
  const std::int64_t rows = slice_rows();
  if (rows == 0) return;
  if (recording_ != nullptr) {
    throw_usage("output " + std::to_string(output) +
                " of a replayable function is a number that the host knows, which would be the same for ever: return "
                "Output::in_device_memory");
  }
  PendingOutput& pending = outputs_[output];
  if (type.reduction == Reduction::avg) {
    const auto before = static_cast<double>(pending.rows);
    const auto weight = static_cast<double>(rows);
    if (type.dtype == DType::float64) {
      double number = 0;
      std::memcpy(&number, value, sizeof(number));
      average_scalar(pending.scalar, pending.average, number, before, weight);
    } else {
      float number = 0;
      convert_elements({type.dtype, DType::float32}, value, &number, 1);
      average_scalar(pending.scalar, pending.average, number, before, weight);
    }
  } else if (pending.slices == 0) {
    convert_elements({type.dtype, partial_type(type.dtype)}, value, pending.scalar.data(), 1);
  } else {
    accumulate_elements(type.dtype, type.reduction, pending.scalar.data(), value, {}, 1);
  }
  pending.rows += rows;
  ++pending.slices;
}

void RunningCall::accept(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents,
                         OutputBuffer buffer) {
  if (!wants(output) && recording_ == nullptr) return;  // a recording keeps it, because every replay writes it
  if (elements_in(extents) != 0 && buffer.data() == nullptr) {
    throw_usage("output " + std::to_string(output) +
                " was returned without memory: construct it with the worker and its shape");
  }
  if (recording_ == nullptr) return take_output(output, type, extents, std::move(buffer));
  if (buffer.data() != nullptr && buffer.context() != &device_) {
    throw_usage("output " + std::to_string(output) +
                " of a replayable function was made of host memory, which would keep this call's values for ever: "
                "construct it with the worker and its shape");
  }
  recording_->outputs.push_back({output, type, {extents.begin(), extents.end()}, std::move(buffer), nullptr});
}

/// Adds the output of a slice to those of the slices before.
void RunningCall::take_output(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents,
                              OutputBuffer buffer) {
  PendingOutput& pending = outputs_[output];
  const std::int64_t rows = slice_rows();
  if (rows == 0 || !wants(output)) return;
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
    pending.pieces.push_back(call_->slices > 1 ? adopted(std::move(buffer)) : std::move(buffer));
  } else if (pending.slices == 0) {
    pending.buffer = converted({type.dtype, type_over_slices(type.dtype)}, std::move(buffer));
  } else {
    buffer = adopted(std::move(buffer));
    device_.accumulate(type.dtype, type.reduction, pending.buffer.data(), buffer.data(), weights_of(pending.rows, rows),
                       elements_in(extents));
  }
  pending.rows += rows;
  ++pending.slices;
}

/// If the device works on outputs in its own memory, brings the output there. A CPU device can also read a body's own
/// memory.
OutputBuffer RunningCall::adopted(OutputBuffer buffer) {
  if (device_.shares_before_reducing()) return buffer;
  return device_.adopt_output(std::move(buffer));
}

/// Brings an output into memory of the device. Its elements get the second type.
OutputBuffer RunningCall::converted(ElementTypes types, OutputBuffer buffer) {
  if (types.from == types.to || buffer.data() == nullptr) return device_.adopt_output(std::move(buffer));
  buffer = adopted(std::move(buffer));
  const std::size_t elements = buffer.bytes() / size_of(types.from);
  OutputBuffer result = device_.allocate_output(elements * size_of(types.to));
  device_.convert(types, buffer.data(), result.data(), elements);
  return result;
}

/// Device memory that has another owner.
OutputBuffer RunningCall::borrowed(void* memory, std::size_t bytes) noexcept {
  return {memory, bytes, [](void*, void*) noexcept {}, &device_};
}

/// A number in device memory is handled as an array of one element until it is delivered. If there is only one slice,
/// it is not copied, because no later work can change it.
void RunningCall::accept_device_scalar(std::size_t output, const OutputType& type, const void* place) {
  if (recording_ != nullptr) {
    recording_->outputs.push_back({output, type, {}, {}, place});
    return;
  }
  if (!wants(output)) return;
  const std::size_t bytes = size_of(type.dtype);
  const bool will_be_copied = !device_.shares_before_reducing();  // shared memory would be freed once it is consumed
  if (call_->slices <= 1 && will_be_copied)
    return take_output(output, type, {}, borrowed(const_cast<void*>(place), bytes));
  OutputBuffer buffer = device_.allocate_output(bytes);
  device_.copy_within(buffer.data(), place, bytes);
  take_output(output, type, {}, std::move(buffer));
}

void RunningCall::concatenate(PendingOutput& pending, const OutputType& type) {
  std::size_t bytes = 0;
  for (const auto& piece : pending.pieces) bytes += piece.bytes();
  pending.extents[0] = std::accumulate(pending.piece_rows.begin(), pending.piece_rows.end(), std::int64_t{0});
  if (pending.pieces.size() == 1) {
    pending.buffer = device_.adopt_output(std::move(pending.pieces.front()));
  } else if (bytes != 0) {
    pending.buffer = device_.allocate_output(bytes);
    auto* to = static_cast<std::byte*>(pending.buffer.data());
    for (std::size_t i = 0; i < pending.pieces.size(); ++i) {
      const std::size_t piece_bytes = static_cast<std::size_t>(pending.piece_rows[i]) *
                                      row_bytes_of(type.dtype, {pending.extents.data(), type.dimensions});
      device_.copy_within(to, pending.pieces[i].data(), piece_bytes);
      to += piece_bytes;
    }
  }
}

/// Whether workers can reduce the output: an array that is combined element by element.
bool RunningCall::is_reduced_by_workers(std::size_t output) const noexcept {
  const OutputType& type = command_->outputs[output];
  if (!wants(output)) return false;
  if (!shares_outputs_ && !is_nccl_type(type.dtype)) return false;
  return type.dimensions > 0 && type.reduction != Reduction::gather && !type.is_kept;
}

void RunningCall::deliver(Outbox& outbox) {
  outbox.is_empty = has_rows() && share_.count() == 0;
  outbox.is_large = false;
  outbox.reduced_outputs = 0;
  outbox.rows = has_rows() ? share_.count() : 1;
  if (outbox.is_empty) return device_.finish();
  for (std::size_t i = 0; i < call_->outputs_count; ++i) {
    const OutputType& type = command_->outputs[i];
    if (type.reduction == Reduction::gather) concatenate(outputs_[i], type);
    const std::size_t bytes = elements_in({outputs_[i].extents.data(), type.dimensions}) * size_of(type.dtype);
    const bool is_large = bytes > device_.large_output_bytes();
    if (is_large && is_reduced_by_workers(i) && !command_->ranks.is_single() && is_on_one_node_) outbox.is_large = true;
  }
  share_outputs(outbox);
}

void RunningCall::share_outputs(Outbox& outbox) {
  for (std::size_t i = 0; i < call_->outputs_count; ++i) {
    PendingOutput& pending = outputs_[i];
    if (command_->outputs[i].is_kept) {
      if (wants(i)) variables_.adopt(command_->kept[i], pending.extents, std::move(pending.buffer));
      continue;
    }
    const OutputType& type = command_->outputs[i];
    const bool stays = outbox.is_large && is_reduced_by_workers(i) && !shares_outputs_;
    if (!stays) {
      const DType combined = type.reduction == Reduction::gather ? type.dtype : type_over_slices(type.dtype);
      pending.shared = device_.share_output(converted({combined, type.dtype}, std::move(pending.buffer)));
    }
    outbox.outputs[i].extents = pending.extents;
    outbox.outputs[i].offset = pending.shared;
  }
  device_.finish();
  for (std::size_t i = 0; i < call_->outputs_count; ++i) {
    const OutputType& type = command_->outputs[i];
    if (type.dimensions != 0 || type.is_kept) continue;
    const PendingOutput& pending = outputs_[i];
    void* const scalar = outbox.outputs[i].scalar.data();
    if (pending.shared != 0) std::memcpy(scalar, attachment_.segment.at(pending.shared), size_of(type.dtype));
    else convert_elements({partial_type(type.dtype), type.dtype}, pending.scalar.data(), scalar, 1);
  }
}

/// Whether this rank may have to reduce outputs. It is certain only after all ranks have voted: they reduce if all
/// ranks that computed something have large outputs. If GPUs reduce through their communicator, a GPU takes part even if
/// it has no rows.
bool RunningCall::may_reduce_outputs(const Outbox& outbox) const noexcept {
  if (command_->ranks.is_single() || !is_on_one_node_) return false;
  if (shares_outputs_) return outbox.is_large;
  for (std::size_t i = 0; i < call_->outputs_count; ++i) {
    if (is_reduced_by_workers(i)) return true;
  }
  return false;
}

bool RunningCall::all_are_large() const noexcept {
  const auto& control = attachment_.control;
  for (const int rank : command_->ranks) {
    const Outbox& outbox = control.outbox(*command_, rank);
    if (!outbox.is_empty && !outbox.is_large) return false;
  }
  return true;
}

void RunningCall::commit_updates() {
  if (update_arguments_ == 0) return;
  for (std::size_t i = 0; i < call_->arguments_count; ++i) {
    PendingUpdate& update = updates_[i];
    if (update.rows == 0 || update.total == nullptr) continue;
    const ArgumentSlot& slot = command_->arguments[i];
    void* const to = device_.at(copy_of(slot, attachment_.rank).place);
    const ElementTypes types{type_over_slices(slot.dtype), slot.dtype};
    if (types.from == types.to) device_.copy_within(to, update.total, update.bytes);
    else device_.convert(types, update.total, to, update.bytes / size_of(slot.dtype));
  }
  device_.finish();
}

/// Called by all ranks. The ranks that computed something bring their outputs. If shapes differ, every rank sees this
/// and none of them reduces, and the master reports it.
void RunningCall::reduce_outputs(Outbox& outbox) {
  if (!all_are_large()) return;
  const auto& attachment = attachment_;
  std::vector<int> ranks;
  double rows = 0;
  for (const int rank : command_->ranks) {
    const Outbox& other = attachment.control.outbox(*command_, rank);
    if (other.is_empty) continue;
    ranks.push_back(rank);
    rows += static_cast<double>(other.rows);
  }
  std::vector<double> weights;
  for (const int rank : ranks) {
    weights.push_back(static_cast<double>(attachment.control.outbox(*command_, rank).rows) / rows);
  }
  bool agree = true;
  std::uint16_t reduced = 0;
  for (std::size_t i = 0; agree && i < call_->outputs_count; ++i) {
    if (!is_reduced_by_workers(i)) continue;
    agree = reduce_output(i, outbox, ranks, weights);
    reduced |= static_cast<std::uint16_t>(1U << i);
  }
  device_.finish();
  if (agree) outbox.reduced_outputs = reduced;
}

bool RunningCall::reduce_output(std::size_t index, Outbox& outbox, std::span<const int> ranks,
                                std::span<const double> weights) {
  const auto& attachment = attachment_;
  const OutputType& type = command_->outputs[index];
  const auto& extents = attachment.control.outbox(*command_, ranks.front()).outputs[index].extents;
  std::vector<std::uint64_t> offsets;
  for (const int rank : ranks) {
    const OutputSlot& output = attachment.control.outbox(*command_, rank).outputs[index];
    if (output.extents != extents) return false;
    offsets.push_back(output.offset);
  }
  const OutputReduction what{type.dtype, type.reduction, elements_in({extents.data(), type.dimensions}),
                             ranks,      weights,        offsets};
  if (shares_outputs_) {
    reduce_shared_output(attachment.segment, attachment.rank, what);
    return true;
  }
  const std::uint64_t result = gpu_->reduce_output(what, std::move(outputs_[index].buffer));
  if (result != 0) outbox.outputs[index].offset = outputs_[index].shared = result;
  return true;
}

void RunningCall::end(std::uint64_t command) {
  for (std::size_t i = 0; i < call_->outputs_count; ++i) {
    if (outputs_[i].shared != 0) outgoing_.free_when_consumed(command, outputs_[i].shared);
    outputs_[i] = PendingOutput{};
  }
  if (update_arguments_ != 0) discard();
}

}  // namespace syncrun::detail
