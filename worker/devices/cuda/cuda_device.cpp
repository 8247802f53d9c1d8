#include "worker/devices/cuda/cuda_device.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "common/os/environment.hpp"
#include "common/os/gpu_allocators.hpp"
#include "common/os/libraries.hpp"
#include "common/os/segment.hpp"
#include "common/text/errors.hpp"
#include "worker/devices/cuda/check.hpp"
#include "worker/devices/cuda/gpu_support.hpp"
#include "worker/devices/cuda/graph_memsets.hpp"
#include "worker/devices/cuda/kernels.hpp"
#include "worker/devices/cuda/norm_kernels.hpp"
#include "worker/devices/cuda/update_kernels.hpp"
#include "worker/devices/hardware.hpp"

namespace syncrun::detail {

namespace {

// How many blocks a body may release during a capture. The memory for them is reserved before, because release() cannot
// throw.
constexpr std::size_t kMostHeld = 1024;
constexpr std::size_t kCublasWorkspaceBytes = std::size_t{32} << 20U;

/// The index in "cuda3".
int index_of(const std::string& device) { return std::stoi(device.substr(std::string_view("cuda").size())); }

void check_nccl_version() {
  int loaded = 0;
  if (ncclGetVersion(&loaded) != ncclSuccess) return;
  require_version("NCCL", "libnccl.so", LibraryVersion::of_number(loaded), "Syncrun",
                  {NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH});
}

/// Makes the GPU current. Throws Error (usage) if this Syncrun cannot use it, and Error (cuda).
void take_gpu(const std::string& device) {
  const auto check = [](cudaError_t code, const char* what) {
    if (code == cudaSuccess) return;
    throw Error(ErrorKind::cuda,
                std::string(what) + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")" +
                    std::string(advice_at_start(code)),
                static_cast<int>(code));
  };
  int shown = 0;
  check(cudaGetDeviceCount(&shown), "cudaGetDeviceCount");
  require_shown(device, shown, std::getenv("CUDA_VISIBLE_DEVICES"));
  const int index = index_of(device);
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, index), "cudaDeviceGetAttribute");
    return value;
  };
  require_code(device, {attribute(cudaDevAttrComputeCapabilityMajor), attribute(cudaDevAttrComputeCapabilityMinor)},
               SYNCRUN_CUDA_ARCHITECTURES);
  check(cudaSetDevice(index), "cudaSetDevice");
}

/// Whether all other GPUs that this process sees can read the memory of this one.
bool others_reach(int index) {
  int shown = 0;
  check_cuda(cudaGetDeviceCount(&shown), "cudaGetDeviceCount");
  for (int other = 0; other < shown; ++other) {
    int can_access = 1;
    if (other != index) check_cuda(cudaDeviceCanAccessPeer(&can_access, other, index), "cudaDeviceCanAccessPeer");
    if (can_access == 0) return false;
  }
  return true;
}

Stream make_stream(const std::string& device) {
  take_gpu(device);
  const auto [least, most] = stream_priorities();
  // A higher priority than the stream that copies the next inputs, and a lower one than the background stream of
  // collectives.
  return Stream::make(least - most > 1 ? most + 1 : most);
}

}  // namespace

