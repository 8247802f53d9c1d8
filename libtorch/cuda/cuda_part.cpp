// LibTorch on a CUDA device of Syncrun: the stream, the memory and the versions of libraries.

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/os/capture_listener.hpp"
#include "common/os/gpu_allocators.hpp"
#include "common/os/libraries.hpp"
#include "common/os/part_version.hpp"
#include "libtorch/cuda/generator_capture.hpp"
#include "libtorch/cuda/kernel_calls.hpp"
#include "libtorch/cuda_part.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

using syncrun::detail::os::LibraryVersion;

/// The one pool of this process for bodies that can be captured. They take turns on one stream, so they can use the same
/// memory. With a pool for each captured graph, as LibTorch's own graphs have, memory would grow with each shape.
constexpr c10::MempoolId_t kPool{0x73796e63, 1};

/// Whether this thread takes its memory from the pool.
thread_local bool is_in_pool = false;

/// Whether the worker's thread waits for the backward pass.
std::atomic<bool> is_worker_waiting = false;
/// Whether this thread is the worker's, in a body.
thread_local bool is_in_body = false;

/// LibTorch gets what Syncrun leaves of the limit for both. Called by the worker's thread, or while it waits.
void limit_libtorch(c10::DeviceIndex device) {
  const auto& allocators = syncrun::detail::os::gpu_allocators();
  if (allocators.limit_bytes == 0 || allocators.is_capturing) return;
  static std::optional<std::size_t> last;
  const std::size_t of_libtorch =
      allocators.limit_bytes - std::min(allocators.syncrun.held_bytes(), allocators.limit_bytes);
  if (std::exchange(last, of_libtorch) == of_libtorch) return;
  std::size_t available = 0;
  std::size_t total = 0;
  if (::cudaMemGetInfo(&available, &total) != cudaSuccess) return;
  const double fraction = static_cast<double>(of_libtorch) / static_cast<double>(total);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(fraction, device);
}

/// LibTorch calls it before it takes more memory from the device.
class GiveSyncrunsBack final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    // Less than this is not worth the wait of cudaFree.
    constexpr std::size_t kLeastBytes = std::size_t{64} << 20U;
    const auto& allocators = syncrun::detail::os::gpu_allocators();
    if ((!is_in_body && !is_worker_waiting) || allocators.is_capturing || !allocators.syncrun.give_back) return false;
    const std::size_t unused = allocators.syncrun.unused_bytes();
    if (unused < kLeastBytes || !is_short(unused)) return false;
    allocators.syncrun.give_back();
    limit_libtorch(c10::cuda::current_device());
    return true;
  }

 private:
  /// While half of the memory is free and Syncrun keeps little, LibTorch most likely finds what it needs.
  static bool is_short(std::size_t unused) {
    const auto& allocators = syncrun::detail::os::gpu_allocators();
    if (allocators.limit_bytes != 0 && allocators.held_bytes() > allocators.limit_bytes / 2) return true;
    std::size_t available = 0;
    std::size_t total = 0;
    return ::cudaMemGetInfo(&available, &total) == cudaSuccess && (available < total / 2 || unused > total / 8);
  }
};

std::size_t bytes_of(const c10::CachingAllocator::StatArray& statistic) {
  return static_cast<std::size_t>(
      statistic[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current);
}

/// From now on, Syncrun knows LibTorch's allocator.
void register_allocator(c10::DeviceIndex device) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  c10::FreeCudaMemoryCallbacksRegistry()->Register("syncrun", [] { return std::make_unique<GiveSyncrunsBack>(); });
  syncrun::detail::os::gpu_allocators().library = {
      .held_bytes = [device] { return bytes_of(allocator::getDeviceStats(device).reserved_bytes); },
      .unused_bytes = {},
      .give_back = [] { allocator::emptyCache(); }};
}

