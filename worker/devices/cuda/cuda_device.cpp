// A CUDA device: its parts, its communicators and its library handles.

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "common/os/environment.hpp"
#include "common/os/gpu_allocators.hpp"
#include "common/os/libraries.hpp"
#include "common/os/part_version.hpp"
#include "common/protocol/control_block.hpp"
#include "common/text/errors.hpp"
#include "worker/devices/cuda/check.hpp"
#include "worker/devices/cuda/cuda_graphs.hpp"
#include "worker/devices/cuda/cuda_memory.hpp"
#include "worker/devices/cuda/gpu_support.hpp"
#include "worker/devices/cuda/kernels.hpp"
#include "worker/devices/cuda/norm_kernels.hpp"
#include "worker/devices/cuda/peer_copies.hpp"
#include "worker/devices/cuda/staging_lanes.hpp"
#include "worker/devices/cuda/update_kernels.hpp"
#include "worker/devices/hardware.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

constexpr std::size_t kCublasWorkspaceBytes = std::size_t{32} << 20U;

/// The index in "cuda3".
int index_of(const std::string& device) { return std::stoi(device.substr(std::string_view("cuda").size())); }

void check_nccl_version() {
  int loaded = 0;
  if (ncclGetVersion(&loaded) != ncclSuccess) return;
  os::require_version("NCCL", "libnccl.so", os::LibraryVersion::of_number(loaded), "Syncrun",
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

Stream make_stream(const std::string& device) {
  take_gpu(device);
  const auto [least, most] = stream_priorities();
  // A higher priority than the stream that copies the next inputs, and a lower one than the background stream of
  // collectives.
  return Stream::make(least - most > 1 ? most + 1 : most);
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

class CudaPeers final : public PeerAccess {
 public:
  CudaPeers(const DeviceContext& context, CudaMemory& memory) noexcept
      : context_(context),
        memory_(memory),
        mapped_(context.attachment.segment, context.attachment.control, context.arena, context.attachment.rank) {}

  /// Called once. Tries it with a chunk, which stays in the pool. If there is no memory for one, a later export finds out.
  void find_whether_open() {
    int own = 0;
    check_cuda(cudaGetDevice(&own), "cudaGetDevice");
    int mode = cudaComputeModeDefault;
    check_cuda(cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, own), "cudaDeviceGetAttribute");
    const bool is_exclusive = mode != cudaComputeModeDefault;
    bool can_export = true;
    try {
      void* const block = memory_.pool().allocate(1, "a worker's first block");
      can_export = mapped_.export_memory(memory_.pool().chunk_of(block)) != 0;
      memory_.pool().release(block);
    } catch (const Error& error) {
      if (error.native_code() != ENOMEM) throw;
    }
    is_open_ =
        detail::worker::devices::cuda::is_open_to_peers({can_export, is_exclusive, !is_exclusive || others_reach(own)});
  }
  bool is_open_to_peers() const noexcept override { return is_open_; }
  /// Memory that is not a block of the pool belongs to the body. Peers cannot map it by its address.
  std::uint64_t export_memory(void* memory) override {
    if (context_.attachment.place.local_size == 1 || !is_open_) return 0;
    void* const chunk = memory_.pool().chunk_of(memory);
    return chunk == nullptr ? 0 : mapped_.export_memory(chunk);
  }
  void copy_from_peer(void* to, const PeerMemoryPlace& from, std::size_t bytes) override {
    const bool is_gpu = context_.attachment.control.worker(from.rank).device_kind == DeviceKind::cuda;
    if (!is_gpu) return memory_.copy_in(to, context_.attachment.segment.at(from.place), bytes);
    if (from.exported == 0) {
      throw Error(ErrorKind::cuda, "rank " + std::to_string(from.rank) +
                                       " has values in memory that CUDA could not export (cudaIpcGetMemHandle failed "
                                       "there), so this GPU cannot copy them. Bring them to the host first");
    }
    mapped_.return_memory();
    mapped_.copy(to, from, bytes, memory_.stream());
  }
  /// Mapping memory may wait for the device, and the device may wait for a peer. So only memory that is mapped already is
  /// copied ahead.
  bool start_copy_ahead(std::uint64_t command, void* to, const PeerMemoryPlace& from, std::size_t bytes) override {
    if (from.exported == 0 || copied_ahead_ != 0 || !mapped_.has_mapped(from.exported)) return false;
    if (!ahead_stream_) ahead_stream_ = Stream::make(stream_priorities().least);
    mapped_.copy(to, from, bytes, ahead_stream_.get());
    copied_ahead_ = command;
    return true;
  }
  bool finish_copy_ahead(std::uint64_t command) override {
    if (copied_ahead_ != command) return false;
    memory_.await(ahead_stream_);
    copied_ahead_ = 0;
    return true;
  }
  /// Forgets a copy ahead. Returns when it is not running any more.
  void abandon_copy_ahead() noexcept {
    if (std::exchange(copied_ahead_, 0) != 0) static_cast<void>(cudaStreamSynchronize(ahead_stream_.get()));
  }
  bool take_back(void* chunk) noexcept { return mapped_.take_back(chunk); }
  void forget_replaced() noexcept { mapped_.forget_replaced(); }

 private:
  const DeviceContext& context_;
  CudaMemory& memory_;
  PeerCopies mapped_;
  bool is_open_ = true;
  Stream ahead_stream_;             // for copies ahead, made when it is first needed
  std::uint64_t copied_ahead_ = 0;  // the command for which such a copy was started, or 0
};

/// Reduces large outputs on the GPUs before they go to the host.
class CudaOutputs final : public DeviceOutputs, public OutputReducer {
 public:
  /// `comm` is the communicator of the command that runs.
  CudaOutputs(const DeviceContext& context, CudaMemory& memory, NcclComm* const& comm) noexcept
      : context_(context), memory_(memory), comm_(comm) {}

  OutputBuffer allocate(std::size_t bytes) override {
    if (bytes == 0) return {};
    void* const memory = memory_.allocate(bytes, os::SharedHeap::Contents::zero, "an output");
    return {memory, bytes,
            [](void* data, void* outputs) noexcept {
              static_cast<CudaOutputs*>(static_cast<DeviceOutputs*>(outputs))->memory_.release(data);
            },
            static_cast<DeviceOutputs*>(this)};
  }
  OutputBuffer adopt(OutputBuffer buffer) override {
    if (buffer.data() == nullptr || buffer.context() == static_cast<DeviceOutputs*>(this)) return buffer;
    OutputBuffer adopted = allocate(buffer.bytes());
    // A copy from memory that is not pinned blocks the host until earlier work on the stream is done. That work may wait
    // for peers, so this function first waits in finish(), which can be interrupted.
    memory_.finish(NcclComm::Wait::midway);
    check_cuda(cudaMemcpyAsync(adopted.data(), buffer.data(), buffer.bytes(), cudaMemcpyHostToDevice, memory_.stream()),
               "copying an output from host memory");
    check_cuda(cudaStreamSynchronize(memory_.stream()), "copying an output from host memory");
    return adopted;
  }
  std::uint64_t share(OutputBuffer buffer) override {
    const OutputBuffer own = adopt(std::move(buffer));
    if (own.data() == nullptr) return 0;
    const std::uint64_t offset = context_.arena.allocate(own.bytes(), os::SharedHeap::Contents::any, "an output");
    try {
      memory_.copy_out(context_.attachment.segment.at(offset), own.data(), own.bytes());
    } catch (...) {
      context_.arena.free(offset, os::SharedHeap::Giveback::later);
      throw;
    }
    return offset;
  }
  std::size_t large_bytes() const noexcept override { return std::size_t{64} << 10U; }
  std::uint64_t reduce(const OutputReduction& what, OutputBuffer own) override {
    const int rank = context_.attachment.rank;
    const auto at = std::find(what.ranks.begin(), what.ranks.end(), rank);
    const std::size_t bytes = what.elements * size_of(what.dtype);
    if (bytes == 0) return 0;
    comm_->begin_after_vote();
    comm_->ensure();  // before anything that may fail on one rank only
    const DType type = arrays::partial_type(what.dtype);
    OutputBuffer values =
        at == what.ranks.end() ? allocate(what.elements * size_of(type)) : as_partial(what, std::move(own));
    if (at == what.ranks.end()) {
      kernels::fill_identity(type, what.reduction, values.data(), what.elements, memory_.stream());
    } else if (what.reduction == Reduction::avg) {
      const double weight = what.weights[static_cast<std::size_t>(at - what.ranks.begin())];
      kernels::scale(type, values.data(), weight, what.elements, memory_.stream());
    }
    const Reduction reduction = what.reduction == Reduction::avg ? Reduction::sum : what.reduction;  // already weighted
    comm_->reduce(values.data(), what.elements, type, reduction, {}, comm_->position_of(what.ranks.front()));
    if (rank != what.ranks.front()) return 0;
    if (type != what.dtype) {
      OutputBuffer rounded = allocate(bytes);
      kernels::convert({type, what.dtype}, values.data(), rounded.data(), what.elements, memory_.stream());
      values = std::move(rounded);
    }
    return share(std::move(values));
  }

 private:
  /// The output of this rank in its partial_type, in which the ranks combine it. Outputs of several slices have it already.
  OutputBuffer as_partial(const OutputReduction& what, OutputBuffer own) {
    const DType type = arrays::partial_type(what.dtype);
    const std::size_t bytes = what.elements * size_of(type);
    if (own.bytes() == bytes) return own;
    OutputBuffer partial = allocate(bytes);
    kernels::convert({what.dtype, type}, own.data(), partial.data(), what.elements, memory_.stream());
    return partial;
  }

  const DeviceContext& context_;
  CudaMemory& memory_;
  NcclComm* const& comm_;
};

class StreamArithmetic final : public Arithmetic, public GradientNorm {
 public:
  explicit StreamArithmetic(StreamView stream) noexcept : stream_(stream) {}
  void accumulate(DType dtype, Reduction reduction, void* into, const void* value, std::array<double, 2> weights,
                  std::size_t elements) override {
    kernels::accumulate(dtype, reduction, into, value, weights[0], weights[1], elements, stream_);
  }
  void convert(arrays::ElementTypes types, const void* from, void* to, std::size_t elements) override {
    kernels::convert(types, from, to, elements, stream_);
  }
  void apply_update(const UpdateWork& work) override { kernels::apply_update(work, stream_); }
  void sum_squares(const UpdateWork& work, double* squares) override { kernels::sum_squares(work, squares, stream_); }
  void take_root(double* number, const double* divisor) override { kernels::take_root(number, divisor, stream_); }

 private:
  StreamView stream_;
};

class StreamHandles final : public GpuHandles {
 public:
  /// `memory` is for the workspace of cuBLAS.
  explicit StreamHandles(CudaMemory& memory) noexcept : memory_(memory) {}
  CUstream_st* stream() noexcept override { return memory_.stream(); }
  cublasContext* cublas() override {
    if (cublas_) return cublas_.get();
    CublasHandle made = CublasHandle::make();
    check_cublas(cublasSetStream(made.get(), stream()), "cublasSetStream");
    void* const workspace =
        memory_.allocate(kCublasWorkspaceBytes, os::SharedHeap::Contents::any, "cuBLAS's workspace");
    check_cublas(cublasSetWorkspace(made.get(), workspace, kCublasWorkspaceBytes), "cublasSetWorkspace");
    cublas_ = std::move(made);
    return cublas_.get();
  }
  cudnnContext* cudnn() override {
    if (!cudnn_) cudnn_ = CudnnHandle::make(memory_.stream());
    return cudnn_.get();
  }

 private:
  CudaMemory& memory_;
  CublasHandle cublas_;
  CudnnHandle cudnn_;
};

/// A communicator of one rank, in the order of the stream.
class StreamSolo final : public comm::SoloComm {
 public:
  explicit StreamSolo(CudaMemory& memory) noexcept : memory_(memory) {}
  void all_reduce_value(void*, DType, Reduction, const comm::RankWeights&) override {
    refuse_number_in_capture(memory_.stream());
  }
  void exchange(std::span<const std::int64_t> own, std::span<std::int64_t> all) override {
    refuse_exchange_in_capture(memory_.stream());
    comm::SoloComm::exchange(own, all);
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes) override { memory_.copy_within(to, from, bytes); }
  CudaMemory& memory_;
};

class CudaDevice final : public WorkerDevice {
 public:
  /// Makes the worker's GPU current, and makes a stream on it. Throws Error (cuda).
  explicit CudaDevice(const DeviceContext& context)
      : context_(context),
        stream_(make_stream(context.attachment.device)),
        plan_(context.attachment),
        comm_(&comm_of(protocol::RankSet::all(context.attachment.world_size),
                       context.attachment.place.has_others()
                           ? protocol::CommChoice::devices_of_nodes(protocol::CommChoice::kOfSession)
                           : protocol::CommChoice::devices(protocol::CommChoice::kOfSession))) {
    os::gpu_allocators().syncrun = {
        .held_bytes = [this] { return memory_.pool().held_bytes() + lanes_.held_bytes(); },
        .unused_bytes = [this] { return memory_.pool().free_bytes() + lanes_.free_bytes(); },
        .give_back =
            [this] {
              memory_.pool().trim();
              lanes_.trim();
            }};
    if (const char* const fraction = environment::get(environment::kGpuMemoryFraction)) {
      std::size_t available = 0;
      std::size_t total = 0;
      check_cuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
      os::gpu_allocators().limit_bytes = os::gpu_limit_bytes(fraction, total);
    }
    if (context_.attachment.place.local_size > 1) peers_.find_whether_open();
  }
  ~CudaDevice() override {
    os::gpu_allocators().syncrun = {};
    for (auto& [index, comm] : comms_) comm.abort();
    static_cast<void>(cudaStreamSynchronize(stream_.get()));
    for (auto& [index, comm] : comms_) comm.abandon_background();
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  DeviceParts parts() noexcept override {
    return {memory_, peers_, staging_, arithmetic_, outputs_, &outputs_, &handles_, &graphs_, &arithmetic_};
  }
  comm::CommCore& comm(const protocol::CommandHead& command) override {
    comm_ = &comm_of(command.ranks, command.comm);
    return *comm_;
  }
  comm::CommCore& solo() noexcept override { return solo_; }
  void forget_replaced_peers() noexcept override {
    peers_.forget_replaced();
    for (auto& [index, comm] : comms_) comm.drop_stale();
  }
  void unpin() override {
    memory_.finish();
    staging_.abandon();
    memory_.pinned().unpin_all();
  }
  protocol::MemorySize memory_size() override {
    std::size_t available = 0;
    std::size_t total = 0;
    check_cuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    const std::size_t unused = memory_.pool().free_bytes() + lanes_.free_bytes();
    available += unused;
    const os::GpuAllocators& allocators = os::gpu_allocators();
    if (allocators.limit_bytes == 0) return {available, total};
    const std::size_t in_use = allocators.held_bytes() - unused;
    return {std::min(available, allocators.limit_bytes - std::min(in_use, allocators.limit_bytes)), total};
  }
  std::string hardware() const override {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index_of(context_.attachment.device)), "cudaGetDeviceProperties");
    return describe_gpu(properties.name, properties.totalGlobalMem);
  }
  void abandon() noexcept override {
    // Kernels that wait for a peer end with the communicator. The results of later work on the stream are not needed.
    if (comm_->is_pending()) comm_->abort();
    static_cast<void>(cudaStreamSynchronize(stream_.get()));
    comm_->abandon_background();
    peers_.abandon_copy_ahead();
    staging_.abandon();
    if (!is_lost()) static_cast<void>(cudaGetLastError());
  }
  bool is_lost() const noexcept override {
    return is_sticky(cudaPeekAtLastError()) || shows_a_lost_context(cudaStreamQuery(stream_.get()));
  }

 private:
  NcclComm& comm_of(const protocol::RankSet& ranks, protocol::CommChoice choice) {
    const auto found = comms_.find(choice.index());
    if (found != comms_.end()) return found->second;
    GpuCommParts parts{.device = context_,
                       .plan = plan_,
                       .stream = stream_,
                       .pool = memory_.pool(),
                       .before_abort = [this] { graphs_.end_all(); },
                       .allocate = [this](std::size_t bytes) { return outputs_.allocate(bytes); }};
    return comms_.try_emplace(choice.index(), std::move(parts), ranks, choice).first->second;
  }

  const DeviceContext context_;
  Stream stream_;  // outlives the members that put work on it
  CudaMemory memory_{context_, stream_, staging_, comm_, [this](void* chunk) { return peers_.take_back(chunk); }};
  CudaLanes lanes_{context_, memory_};
  Staging staging_{lanes_};
  CudaPeers peers_{context_, memory_};
  StreamArithmetic arithmetic_{stream_};
  CudaOutputs outputs_{context_, memory_, comm_};
  CudaGraphs graphs_{memory_, comm_};
  CollectivePlan plan_;
  std::map<int, NcclComm> comms_;  // by CommChoice::index
  NcclComm* comm_;                 // the one that was used last. Only this one can have unfinished work
  StreamSolo solo_{memory_};
  StreamHandles handles_{memory_};  // the last: libraries may use the other members
};

}  // namespace

}  // namespace syncrun::detail::worker::devices::cuda

SYNCRUN_PART_VERSION

/// A worker looks this function up by name (worker/devices/cuda_library.cpp). The caller owns the device.
extern "C" SYNCRUN_EXPORT syncrun::detail::worker::devices::WorkerDevice* syncrun_make_cuda_device(
    const syncrun::detail::worker::devices::DeviceContext& context) {
  syncrun::detail::worker::devices::cuda::check_nccl_version();
  return std::make_unique<syncrun::detail::worker::devices::cuda::CudaDevice>(context).release();
}
