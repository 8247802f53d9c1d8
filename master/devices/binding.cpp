#include "master/devices/binding.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "common/os/core_set.hpp"
#include "common/os/environment.hpp"
#include "common/os/wait.hpp"

namespace syncrun::detail::master::devices {

namespace {

constexpr std::array<std::pair<std::string_view, BindTo>, 5> kWords{{{"none", BindTo::none},
                                                                     {"core", BindTo::core},
                                                                     {"socket", BindTo::socket},
                                                                     {"numa", BindTo::numa},
                                                                     {"device", BindTo::device}}};

bool has(std::span<const int> cores, int core) { return std::ranges::binary_search(cores, core); }

std::vector<int> common_to(std::span<const int> cores, std::span<const int> others) {
  std::vector<int> both;
  std::ranges::copy_if(cores, std::back_inserter(both), [&](int core) { return has(others, core); });
  return both;
}

/// The physical cores of which the worker may use a part, and those parts. If there are too few for all workers, each
/// hardware thread counts as one.
std::vector<std::vector<int>> units_to_share(int workers, std::span<const int> allowed, const Machine& machine) {
  std::vector<std::vector<int>> units;
  for (const auto& core : machine.physical_cores) {
    if (auto part = common_to(core, allowed); !part.empty()) units.push_back(std::move(part));
  }
  if (workers <= static_cast<int>(units.size())) return units;
  std::vector<std::vector<int>> threads;
  for (const auto& unit : units) {
    for (const int thread : unit) threads.push_back({thread});
  }
  return threads;
}

void add_sorted(std::vector<int>& cores, std::span<const int> more) {
  cores.insert(cores.end(), more.begin(), more.end());
  std::ranges::sort(cores);
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
}

/// All groups that have some of the cores, without what is not allowed.
template <class Groups, class CoresOf>
std::vector<int> groups_around(std::span<const int> cores, std::span<const int> allowed, const Groups& groups,
                               CoresOf cores_of) {
  std::vector<int> around;
  for (const auto& group : groups) {
    if (!common_to(cores, cores_of(group)).empty()) add_sorted(around, common_to(cores_of(group), allowed));
  }
  return around;
}

bool requires_hwloc(BindTo to) noexcept { return to == BindTo::core || to == BindTo::socket; }

Machine machine_for(BindTo to) {
  if (to == BindTo::automatic || to == BindTo::none) return {};
  std::string why;
  if (auto machine = machine_by_hwloc(why)) return std::move(*machine);
  if (!requires_hwloc(to)) return machine_by_files();
  environment::throw_bad_value(
      environment::kBindTo, to == BindTo::core ? "core" : "socket",
      "hwloc, since only hwloc knows cores and sockets, but " + why + ", or write --bind-to numa or none");
}

std::vector<int> cores_of_this_process() {
  const auto allowed = os::CoreSet::allowed();
  return allowed ? allowed->cores() : std::vector<int>();
}

BindTo choice_in_environment() {
  const char* const text = environment::get(environment::kBindTo);
  if (text == nullptr || *text == '\0') return BindTo::automatic;
  if (const auto to = parse_bind_to(text)) return *to;
  environment::throw_bad_value(environment::kBindTo, text, std::string(kBindToWords));
}

}  // namespace

std::optional<BindTo> parse_bind_to(std::string_view text) noexcept {
  const auto* const found = std::ranges::find_if(kWords, [&](const auto& each) { return each.first == text; });
  return found == kWords.end() ? std::nullopt : std::optional(found->second);
}

BindTo bind_to_from_environment() {
  const BindTo to = choice_in_environment();
  if (requires_hwloc(to)) static_cast<void>(machine_for(to));
  return to;
}

std::vector<int> cores_to_bind(BindTo to, int position, int workers, std::span<const int> allowed,
                               const Machine& machine) {
  const auto units = units_to_share(workers, allowed, machine);
  if (units.empty()) return {};
  const auto count = static_cast<std::int64_t>(units.size());
  const std::int64_t begin = position * count / workers;
  const std::int64_t end = std::max((position + 1) * count / workers, begin + 1);
  std::vector<int> share;
  for (std::int64_t unit = begin; unit < end; ++unit) add_sorted(share, units[static_cast<std::size_t>(unit)]);
  if (to == BindTo::core) return share;
  auto around =
      to == BindTo::socket
          ? groups_around(share, allowed, machine.sockets, [](const auto& socket) -> auto& { return socket; })
          : groups_around(share, allowed, machine.nodes, [](const auto& node) -> auto& { return node.cores; });
  return around.empty() ? std::vector<int>(allowed.begin(), allowed.end()) : around;
}

std::optional<int> node_of_cores(std::span<const int> cores, const Machine& machine) {
  if (machine.nodes.size() < 2 || cores.empty()) return std::nullopt;
  for (const NumaNode& node : machine.nodes) {
    if (common_to(cores, node.cores).size() == cores.size()) return node.number;
  }
  return std::nullopt;
}

Binding::Binding() : to_(choice_in_environment()), machine_(machine_for(to_)) {
  if (to_ != BindTo::automatic && to_ != BindTo::none) allowed_ = cores_of_this_process();
}

WorkerPlacement Binding::place(std::span<const DeviceId> devices, int local_rank) const {
  if (to_ == BindTo::automatic) return placement_of(devices, local_rank);
  std::vector<std::vector<int>> near_gpus;
  for (const DeviceId& device : devices) {
    if (to_ == BindTo::none || device.kind != DeviceKind::cuda) continue;
    near_gpus.resize(std::max(near_gpus.size(), static_cast<std::size_t>(device.index) + 1));
    near_gpus[static_cast<std::size_t>(device.index)] = cores_near_gpu(device.index);
  }
  return place(devices, local_rank, near_gpus);
}

WorkerPlacement Binding::place(std::span<const DeviceId> devices, int local_rank,
                               std::span<const std::vector<int>> near_gpus) const {
  const DeviceId& own = devices[static_cast<std::size_t>(local_rank)];
  const auto near = [&](const DeviceId& device) -> const std::vector<int>& {
    const bool is_known = device.kind == DeviceKind::cuda && device.index < static_cast<int>(near_gpus.size()) &&
                          !near_gpus[static_cast<std::size_t>(device.index)].empty();
    return is_known ? near_gpus[static_cast<std::size_t>(device.index)] : allowed_;
  };
  WorkerPlacement placement{.threads = threads_for(devices, local_rank, os::usable_cores())};
  if (to_ == BindTo::none) return placement;
  if (to_ == BindTo::device && own.kind == DeviceKind::cuda) {
    placement.cores = near(own);
  } else {
    // Workers with devices of the same kind and near the same cores share these cores.
    int position = 0;
    int workers = 0;
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      if (devices[rank].kind != own.kind || near(devices[rank]) != near(own)) continue;
      if (static_cast<int>(rank) < local_rank) ++position;
      ++workers;
    }
    placement.cores = cores_to_bind(to_, position, workers, near(own), machine_);
  }
  placement.memory_node = node_of_cores(placement.cores, machine_);
  return placement;
}

