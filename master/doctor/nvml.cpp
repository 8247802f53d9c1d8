// Asks the driver of NVIDIA's GPUs through its library NVML, which is a part of the driver. Its declarations are copied here
// (https://docs.nvidia.com/deploy/nvml-api), so that the build requires no header of CUDA.

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "common/code/optional_library.hpp"
#include "master/devices/devices.hpp"
#include "master/doctor/system.hpp"

namespace syncrun::detail::master::doctor {

namespace {

using NvmlDevice = void*;

struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct NvmlPci {
  std::array<char, 16> old_address;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned ids;
  unsigned subsystem_ids;
  std::array<char, 32> address;  // "00000000:3B:00.0"
};

constexpr int kNvmlSuccess = 0;
constexpr unsigned kMostNvlinks = 18;
constexpr unsigned kNvmlTextBytes = 96;
// nvmlGpuP2PCapsIndex_t
constexpr int kPeerRead = 0;
constexpr int kPeerNvlink = 2;

struct Nvml {
  Nvml() : library("libnvidia-ml.so.1") {
    library.find(init, "nvmlInit_v2");
    library.find(shutdown, "nvmlShutdown");
    library.find(driver_version, "nvmlSystemGetDriverVersion");
    library.find(cuda_version, "nvmlSystemGetCudaDriverVersion_v2");
    library.find(count, "nvmlDeviceGetCount_v2");
    library.find(device_at, "nvmlDeviceGetHandleByIndex_v2");
    library.find(name, "nvmlDeviceGetName");
    library.find(memory, "nvmlDeviceGetMemoryInfo");
    library.find(pci, "nvmlDeviceGetPciInfo_v3");
    library.find(capability, "nvmlDeviceGetCudaComputeCapability");
    library.find(nvlink_state, "nvmlDeviceGetNvLinkState");
    library.find(peer_status, "nvmlDeviceGetP2PStatus");
    library.find(common_ancestor, "nvmlDeviceGetTopologyCommonAncestor");
  }

  code::OptionalLibrary library;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*cuda_version)(int*) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device_at)(unsigned, NvmlDevice*) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*pci)(NvmlDevice, NvmlPci*) = nullptr;
  int (*capability)(NvmlDevice, int*, int*) = nullptr;
  int (*nvlink_state)(NvmlDevice, unsigned, int*) = nullptr;
  int (*peer_status)(NvmlDevice, NvmlDevice, int, int*) = nullptr;
  int (*common_ancestor)(NvmlDevice, NvmlDevice, int*) = nullptr;
};

/// NVML's "00000000:3B:00.0" in the form of /sys: "0000:3b:00.0".
std::string sys_address(const NvmlPci& pci) {
  std::string address = pci.address.data();
  constexpr std::size_t kDomainDigits = 4;
  const auto colon = address.find(':');
  if (colon != std::string::npos && colon > kDomainDigits) address.erase(0, colon - kDomainDigits);
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return address;
}

/// The words of nvidia-smi for nvmlGpuTopologyLevel_t.
std::string path_name(int level) {
  if (level <= 0) return "X";
  if (level <= 10) return "PIX";
  if (level <= 20) return "PXB";
  if (level <= 30) return "PHB";
  return level <= 40 ? "NODE" : "SYS";
}

Gpu describe_gpu(const Nvml& nvml, NvmlDevice device) {
  Gpu gpu;
  std::array<char, kNvmlTextBytes> name{};
  if (nvml.name(device, name.data(), kNvmlTextBytes) == kNvmlSuccess) gpu.name = name.data();
  NvmlMemory memory{};
  if (nvml.memory(device, &memory) == kNvmlSuccess) gpu.memory_bytes = memory.total;
  NvmlPci pci{};
  if (nvml.pci(device, &pci) == kNvmlSuccess) gpu.pci_address = sys_address(pci);
  nvml.capability(device, &gpu.major, &gpu.minor);
  for (unsigned link = 0; link < kMostNvlinks; ++link) {
    int is_active = 0;
    if (nvml.nvlink_state(device, link, &is_active) == kNvmlSuccess && is_active != 0) ++gpu.nvlinks;
  }
  return gpu;
}

GpuPair describe_pair(const Nvml& nvml, NvmlDevice one, NvmlDevice other) {
  GpuPair pair;
  int status = 1;
  pair.has_peer_access = nvml.peer_status(one, other, kPeerRead, &status) == kNvmlSuccess && status == 0;
  status = 1;
  pair.has_nvlink = nvml.peer_status(one, other, kPeerNvlink, &status) == kNvmlSuccess && status == 0;
  int level = 0;
  if (nvml.common_ancestor(one, other, &level) == kNvmlSuccess) pair.path = path_name(level);
  return pair;
}

}  // namespace

Gpus ask_driver_for_gpus() {
  Gpus gpus;
  const Nvml nvml;
  if (!nvml.library.has_all()) {
    if (devices::visible_gpus() != 0) gpus.why_unknown = "libnvidia-ml.so.1 of the driver was not found, or is too old";
    return gpus;
  }
  if (const int code = nvml.init(); code != kNvmlSuccess) {
    gpus.why_unknown = "nvmlInit failed with code " + std::to_string(code);
    return gpus;
  }
  std::array<char, kNvmlTextBytes> text{};
  if (nvml.driver_version(text.data(), kNvmlTextBytes) == kNvmlSuccess) gpus.driver = text.data();
  if (nvml.cuda_version(&gpus.driver_cuda) != kNvmlSuccess) gpus.driver_cuda = 0;
  unsigned count = 0;
  if (const int code = nvml.count(&count); code != kNvmlSuccess)
    gpus.why_unknown = "nvmlDeviceGetCount failed with code " + std::to_string(code);
  std::vector<NvmlDevice> handles;
  for (unsigned index = 0; index < count; ++index) {
    NvmlDevice device = nullptr;
    if (const int code = nvml.device_at(index, &device); code != kNvmlSuccess) {
      gpus.why_unknown = "GPU " + std::to_string(index) + " does not answer: code " + std::to_string(code);
      continue;
    }
    handles.push_back(device);
    gpus.devices.push_back(describe_gpu(nvml, device));
  }
  for (NvmlDevice one : handles) {
    auto& row = gpus.pairs.emplace_back();
    for (NvmlDevice other : handles) row.push_back(one == other ? GpuPair{} : describe_pair(nvml, one, other));
  }
  nvml.shutdown();
  return gpus;
}

}  // namespace syncrun::detail::master::doctor
