// Which devices this machine has, and how they are connected.

#include <algorithm>

#include "common/text/numbers.hpp"
#include "master/devices/binding.hpp"
#include "master/devices/devices.hpp"
#include "master/devices/placement.hpp"
#include "master/doctor/checks.hpp"

namespace syncrun::detail::master::doctor {

namespace {

/// "AMD EPYC" from /proc/cpuinfo. AArch64 has no such line.
std::string model_of_cpu(const System& system) {
  const std::string text = system.text("/proc/cpuinfo");
  const auto line = text.find("model name");
  if (line == std::string::npos) return "CPU";
  const auto begin = text.find(": ", line);
  if (begin == std::string::npos) return "CPU";
  return text.substr(begin + 2, text.find('\n', begin) - begin - 2);
}

std::string folder_of_gpu(const Gpu& gpu) { return "/sys/bus/pci/devices/" + gpu.pci_address; }

std::string describe(const System& system, const Gpu& gpu) {
  std::string text = gpu.name + ", " + in_bytes(gpu.memory_bytes) + ", compute capability " +
                     std::to_string(gpu.major) + "." + std::to_string(gpu.minor);
  if (gpu.nvlinks != 0) text += ", " + std::to_string(gpu.nvlinks) + " NVLinks";
  const auto node = system.number(folder_of_gpu(gpu) + "/numa_node");
  if (node && *node >= 0) text += ", NUMA node " + std::to_string(*node);
  const std::string cores = system.text(folder_of_gpu(gpu) + "/local_cpulist");
  return cores.empty() ? text : text + ", near cores " + cores;
}

}  // namespace

std::string in_bytes(std::uint64_t bytes) {
  constexpr double kGigabyte = 1e9;
  constexpr double kMegabyte = 1e6;
  const auto number = static_cast<double>(bytes);
  if (number < kGigabyte) return text::fixed_text(number / kMegabyte, 0) + " MB";
  return text::fixed_text(number / kGigabyte, 1) + " GB";
}

Findings check_cpus(const System& system) {
  const auto nodes = devices::numa_nodes_in(system.root + "/sys/devices/system/node");
  Findings findings{{Level::ok, "CPU",
                     model_of_cpu(system) + ", cores " + devices::cpu_list(system.cores) + " (" +
                         std::to_string(system.cores.size()) + ")"}};
  for (const devices::NumaNode& node : nodes) {
    if (nodes.size() < 2) break;
    findings.push_back(
        {Level::ok, "NUMA node " + std::to_string(node.number), "cores " + devices::cpu_list(node.cores)});
  }
  return findings;
}

Findings check_gpus(const System& system) {
  const Gpus& gpus = system.gpus;
  const std::string in_container = "; in a container, start it with the NVIDIA runtime";
  if (!gpus.why_unknown.empty()) {
    return {{Level::wrong, "GPUs", gpus.why_unknown,
             "run nvidia-smi: if it fails too, install the driver again or load its module" + in_container}};
  }
  if (gpus.devices.empty()) {
    return {{Level::note, "GPUs", "none here, so workers are CPU devices",
             "if the machine has GPUs, install NVIDIA's driver" + in_container}};
  }
  Findings findings;
  for (std::size_t index = 0; index < gpus.devices.size(); ++index)
    findings.push_back({Level::ok, "GPU " + std::to_string(index), describe(system, gpus.devices[index])});
  const char* const visible = system.variable("CUDA_VISIBLE_DEVICES");
  if (visible != nullptr)
    findings.push_back({Level::note, "CUDA_VISIBLE_DEVICES", std::string("programs see only these GPUs: ") + visible,
                        "to use all GPUs, unset it"});
  return findings;
}

Findings check_gpu_links(const System& system) {
  const auto& pairs = system.gpus.pairs;
  Findings findings;
  for (std::size_t one = 0; one < pairs.size() && pairs.size() > 1; ++one) {
    std::string row;
    bool has_all = true;
    for (std::size_t other = 0; other < pairs.size(); ++other) {
      const GpuPair& pair = pairs[one][other];
      if (!row.empty()) row += ' ';
      if (other == one) row += '-';
      else row += pair.has_nvlink ? "NVLink" : pair.has_peer_access ? pair.path : pair.path + "(no peer)";
      has_all = has_all && (other == one || pair.has_peer_access);
    }
    Finding finding{has_all ? Level::ok : Level::warning, "GPU " + std::to_string(one) + " to others", row};
    if (!has_all) {
      finding.advice =
          "without peer access, NCCL copies through host memory; turn off ACS in the BIOS, or the IOMMU of the host "
          "(NVIDIA's page on NCCL troubleshooting)";
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace syncrun::detail::master::doctor
