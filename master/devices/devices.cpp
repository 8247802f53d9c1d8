#include "master/devices/devices.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "common/os/wait.hpp"
#include "common/protocol/control_block.hpp"
#include "common/text/errors.hpp"
#include "master/devices/device_list.hpp"
#include "master/devices/host_part.hpp"

namespace syncrun::detail::master::devices {

namespace {

constexpr std::string_view kMigName = "MIG-";

std::string gpus_in_words(int count) {
  if (count == 0) return "no GPU is visible";
  if (count > 1) return std::to_string(count) + " GPUs are visible";
  const char* const names = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool has_mig = names != nullptr && std::string_view(names).starts_with(kMigName);
  return has_mig ? "1 GPU is visible, because CUDA shows a process only the first MIG instance in CUDA_VISIBLE_DEVICES"
                 : "1 GPU is visible";
}

/// `option` is the option or variable in which the user has made the choice.
[[noreturn]] void refuse(std::string_view option, const std::string& what) {
  text::throw_usage(std::string(option) + ": " + what);
}

void check_cuda_is_built(std::string_view option, std::string_view wanted) {
  if (cuda_is_built()) return;
  refuse(option, quoted(wanted) +
                     " needs CUDA, and this Syncrun was built without it; expected CPU devices (cpu0,cpu1 or -n cpu)");
}

void check_listed(const std::vector<DeviceId>& devices, std::string_view option, std::string_view text) {
  const auto is_cuda = [](const DeviceId& device) { return device.kind == DeviceKind::cuda; };
  if (std::none_of(devices.begin(), devices.end(), is_cuda)) return;
  check_cuda_is_built(option, text);
  check_gpus(devices, option, visible_gpus());
}

std::vector<DeviceId> first_devices(DeviceKind kind, int count) {
  std::vector<DeviceId> devices;
  for (int index = 0; index < count; ++index) devices.push_back({kind, index});
  return devices;
}

std::vector<DeviceId> a_cpu_per_core() {
  return first_devices(DeviceKind::cpu, std::min(os::usable_cores(), protocol::kMaxWorldSize));
}

std::vector<DeviceId> devices_for_count(std::string_view option, std::string_view text) {
  const int count = check_count(option, text);
  const int gpus = cuda_is_built() ? visible_gpus() : 0;
  if (gpus == 0) return first_devices(DeviceKind::cpu, count);
  if (count > gpus) {
    refuse(option, "got " + std::to_string(count) + ", but " + gpus_in_words(gpus) +
                       "; CPU devices are named by cpu0,cpu1,...");
  }
  return first_devices(DeviceKind::cuda, count);
}

bool follows(const DeviceId& device, const DeviceId& before) noexcept {
  return device.kind == before.kind && device.index == before.index + 1;
}

}  // namespace

int check_count(std::string_view option, std::string_view text) {
  const auto count = parse_index(text);
  if (count && *count >= 1 && *count <= protocol::kMaxWorldSize) return *count;
  refuse(option, "expected a number from 1 to " + std::to_string(protocol::kMaxWorldSize) +
                     ", 'cpu', 'gpu' or 'auto'; got " + quoted(text));
}

std::string describe_mapping(std::span<const DeviceId> devices, int first_rank) {
  constexpr std::size_t kShortest = 3;  // the least number of ranks that are combined
  const auto rank_text = [first_rank](std::size_t at) {
    return std::to_string(static_cast<std::size_t>(first_rank) + at);
  };
  std::string text;
  for (std::size_t first = 0; first < devices.size();) {
    std::size_t end = first + 1;
    while (end < devices.size() && follows(devices[end], devices[end - 1])) ++end;
    if (end - first < kShortest) end = first + 1;
    text += text.empty() ? "" : ", ";
    if (end == first + 1) {
      text += "rank " + rank_text(first) + " on " + to_string(devices[first]);
    } else {
      text += "ranks " + rank_text(first) + " to " + rank_text(end - 1) + " on " + to_string(devices[first]) + " to " +
              to_string(devices[end - 1]);
    }
    first = end;
  }
  return text;
}

std::string describe_crowd(std::span<const DeviceId> devices, int cores) {
  constexpr std::int64_t kManyPerCore = 8;
  const auto workers = std::count_if(devices.begin(), devices.end(),
                                     [](const DeviceId& device) { return device.kind == DeviceKind::cpu; });
  if (workers <= kManyPerCore * cores) return {};
  return std::to_string(workers) + " workers share " + std::to_string(cores) + (cores == 1 ? " core" : " cores") +
         ", so calls are slow; -n cpu starts one worker per core";
}

ChosenDevices resolve_devices(std::string_view devices_text, std::string_view processes_text,
                              const DevicesSource& source) {
  if (!devices_text.empty()) {
    auto devices = parse_device_list(source.devices, part_of_host(source.devices, devices_text, own_host_name()));
    check_listed(devices.by_rank, source.devices, devices_text);
    return devices;
  }
  if (processes_text == "cpu") return {a_cpu_per_core(), {}};
  if (processes_text == "gpu") {
    check_cuda_is_built(source.processes, processes_text);
    const int gpus = visible_gpus();
    if (gpus == 0) refuse(source.processes, "got 'gpu', but no GPU is visible");
    return {first_devices(DeviceKind::cuda, gpus), {}};
  }
  if (!processes_text.empty() && processes_text != "auto") {
    return {devices_for_count(source.processes, processes_text), {}};
  }
  const int gpus = cuda_is_built() ? visible_gpus() : 0;
  return {gpus > 0 ? first_devices(DeviceKind::cuda, gpus) : a_cpu_per_core(), {}};
}

DevicesChoice choice_from_environment() {
  const auto text_of = [](const char* name) {
    const char* value = environment::get(name);
    return std::string(value == nullptr ? "" : value);
  };
  return {text_of(environment::kDevices), text_of(environment::kProcesses), text_of(environment::kContexts)};
}

std::string_view deciding_source(const DevicesChoice& choice, const DevicesSource& source) noexcept {
  if (!choice.devices.empty()) return source.devices;
  return choice.processes.empty() ? kContextsSource : source.processes;
}

ChosenDevices resolve_devices(const DevicesChoice& choice, const DevicesSource& source) {
  const bool is_contexts = choice.devices.empty() && choice.processes.empty() && !choice.contexts.empty();
  if (!is_contexts) return resolve_devices(choice.devices, choice.processes, source);
  auto devices = parse_contexts(kContextsSource, choice.contexts);
  check_listed(devices.by_rank, kContextsSource, choice.contexts);
  return devices;
}

void check_gpus(const std::vector<DeviceId>& devices, std::string_view option, int visible) {
  for (const auto& device : devices) {
    if (device.kind != DeviceKind::cuda || device.index < visible) continue;
    refuse(option, "got " + to_string(device) + ", but " + gpus_in_words(visible));
  }
}

int count_visible_gpus(const char* visible_devices, int physical) noexcept {
  if (visible_devices == nullptr || physical == 0) return physical;
  int count = 0;
  std::string_view rest = visible_devices;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    int index = 0;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
    const bool is_number = error == std::errc() && end == entry.data() + entry.size();
    const bool is_mig = entry.starts_with(kMigName);
    if (is_mig && count == 0) return 1;
    if (!entry.starts_with("GPU-") && !(is_number && index >= 0 && index < physical)) break;
    ++count;
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
  }
  return count;
}

}  // namespace syncrun::detail::master::devices
