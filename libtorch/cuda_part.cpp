#include "libtorch/cuda_part.hpp"

#include <dlfcn.h>

#include <string>

#include "common/os/before_cuda.hpp"
#include "common/os/part_version.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

constexpr const char* kPartName = "libsyncrun_torch_cuda.so." SYNCRUN_SOVERSION;

/// The part, or why it cannot be loaded.
struct LoadedPart {
  CudaPart* part = nullptr;
  std::string why_not;
};

/// The folder of this library.
std::string folder_of_this() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&cuda_part), &info) == 0) return {};
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

LoadedPart load() {
  void* library = ::dlopen((folder_of_this() + kPartName).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return {nullptr, why == nullptr ? std::string(kPartName) : std::string(why)};
  }
  const std::string why_not = syncrun::detail::os::why_part_does_not_fit(kPartName, library);
  if (!why_not.empty()) return {nullptr, why_not};
  using Part = CudaPart* (*)();
  const auto part = reinterpret_cast<Part>(::dlsym(library, "syncrun_torch_cuda_part"));
  if (part == nullptr) return {nullptr, std::string(kPartName) + " is of another Syncrun"};
  return {part(), {}};
}

const LoadedPart& loaded_part() {
  static const LoadedPart loaded = load();
  return loaded;
}

/// A worker with a GPU loads the part before Syncrun loads its own library for CUDA devices. So the process gets the
/// cuBLAS, cuDNN and NCCL that LibTorch was built with, and Syncrun uses these too. This only says so: nothing is loaded
/// while global variables are initialized, because other libraries may not be ready then.
[[maybe_unused]] const bool is_announced = [] {
  syncrun::detail::os::load_before_cuda([] { loaded_part(); });
  return true;
}();

}  // namespace

CudaPart& cuda_part() {
  const LoadedPart& loaded = loaded_part();
  if (loaded.part == nullptr) {
    throw Error(ErrorKind::usage,
                "models of LibTorch cannot run on CUDA devices here: " + loaded.why_not +
                    ". Build Syncrun with CUDA and with a LibTorch for CUDA, or choose CPU devices (-n cpu)");
  }
  return *loaded.part;
}

}  // namespace syncrun::libtorch::detail