class CudaGraph final : public DeviceGraph {
 public:
  /// `held` is memory that the work of the graph writes to and that nothing else refers to.
  CudaGraph(GraphExec exec, CudaGraphs& graphs, MemoryPool& pool, std::vector<void*> held)
      : exec_(std::move(exec)), graphs_(graphs), pool_(pool), held_(std::move(held)) {
    graphs_.add(*this);
  }
  ~CudaGraph() override {
    graphs_.remove(*this);
    end();
    for (void* memory : held_) pool_.release(memory);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t exec() const noexcept { return exec_.get(); }
  void end() noexcept { exec_.reset(); }

 private:
  GraphExec exec_;
  CudaGraphs& graphs_;
  MemoryPool& pool_;
  std::vector<void*> held_;
};

void CudaGraphs::end_all() noexcept {
  ++generation_;
  for (CudaGraph* graph : all_) graph->end();
}

CudaDevice::CudaDevice(const DeviceContext& context)
    : context_(context),
      segment_(context.attachment.segment),
      stream_(make_stream(context.attachment.device)),
      peer_copies_(context.attachment.segment, context.attachment.control, context.arena, context.attachment.rank),
      plan_(context.attachment),
      comm_(&comm_of(RankSet::all(context.attachment.world_size),
                     context.attachment.place.nodes > 1 ? CommChoice::devices_of_nodes(CommChoice::kOfSession)
                                                        : CommChoice::devices(CommChoice::kOfSession))) {
  gpu_allocators().syncrun = {.held_bytes = [this] { return pool_.held_bytes() + lanes_.held_bytes(); },
                              .unused_bytes = [this] { return pool_.free_bytes() + lanes_.free_bytes(); },
                              .give_back =
                                  [this] {
                                    pool_.trim();
                                    lanes_.trim();
                                  }};
  if (const char* const fraction = environment::get(environment::kGpuMemoryFraction)) {
    std::size_t available = 0;
    std::size_t total = 0;
    check_cuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    gpu_allocators().limit_bytes = gpu_limit_bytes(fraction, total);
  }
  if (context_.attachment.place.local_size > 1) is_open_to_peers_ = find_whether_open_to_peers();
}

CudaDevice::~CudaDevice() {
  gpu_allocators().syncrun = {};
  for (auto& [index, comm] : comms_) comm.abort();
  static_cast<void>(cudaStreamSynchronize(stream_.get()));
  for (auto& [index, comm] : comms_) comm.abandon_background();
  cudnn_.reset();
  cublas_.reset();
}

MemorySize CudaDevice::memory() {
  std::size_t available = 0;
  std::size_t total = 0;
  check_cuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  const std::size_t unused = pool_.free_bytes() + lanes_.free_bytes();
  available += unused;
  const GpuAllocators& allocators = gpu_allocators();
  if (allocators.limit_bytes == 0) return {available, total};
  const std::size_t in_use = allocators.held_bytes() - unused;
  return {std::min(available, allocators.limit_bytes - std::min(in_use, allocators.limit_bytes)), total};
}

std::string CudaDevice::hardware() const {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index_of(context_.attachment.device)), "cudaGetDeviceProperties");
  return describe_gpu(properties.name, properties.totalGlobalMem);
}

// ---- communicators --------------------------------------------------------------------------------------------

NcclComm& CudaDevice::comm_of(const RankSet& ranks, CommChoice choice) {
  const auto found = comms_.find(choice.index());
  if (found != comms_.end()) return found->second;
  GpuCommParts parts{.attachment = context_.attachment,
                     .host = context_.host_comm,
                     .nodes = context_.nodes_comm,
                     .rendezvous = context_.rendezvous,
                     .interruption = context_.interruption,
                     .plan = plan_,
                     .stream = stream_,
                     .before_abort = [this] { graphs_.end_all(); },
                     .make_room = [this] { pool_.trim(); },
                     .allocate = [this](std::size_t bytes) { return allocate_output(bytes); }};
  return comms_.try_emplace(choice.index(), std::move(parts), ranks, choice).first->second;
}

CommCore& CudaDevice::comm(const CommandHead& command) {
  comm_ = &comm_of(command.ranks, command.comm);
  return *comm_;
}

// ---- memory ---------------------------------------------------------------------------------------------------

void* CudaDevice::allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what) {
  void* const memory = allocate_with_spare(context_, bytes, [&] { return pool_.allocate(bytes, what); });
  if (contents == SharedHeap::Contents::zero) clear(memory, bytes);
  return memory;
}

void CudaDevice::release(void* memory) noexcept {
  if (is_capturing_) return held_.push_back(memory);  // the graph still writes there; see begin_capture
  pool_.release(memory);
}

void CudaDevice::release_held(std::vector<void*>& held) noexcept {
  for (void* memory : held) pool_.release(memory);
  held.clear();
}

OutputBuffer CudaDevice::allocate_output(std::size_t bytes) {
  if (bytes == 0) return {};
  void* const memory = allocate(bytes, SharedHeap::Contents::zero, "an output");
  return {memory, bytes, [](void* data, void* device) noexcept { static_cast<CudaDevice*>(device)->release(data); },
          static_cast<WorkerDevice*>(this)};
}

OutputBuffer CudaDevice::adopt_output(OutputBuffer buffer) {
  if (buffer.data() == nullptr || buffer.context() == static_cast<WorkerDevice*>(this)) return buffer;
  OutputBuffer adopted = allocate_output(buffer.bytes());
  // A copy from memory that is not pinned blocks the host until earlier work on the stream is done. That work may wait
  // for peers, so this function first waits in finish(), which can be interrupted.
  finish(NcclComm::Wait::midway);
  check_cuda(cudaMemcpyAsync(adopted.data(), buffer.data(), buffer.bytes(), cudaMemcpyHostToDevice, stream_.get()),
             "copying an output from host memory");
  check_cuda(cudaStreamSynchronize(stream_.get()), "copying an output from host memory");
  return adopted;
}

// ---- to and from shared memory --------------------------------------------------------------------------------

