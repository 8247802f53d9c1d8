// Loads the library for CUDA devices, which is next to this one. Only workers with a GPU load it. If it was linked,
// every process, also the master, would start more slowly, because it would load cuBLAS and NCCL.

#include <dlfcn.h>

#include <string>

#include "common/os/before_cuda.hpp"
#include "common/os/part_version.hpp"
#include "common/text/errors.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail::worker::devices {

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

std::unique_ptr<WorkerDevice> make_cuda_device(const DeviceContext& context) {
  os::load_what_comes_before_cuda();
  void* library = ::dlopen((own_folder() + kLibraryName).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = ::dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw Error(ErrorKind::system, std::string("cannot load the CUDA part of Syncrun: ") + (why ? why : kLibraryName) +
                                       ". It is in the package syncrun-cuda. Or use CPU devices: syncrun -n cpu");
  }
  const std::string why_not = os::why_part_does_not_fit(kLibraryName, library);
  if (!why_not.empty()) throw Error(ErrorKind::system, why_not);
  using Make = WorkerDevice* (*)(const DeviceContext&);
  const auto make = reinterpret_cast<Make>(::dlsym(library, "syncrun_make_cuda_device"));
  if (make == nullptr) throw Error(ErrorKind::system, std::string(kLibraryName) + " is of another Syncrun");
  return std::unique_ptr<WorkerDevice>(make(context));
}

}  // namespace syncrun::detail::worker::devices
