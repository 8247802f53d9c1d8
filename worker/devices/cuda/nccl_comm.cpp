#include "worker/devices/cuda/nccl_comm.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/os/environment.hpp"
#include "common/os/interfaces.hpp"
#include "common/text/errors.hpp"
#include "worker/devices/cuda/check.hpp"
#include "worker/devices/cuda/kernels.hpp"
#include "worker/devices/cuda/nccl_types.hpp"
#include "worker/devices/cuda/norm_kernels.hpp"
#include "worker/devices/cuda/update_kernels.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

static_assert(sizeof(ncclUniqueId) <= comm::Rendezvous::kMostBytes);

/// Called before the first collective. Otherwise, CUDA would load a kernel while a collective waits for a peer.
void load_all_kernels() {
  kernels::load_kernels();
  kernels::load_update_kernels();
  kernels::load_norm_kernels();
}

/// The fraction that this number of rows has of the rows of all ranks.
double share_of(std::int64_t rows, const comm::RankWeights& weights) noexcept {
  return static_cast<double>(rows) / static_cast<double>(std::max<std::int64_t>(weights.all, 1));
}

/// False if the user has turned the three steps off.
bool wants_steps_by_node() { return environment::switch_in(environment::kReduceByNode).value_or(true); }

}  // namespace

void refuse_in_capture(cudaStream_t stream, const char* what, const char* advice) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  if (status == cudaStreamCaptureStatusNone) return;
  text::throw_usage(std::string(what) + " in a replayable function would run only once: " + advice);
}

void refuse_number_in_capture(cudaStream_t stream) {
  refuse_in_capture(stream, "all_reduce of a number of the host's", "reduce a number in device memory");
}

void refuse_exchange_in_capture(cudaStream_t stream) {
  refuse_in_capture(stream, "asking the other ranks for their lengths",
                    "pass the lengths, which are the same in every call");
}

NcclComm::NcclComm(GpuCommParts parts, const protocol::RankSet& ranks, protocol::CommChoice choice)
    : parts_(std::move(parts)),
      attachment_(parts_.device.attachment),
      choice_(choice),
      host_(choice.spans_nodes() ? *parts_.device.nodes_comm : parts_.device.host_comm),
      rendezvous_(parts_.device.rendezvous),
      limits_{parts_.device.interruption},
      ranks_(ranks),
      rank_(ranks.position_of(attachment_.rank)),
      stream_(parts_.stream),
      peers_(parts_.device, parts_.pool),
      replacements_(attachment_.control.header().replacements),
      plan_(parts_.plan) {}

void NcclComm::begin(const protocol::Command& command) {
  host_.begin(command);
  host_command_ = command.id;
}

// ---- making one -----------------------------------------------------------------------------------------------

std::string NcclComm::describe(ncclResult_t code, const char* what) const {
  const char* detail = ncclGetLastError(comm_.get());
  std::string message = std::string(what) + ": " + ncclGetErrorString(code);
  if (detail != nullptr && *detail != '\0') message += std::string(" (") + detail + ")";
  return message;
}

void NcclComm::check(ncclResult_t code, const char* what) const {
  if (code != ncclSuccess) throw Error(ErrorKind::nccl, describe(code, what), static_cast<int>(code));
}

/// The id with which the ranks of a communicator find each other. The first of them makes it, and the others fetch it.
ncclUniqueId NcclComm::agreed_id() {
  ncclUniqueId id{};
  if (rank() == 0) check_connecting(ncclGetUniqueId(&id), "ncclGetUniqueId");
  if (choice_.spans_nodes()) {
    host_.broadcast(&id, sizeof(id), DType::uint8, 0);
    return id;
  }
  const std::uint64_t command = attachment_.command_in_progress();
  if (rank() == 0) {
    rendezvous_.put(command, std::as_bytes(std::span(&id, 1)), limits_);
  } else {
    rendezvous_.get(ranks_.first(), command, std::as_writable_bytes(std::span(&id, 1)), limits_);
  }
  return id;
}