void* CudaDevice::take_rows(std::size_t argument, const SharedRows& rows, std::int64_t begin, std::int64_t count) {
  return staging_.bring(argument, rows, {nullptr, begin, count});
}

void* CudaDevice::gather_rows(std::size_t argument, const SharedRows& rows, std::span<const std::int64_t> indices) {
  return staging_.bring(argument, rows, {indices.data(), 0, static_cast<std::int64_t>(indices.size())});
}

void* CudaDevice::gather_local_rows(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                                    std::span<const std::int64_t> indices) {
  return staging_.gather_local(argument, array, row_bytes, indices.data(), static_cast<std::int64_t>(indices.size()));
}

const void* CudaDevice::take_scalar(std::size_t argument, const std::byte* value, std::size_t bytes) {
  return staging_.bring(argument, {value, bytes, 1}, {nullptr, 0, 1});
}

void CudaDevice::unpin() {
  finish();
  staging_.abandon();
  pinned_.unpin_all();
}

void CudaDevice::copy_in(void* device_memory, const std::byte* shared, std::size_t bytes) {
  if (bytes == 0) return;
  pinned_.pin(shared, bytes);
  pinned_.copy_to_device(device_memory, shared, bytes, stream_.get());
}

void CudaDevice::copy_out(std::byte* shared, const void* device_memory, std::size_t bytes) {
  if (bytes == 0) return;
  pinned_.pin(shared, bytes);
  pinned_.for_each_part(shared, bytes, [&](std::size_t offset, std::size_t part) {
    check_cuda(cudaMemcpyAsync(shared + offset, static_cast<const std::byte*>(device_memory) + offset, part,
                               cudaMemcpyDeviceToHost, stream_.get()),
               "copying to shared memory");
  });
}

void CudaDevice::copy_within(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_.get()), "copying device memory");
}

void CudaDevice::clear(void* device_memory, std::size_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemsetAsync(device_memory, 0, bytes, stream_.get()), "clearing device memory");
}

void CudaDevice::accumulate(DType dtype, Reduction reduction, void* into, const void* value,
                            std::array<double, 2> weights, std::size_t elements) {
  kernels::accumulate(dtype, reduction, into, value, weights[0], weights[1], elements, stream_.get());
}

void CudaDevice::convert(ElementTypes types, const void* from, void* to, std::size_t elements) {
  kernels::convert(types, from, to, elements, stream_.get());
}

void CudaDevice::apply_update(const UpdateWork& work) { kernels::apply_update(work, stream_.get()); }
void CudaDevice::sum_squares(const UpdateWork& work, double* squares) {
  kernels::sum_squares(work, squares, stream_.get());
}
void CudaDevice::take_root(double* number) { kernels::take_root(number, stream_.get()); }

// ---- copies from peers ----------------------------------------------------------------------------------------

/// Tries it with a chunk, which stays in the pool. If there is no memory for one, a later export finds out.
bool CudaDevice::find_whether_open_to_peers() {
  const int own = index_of(context_.attachment.device);
  int mode = cudaComputeModeDefault;
  check_cuda(cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, own), "cudaDeviceGetAttribute");
  const bool is_exclusive = mode != cudaComputeModeDefault;
  bool can_export = true;
  try {
    void* const block = pool_.allocate(1, "a worker's first block");
    can_export = peer_copies_.export_memory(pool_.chunk_of(block)) != 0;
    pool_.release(block);
  } catch (const Error& error) {
    if (error.native_code() != ENOMEM) throw;
  }
  return detail::is_open_to_peers({can_export, is_exclusive, !is_exclusive || others_reach(own)});
}

/// Memory that is not a block of the pool belongs to the body. Peers cannot map it by its address.
std::uint64_t CudaDevice::export_memory(void* memory) {
  if (context_.attachment.place.local_size == 1 || !is_open_to_peers_) return 0;
  void* const chunk = pool_.chunk_of(memory);
  return chunk == nullptr ? 0 : peer_copies_.export_memory(chunk);
}

void CudaDevice::copy_from_peer(void* to, const PeerMemoryPlace& from, std::size_t bytes) {
  const bool is_gpu = context_.attachment.control.worker(from.rank).device_kind == DeviceKind::cuda;
  if (!is_gpu) return copy_in(to, segment_.at(from.place), bytes);
  if (from.exported == 0) {
    throw Error(ErrorKind::cuda, "rank " + std::to_string(from.rank) +
                                     " has values in memory that CUDA could not export (cudaIpcGetMemHandle failed "
                                     "there), so this GPU cannot copy them. Bring them to the host first");
  }
  peer_copies_.return_memory();
  peer_copies_.copy(to, from, bytes, stream_.get());
}

