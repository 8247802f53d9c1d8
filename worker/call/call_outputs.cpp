#include "worker/call/call_outputs.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <string>

#include "common/arrays/extents.hpp"
#include "common/arrays/reduce.hpp"
#include "common/arrays/row_range.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::worker::call {

namespace {

/// Adds a slice's value to the average of the slices before. `total` has the type T. A value of weight 0 may be NaN.
template <class T>
void average_scalar(std::array<std::byte, 8>& total, double& sum, T value, double weight_before, double weight) {
  if (weight == 0) value = 0;
  sum += static_cast<double>(value) * weight;
  if (weight_before != 0) value = static_cast<T>(sum / (weight_before + weight));
  const T mean = value;
  std::memcpy(total.data(), &mean, sizeof(T));
}

/// Reduces this rank's part of the elements of an output that every rank has put into shared memory. Each rank that
/// computed something calls it, and they write the result into the memory of the first of them. On other ranks, it does
/// nothing. Any kind of device can have computed the values.
void reduce_shared_output(const os::Segment& segment, int rank, const devices::OutputReduction& what) {
  const auto own = std::find(what.ranks.begin(), what.ranks.end(), rank);
  if (own == what.ranks.end()) return;
  const arrays::RowRange part = arrays::share_of(
      static_cast<std::int64_t>(what.elements), static_cast<std::int64_t>(what.ranks.size()), own - what.ranks.begin());
  const std::size_t skipped_bytes = static_cast<std::size_t>(part.begin) * size_of(what.dtype);
  std::vector<const void*> sources;
  sources.reserve(what.offsets.size());
  for (const auto offset : what.offsets) sources.push_back(segment.at(offset) + skipped_bytes);
  void* to = const_cast<void*>(sources.front());
  arrays::reduce_elements(what.dtype, what.reduction, {&to, 1}, sources, what.weights,
                          static_cast<std::size_t>(part.count()));
}

}  // namespace

void CallOutputs::accept_scalar(std::size_t output, const OutputType& type, const void* value) {
  if (!wants(output)) return;
  if (slices_.rows() == 0) return;
  const double weight = slices_.weight();
  if (recorded_ != nullptr) {
    text::throw_usage(
        "output " + std::to_string(output) +
        " of a replayable function is a number that the host knows, which would be the same for ever: return "
        "Output::in_device_memory");
  }
  Pending& pending = pending_[output];
  if (type.reduction == Reduction::avg) {
    if (type.dtype == DType::float64) {
      double number = 0;
      std::memcpy(&number, value, sizeof(number));
      average_scalar(pending.scalar, pending.average, number, pending.weight, weight);
    } else {
      float number = 0;
      arrays::convert_elements({type.dtype, DType::float32}, value, &number, 1);
      average_scalar(pending.scalar, pending.average, number, pending.weight, weight);
    }
  } else if (pending.slices == 0) {
    arrays::convert_elements({type.dtype, arrays::partial_type(type.dtype)}, value, pending.scalar.data(), 1);
  } else {
    arrays::accumulate_elements(type.dtype, type.reduction, pending.scalar.data(), value, {}, 1);
  }
  pending.weight += weight;
  ++pending.slices;
}

void CallOutputs::accept(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents,
                         OutputBuffer buffer) {
  if (!wants(output) && recorded_ == nullptr) return;  // a recording keeps it, because every replay writes it
  if (arrays::elements_in(extents) != 0 && buffer.data() == nullptr) {
    text::throw_usage("output " + std::to_string(output) +
                      " was returned without memory: construct it with the worker and its shape");
  }
  if (recorded_ == nullptr) return take(output, type, extents, std::move(buffer));
  if (buffer.data() != nullptr && buffer.context() != &outputs_) {
    text::throw_usage(
        "output " + std::to_string(output) +
        " of a replayable function was made of host memory, which would keep this call's values for ever: "
        "construct it with the worker and its shape");
  }
  recorded_->push_back({output, type, {extents.begin(), extents.end()}, std::move(buffer), nullptr});
}