bool reports_bindings() { return environment::switch_in(environment::kReportBindings).value_or(false); }

std::string cpu_list(std::span<const int> cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    text.append(text.empty() ? "" : ",").append(std::to_string(cores[i]));
    if (last != i) text.append("-").append(std::to_string(cores[last]));
    i = last + 1;
  }
  return text;
}

std::string describe_binding(std::string_view rank_and_device, std::span<const int> cores, std::span<const int> asked,
                             std::span<const int> usable, std::span<const NumaNode> nodes) {
  std::vector<int> numbers;
  for (const NumaNode& node : nodes) {
    if (!common_to(cores, node.cores).empty()) numbers.push_back(node.number);
  }
  std::string text(rank_and_device);
  text += (cores.size() == 1 ? ": core " : ": cores ") + cpu_list(cores);
  if (!numbers.empty()) text += (numbers.size() == 1 ? ", NUMA node " : ", NUMA nodes ") + cpu_list(numbers);
  if (!asked.empty() && !std::equal(asked.begin(), asked.end(), cores.begin(), cores.end()))
    return text + ", because the system refused cores " + cpu_list(asked);
  const bool is_bound = !std::equal(cores.begin(), cores.end(), usable.begin(), usable.end());
  return is_bound ? text : text + " (all that the job may use)";
}

}  // namespace syncrun::detail::master::devices
