#include "master/devices/placement.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/arrays/row_range.hpp"
#include "common/os/core_set.hpp"
#include "common/os/wait.hpp"

namespace syncrun::detail::master::devices {

namespace {

/// Longer lists are cut. This code also reads CUDA_VISIBLE_DEVICES, and a user may write anything there.
constexpr std::size_t kMostCores = 65536;

std::vector<int> allowed_cores() {
  const auto allowed = os::CoreSet::allowed();
  return allowed ? allowed->cores() : std::vector<int>();
}

std::string first_line(const std::string& file) {
  std::string text;
  std::getline(std::ifstream(file), text);
  return text;
}

}  // namespace

std::vector<NumaNode> numa_nodes_in(const std::string& folder) {
  std::vector<NumaNode> nodes;
  for (const int node : parse_cpu_list(first_line(folder + "/online"))) {
    auto cores = parse_cpu_list(first_line(folder + "/node" + std::to_string(node) + "/cpulist"));
    if (!cores.empty()) nodes.push_back({node, std::move(cores)});
  }
  return nodes;
}

std::vector<std::vector<int>> numa_nodes(const std::string& folder) {
  std::vector<std::vector<int>> nodes;
  for (NumaNode& node : numa_nodes_in(folder)) nodes.push_back(std::move(node.cores));
  return nodes;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cores;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0;
    int last = 0;
    const int fields = std::sscanf(part.c_str(), "%9d-%9d", &first, &last);  // 9 digits fit
    if (fields < 1) continue;
    if (fields == 1) last = first;
    for (int core = first; core <= last && cores.size() < kMostCores; ++core) cores.push_back(core);
  }
  return cores;
}

namespace {

/// How many of the first `count` ranks have this kind of device.
int count_of(std::span<const DeviceId> devices, DeviceKind kind, std::size_t count) noexcept {
  return static_cast<int>(std::count_if(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(count),
                                        [kind](const DeviceId& device) { return device.kind == kind; }));
}

}  // namespace

int threads_for(std::span<const DeviceId> devices, int rank, int cores) noexcept {
  const int gpus = count_of(devices, DeviceKind::cuda, devices.size());
  const int cpus = static_cast<int>(devices.size()) - gpus;
  const bool is_mixed = gpus != 0 && cpus != 0;
  if (!is_mixed) return std::max(1, cores / static_cast<int>(devices.size()));
  if (devices[static_cast<std::size_t>(rank)].kind == DeviceKind::cuda) return 1;
  return std::max(1, (cores - gpus) / cpus);
}

WorkerPlacement placement_of(std::span<const DeviceId> devices, int rank) {
  const auto at = static_cast<std::size_t>(rank);
  const int threads = threads_for(devices, rank, os::usable_cores());
  if (devices[at].kind == DeviceKind::cuda) return {threads, cores_near_gpu(devices[at].index)};
  return {threads, cores_for(count_of(devices, DeviceKind::cpu, at),  // its position among the CPU workers
                             count_of(devices, DeviceKind::cpu, devices.size()), allowed_cores(), numa_nodes())};
}

std::vector<int> cores_for(int position, int workers, std::span<const int> allowed,
                           std::span<const std::vector<int>> nodes) {
  if (nodes.size() < 2 || workers > static_cast<int>(allowed.size())) return {};
  const arrays::RowRange share = arrays::share_of(static_cast<std::int64_t>(allowed.size()), workers, position);
  std::int64_t end = 0;  // of the cores of this node and of those before
  for (const auto& node : nodes) {
    std::vector<int> cores;
    std::copy_if(node.begin(), node.end(), std::back_inserter(cores),
                 [&](int core) { return std::binary_search(allowed.begin(), allowed.end(), core); });
    end += static_cast<std::int64_t>(cores.size());
    if (share.begin >= end) continue;
    // If the share extends into the next node, the worker is not bound, because it would lose cores.
    return share.end <= end ? cores : std::vector<int>();
  }
  return {};
}

namespace {

/// The PCI addresses of the GPUs, sorted. CUDA numbers equal GPUs in this order. If CUDA_VISIBLE_DEVICES is a list of
/// numbers, the result has only those GPUs, in its order.
std::vector<std::string> gpu_addresses() {
  std::vector<std::string> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    all.push_back(entry.path().filename());
  }
  std::sort(all.begin(), all.end());
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return all;
  std::vector<std::string> chosen;
  for (const int index : parse_cpu_list(visible)) {
    if (index < 0 || index >= static_cast<int>(all.size())) break;
    chosen.push_back(all[static_cast<std::size_t>(index)]);
  }
  return chosen;
}

}  // namespace

std::vector<int> cores_near_gpu(int index) {
  const auto addresses = gpu_addresses();
  if (index >= static_cast<int>(addresses.size()) || numa_nodes().size() < 2) return {};
  const std::string near =
      first_line("/sys/bus/pci/devices/" + addresses[static_cast<std::size_t>(index)] + "/local_cpulist");
  const std::vector<int> allowed = allowed_cores();
  std::vector<int> cores;
  for (const int core : parse_cpu_list(near)) {
    if (std::binary_search(allowed.begin(), allowed.end(), core)) cores.push_back(core);
  }
  return cores;
}

std::vector<std::pair<std::string, std::string>> nccl_variables(const protocol::NodePlace& place) {
  std::vector<std::pair<std::string, std::string>> variables;
  const auto add = [&](const char* name, const char* value) {
    if (std::getenv(name) == nullptr) variables.emplace_back(name, value);
  };
  if (!place.has_others()) add("NCCL_SOCKET_IFNAME", "lo");
  add("NCCL_RUNTIME_CONNECT", "0");
  return variables;
}

namespace {

/// The variable of a library for its number of threads, and another variable that the library reads too.
struct ThreadVariable {
  const char* name;
  // An older name, or null. If the user has set the older name, `name` stays unset, because it would override it.
  const char* other;
};

/// OpenMP's variable comes first. The other libraries read it if their own variable is not set, so a user sets it for
/// all.
constexpr std::array<ThreadVariable, 4> kThreadVariables{{{"OMP_NUM_THREADS", nullptr},
                                                          {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"},
                                                          {"MKL_NUM_THREADS", nullptr},
                                                          {"BLIS_NUM_THREADS", nullptr}}};

bool is_set(const char* name) { return name != nullptr && std::getenv(name) != nullptr; }

/// The number at the beginning of a variable, or 0. OpenMP's may be a list with one number for each level of nesting:
/// "4,2".
int threads_in(const char* name) {
  const char* text = std::getenv(name);
  int threads = 0;
  if (text == nullptr || std::sscanf(text, " %9d", &threads) != 1) return 0;
  return std::max(0, threads);
}

/// The number that the user has set. OpenMP's variable comes before those of the libraries. 0 if none is set.
int threads_of_user() {
  for (const auto& variable : kThreadVariables) {
    if (const int threads = threads_in(variable.name); threads != 0) return threads;
    if (variable.other == nullptr) continue;
    if (const int threads = threads_in(variable.other); threads != 0) return threads;
  }
  return 0;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> thread_variables(int threads) {
  const int chosen = threads_of_user();
  const std::string each = std::to_string(chosen != 0 ? chosen : threads);
  std::vector<std::pair<std::string, std::string>> variables;
  for (const auto& variable : kThreadVariables) {
    if (!is_set(variable.name) && !is_set(variable.other)) variables.emplace_back(variable.name, each);
  }
  return variables;
}

}  // namespace syncrun::detail::master::devices
