#include "master/dispatch/output_collector.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/arrays/extents.hpp"
#include "common/arrays/reduce.hpp"
#include "common/text/errors.hpp"
#include "master/calls/describe.hpp"

namespace syncrun::detail::master::dispatch {

void OutputCollector::take_ranks(const protocol::Command& command) {
  ranks_.clear();
  double weight = 0;
  for (const int rank : command.ranks) {
    const protocol::Outbox& outbox = control_.outbox(command, rank);
    if (outbox.is_empty) continue;
    ranks_.push_back(rank);
    weight += outbox.weight;
  }
  weights_.clear();
  for (const int rank : ranks_) weights_.push_back(control_.outbox(command, rank).weight / weight);
}

void OutputCollector::collect(const protocol::Command& command, const records::FunctionRecord& function,
                              CallResult& result) {
  take_ranks(command);
  const protocol::CallPayload& call = command.call();
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
    arrays::reduce_elements(type.dtype, type.reduction, {&destination, 1}, sources_, weights_, 1);
  }
}

void OutputCollector::collect_array(const protocol::Command& command, const records::FunctionRecord& function,
                                    std::size_t index, RawOutput& to) {
  const OutputType& type = command.outputs[index];
  const auto slot = [&](int rank) -> const protocol::OutputSlot& {
    return control_.outbox(command, rank).outputs[index];
  };
  const bool gathers = type.reduction == Reduction::gather;
  to.extents = slot(ranks_.front()).extents;
  for (const int rank : ranks_) {
    const auto& extents = slot(rank).extents;
    if (!std::equal(extents.begin() + (gathers ? 1 : 0), extents.begin() + type.dimensions,
                    to.extents.begin() + (gathers ? 1 : 0))) {
      throw Error(ErrorKind::function, "call '" + function.name + "': " + calls::describe_output(function, index) +
                                           " has shape " + syncrun::to_string({to.extents.data(), type.dimensions}) +
                                           " on rank " + std::to_string(ranks_.front()) + " and " +
                                           syncrun::to_string({extents.data(), type.dimensions}) + " on rank " +
                                           std::to_string(rank));
    }
  }
  take_sources(command, index);
  if (gathers) return gather(command, index, to);
  const std::size_t elements = arrays::elements_in({to.extents.data(), type.dimensions});
  to.buffer = allocate_on_heap(elements * size_of(type.dtype));
  if (sources_.size() == 1 && control_.outbox(command, ranks_.front()).has_reduced(index)) {
    std::memcpy(to.buffer.data(), sources_.front(), to.buffer.bytes());
    return;
  }
  void* destination = to.buffer.data();
  arrays::reduce_elements(type.dtype, type.reduction, {&destination, 1}, sources_, weights_of_sources_, elements);
}

/// The arrays of the ranks, and their weights. If the workers of a node have reduced theirs, there is one array of the
/// node: that of the first rank here, and on another node that of the only rank whose report had one.
void OutputCollector::take_sources(const protocol::Command& command, std::size_t index) {
  sources_.clear();
  weights_of_sources_.clear();
  int reduced_node = -1;
  std::uint64_t reduced_at = 0;
  for (std::size_t k = 0; k < ranks_.size(); ++k) {
    const protocol::Outbox& outbox = control_.outbox(command, ranks_[k]);
    const std::uint64_t offset = outbox.outputs[index].offset;
    const int node = control_.worker(ranks_[k]).node;
    if (outbox.has_reduced(index) && node == reduced_node) {
      if (reduced_at == 0) {
        reduced_at = offset;
        sources_.back() = segment_->at(offset);
      }
      weights_of_sources_.back() += weights_[k];
      continue;
    }
    if (outbox.has_reduced(index)) {
      reduced_node = node;
      reduced_at = offset;
    }
    sources_.push_back(segment_->at(offset));
    weights_of_sources_.push_back(weights_[k]);
  }
}

/// Concatenates the rows of the ranks.
void OutputCollector::gather(const protocol::Command& command, std::size_t index, RawOutput& to) {
  const OutputType& type = command.outputs[index];
  const auto extents_of = [&](int rank) -> const auto& {
    return control_.outbox(command, rank).outputs[index].extents;
  };
  to.extents[0] = 0;
  for (const int rank : ranks_) to.extents[0] += extents_of(rank)[0];
  const std::size_t elements = arrays::elements_in({to.extents.data(), type.dimensions});
  to.buffer = allocate_on_heap(elements * size_of(type.dtype));
  auto* at = static_cast<std::byte*>(to.buffer.data());
  for (std::size_t k = 0; k < ranks_.size(); ++k) {
    const std::size_t bytes =
        arrays::elements_in({extents_of(ranks_[k]).data(), type.dimensions}) * size_of(type.dtype);
    if (bytes != 0) std::memcpy(at, sources_[k], bytes);
    at += bytes;
  }
}

}  // namespace syncrun::detail::master::dispatch
