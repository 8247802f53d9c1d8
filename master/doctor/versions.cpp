// The versions of the libraries that Syncrun uses, and whether they fit.

#include <dlfcn.h>

#include <algorithm>
#include <charconv>

#include "common/code/optional_library.hpp"
#include "common/os/environment.hpp"
#include "common/os/libraries.hpp"
#include "common/text/errors.hpp"
#include "master/devices/devices.hpp"
#include "master/devices/machine.hpp"
#include "master/doctor/checks.hpp"
#include "master/nodes/engine.hpp"

namespace syncrun::detail::master::doctor {

namespace {

/// The number before the first point: 12 in "12.4".
int major_of(const std::string& version) {
  int major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  return major;
}

/// Compares as os::require_version does.
bool fits(const std::string& loaded, const std::string& built) {
  const auto parts = [](const std::string& text) {
    os::LibraryVersion version;
    const char* at = text.data();
    const char* const last = at + text.size();
    for (long* part : {&version.major, &version.minor, &version.patch}) {
      at = std::from_chars(at, last, *part).ptr;
      if (at != last) ++at;
    }
    return version;
  };
  return parts(loaded).major == parts(built).major && parts(loaded) >= parts(built);
}

Finding check_driver(const Gpus& gpus, const std::string& built) {
  if (gpus.driver_cuda == 0) {
    return {Level::note, "CUDA", "the driver does not say which versions it supports",
            "see whether nvidia-smi says CUDA " + built + " or later"};
  }
  const int major = gpus.driver_cuda / 1000;
  const std::string newest = std::to_string(major) + "." + std::to_string(gpus.driver_cuda % 1000 / 10);
  Finding finding{Level::ok, "CUDA",
                  "driver " + gpus.driver + " for CUDA up to " + newest + ", Syncrun built with " + built};
  if (major >= major_of(built)) return finding;
  finding.level = Level::wrong;
  finding.advice = "install a newer driver, or build Syncrun with CUDA " + newest;
  return finding;
}

Finding check_library(const std::string& name, const std::string& file, const std::string& built,
                      LoadedVersion version_of) {
  const std::string loaded = version_of(file);
  Finding finding{Level::ok, name, loaded + ", Syncrun built with " + built};
  if (!loaded.empty() && fits(loaded, built)) return finding;
  finding.level = Level::wrong;
  if (loaded.empty()) finding.value = file + " was not found, Syncrun built with " + built;
  finding.advice = "put the folder of version " + built + " or a later " + std::to_string(major_of(built)) +
                   ".x into LD_LIBRARY_PATH, or install it";
  return finding;
}

/// The libraries that ldd has not found, in one line.
std::string missing_in(const std::string& ldd) {
  std::string missing;
  for (std::size_t at = 0; (at = ldd.find(" => not found", at)) != std::string::npos; ++at) {
    const auto begin = ldd.find_last_of(" \t\n", at - 1) + 1;
    missing += (missing.empty() ? "" : ", ") + ldd.substr(begin, at - begin);
  }
  return missing;
}

/// The path that ldd gives for the first library of this name.
std::string path_in(const std::string& ldd, const std::string& name) {
  const auto begin = ldd.find("\t" + name);
  const auto arrow = ldd.find("=> ", begin);
  if (begin == std::string::npos || arrow == std::string::npos) return {};
  return ldd.substr(arrow + 3, ldd.find(" (", arrow) - arrow - 3);
}

struct Plugin {
  const char* what;
  const char* file;
  const char* needs;  // the library whose path is interesting
};
constexpr Plugin kPlugins[]{
    {"CUDA part", "libsyncrun_cuda.so." SYNCRUN_SOVERSION, "libcudart.so"},
    {"LibTorch part", "libsyncrun_torch.so." SYNCRUN_SOVERSION, "libtorch_cpu.so"},
    {"LibTorch part for GPUs", "libsyncrun_torch_cuda.so." SYNCRUN_SOVERSION, "libtorch_cuda.so"}};

/// The first text in quotes.
std::string quoted_in(const std::string& text) {
  const auto begin = text.find('"');
  const auto end = text.find('"', begin + 1);
  return begin == end ? std::string() : text.substr(begin + 1, end - begin - 1);
}

/// The version of the LibTorch to which this library belongs: libtorch_cpu.so.1.13 in Debian. Elsewhere, its files for CMake
/// say it. Empty if it is unknown.
std::string version_of_torch(const System& system, const std::string& library) {
  constexpr std::string_view kSuffix = ".so.";
  const auto suffix = library.rfind(kSuffix);
  if (suffix != std::string::npos) return library.substr(suffix + kSuffix.size());
  const std::string folder = library.substr(0, library.rfind('/') + 1);
  return quoted_in(system.text(folder + "../share/cmake/Torch/TorchConfigVersion.cmake"));
}

/// Whether the major and minor versions are the same. LibTorch promises no binary interface across minor versions.
bool same_minor(const std::string& one, const std::string& other) {
  const auto front = [](const std::string& version) {
    return version.substr(0, version.find('.', version.find('.') + 1));
  };
  return front(one) == front(other);
}

}  // namespace

std::string loaded_version(const std::string& library) {
  code::OptionalLibrary file(library.c_str());
  int number = 0;
  int (*ask_nccl)(int*) = nullptr;
  file.find(ask_nccl, "ncclGetVersion");
  if (ask_nccl != nullptr && ask_nccl(&number) == 0) return os::LibraryVersion::of_number(number).text();
  std::size_t (*ask_cudnn)() = nullptr;
  file.find(ask_cudnn, "cudnnGetVersion");
  return ask_cudnn == nullptr ? std::string() : os::LibraryVersion::of_number(static_cast<long>(ask_cudnn())).text();
}

BuiltWith built_with() {
  BuiltWith built;
#if defined(SYNCRUN_CUDA_VERSION)
  built.cuda = SYNCRUN_CUDA_VERSION;
#endif
#if defined(SYNCRUN_NCCL_VERSION)
  built.nccl = SYNCRUN_NCCL_VERSION;
#endif
#if defined(SYNCRUN_CUDNN_VERSION)
  built.cudnn = SYNCRUN_CUDNN_VERSION;
#endif
  return built;
}

Findings check_cuda_versions(const System& system, const BuiltWith& built, LoadedVersion loaded) {
  const Gpus& gpus = system.gpus;
  const std::string how_to_get_it = "install the CUDA part, or build with -DSYNCRUN_CUDA=ON";
  if (gpus.devices.empty()) {
    if (!built.cuda.empty())
      return {{Level::ok, "CUDA", "Syncrun was built with " + built.cuda + ", and no GPU is here"}};
    return {{Level::note, "CUDA", "Syncrun was built without it", "to use it on machines with GPUs, " + how_to_get_it}};
  }
  if (built.cuda.empty())
    return {{Level::warning, "CUDA", "there are GPUs, and Syncrun was built without CUDA", how_to_get_it}};
  Findings findings{check_driver(gpus, built.cuda)};
  if (!built.nccl.empty())
    findings.push_back(check_library("NCCL", "libnccl.so." + std::to_string(major_of(built.nccl)), built.nccl, loaded));
  if (!built.cudnn.empty())
    findings.push_back(
        check_library("cuDNN", "libcudnn.so." + std::to_string(major_of(built.cudnn)), built.cudnn, loaded));
  return findings;
}

Findings check_plugins(const System& system, const std::string& folder) {
  Findings findings;
  // The version of LibTorch that the part for it was built with. The part brings a file that says so, because the package of
  // the command is the same with and without this part.
  const std::string torch = quoted_in(system.text(folder + "/cmake/Syncrun/SyncrunTorchVersion.cmake"));
  const auto files = system.names(folder);
  for (const Plugin& plugin : kPlugins) {
    if (std::find(files.begin(), files.end(), plugin.file) == files.end()) continue;
    const std::string ldd = system.run({"/usr/bin/ldd", folder + "/" + plugin.file});
    const std::string missing = missing_in(ldd);
    const bool is_torch = &plugin != &kPlugins[0];
    const std::string path = path_in(ldd, plugin.needs);
    Finding finding{Level::ok, plugin.what, path};
    if (is_torch && !torch.empty()) {
      finding.value = "built with LibTorch " + torch + ", " + path;
      const std::string found = version_of_torch(system, path);
      if (!found.empty() && !same_minor(found, torch)) {
        finding.level = Level::warning;
        finding.value += ", which is " + found;
        finding.advice =
            "put the folder of LibTorch " + torch + " into LD_LIBRARY_PATH, or build Syncrun with " + found;
      }
    }
    if (ldd.empty()) {
      finding = {Level::note, plugin.what, "is there; ldd does not say what it finds",
                 "if programs cannot load it, run ldd " + folder + "/" + plugin.file};
    } else if (!missing.empty()) {
      finding.level = is_torch || system.gpus.devices.empty() ? Level::warning : Level::wrong;
      finding.value = "does not find " + missing;
      finding.advice = "install what is missing, or put its folder into LD_LIBRARY_PATH";
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

Findings check_mpi(const System& system) {
  const nodes::Engine engine = nodes::find_engine(system.variable);
  Findings findings;
  for (const nodes::Mpi mpi : {nodes::Mpi::open_mpi, nodes::Mpi::mpich}) {
    const bool is_needed = engine.has_others() && engine.mpi == mpi;
    try {
      findings.push_back({Level::ok, nodes::to_string(mpi), nodes::load_mpi_transport(mpi)->description()});
    } catch (const Error& error) {
      findings.push_back({is_needed ? Level::wrong : Level::note, nodes::to_string(mpi),
                          is_needed ? error.what() : "no transport between nodes",
                          "for sessions on several nodes, install it, and build Syncrun with SYNCRUN_MPI=ON"});
    }
  }
  return findings;
}

Findings check_hwloc() {
  std::string why;
  if (devices::machine_by_hwloc(why)) return {{Level::ok, "hwloc", "found"}};
  return {{Level::note, "hwloc", why, "only --bind-to core and --bind-to socket require it"}};
}

}  // namespace syncrun::detail::master::doctor