/// Adds the output of a slice to those of the slices before.
void CallOutputs::take(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents,
                       OutputBuffer buffer) {
  Pending& pending = pending_[output];
  if (slices_.rows() == 0 || !wants(output)) return;
  const double weight = slices_.weight();
  const std::ptrdiff_t first_checked = type.reduction == Reduction::gather ? 1 : 0;
  if (pending.slices == 0) {
    std::copy(extents.begin(), extents.end(), pending.extents.begin());
  } else if (!std::equal(extents.begin() + first_checked, extents.end(), pending.extents.begin() + first_checked)) {
    text::throw_usage("output " + std::to_string(output) + " has shape " + syncrun::to_string(extents) + " in slice " +
                      std::to_string(slices_.index()) + " and " +
                      syncrun::to_string({pending.extents.data(), type.dimensions}) + " before");
  }

  // What does not count may be NaN.
  if (weight == 0 && type.reduction == Reduction::avg) buffer = outputs_.allocate(buffer.bytes());
  if (type.reduction == Reduction::gather) {
    pending.piece_rows.push_back(extents[0]);
    pending.pieces.push_back(slices_.call().slices > 1 ? adopted(std::move(buffer)) : std::move(buffer));
  } else if (pending.slices == 0) {
    pending.buffer = converted({type.dtype, slices_.type_over_slices(type.dtype)}, std::move(buffer));
  } else {
    buffer = adopted(std::move(buffer));
    arithmetic_.accumulate(type.dtype, type.reduction, pending.buffer.data(), buffer.data(),
                           weights_of(pending.weight, weight), arrays::elements_in(extents));
  }
  pending.weight += weight;
  ++pending.slices;
}

/// If the device works on outputs in its own memory, brings the output there. A CPU device can also read a body's own
/// memory.
OutputBuffer CallOutputs::adopted(OutputBuffer buffer) {
  if (reducer_ == nullptr) return buffer;
  return outputs_.adopt(std::move(buffer));
}

/// Brings an output into memory of the device. Its elements get the second type.
OutputBuffer CallOutputs::converted(arrays::ElementTypes types, OutputBuffer buffer) {
  if (types.from == types.to || buffer.data() == nullptr) return outputs_.adopt(std::move(buffer));
  buffer = adopted(std::move(buffer));
  const std::size_t elements = buffer.bytes() / size_of(types.from);
  OutputBuffer result = outputs_.allocate(elements * size_of(types.to));
  arithmetic_.convert(types, buffer.data(), result.data(), elements);
  return result;
}

/// Device memory that has another owner.
OutputBuffer CallOutputs::borrowed(void* memory, std::size_t bytes) noexcept {
  return {memory, bytes, [](void*, void*) noexcept {}, &outputs_};
}

/// The recording keeps the memory of its outputs. If later slices are added to the first one, they are added to a copy.
void CallOutputs::accept_recorded(std::span<const RecordedOutput> outputs) {
  for (const RecordedOutput& recorded : outputs) {
    if (recorded.place != nullptr) {
      accept_device_scalar(recorded.output, recorded.type, recorded.place);
      continue;
    }
    OutputBuffer buffer = borrowed(recorded.buffer.data(), recorded.buffer.bytes());
    if (slices_.call().slices > 1 && buffer.data() != nullptr) {
      OutputBuffer copy = outputs_.allocate(buffer.bytes());
      memory_.copy_within(copy.data(), buffer.data(), buffer.bytes());
      buffer = std::move(copy);
    }
    take(recorded.output, recorded.type, recorded.extents, std::move(buffer));
  }
}

/// A number in device memory is handled as an array of one element until it is delivered. If there is only one slice,
/// it is not copied, because no later work can change it.
void CallOutputs::accept_device_scalar(std::size_t output, const OutputType& type, const void* place) {
  if (recorded_ != nullptr) {
    recorded_->push_back({output, type, {}, {}, place});
    return;
  }
  if (!wants(output)) return;
  const std::size_t bytes = size_of(type.dtype);
  const bool will_be_copied = reducer_ != nullptr;  // shared memory would be freed once it is consumed
  if (slices_.call().slices <= 1 && will_be_copied)
    return take(output, type, {}, borrowed(const_cast<void*>(place), bytes));
  OutputBuffer buffer = outputs_.allocate(bytes);
  memory_.copy_within(buffer.data(), place, bytes);
  take(output, type, {}, std::move(buffer));
}

