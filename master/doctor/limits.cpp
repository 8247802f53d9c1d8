// What the system grants to jobs of this user.

#include <algorithm>
#include <limits>

#include "common/os/control_group.hpp"
#include "common/text/numbers.hpp"
#include "master/doctor/checks.hpp"

namespace syncrun::detail::master::doctor {

namespace {

constexpr std::uint64_t kMebibyte = 1ULL << 20U;
constexpr std::uint64_t kGibibyte = 1ULL << 30U;

os::GroupPlaces places_of(const System& system) {
  return {system.root + "/proc/self/cgroup", system.root + "/sys/fs/cgroup"};
}

/// The value of a line "name: value kB" or "name value".
std::int64_t field_in(const std::string& text, const std::string& name) {
  const auto line = text.starts_with(name) ? 0 : text.find('\n' + name);
  if (line == std::string::npos) return 0;
  const auto begin = text.find_first_of("0123456789", text.find_first_of(" :", line + 1));
  std::int64_t value = 0;
  for (auto at = begin; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at)
    value = 10 * value + text[at] - '0';
  return value;
}

struct GroupMemory {
  std::uint64_t limit;
  std::uint64_t left;
};

/// The control group that leaves the least memory.
std::optional<GroupMemory> tightest_group(System system) {
  std::optional<GroupMemory> tightest;
  const os::GroupPlaces places = places_of(system);
  system.root.clear();  // the folders of the groups have it already
  for (const auto& [folder, is_v2] : os::control_groups("memory", places)) {
    const auto limit = system.number(folder + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto used = system.number(folder + (is_v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;  // version 1 says a number that is as good as none
    if (!limit || !used || *limit > kNoLimit) continue;
    const std::int64_t cached = field_in(system.text(folder + "/memory.stat"), "inactive_file");
    const auto left = static_cast<std::uint64_t>(std::max<std::int64_t>(0, *limit - *used + cached));
    if (!tightest || left < tightest->left) tightest = {static_cast<std::uint64_t>(*limit), left};
  }
  return tightest;
}

Finding judge_memory(const std::string& what, const std::string& value, std::uint64_t left, const std::string& advice) {
  constexpr std::uint64_t kTooLittle = 128 * kMebibyte;
  if (left < kTooLittle) return {Level::wrong, what, value, advice};
  if (left < kGibibyte) return {Level::warning, what, value, advice};
  return {Level::ok, what, value};
}

std::string text_of(const Limits::Limit& limit) { return limit ? std::to_string(*limit) : "unlimited"; }

Finding check_open_files(const System& system) {
  // A worker has a socket, two pipes and a pidfd in the master. Two workers start with 20 descriptors, and eight with 48.
  const std::uint64_t least = 16 + 4 * system.cores.size();
  constexpr std::uint64_t kComfortable = 1024;
  const auto& limit = system.limits.open_files;
  Finding finding{Level::ok, "open files", text_of(limit)};
  if (!limit || *limit >= std::max(least, kComfortable)) return finding;
  finding.level = *limit < least ? Level::wrong : Level::warning;
  finding.advice = "a session of " + std::to_string(system.cores.size()) + " workers requires " +
                   std::to_string(least) +
                   ", and programs open more: ulimit -n 4096, or raise nofile in /etc/security/limits.conf";
  return finding;
}

bool has_infiniband(const System& system) { return !system.names("/sys/class/infiniband").empty(); }

Finding check_locked_memory(const System& system) {
  const auto& limit = system.limits.locked_bytes;
  Finding finding{Level::ok, "locked memory", limit ? in_bytes(*limit) : "unlimited"};
  if (!limit || !has_infiniband(system)) return finding;
  finding.level = Level::warning;
  finding.advice =
      "MPI and NCCL register memory with the InfiniBand card: ulimit -l unlimited, or raise memlock in "
      "/etc/security/limits.conf";
  return finding;
}

}  // namespace

Findings check_memory(const System& system) {
  const std::string meminfo = system.text("/proc/meminfo");
  const auto total = static_cast<std::uint64_t>(field_in(meminfo, "MemTotal:")) * 1024;
  const auto available = static_cast<std::uint64_t>(field_in(meminfo, "MemAvailable:")) * 1024;
  Findings findings;
  if (total != 0) {
    findings.push_back(judge_memory("memory of the machine", in_bytes(available) + " of " + in_bytes(total) + " free",
                                    available, "end other programs, or take a machine with more memory"));
  }
  if (const auto group = tightest_group(system)) {
    findings.push_back(judge_memory("memory of the control group",
                                    in_bytes(group->left) + " of " + in_bytes(group->limit) + " free", group->left,
                                    "the kernel kills processes that need more: raise the limit (docker run --memory, "
                                    "srun --mem, MemoryMax of a service)"));
  }
  const std::string advice = "all shared memory of a job must fit into it: ";
  if (system.limits.address_space_bytes) {
    findings.push_back({Level::warning, "address space", in_bytes(*system.limits.address_space_bytes),
                        advice + "ulimit -v unlimited"});
  }
  if (system.limits.file_bytes) {
    findings.push_back(
        {Level::warning, "size of files", in_bytes(*system.limits.file_bytes), advice + "ulimit -f unlimited"});
  }
  return findings;
}

Findings check_cpu_quota(const System& system) {
  const int granted = os::cores_granted(places_of(system));
  const auto bound = static_cast<int>(system.cores.size());
  if (granted == std::numeric_limits<int>::max()) return {{Level::ok, "CPU quota", "none"}};
  Finding finding{Level::ok, "CPU quota", std::to_string(granted) + " cores' worth of time"};
  if (granted >= bound) return {finding};
  finding.level = Level::warning;
  finding.value += ", on " + std::to_string(bound) + " cores";
  finding.advice = "workers pause when the quota is used up: start at most " + std::to_string(granted) +
                   " of them, or raise the quota (docker run --cpus, CPUQuota of a service)";
  return {finding};
}

Findings check_process_limits(const System& system) {
  Findings findings{check_open_files(system), check_locked_memory(system)};
  constexpr std::uint64_t kFewProcesses = 1024;
  const auto& processes = system.limits.processes;
  Finding finding{Level::ok, "processes", text_of(processes)};
  if (system.user != 0 && processes && *processes < kFewProcesses) {
    finding.level = Level::warning;
    finding.advice =
        "it counts all threads of this user, and a BLAS starts one per core in each worker: ulimit -u 4096";
  }
  findings.push_back(std::move(finding));
  return findings;
}

Findings check_shared_folder(const System& system) {
  const auto space = system.space("/dev/shm");
  const bool has_gpus = !system.gpus.devices.empty();
  const char* const advice = "NCCL and MPI keep buffers there: mount a tmpfs at /dev/shm (docker run --shm-size=1g)";
  if (!space) return {{has_gpus ? Level::wrong : Level::warning, "/dev/shm", "missing", advice}};
  Finding finding{Level::ok, "/dev/shm", in_bytes(space->free_bytes) + " of " + in_bytes(space->bytes) + " free"};
  // Docker's default of 64 MiB is too small for NCCL.
  if (space->free_bytes >= (has_gpus ? kGibibyte : 256 * kMebibyte)) return {finding};
  finding.level = has_gpus && space->free_bytes < 64 * kMebibyte ? Level::wrong : Level::warning;
  finding.advice = advice;
  return {finding};
}

Findings check_debugging(const System& system) {
  Findings findings;
  const auto scope = system.number("/proc/sys/kernel/yama/ptrace_scope").value_or(0);
  Finding ptrace{Level::ok, "ptrace", scope == 0 ? "allowed" : scope == 1 ? "allowed for children" : "forbidden"};
  if (scope == 3 || (scope == 2 && system.user != 0)) {
    ptrace.level = Level::warning;
    ptrace.advice =
        "reports of deadlines have no native stacks, and gdb cannot attach: set kernel.yama.ptrace_scope to 1";
    if (scope == 3) ptrace.advice += " in /etc/sysctl.d and restart the machine";
  }
  findings.push_back(std::move(ptrace));
  if (!system.stacks.why.empty())
    findings.push_back({Level::note, "native stacks", "none: " + system.stacks.why, system.stacks.advice});
  const std::string pattern = system.text("/proc/sys/kernel/core_pattern");
  const bool has_cores = !system.limits.core_bytes || *system.limits.core_bytes != 0;
  if (pattern.starts_with('|') || pattern.starts_with('@')) {
    findings.push_back({Level::note, "core files", "go to " + pattern.substr(1, pattern.find(' ') - 1),
                        "coredumpctl, or the page of that program, says where it puts them"});
  } else if (has_cores) {
    findings.push_back({Level::ok, "core files", pattern});
  } else {
    findings.push_back(
        {Level::note, "core files", "off", "ulimit -c unlimited, if you want one when a worker crashes"});
  }
  if (system.number("/proc/sys/user/max_user_namespaces").value_or(1) == 0 ||
      system.number("/proc/sys/kernel/unprivileged_userns_clone").value_or(1) == 0) {
    findings.push_back({Level::note, "user namespaces", "off",
                        "containers without root (Apptainer, Podman) need them: set user.max_user_namespaces above 0"});
  } else {
    findings.push_back({Level::ok, "user namespaces", "on"});
  }
  return findings;
}

}  // namespace syncrun::detail::master::doctor
