#include "launcher/commands/output_collector.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/arrays/extents.hpp"
#include "common/arrays/reduce.hpp"
#include "common/text/errors.hpp"
#include "launcher/calls/describe.hpp"

namespace syncrun::detail {

void OutputCollector::take_ranks(const Command& command) {
  ranks_.clear();
  double rows = 0;
  for (const int rank : command.ranks) {
    const Outbox& outbox = control_.outbox(command, rank);
    if (outbox.is_empty) continue;
    ranks_.push_back(rank);
    rows += static_cast<double>(outbox.rows);
  }
  weights_.clear();
  for (const int rank : ranks_) weights_.push_back(static_cast<double>(control_.outbox(command, rank).rows) / rows);
}

void OutputCollector::collect(const Command& command, const FunctionRecord& function, CallResult& result) {
  take_ranks(command);
  const CallPayload& call = command.call();
  result.outputs = std::vector<RawOutput>(call.outputs_count);
  for (std::size_t i = 0; i < call.outputs_count; ++i) {
    if ((call.wanted_outputs >> i & 1U) == 0) continue;
    const OutputType& type = command.outputs[i];
    if (type.is_kept) continue;
    RawOutput& to = result.outputs[i];
    if (type.dimensions != 0) {
      collect_array(command, function, i, to);
      continue;
    }
    sources_.clear();
    for (const int rank : ranks_) sources_.push_back(control_.outbox(command, rank).outputs[i].scalar.data());
    void* destination = to.scalar.data();
    reduce_elements(type.dtype, type.reduction, {&destination, 1}, sources_, weights_, 1);
  }
}

void OutputCollector::collect_array(const Command& command, const FunctionRecord& function, std::size_t index,
                                    RawOutput& to) {
  const OutputType& type = command.outputs[index];
  const auto slot = [&](int rank) -> const OutputSlot& { return control_.outbox(command, rank).outputs[index]; };
  const bool gathers = type.reduction == Reduction::gather;
  sources_.clear();
  to.extents = slot(ranks_.front()).extents;
  for (const int rank : ranks_) {
    const auto& extents = slot(rank).extents;
    if (!std::equal(extents.begin() + (gathers ? 1 : 0), extents.begin() + type.dimensions,
                    to.extents.begin() + (gathers ? 1 : 0))) {
      throw Error(ErrorKind::function, "call '" + function.name + "': " + describe_output(function, index) +
                                           " has shape " + syncrun::to_string({to.extents.data(), type.dimensions}) +
                                           " on rank " + std::to_string(ranks_.front()) + " and " +
                                           syncrun::to_string({extents.data(), type.dimensions}) + " on rank " +
                                           std::to_string(rank));
    }
    sources_.push_back(segment_->at(slot(rank).offset));
  }
  if (gathers) return gather(command, index, to);
  const std::size_t elements = elements_in({to.extents.data(), type.dimensions});
  to.buffer = allocate_on_heap(elements * size_of(type.dtype));
  if (control_.outbox(command, ranks_.front()).has_reduced(index)) {
    std::memcpy(to.buffer.data(), sources_.front(), to.buffer.bytes());
    return;
  }
  void* destination = to.buffer.data();
  reduce_elements(type.dtype, type.reduction, {&destination, 1}, sources_, weights_, elements);
}

/// Concatenates the rows of the ranks.
void OutputCollector::gather(const Command& command, std::size_t index, RawOutput& to) {
  const OutputType& type = command.outputs[index];
  const auto extents_of = [&](int rank) -> const auto& {
    return control_.outbox(command, rank).outputs[index].extents;
  };
  to.extents[0] = 0;
  for (const int rank : ranks_) to.extents[0] += extents_of(rank)[0];
  const std::size_t elements = elements_in({to.extents.data(), type.dimensions});
  to.buffer = allocate_on_heap(elements * size_of(type.dtype));
  auto* at = static_cast<std::byte*>(to.buffer.data());
  for (std::size_t k = 0; k < ranks_.size(); ++k) {
    const std::size_t bytes = elements_in({extents_of(ranks_[k]).data(), type.dimensions}) * size_of(type.dtype);
    if (bytes != 0) std::memcpy(at, sources_[k], bytes);
    at += bytes;
  }
}

}  // namespace syncrun::detail