void CallOutputs::concatenate(Pending& pending, const OutputType& type) {
  std::size_t bytes = 0;
  for (const auto& piece : pending.pieces) bytes += piece.bytes();
  pending.extents[0] = std::accumulate(pending.piece_rows.begin(), pending.piece_rows.end(), std::int64_t{0});
  if (pending.pieces.size() == 1) {
    pending.buffer = outputs_.adopt(std::move(pending.pieces.front()));
  } else if (bytes != 0) {
    pending.buffer = outputs_.allocate(bytes);
    auto* to = static_cast<std::byte*>(pending.buffer.data());
    for (std::size_t i = 0; i < pending.pieces.size(); ++i) {
      const std::size_t piece_bytes = static_cast<std::size_t>(pending.piece_rows[i]) *
                                      arrays::row_bytes_of(type.dtype, {pending.extents.data(), type.dimensions});
      memory_.copy_within(to, pending.pieces[i].data(), piece_bytes);
      to += piece_bytes;
    }
  }
}

/// Whether all outputs go to shared memory before the workers reduce them.
bool CallOutputs::shares_before_reducing() const noexcept {
  return reducer_ == nullptr || slices_.command().comm.path() == protocol::CommPath::host ||
         attachment_.place.has_others();
}

/// Whether workers can reduce the output: an array that is combined element by element. On several nodes, the master
/// combines the results of the nodes, so 16-bit numbers, which would be rounded twice, travel whole.
bool CallOutputs::is_reduced_by_workers(std::size_t output) const noexcept {
  const OutputType& type = slices_.command().outputs[output];
  if (!wants(output)) return false;
  if (!shares_before_reducing() && !arrays::is_nccl_type(type.dtype)) return false;
  if (attachment_.place.has_others() && arrays::partial_type(type.dtype) != type.dtype) return false;
  return type.dimensions > 0 && type.reduction != Reduction::gather && !type.is_kept;
}

void CallOutputs::deliver(protocol::Outbox& outbox) {
  outbox.is_empty = slices_.share_rows() == 0;
  outbox.is_large = false;
  outbox.reduced_outputs = 0;
  outbox.rows = slices_.share_rows();
  outbox.weight = slices_.share_weight();
  if (outbox.is_empty) return memory_.finish();
  const protocol::Command& command = slices_.command();
  for (std::size_t i = 0; i < slices_.call().outputs_count; ++i) {
    const OutputType& type = command.outputs[i];
    if (type.reduction == Reduction::gather) concatenate(pending_[i], type);
    const std::size_t bytes = arrays::elements_in({pending_[i].extents.data(), type.dimensions}) * size_of(type.dtype);
    const bool is_large = bytes > outputs_.large_bytes();
    if (is_large && is_reduced_by_workers(i) && has_peers_here()) outbox.is_large = true;
  }
  share(outbox);
}

void CallOutputs::share(protocol::Outbox& outbox) {
  const protocol::Command& command = slices_.command();
  for (std::size_t i = 0; i < slices_.call().outputs_count; ++i) {
    Pending& pending = pending_[i];
    const OutputType& type = command.outputs[i];
    if (type.is_kept) {
      if (wants(i)) variables_.adopt(command.kept[i], pending.extents, std::move(pending.buffer));
      continue;
    }
    const bool stays = outbox.is_large && is_reduced_by_workers(i) && !shares_before_reducing();
    if (!stays) {
      const DType combined = type.reduction == Reduction::gather ? type.dtype : slices_.type_over_slices(type.dtype);
      pending.shared = outputs_.share(converted({combined, type.dtype}, std::move(pending.buffer)));
    }
    outbox.outputs[i].extents = pending.extents;
    outbox.outputs[i].offset = pending.shared;
  }
  memory_.finish();
  for (std::size_t i = 0; i < slices_.call().outputs_count; ++i) {
    const OutputType& type = command.outputs[i];
    if (type.dimensions != 0 || type.is_kept) continue;
    const Pending& pending = pending_[i];
    void* const scalar = outbox.outputs[i].scalar.data();
    if (pending.shared != 0) std::memcpy(scalar, attachment_.segment.at(pending.shared), size_of(type.dtype));
    else arrays::convert_elements({arrays::partial_type(type.dtype), type.dtype}, pending.scalar.data(), scalar, 1);
  }
}