class StreamScope final : public CudaScope {
 public:
  StreamScope(CUstream_st* stream, c10::DeviceIndex device, BodyMemory memory)
      : device_(device),
        has_entered_(!is_in_pool &&
                     (memory == BodyMemory::of_graphs || syncrun::detail::os::gpu_allocators().is_capturing)),
        guard_(c10::cuda::getStreamFromExternal(stream, device)),
        was_in_body_(is_in_body) {
    limit_libtorch(device);  // may throw
    is_in_body = true;
    if (!has_entered_) return;
    c10::cuda::CUDACachingAllocator::beginAllocateToPool(device_, kPool, [](cudaStream_t) { return true; });
    is_in_pool = true;
  }
  ~StreamScope() override {
    is_in_body = was_in_body_;
    if (!has_entered_) return;
    is_in_pool = false;
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, kPool);
  }

 private:
  c10::DeviceIndex device_;
  bool has_entered_;
  c10::cuda::CUDAStreamGuard guard_;
  bool was_in_body_;
};

void check_one_copy(std::string_view name) {
  const auto paths = syncrun::detail::os::loaded_libraries(name);
  if (paths.size() < 2) return;
  throw Error(ErrorKind::usage, "the process has loaded two copies of " + std::string(name) + ": " + paths[0] +
                                    " and " + paths[1] +
                                    ", expected one. Set LD_LIBRARY_PATH so that both Syncrun and LibTorch "
                                    "find the one that LibTorch came with");
}

/// Calls `use` with a function of a library that the process has loaded. Does nothing if there is no such library or
/// function.
template <class Function, class Use>
void with_function_of(std::string_view file, const char* function, Use&& use) {
  const auto paths = syncrun::detail::os::loaded_libraries(file);
  void* const library = paths.empty() ? nullptr : ::dlopen(paths[0].c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return;
  const auto found = reinterpret_cast<Function*>(::dlsym(library, function));
  ::dlclose(library);  // it stays loaded: LibTorch uses it
  if (found != nullptr) use(found);
}

void check_cudnn() {
  const auto& hooks = at::detail::getCUDAHooks();
  if (!hooks.compiledWithCuDNN()) return;
  with_function_of<std::size_t()>("libcudnn.so", "cudnnGetVersion", [&](auto* version) {
    syncrun::detail::os::require_version("cuDNN", "libcudnn.so",
                                         LibraryVersion::of_number(static_cast<long>(version())), "LibTorch",
                                         LibraryVersion::of_number(hooks.versionCuDNN()));
  });
}

void check_nccl() {
  // torch::cuda::nccl::version(), which a LibTorch without NCCL lacks. Its bits from 32 on are the major version.
  with_function_of<std::uint64_t()>("libtorch_cuda.so", "_ZN5torch4cuda4nccl7versionEv", [](auto* built) {
    constexpr std::uint64_t kPart = 0xffff;
    const std::uint64_t bits = built();
    const LibraryVersion expected{static_cast<long>(bits >> 32U), static_cast<long>(bits >> 16U & kPart),
                                  static_cast<long>(bits & kPart)};
    with_function_of<int(int*)>("libnccl.so", "ncclGetVersion", [&](auto* version) {
      int loaded = 0;
      if (version(&loaded) != 0) return;
      syncrun::detail::os::require_version("NCCL", "libnccl.so", LibraryVersion::of_number(loaded), "LibTorch",
                                           expected);
    });
  });
}

class Part final : public CudaPart {
 public:
  ::torch::Device device() override { return {::torch::kCUDA, c10::cuda::current_device()}; }
  std::unique_ptr<CudaScope> enter(CUstream_st* stream, BodyMemory memory) override {
    return std::make_unique<StreamScope>(stream, c10::cuda::current_device(), memory);
  }
  void start() override {
    at::globalContext().lazyInitDevice(at::kCUDA);
    check_one_copy("libcudart.so");
    check_one_copy("libcublas.so");
    check_one_copy("libnccl.so");
    check_one_copy("libcudnn.so");
    check_cudnn();
    check_nccl();
    register_allocator(c10::cuda::current_device());
    generators_ = make_generator_capture(c10::cuda::current_device());
    syncrun::detail::os::capture_listener() = generators_.get();
  }
  void note_waiting(bool waits) noexcept override { is_worker_waiting = waits; }
  GpuOperations& operations() override { return gpu_operations(); }

 private:
  std::unique_ptr<syncrun::detail::os::CaptureListener> generators_;
};

}  // namespace
}  // namespace syncrun::libtorch::detail

SYNCRUN_PART_VERSION

extern "C" [[gnu::visibility("default")]] syncrun::libtorch::detail::CudaPart* syncrun_torch_cuda_part() {
  static syncrun::libtorch::detail::Part part;
  return &part;
}