/// If NCCL cannot connect nodes, it does not say which network it has used.
void NcclComm::check_connecting(ncclResult_t code, const char* what) const {
  if (code == ncclSuccess || !choice_.spans_nodes()) return check(code, what);
  const char* const chosen = std::getenv("NCCL_SOCKET_IFNAME");
  const std::string choice = chosen == nullptr ? "NCCL_SOCKET_IFNAME is not set, so NCCL chooses a network interface"
                                               : std::string("NCCL_SOCKET_IFNAME is ") + chosen;
  throw Error(ErrorKind::nccl,
              "connecting GPUs of several nodes: " + describe(code, what) + ". This is node " +
                  std::to_string(attachment_.place.node) + "; " + interfaces_of(facts_) + "; " + choice +
                  " here. Set it to an interface that reaches the other nodes. NCCL_DEBUG=INFO says more",
              static_cast<int>(code));
}

/// Before NCCL connects nodes: afterwards, a rank that cannot be reached could not tell the others.
void NcclComm::exchange_facts() {
  const NodeFacts own{attachment_.place.node, wants_steps_by_node(), os::network_interfaces()};
  std::vector<std::int64_t> all(NodeFacts::kNumbers * static_cast<std::size_t>(world_size()));
  host_.exchange(own.packed(), all);
  facts_.clear();
  for (std::size_t at = 0; at < all.size(); at += NodeFacts::kNumbers)
    facts_.push_back(NodeFacts::unpacked(std::span(all).subspan(at, NodeFacts::kNumbers)));
}

void NcclComm::drop_stale() noexcept {
  if (is_in_group_) return;  // operations in the group belong to the communicator until the group ends
  const std::uint64_t failed = attachment_.control.header().failed_comm(choice_).load(std::memory_order_acquire);
  if ((comm_ || peers_.is_connected()) && made_at_ <= failed) abort();
  const std::uint64_t replacements = attachment_.control.header().replacements.load(std::memory_order_acquire);
  if (std::exchange(replacements_, replacements) != replacements) peers_.forget_peers();
}

void NcclComm::meet_to_set_up(protocol::MeetingPurpose purpose) {
  const SettingUp noted(plan_);
  if (choice_.spans_nodes()) return host_.barrier();
  rendezvous_.barrier(purpose, limits_);
}

void NcclComm::ensure() {
  drop_stale();
  if (comm_) return;
  const process::InPhase making(attachment_, protocol::Phase::communicator);
  load_all_kernels();
  // If a rank may still fail before it gets here, all ranks first wait for each other, because what follows cannot be
  // interrupted. (A non-blocking communicator could be interrupted, but each call on it costs 40 us.) Workers are
  // started with NCCL_RUNTIME_CONNECT=0. So NCCL makes all connections now, and later calls do not wait for peers on
  // the host.
  const bool may_fail = host_command_ == attachment_.command_in_progress();
  const comm::EndIfStuck connecting(attachment_, ranks_);
  if (may_fail) meet_to_set_up({.kind = protocol::MeetingPurpose::Kind::making_communicator});
  if (choice_.spans_nodes()) exchange_facts();
  const ncclUniqueId id = agreed_id();
  ncclComm_t made = nullptr;
  const ncclResult_t code = ncclCommInitRank(&made, world_size(), id, rank());
  comm_ = Communicator(made);
  check_connecting(code, "ncclCommInitRank");
  if (choice_.spans_nodes()) make_steps_by_node();
  made_at_ = attachment_.command_in_progress();
}

/// Prepares all_reduces in three steps if every node has equally many of the ranks, and more than one. All ranks decide
/// alike.
void NcclComm::make_steps_by_node() {
  std::vector<std::int64_t> nodes;
  for (const NodeFacts& each : facts_) {
    if (!each.reduces_by_node) return;
    nodes.push_back(each.node);
  }
  const auto division = equal_nodes(nodes, rank());
  if (division) check_connecting(by_node_.make(comm_.get(), *division), "ncclCommSplit");
}

