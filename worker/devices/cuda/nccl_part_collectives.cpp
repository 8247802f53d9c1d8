// Collectives in which every rank has its own part. If all parts have the same length, NCCL has functions for them.
// Otherwise, they consist of one ncclReduce or ncclBroadcast per part, in one group, which is one launch. (NCCL
// requires equal lengths. A padded copy would cost memory, and time to copy all values.)

#include <memory>
#include <utility>
#include <vector>

#include "worker/devices/cuda/check.hpp"
#include "worker/devices/cuda/nccl_comm.hpp"
#include "worker/devices/cuda/nccl_types.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

std::size_t elements_of(const comm::Division& division, int rank) noexcept {
  return static_cast<std::size_t>(division.of(rank).count());
}

}  // namespace

void NcclComm::begin_group() {
  ensure();  // inside a group, it would be made only at the end of the group
  check(ncclGroupStart(), "ncclGroupStart");
  is_in_group_ = true;
}

void NcclComm::end_group() {
  is_in_group_ = false;
  const std::unique_ptr<comm::EndIfStuck> connecting = std::move(connecting_);
  std::vector<KeysOfResult> results = std::exchange(results_of_group_, {});
  check(ncclGroupEnd(), "ncclGroupEnd");
  for (KeysOfResult& result : results) give_result(std::move(result));
}

void NcclComm::drop_group() noexcept {
  is_in_group_ = false;
  const std::unique_ptr<comm::EndIfStuck> connecting = std::move(connecting_);
  static_cast<void>(ncclGroupEnd());
  results_of_group_.clear();
}

// ---- reductions -----------------------------------------------------------------------------------------------

void NcclComm::reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                      const comm::RankWeights& weights, int root) {
  static_cast<void>(checked_nccl_type("reduce", dtype, reduction));
  ensure();
  note(protocol::CollectiveKind::reduce, elements, dtype, reduction, root);
  if (elements == 0) return;
  const bool averages = reduction == Reduction::avg;
  Operand own = operand_for(values, elements, dtype, reduction);
  void* const result = own.values;
  const ncclRedOp_t op = averages ? begin_average(values, elements, dtype, weights, comm_) : nccl_op(reduction);
  const ncclResult_t code =
      ncclReduce(own.values, own.values, elements, *nccl_type(own.dtype), op, root, comm_.get(), stream_);
  if (averages) return end_average(op, comm_, code, "ncclReduce");
  check(code, "ncclReduce");
  give_result({std::move(own), result, values, dtype, rank() == root ? elements : 0});
}

void NcclComm::reduce_scatter(void* values, void* part, const comm::Division& division, DType dtype,
                              Reduction reduction, const comm::RankWeights& weights) {
  static_cast<void>(checked_nccl_type("reduce_scatter", dtype, reduction));
  const auto elements = static_cast<std::size_t>(division.elements());
  ensure();
  note(protocol::CollectiveKind::reduce_scatter, elements, dtype, reduction, 0, division.fingerprint());
  if (elements == 0) return;
  const bool averages = reduction == Reduction::avg;
  Operand own = operand_for(values, elements, dtype, reduction);
  const ncclDataType_t type = *nccl_type(own.dtype);
  const auto at = [&](int root) {
    return static_cast<std::byte*>(own.values) + static_cast<std::size_t>(division.of(root).begin) * size_of(own.dtype);
  };
  // Keys that have more bytes than the values do not fit in `part`.
  void* const result = own.memory.data() == nullptr ? part : at(rank());
  const ncclRedOp_t op = averages ? begin_average(values, elements, dtype, weights, comm_) : nccl_op(reduction);
  const auto reduce_part = [&](int root) {
    void* const to = rank() == root ? result : at(root);  // used on the root only; `part` may be null elsewhere
    if (elements_of(division, root) == 0) return ncclSuccess;
    return ncclReduce(at(root), to, elements_of(division, root), type, op, root, comm_.get(), stream_);
  };
  const ncclResult_t code = division.is_equal() ? ncclReduceScatter(own.values, result, elements_of(division, 0), type,
                                                                    op, comm_.get(), stream_)
                                                : in_group(world_size(), reduce_part);
  if (averages) return end_average(op, comm_, code, "ncclReduceScatter");
  check(code, "ncclReduceScatter");
  give_result({std::move(own), result, part, dtype, elements_of(division, rank())});
}

