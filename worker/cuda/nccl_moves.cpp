// Collectives in which every rank has a part of its own. Where parts are of equal lengths NCCL has them as such; else they
// are one ncclReduce or ncclBroadcast for each part, in one group, which is one launch. (NCCL wants equal counts; a padded
// copy would cost memory, and a pass over all of it.)

#include "worker/cuda/nccl_comm.hpp"
#include "worker/cuda/nccl_types.hpp"

namespace syncrun::detail {

namespace {

/// Puts one(rank) on the stream for every rank, as one launch.
template <class One>
ncclResult_t in_group(int ranks, One&& one) {
  ncclResult_t code = ncclGroupStart();
  if (code != ncclSuccess) return code;
  for (int rank = 0; rank < ranks && code == ncclSuccess; ++rank) code = one(rank);
  const ncclResult_t end = ncclGroupEnd();  // also after an error: that a group is open is the thread's state
  return code == ncclSuccess ? end : code;
}

std::size_t elements_of(const Division& division, int rank) noexcept {
  return static_cast<std::size_t>(division.of(rank).count());
}

}  // namespace

void NcclComm::reduce_scatter(void* values, void* part, std::size_t elements, DType dtype, Reduction reduction,
                              std::int64_t weight) {
  const ncclDataType_t type = checked_nccl_type("reduce_scatter", dtype, reduction);
  ensure();
  note(CollectiveKind::reduce_scatter, elements, dtype, reduction, 0);
  if (elements == 0) return;
  const bool averages = reduction == Reduction::avg;
  const ncclRedOp_t op = averages ? begin_average(values, elements, dtype, weight) : nccl_op(reduction);
  const Division division(elements, world_size(), size_of(dtype));
  const auto reduce_share = [&](int root) {
    const std::byte* const from = static_cast<const std::byte*>(values) + division.begin_bytes(root);
    if (elements_of(division, root) == 0) return ncclSuccess;
    return ncclReduce(from, part, elements_of(division, root), type, op, root, comm_, stream_);
  };
  const ncclResult_t code = division.is_equal()
                                ? ncclReduceScatter(values, part, elements_of(division, 0), type, op, comm_, stream_)
                                : in_group(world_size(), reduce_share);
  if (averages) return end_average(op, code, "ncclReduceScatter");
  check(code, "ncclReduceScatter");
}

void NcclComm::all_gather(const void* part, void* all, const Division& division) {
  ensure();
  note(CollectiveKind::all_gather, static_cast<std::size_t>(division.elements()) * division.element_bytes(),
       DType::uint8, Reduction::gather, 0);
  if (division.elements() == 0) return;
  const auto broadcast_part = [&](int root) {
    std::byte* const to = static_cast<std::byte*>(all) + division.begin_bytes(root);
    if (division.bytes(root) == 0) return ncclSuccess;
    return ncclBroadcast(part, to, division.bytes(root), ncclUint8, root, comm_, stream_);
  };
  const ncclResult_t code = division.is_equal() ? ncclAllGather(part, all, division.bytes(0), ncclUint8, comm_, stream_)
                                                : in_group(world_size(), broadcast_part);
  check(code, "ncclAllGather");
}

}  // namespace syncrun::detail