void NcclComm::abort() noexcept {
  const bool was_pending = std::exchange(is_pending_, false);
  if (!comm_ && !peers_.is_connected()) return;
  peers_.call_off();
  parts_.before_abort();
  by_node_.abort_with(comm_);
  connected_.clear();
  if (!was_pending) peers_.end_release();  // otherwise abandon_background() does it
}

/// Whether Syncrun's own kernels reduce values of this size. Connects the peers' memory if necessary. Called by all
/// ranks.
bool NcclComm::goes_through_peers(std::size_t bytes) {
  if (choice_ != protocol::CommChoice::devices(protocol::CommChoice::kOfSession) ||
      !kernels::peers_are_faster(bytes, world_size()))
    return false;
  drop_stale();
  if (peers_.is_connected()) return true;
  if (peers_.is_out_of_reach()) return false;
  // What follows allocates and frees memory. CUDA may then wait for a collective that is still running.
  const comm::EndIfStuck connecting(attachment_, ranks_);
  {
    const process::InPhase making(attachment_, protocol::Phase::communicator);
    const SettingUp noted(plan_);
    load_all_kernels();
    peers_.connect();
  }
  if (!peers_.is_connected()) {
    peers_.give_up_memory();
    return false;
  }
  made_at_ = attachment_.command_in_progress();
  return true;
}

// ---- operations -----------------------------------------------------------------------------------------------

/// Adds a collective to the plan, with everything that must be the same on every rank. If ranks differed, NCCL would
/// wait for ever. Called just before the collective is put on the stream.
void NcclComm::note(protocol::CollectiveKind kind, std::size_t elements, DType dtype, Reduction reduction, int root,
                    std::uint64_t division, std::uint64_t bucket) {
  if (!background_.is(stream_)) background_.join(stream_);
  plan_.add({static_cast<std::uint64_t>(kind), elements, static_cast<std::uint64_t>(dtype),
             static_cast<std::uint64_t>(reduction), static_cast<std::uint64_t>(root), division, bucket});
  is_pending_ = true;
}

void NcclComm::all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                          const comm::RankWeights& weights) {
  all_reduce(values, elements, dtype, reduction, weights, kernels::Breadth::all, 0);
}

void NcclComm::all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                          const comm::RankWeights& weights, kernels::Breadth breadth, std::uint64_t bucket) {
  static_cast<void>(checked_nccl_type("all_reduce", dtype, reduction));
  // Setup comes first: after note(), the collective is pending, and is cancelled if a peer fails.
  const bool through_peers = elements != 0 && goes_through_peers(elements * size_of(dtype));
  if (elements != 0 && !through_peers) ensure();
  note(protocol::CollectiveKind::all_reduce, elements, dtype, reduction, 0, 0, bucket);
  if (elements == 0) return;
  if (!through_peers) return reduce_by_nccl(values, elements, dtype, reduction, weights);
  const double factor = reduction == Reduction::avg ? share_of(weights.own, weights) : 1;
  peers_.all_reduce({dtype, reduction, values, elements, factor, breadth}, stream_);
}

void NcclComm::reduce_by_nccl(void* values, std::size_t elements, DType dtype, Reduction reduction,
                              const comm::RankWeights& weights) {
  const bool averages = reduction == Reduction::avg;
  Operand own = operand_for(values, elements, dtype, reduction);
  const bool is_by_node = !is_in_group_ && by_node_.is_faster(elements, elements * size_of(own.dtype));
  const Communicator& comm = is_by_node ? by_node_.within() : comm_;
  const ncclRedOp_t op = averages ? begin_average(values, elements, dtype, weights, comm) : nccl_op(reduction);
  const ncclResult_t code =
      is_by_node ? by_node_.all_reduce(own.values, elements, own.dtype, op, nccl_op(reduction), stream_)
                 : ncclAllReduce(own.values, own.values, elements, *nccl_type(own.dtype), op, comm.get(), stream_);
  if (averages) return end_average(op, comm, code, "an average by NCCL");
  check(code, "an all_reduce by NCCL");
  void* const result = own.values;
  give_result({std::move(own), result, values, dtype, elements});
}

