#include "worker/devices/cuda/reduction_by_node.hpp"

#include <cstddef>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "worker/devices/cuda/nccl_types.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

ncclResult_t split(ncclComm_t all, int color, int key, Communicator& made) {
  ncclComm_t comm = nullptr;
  const ncclResult_t code = ncclCommSplit(all, color, key, &comm, nullptr);
  made = Communicator(comm);
  return code;
}

}  // namespace

ncclResult_t ReductionByNode::make(ncclComm_t all, const EqualNodes& nodes) {
  ncclResult_t code = split(all, nodes.node, nodes.place, within_);
  if (code == ncclSuccess) code = split(all, nodes.place, nodes.node, between_);
  if (code == ncclSuccess) equal_nodes_ = nodes;
  return code;
}

void ReductionByNode::abort_with(Communicator& all) noexcept {
  if (!std::exchange(equal_nodes_, {})) {
    // None was used. If a split has failed, `all` still refers to what it was to make, so `all` comes first.
    all.reset();
    within_.reset();
    between_.reset();
    return;
  }
  std::vector<std::thread> threads;
  try {
    for (Communicator* each : {&within_, &between_}) {
      if (*each) threads.emplace_back([each] { each->reset(); });
    }
  } catch (const std::exception&) {  // no thread or no memory: one after the other
  }
  all.reset();
  for (auto& thread : threads) thread.join();
  within_.reset();
  between_.reset();
}

ncclResult_t ReductionByNode::all_reduce(void* values, std::size_t elements, DType dtype, ncclRedOp_t op,
                                         ncclRedOp_t op_of_parts, StreamView stream) const {
  const ncclDataType_t type = *nccl_type(dtype);
  const NodeDivision division = NodeDivision::of(elements, size_of(dtype), equal_nodes_->ranks_per_node);
  const int last = equal_nodes_->ranks_per_node - 1;
  const auto at = [&](std::size_t element) { return static_cast<std::byte*>(values) + element * size_of(dtype); };
  std::byte* const own = at(division.begin(equal_nodes_->place));
  std::byte* const rest = at(elements - division.remainder);

  const int calls = division.remainder == 0 ? 1 : 2;  // one for the parts, and one for the remainder
  ncclResult_t code = in_group(calls, [&](int call) {
    if (call == 0) return ncclReduceScatter(values, own, division.part, type, op, within_.get(), stream);
    return ncclReduce(rest, rest, division.remainder, type, op, last, within_.get(), stream);
  });
  if (code != ncclSuccess) return code;
  const std::size_t count = division.count(equal_nodes_->place, equal_nodes_->ranks_per_node);
  code = ncclAllReduce(own, own, count, type, op_of_parts, between_.get(), stream);
  if (code != ncclSuccess) return code;
  return in_group(calls, [&](int call) {
    if (call == 0) return ncclAllGather(own, values, division.part, type, within_.get(), stream);
    return ncclBroadcast(rest, rest, division.remainder, type, last, within_.get(), stream);
  });
}

ncclResult_t ReductionByNode::async_error() const noexcept {
  for (const Communicator* each : {&within_, &between_}) {
    ncclResult_t state = ncclSuccess;
    if (*each && ncclCommGetAsyncError(each->get(), &state) != ncclSuccess) return ncclInternalError;
    if (state != ncclSuccess && state != ncclInProgress) return state;
  }
  return ncclSuccess;
}

}  // namespace syncrun::detail::worker::devices::cuda