/// The ranks that reduce together: those of this node.
protocol::RankSet::Part CallOutputs::ranks_here() const noexcept {
  return attachment_.place.ranks_of(slices_.command().ranks);
}

bool CallOutputs::has_peers_here() const noexcept {
  const auto ranks = ranks_here();
  return std::distance(ranks.begin(), ranks.end()) > 1;
}

/// Whether this rank may have to reduce outputs. It is certain only after all ranks have voted: they reduce if all
/// ranks that computed something have large outputs. If GPUs reduce through their communicator, a GPU takes part even if
/// it has no rows.
bool CallOutputs::may_reduce(const protocol::Outbox& outbox) const noexcept {
  if (slices_.call().outputs_count == 0) return false;
  if (shares_before_reducing()) return outbox.is_large;
  if (slices_.command().ranks.is_single()) return false;
  for (std::size_t i = 0; i < slices_.call().outputs_count; ++i) {
    if (is_reduced_by_workers(i)) return true;
  }
  return false;
}

bool CallOutputs::all_are_large() const noexcept {
  const auto ranks = ranks_here();
  return std::all_of(ranks.begin(), ranks.end(), [this](int rank) {
    const protocol::Outbox& outbox = outbox_of(rank);
    return outbox.is_empty || outbox.is_large;
  });
}

/// Called by all ranks. The ranks that computed something bring their outputs. If shapes differ, every rank sees this
/// and none of them reduces, and the master reports it.
void CallOutputs::reduce(protocol::Outbox& outbox) {
  if (!all_are_large()) return;
  std::vector<int> ranks;
  double weight = 0;
  for (const int rank : ranks_here()) {
    const protocol::Outbox& other = outbox_of(rank);
    if (other.is_empty) continue;
    ranks.push_back(rank);
    weight += other.weight;
  }
  std::vector<double> weights;
  // On several nodes, those of one may all have the weight 0.
  for (const int rank : ranks) weights.push_back(weight == 0 ? 0 : outbox_of(rank).weight / weight);
  bool agree = true;
  std::uint16_t reduced = 0;
  for (std::size_t i = 0; agree && i < slices_.call().outputs_count; ++i) {
    if (!is_reduced_by_workers(i)) continue;
    agree = reduce_output(i, outbox, ranks, weights);
    reduced |= static_cast<std::uint16_t>(1U << i);
  }
  memory_.finish();
  if (agree) outbox.reduced_outputs = reduced;
}

bool CallOutputs::reduce_output(std::size_t index, protocol::Outbox& outbox, std::span<const int> ranks,
                                std::span<const double> weights) {
  const OutputType& type = slices_.command().outputs[index];
  const auto& extents = outbox_of(ranks.front()).outputs[index].extents;
  std::vector<std::uint64_t> offsets;
  for (const int rank : ranks) {
    const protocol::OutputSlot& output = outbox_of(rank).outputs[index];
    if (output.extents != extents) return false;
    offsets.push_back(output.offset);
  }
  const devices::OutputReduction what{
      type.dtype, type.reduction, arrays::elements_in({extents.data(), type.dimensions}), ranks, weights, offsets};
  if (shares_before_reducing()) {
    reduce_shared_output(attachment_.segment, attachment_.rank, what);
    return true;
  }
  const std::uint64_t result = reducer_->reduce(what, std::move(pending_[index].buffer));
  if (result != 0) outbox.outputs[index].offset = pending_[index].shared = result;
  return true;
}

void CallOutputs::end(std::uint64_t command) {
  for (std::size_t i = 0; i < slices_.call().outputs_count; ++i) {
    if (pending_[i].shared != 0) outgoing_.free_when_consumed(command, pending_[i].shared);
    pending_[i] = Pending{};
  }
}

void CallOutputs::discard() noexcept {
  for (Pending& output : pending_) {
    if (output.shared != 0) outgoing_.free(output.shared);
    output = Pending{};
  }
}

}  // namespace syncrun::detail::worker::call
