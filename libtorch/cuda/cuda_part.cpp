// LibTorch on a CUDA device of Syncrun: the stream, the memory and the versions of libraries.

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include <memory>
#include <string>
#include <string_view>

#include "libtorch/cuda_part.hpp"
#include "libtorch/loaded_libraries.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

/// The one pool of this process for bodies that can be captured. They take turns on one stream, so they can use the same
/// memory. With a pool for each captured graph, as LibTorch's own graphs have, memory would grow with each shape.
constexpr c10::MempoolId_t kPool{0x73796e63, 1};

/// Whether this thread takes its memory from the pool.
thread_local bool is_in_pool = false;

class StreamScope final : public CudaScope {
 public:
  StreamScope(CUstream_st* stream, c10::DeviceIndex device, BodyMemory memory)
      : device_(device),
        has_entered_(memory == BodyMemory::of_graphs && !is_in_pool),
        guard_(c10::cuda::getStreamFromExternal(stream, device)) {
    if (!has_entered_) return;
    c10::cuda::CUDACachingAllocator::beginAllocateToPool(device_, kPool, [](cudaStream_t) { return true; });
    is_in_pool = true;
  }
  ~StreamScope() override {
    if (!has_entered_) return;
    is_in_pool = false;
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, kPool);
  }

 private:
  c10::DeviceIndex device_;
  bool has_entered_;
  c10::cuda::CUDAStreamGuard guard_;
};

void check_one_copy(std::string_view name) {
  const auto paths = loaded_libraries(name);
  if (paths.size() < 2) return;
  throw Error(ErrorKind::usage, "the process has loaded two copies of " + std::string(name) + ": " + paths[0] +
                                    " and " + paths[1] +
                                    ", expected one. Set LD_LIBRARY_PATH so that both Syncrun and LibTorch "
                                    "find the one that LibTorch came with");
}

std::string cudnn_text(long version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

void check_cudnn() {
  const auto& hooks = at::detail::getCUDAHooks();
  if (!hooks.compiledWithCuDNN()) return;
  const auto paths = loaded_libraries("libcudnn.so");
  if (paths.empty()) return;
  void* const library = ::dlopen(paths[0].c_str(), RTLD_NOW | RTLD_NOLOAD);
  using Version = std::size_t (*)();
  const auto version = library == nullptr ? nullptr : reinterpret_cast<Version>(::dlsym(library, "cudnnGetVersion"));
  if (version == nullptr) return;
  const auto found = static_cast<long>(version());
  ::dlclose(library);  // it stays loaded: LibTorch uses it
  const long expected = hooks.versionCuDNN();
  if (found / 10000 == expected / 10000 && found >= expected) return;
  throw Error(ErrorKind::usage, "the process has loaded cuDNN " + cudnn_text(found) + " (" + paths[0] +
                                    "), and LibTorch was built with cuDNN " + cudnn_text(expected) +
                                    ", expected the same major version and not an older one. Put the folder of the one "
                                    "that LibTorch came with into LD_LIBRARY_PATH");
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
  }
};

}  // namespace
}  // namespace syncrun::libtorch::detail

extern "C" [[gnu::visibility("default")]] syncrun::libtorch::detail::CudaPart* syncrun_torch_cuda_part() {
  static syncrun::libtorch::detail::Part part;
  return &part;
}
