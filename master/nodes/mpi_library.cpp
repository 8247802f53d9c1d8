#include "master/nodes/mpi_library.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "common/os/part_version.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// The folder of this library, or of the program that contains it. Of a program that a shell has found in PATH, dladdr()
/// knows the name only.
std::string folder_of_this_library() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&load_mpi_transport), &info) == 0) return {};
  std::string path = info.dli_fname;
  std::error_code code;
  if (path.find('/') == std::string::npos) path = std::filesystem::read_symlink("/proc/self/exe", code).string();
  return path.substr(0, path.rfind('/') + 1);
}

const char* library_name(Mpi mpi) noexcept {
  return mpi == Mpi::open_mpi ? "libsyncrun_openmpi.so." SYNCRUN_SOVERSION : "libsyncrun_mpich.so." SYNCRUN_SOVERSION;
}

/// Null if it cannot be loaded. dlerror() then says why.
void* open_library(const char* name) {
  const std::string folder = folder_of_this_library();
  void* library = nullptr;
  for (const std::string& path : {folder + name, folder + "../" SYNCRUN_LIBRARY_FOLDER "/" + name, std::string(name)}) {
    if (library == nullptr) library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  return library;
}

}  // namespace

bool has_mpi_transport(Mpi mpi) noexcept {
  try {
    void* const library = open_library(library_name(mpi));
    if (library != nullptr) ::dlclose(library);
    return library != nullptr;
  } catch (const std::exception&) {
    return false;
  }
}

const char* to_string(Mpi mpi) noexcept { return mpi == Mpi::open_mpi ? "Open MPI" : "MPICH"; }

std::unique_ptr<Transport> load_mpi_transport(Mpi mpi) {
  const char* const name = library_name(mpi);
  void* const library = open_library(name);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    throw Error(ErrorKind::system, std::string("cannot load the transport between nodes for ") + to_string(mpi) + ": " +
                                       (why != nullptr ? why : name) + ". Install " + to_string(mpi) +
                                       ", and build Syncrun with SYNCRUN_MPI=ON, or install the package syncrun-" +
                                       (mpi == Mpi::open_mpi ? "openmpi" : "mpich"));
  }
  const std::string why_not = os::why_part_does_not_fit(name, library);
  if (!why_not.empty()) throw Error(ErrorKind::system, why_not);
  using Make = Transport* (*)();
  const auto make = reinterpret_cast<Make>(::dlsym(library, "syncrun_make_transport"));
  if (make == nullptr) throw Error(ErrorKind::system, std::string(name) + " is of another Syncrun");
  return std::unique_ptr<Transport>(make());
}

}  // namespace syncrun::detail::master::nodes