// ---- minimum and maximum --------------------------------------------------------------------------------------

/// NCCL uses fmin and fmax, which ignore NaN if the other value is a number. So it reduces keys of floating-point values.
/// They replace the values if they have the same size.
NcclComm::Operand NcclComm::operand_for(void* values, std::size_t elements, DType dtype, Reduction reduction) {
  const bool has_order = reduction == Reduction::min || reduction == Reduction::max;
  if (!has_order || !arrays::can_reduce(dtype, Reduction::avg)) return {values, dtype, {}};
  Operand keys{values, kernels::key_type(dtype), {}};
  if (size_of(keys.dtype) != size_of(dtype)) {
    keys.memory = parts_.allocate(elements * size_of(keys.dtype));
    keys.values = keys.memory.data();
  }
  kernels::to_keys(dtype, reduction, values, keys.values, elements, stream_);
  return keys;
}

/// Turns the keys of a result into values, once NCCL has put its work on the stream. Until then, the memory of the keys
/// stays, also if this rank gets no result.
void NcclComm::give_result(KeysOfResult result) {
  if (result.operand.dtype == result.dtype) return;
  if (is_in_group_) return results_of_group_.push_back(std::move(result));
  kernels::from_keys(result.dtype, result.from, result.to, result.elements, stream_);
}

// ---- in the background ----------------------------------------------------------------------------------------

/// While an object of this class lives, collectives go to the background stream, after the work that the worker's
/// stream has so far. Collectives on the worker's stream come after those in the background (see note). So all
/// collectives run one after the other, in the order in which the host called them. Therefore two ranks that call them
/// in the same order cannot block each other by waiting in different collectives. Nor do two operations use a resource
/// of the communicator or of the peers' memory at the same time.
class NcclComm::InBackground {
 public:
  explicit InBackground(NcclComm& comm) : comm_(comm), worker_stream_(comm.stream_) {
    comm.stream_ = comm.background_.fork(worker_stream_);
  }
  ~InBackground() { comm_.stream_ = worker_stream_; }
  InBackground(const InBackground&) = delete;
  InBackground& operator=(const InBackground&) = delete;

 private:
  NcclComm& comm_;
  StreamView worker_stream_;
};

void NcclComm::start_average(void* values, std::size_t elements, DType dtype, const comm::RankWeights& weights,
                             std::size_t first) {
  const InBackground scope(*this);
  // Work that runs in parallel needs the multiprocessors. While the last part is averaged, there is no such work.
  const bool is_last = first == 0;
  const std::uint64_t bucket = first + 1;
  if (!is_last && average_by_copies(values, elements, dtype, weights, bucket)) return;
  all_reduce(values, elements, dtype, Reduction::avg, weights, is_last ? kernels::Breadth::all : kernels::Breadth::few,
             bucket);
}

/// Returns false if this is not possible or is slower. Returns the same on every rank.
bool NcclComm::average_by_copies(void* values, std::size_t elements, DType dtype, const comm::RankWeights& weights,
                                 std::uint64_t bucket) {
  static_cast<void>(checked_nccl_type("an average", dtype, Reduction::avg));
  const std::size_t bytes = elements * size_of(dtype);
  if (bytes <= kernels::kLeastShareBytes || !goes_through_peers(bytes) || !peers_.has_meetings()) return false;
  note(protocol::CollectiveKind::all_reduce, elements, dtype, Reduction::avg, 0, 0, bucket);
  kernels::PeerAverage what{dtype, values, elements, {}};
  for (int rank = 0; rank < world_size(); ++rank) {
    what.factors[rank] = share_of(weights.by_rank[static_cast<std::size_t>(rank)], weights);
  }
  peers_.average_by_copies(what, stream_);
  return true;
}

std::uint64_t NcclComm::start_all_gather(const void* part, void* all, const comm::Division& division) {
  const InBackground scope(*this);
  all_gather(part, all, division);
  return background_.mark();
}

