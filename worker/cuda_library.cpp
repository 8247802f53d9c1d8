// Where a worker finds CUDA devices: in a library beside this one, loaded only by workers that have one. Linking it would
// cost every process, the master too, the start of cuBLAS and NCCL.

#include <dlfcn.h>

#include <string>

#include "common/errors.hpp"
#include "worker/gpu_device.hpp"

namespace syncrun::detail {

namespace {

constexpr const char* kLibraryName = "libsyncrun_cuda.so." SYNCRUN_SOVERSION;

/// The folder that this library, or the program that holds it, was loaded from.
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