void CudaDevice::forget_replaced_peers() noexcept {
  peer_copies_.forget_replaced();
  for (auto& [index, comm] : comms_) comm.drop_stale();
}

/// Mapping memory may wait for the device, and the device may wait for a peer. So only memory that is mapped already is
/// copied ahead.
bool CudaDevice::start_copy_ahead(std::uint64_t command, void* to, const PeerMemoryPlace& from, std::size_t bytes) {
  if (from.exported == 0 || copied_ahead_ != 0 || !peer_copies_.has_mapped(from.exported)) return false;
  if (!ahead_stream_) ahead_stream_ = Stream::make(stream_priorities().least);
  peer_copies_.copy(to, from, bytes, ahead_stream_.get());
  copied_ahead_ = command;
  return true;
}

bool CudaDevice::finish_copy_ahead(std::uint64_t command) {
  if (copied_ahead_ != command) return false;
  await(ahead_stream_.get());
  copied_ahead_ = 0;
  return true;
}

// ---- outputs --------------------------------------------------------------------------------------------------

std::uint64_t CudaDevice::share(const void* memory, std::size_t bytes) {
  const std::uint64_t offset = context_.arena.allocate(bytes, SharedHeap::Contents::any, "an output");
  try {
    copy_out(segment_.at(offset), memory, bytes);
  } catch (...) {
    context_.arena.free(offset, SharedHeap::Giveback::later);
    throw;
  }
  return offset;
}

std::uint64_t CudaDevice::share_output(OutputBuffer buffer) {
  const OutputBuffer own = adopt_output(std::move(buffer));
  return own.data() == nullptr ? 0 : share(own.data(), own.bytes());
}

std::uint64_t CudaDevice::reduce_output(const OutputReduction& what, OutputBuffer own) {
  const int rank = context_.attachment.rank;
  const auto at = std::find(what.ranks.begin(), what.ranks.end(), rank);
  const std::size_t bytes = what.elements * size_of(what.dtype);
  if (bytes == 0) return 0;
  comm_->begin_after_vote();
  comm_->ensure();  // before anything that may fail on one rank only
  const DType type = partial_type(what.dtype);
  OutputBuffer values =
      at == what.ranks.end() ? allocate_output(what.elements * size_of(type)) : as_partial(what, std::move(own));
  if (at == what.ranks.end()) {
    kernels::fill_identity(type, what.reduction, values.data(), what.elements, stream_.get());
  } else if (what.reduction == Reduction::avg) {
    const double weight = what.weights[static_cast<std::size_t>(at - what.ranks.begin())];
    kernels::scale(type, values.data(), weight, what.elements, stream_.get());
  }
  const Reduction reduction = what.reduction == Reduction::avg ? Reduction::sum : what.reduction;  // already weighted
  comm_->reduce(values.data(), what.elements, type, reduction, {}, comm_->position_of(what.ranks.front()));
  if (rank != what.ranks.front()) return 0;
  if (type != what.dtype) {
    OutputBuffer rounded = allocate_output(bytes);
    convert({type, what.dtype}, values.data(), rounded.data(), what.elements);
    values = std::move(rounded);
  }
  return share(values.data(), bytes);
}

/// The output of this rank in its partial_type, in which the ranks combine it. Outputs of several slices have it already.
OutputBuffer CudaDevice::as_partial(const OutputReduction& what, OutputBuffer own) {
  const DType type = partial_type(what.dtype);
  const std::size_t bytes = what.elements * size_of(type);
  if (own.bytes() == bytes) return own;
  OutputBuffer partial = allocate_output(bytes);
  convert({what.dtype, type}, own.data(), partial.data(), what.elements);
  return partial;
}

// ---- capture --------------------------------------------------------------------------------------------------

void CudaDevice::set_capturing(bool is_capturing) noexcept {
  is_capturing_ = is_capturing;
  gpu_allocators().is_capturing = is_capturing;
}

