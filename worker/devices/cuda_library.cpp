// Loads the library for CUDA devices, which is next to this one. Only workers with a GPU load it. If it was linked,
// every process, also the master, would start more slowly, because it would load cuBLAS and NCCL.

#include <dlfcn.h>

#include <string>

#include "common/text/errors.hpp"
#include "worker/devices/gpu_device.hpp"

namespace syncrun::detail {

namespace {

constexpr const char* kLibraryName = "libsyncrun_cuda.so." SYNCRUN_SOVERSION;

/// The folder of this library, or of the program that contains it.
std::string own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&make_cuda_device), &info) == 0) return {};
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

}  // namespace

std::unique_ptr<GpuDevice> make_cuda_device(const DeviceContext& context) {
  void* library = ::dlopen((own_folder() + kLibraryName).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = ::dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw Error(ErrorKind::system, std::string("cannot load the CUDA part of Syncrun: ") + (why ? why : kLibraryName));
  }
  using Make = GpuDevice* (*)(const DeviceContext&);
  const auto make = reinterpret_cast<Make>(::dlsym(library, "syncrun_make_cuda_device"));
  if (make == nullptr) throw Error(ErrorKind::system, std::string(kLibraryName) + " is of another Syncrun");
  return std::unique_ptr<GpuDevice>(make(context));
}

}  // namespace syncrun::detail