/// The keys of a minimum or maximum are in memory that is ordered by the worker's stream, so these are not started.
std::uint64_t NcclComm::start_reduce_scatter(void* values, void* part, const comm::Division& division, DType dtype,
                                             Reduction reduction, const comm::RankWeights& weights) {
  if (reduction == Reduction::min || reduction == Reduction::max) {
    reduce_scatter(values, part, division, dtype, reduction, weights);
    static_cast<void>(background_.fork(stream_));
    return background_.mark();
  }
  const InBackground scope(*this);
  reduce_scatter(values, part, division, dtype, reduction, weights);
  return background_.mark();
}

void NcclComm::join(std::uint64_t started) { background_.join(started, stream_); }

// ---- averages -------------------------------------------------------------------------------------------------

/// Returns the operation that averages: a sum of the values, each multiplied by the weight of its rank. NCCL multiplies
/// in the type of the elements. 16 bits are too few for a weight, so values of 16-bit types are multiplied before, in
/// float.
ncclRedOp_t NcclComm::begin_average(void* values, std::size_t elements, DType dtype, const comm::RankWeights& weights,
                                    const Communicator& comm) {
  const double factor = share_of(weights.own, weights);
  const bool is_wide = dtype == DType::float32 || dtype == DType::float64;
  if (weights.own == 0) {  // 0 times NaN is not 0
    check_cuda(cudaMemsetAsync(values, 0, elements * size_of(dtype), stream_), "cudaMemsetAsync");
  } else if (!is_wide) {
    kernels::scale(dtype, values, factor, elements, stream_);
  }
  if (!is_wide) return ncclSum;
  const float narrow = static_cast<float>(factor);
  void* const scalar = dtype == DType::float32 ? static_cast<void*>(const_cast<float*>(&narrow))
                                               : static_cast<void*>(const_cast<double*>(&factor));
  ncclRedOp_t op = ncclSum;
  check(ncclRedOpCreatePreMulSum(&op, scalar, *nccl_type(dtype), ncclScalarHostImmediate, comm.get()),
        "ncclRedOpCreatePreMulSum");
  return op;
}

void NcclComm::end_average(ncclRedOp_t op, const Communicator& comm, ncclResult_t code, const char* what) {
  if (op != ncclSum) check(ncclRedOpDestroy(op, comm.get()), "ncclRedOpDestroy");
  check(code, what);
}

void NcclComm::broadcast(void* values, std::size_t elements, DType dtype, int root) {
  ensure();
  note(protocol::CollectiveKind::broadcast, elements, dtype, Reduction::sum, root);
  if (elements == 0) return;
  check(ncclBroadcast(values, values, elements * size_of(dtype), ncclUint8, root, comm_.get(), stream_),
        "ncclBroadcast");
}

void NcclComm::all_reduce_value(void* value, DType dtype, Reduction reduction, const comm::RankWeights& weights) {
  refuse_number_in_capture(stream_);
  host_.all_reduce_value(value, dtype, reduction, weights);
}

void NcclComm::exchange(std::span<const std::int64_t> own, std::span<std::int64_t> all) {
  refuse_exchange_in_capture(stream_);
  host_.exchange(own, all);
}

std::int64_t NcclComm::agree(std::int64_t own) {
  host_.all_reduce_value(&own, DType::int64, Reduction::min, {});
  return own;
}

// ---- waiting --------------------------------------------------------------------------------------------------

void NcclComm::note_waiting(Wait wait) noexcept {
  plan_.publish_waiting(wait);
  if (is_pending_) attachment_.mark(plan_.command(), protocol::Phase::collective);
}

void NcclComm::check_progress() {
  if (!is_pending_) return;
  ncclResult_t state = ncclSuccess;
  if (comm_) check(ncclCommGetAsyncError(comm_.get(), &state), "ncclCommGetAsyncError");
  if (state == ncclSuccess || state == ncclInProgress) state = by_node_.async_error();
  if (state != ncclSuccess) check(state, "a collective");
  plan_.check_peers(std::chrono::steady_clock::now());
}

}  // namespace syncrun::detail::worker::devices::cuda