void CudaDevice::begin_capture() {
  // Relaxed mode, because libraries may allocate memory for a new shape.
  check_cuda(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  held_.reserve(kMostHeld);
  set_capturing(true);
}

std::unique_ptr<DeviceGraph> CudaDevice::end_capture() {
  cudaGraph_t captured = nullptr;
  set_capturing(false);
  const cudaError_t code = cudaStreamEndCapture(stream_.get(), &captured);
  const Graph graph(captured);
  if (code != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    release_held(held_);
    throw Error(ErrorKind::cuda,
                std::string("this function cannot be captured for replay: ") + cudaGetErrorString(code) + " (" +
                    cudaGetErrorName(code) +
                    "). Its body must not wait for the stream, and what it puts elsewhere must come back to it",
                static_cast<int>(code));
  }
  try {
    GraphExec made = instantiate(graph);
    return std::make_unique<CudaGraph>(std::move(made), graphs_, pool_, std::exchange(held_, {}));
  } catch (const Error&) {
    release_held(held_);
    throw;
  }
}

GraphExec CudaDevice::instantiate(const Graph& graph) {
  int priority = 0;
  check_cuda(cudaStreamGetPriority(stream_.get(), &priority), "cudaStreamGetPriority");
  replace_memsets(graph.get(), priority);
  // Without this flag, all nodes of a graph have the priority of the stream into which it is launched.
  unsigned long long flags = 0;
  if (comm_->has_used_background()) flags = cudaGraphInstantiateFlagUseNodePriority;
  cudaGraphExec_t made = nullptr;
  check_cuda(cudaGraphInstantiate(&made, graph.get(), flags), "cudaGraphInstantiate");
  return GraphExec(made);
}

void CudaDevice::abandon_capture() noexcept {
  if (!is_capturing_) return;
  set_capturing(false);
  release_held(held_);
  cudaGraph_t captured = nullptr;
  static_cast<void>(cudaStreamEndCapture(stream_.get(), &captured));
  Graph(captured).reset();
  static_cast<void>(cudaGetLastError());
}

void CudaDevice::launch(DeviceGraph& graph) {
  check_cuda(cudaGraphLaunch(static_cast<CudaGraph&>(graph).exec(), stream_.get()), "cudaGraphLaunch");
}

// ---- handles --------------------------------------------------------------------------------------------------

cublasContext* CudaDevice::cublas() {
  if (cublas_) return cublas_.get();
  CublasHandle made = CublasHandle::make();
  check_cublas(cublasSetStream(made.get(), stream_.get()), "cublasSetStream");
  void* const workspace = allocate(kCublasWorkspaceBytes, SharedHeap::Contents::any, "cuBLAS's workspace");
  check_cublas(cublasSetWorkspace(made.get(), workspace, kCublasWorkspaceBytes), "cublasSetWorkspace");
  cublas_ = std::move(made);
  return cublas_.get();
}

cudnnContext* CudaDevice::cudnn() {
  if (!cudnn_) cudnn_ = CudnnHandle::make(stream_);
  return cudnn_.get();
}

// ---- waiting --------------------------------------------------------------------------------------------------

void CudaDevice::finish(NcclComm::Wait wait) {
  const cudaError_t refused = cudaGetLastError();  // a refused launch is reported only here
  if (refused != cudaErrorNotReady) check_cuda(refused, "what was put on the stream");
  staging_.flush();
  comm_->join_started();
  comm_->note_waiting(wait);
  await_stream();
  comm_->note_finished();
}

void CudaDevice::abandon() noexcept {
  // Kernels that wait for a peer end with the communicator. The results of later work on the stream are not needed.
  if (comm_->is_pending()) comm_->abort();
  static_cast<void>(cudaStreamSynchronize(stream_.get()));
  comm_->abandon_background();
  if (std::exchange(copied_ahead_, 0) != 0) static_cast<void>(cudaStreamSynchronize(ahead_stream_.get()));
  staging_.abandon();
  if (!is_lost()) static_cast<void>(cudaGetLastError());
}

void CudaDevice::await_stream() { await(stream_.get()); }

void CudaDevice::await(cudaStream_t stream) {
  constexpr int kPollsPerCheck = 64;
  for (int polls = 1;; ++polls) {
    const cudaError_t code = cudaStreamQuery(stream);
    if (code == cudaSuccess) return;
    if (code != cudaErrorNotReady) check_cuda(code, "work on the device");
    static_cast<void>(cudaGetLastError());  // clears the code "not ready", which must not be reported later
    context_.interruption.check();
    context_.look_ahead();
    if (polls % kPollsPerCheck == 0) comm_->check_progress();
    if (!context_.attachment.control.header().spins) std::this_thread::yield();
  }
}

bool CudaDevice::is_lost() const noexcept {
  return is_sticky(cudaPeekAtLastError()) || shows_a_lost_context(cudaStreamQuery(stream_.get()));
}

}  // namespace syncrun::detail

/// A worker looks this function up by name (worker/devices/cuda_library.cpp). The caller owns the device.
extern "C" SYNCRUN_EXPORT syncrun::detail::GpuDevice* syncrun_make_cuda_device(
    const syncrun::detail::DeviceContext& context) {
  syncrun::detail::check_nccl_version();
  return std::make_unique<syncrun::detail::CudaDevice>(context).release();
}