// ---- moves ----------------------------------------------------------------------------------------------------

void NcclComm::note_moves(protocol::CollectiveKind kind, const comm::Division& division, int root) {
  note(kind, division.all_bytes(), DType::uint8, Reduction::gather, root, division.fingerprint());
}

void NcclComm::all_gather(const void* part, void* all, const comm::Division& division) {
  ensure();
  note_moves(protocol::CollectiveKind::all_gather, division, 0);
  if (division.all_bytes() == 0) return;
  const auto broadcast_part = [&](int root) {
    std::byte* const to = static_cast<std::byte*>(all) + division.begin_bytes(root);
    const void* const from = rank() == root ? part : to;  // used on the root only; `part` may be null elsewhere
    if (division.bytes(root) == 0) return ncclSuccess;
    return ncclBroadcast(from, to, division.bytes(root), ncclUint8, root, comm_.get(), stream_);
  };
  const ncclResult_t code = division.is_equal()
                                ? ncclAllGather(part, all, division.bytes(0), ncclUint8, comm_.get(), stream_)
                                : in_group(world_size(), broadcast_part);
  check(code, "ncclAllGather");
}

/// When two ranks first send to each other, NCCL connects them inside the call. It waits on the host there, and nothing
/// can interrupt this wait. So all ranks first wait for each other in a meeting. A rank that has called another
/// collective notices it in check_progress. The result lives until NCCL has connected them: in a group, until its end.
std::unique_ptr<comm::EndIfStuck> NcclComm::meet_before_first(protocol::CollectiveKind kind,
                                                              const comm::Division& division, int root) {
  if (division.all_bytes() == 0 || connected_.contains({kind, root})) return nullptr;
  auto connecting = std::make_unique<comm::EndIfStuck>(attachment_, ranks_);
  meet_to_set_up({.kind = protocol::MeetingPurpose::Kind::first_transfer,
                  .detail = static_cast<std::uint8_t>(kind),
                  .root = static_cast<std::int16_t>(root)});
  bool connects_all = true;  // NCCL does not connect ranks that send nothing
  for (int rank = 0; rank < world_size(); ++rank) connects_all = connects_all && division.bytes(rank) != 0;
  if (connects_all) connected_.insert({kind, root});
  if (is_in_group_) connecting_ = std::move(connecting);
  return connecting;
}

void NcclComm::gather(const void* part, void* all, const comm::Division& division, int root) {
  ensure();
  const auto connecting = meet_before_first(protocol::CollectiveKind::gather, division, root);
  note_moves(protocol::CollectiveKind::gather, division, root);
  if (division.all_bytes() == 0) return;
  std::byte* const to = static_cast<std::byte*>(all);
  const auto receive = [&](int peer) {
    if (division.bytes(peer) == 0 || peer == root) return ncclSuccess;
    return ncclRecv(to + division.begin_bytes(peer), division.bytes(peer), ncclUint8, peer, comm_.get(), stream_);
  };
  if (rank() == root) {
    check(in_group(world_size(), receive), "ncclRecv");
    return copy_own(to + division.begin_bytes(root), part, division.bytes(root));
  }
  if (division.bytes(rank()) != 0) {
    check(ncclSend(part, division.bytes(rank()), ncclUint8, root, comm_.get(), stream_), "ncclSend");
  }
}

void NcclComm::scatter(const void* all, void* part, const comm::Division& division, int root) {
  ensure();
  const auto connecting = meet_before_first(protocol::CollectiveKind::scatter, division, root);
  note_moves(protocol::CollectiveKind::scatter, division, root);
  if (division.all_bytes() == 0) return;
  const std::byte* const from = static_cast<const std::byte*>(all);
  const auto send = [&](int peer) {
    if (division.bytes(peer) == 0 || peer == root) return ncclSuccess;
    return ncclSend(from + division.begin_bytes(peer), division.bytes(peer), ncclUint8, peer, comm_.get(), stream_);
  };
  if (rank() == root) {
    check(in_group(world_size(), send), "ncclSend");
    return copy_own(part, from + division.begin_bytes(root), division.bytes(root));
  }
  if (division.bytes(rank()) != 0) {
    check(ncclRecv(part, division.bytes(rank()), ncclUint8, root, comm_.get(), stream_), "ncclRecv");
  }
}

void NcclComm::copy_own(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying a rank's own part");
}

}  // namespace syncrun::detail::worker::devices::cuda
