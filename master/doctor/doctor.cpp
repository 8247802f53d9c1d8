#include "master/doctor/doctor.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/os/environment.hpp"
#include "common/os/memory_limit.hpp"
#include "common/os/wait.hpp"
#include "common/text/errors.hpp"
#include "common/text/visible_text.hpp"
#include "master/devices/devices.hpp"
#include "master/devices/host_part.hpp"
#include "master/doctor/checks.hpp"
#include "master/doctor/figures.hpp"
#include "master/doctor/report.hpp"
#include "master/nodes/engine.hpp"

namespace syncrun::detail::master::doctor {

namespace {

constexpr std::int64_t kLargeBytes = 100 << 20;
/// More CPU workers would measure nothing else, and take longer to start.
constexpr int kMostCpuWorkers = 8;
/// A CPU worker copies 64 MiB, and takes some for itself. Otherwise the probe would end what the kernel kills first.
constexpr std::int64_t kBytesOfCpuWorker = 192 << 20;

void add(Findings& findings, Findings more) {
  findings.insert(findings.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::filesystem::path own_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

/// The first of these places that exists, or empty.
std::string first_existing(std::span<const std::filesystem::path> places) {
  std::error_code error;
  for (const auto& place : places) {
    if (std::filesystem::exists(place, error)) return place.lexically_normal().string();
  }
  return {};
}

/// Where CMake installs the probe, and where it builds it.
std::string find_probe() {
  const std::array places{own_folder() / ".." / SYNCRUN_PROBE_FOLDER / "syncrun-probe", own_folder() / "syncrun-probe"};
  return first_existing(places);
}

std::string folder_of_libraries() {
  const std::array places{own_folder() / ".." / SYNCRUN_LIBRARY_FOLDER / "libsyncrun.so." SYNCRUN_SOVERSION,
                          own_folder() / ".." / "lib" / "libsyncrun.so." SYNCRUN_SOVERSION};
  return std::filesystem::path(first_existing(places)).parent_path().string();
}

/// How the probe is started: as a job of `syncrun` on the devices of this node, or on those of all nodes.
std::vector<std::string> probe_command(const std::string& probe) {
  const bool uses_gpus = devices::cuda_is_built() && devices::visible_gpus() != 0;
  const std::int64_t available = os::available_memory_bytes();
  const int most = std::min(kMostCpuWorkers, os::usable_cores());
  const auto workers = static_cast<int>(std::clamp<std::int64_t>(available / kBytesOfCpuWorker, 1, most));
  const std::int64_t needed = 3 * kLargeBytes * (uses_gpus ? 1 : workers) + kLargeBytes;
  const bool has_memory = available >= needed;
  return {"/proc/self/exe",
          "-n",
          uses_gpus ? "gpu" : std::to_string(workers),
          "--quiet",
          "--timeout",
          "60",
          "--start-timeout",
          "60",
          "--",
          probe,
          std::to_string(os::Clock::now().time_since_epoch().count()),
          std::to_string(has_memory ? kLargeBytes : 0)};
}

/// Clears the options for the user's own jobs: files to write, wrappers, chosen ranks. XDG_CONFIG_HOME names a folder
/// without a configuration file, which could set them again.
std::vector<std::pair<std::string, std::string>> probe_variables() {
  std::vector<std::pair<std::string, std::string>> variables{{"XDG_CONFIG_HOME", "/dev/null"}};
  for (const char* const name : environment::kOfOneJob) variables.emplace_back(name, "");
  return variables;
}

/// Runs the probe, and adds what it says to the sections.
void measure(std::vector<Section>& sections, const System& system, bool is_first_node) {
  constexpr std::chrono::seconds kLongest{120};
  Section& versions = sections[1];
  Section measured{"measured", {}};
  const std::string probe = find_probe();
  if (probe.empty()) {
    measured.findings.push_back({Level::warning, "syncrun-probe", "was not found, so nothing was measured",
                                 "build or install the target syncrun_probe"});
  } else {
    const ProgramEnd end = run_program(probe_command(probe), kLongest, probe_variables());
    const Figures figures = read_figures(end.output);
    add(measured.findings, check_probe_end(end));
    if (is_first_node) {
      add(measured.findings, judge_figures(figures, os::usable_cores(), system));
      Findings libraries = check_probe_libraries(figures);
      add(libraries, std::move(versions.findings));
      versions.findings = std::move(libraries);
    }
  }
  sections.push_back(std::move(measured));
}

std::vector<Section> examine(const System& system, bool is_first_node) {
  std::vector<Section> sections{{"devices", {}}, {"versions", {}}, {"limits", {}}, {"processes", {}}};
  for (const auto check : {check_cpus, check_gpus, check_gpu_links}) add(sections[0].findings, check(system));
  const BuiltWith built = built_with();
  add(sections[1].findings, check_cuda_versions(system, built, loaded_version));
  add(sections[1].findings, check_plugins(system, folder_of_libraries()));
  add(sections[1].findings, check_mpi(system));
  add(sections[1].findings, check_hwloc());
  for (const auto check : {check_memory, check_cpu_quota, check_process_limits, check_shared_folder, check_debugging})
    add(sections[2].findings, check(system));
  add(sections[3].findings, check_leftovers(system));
  measure(sections, system, is_first_node);
  return sections;
}

}  // namespace

int run_doctor(std::span<char* const> words) {
  const bool is_json = !words.empty() && std::string_view(words[0]) == "--json";
  if (words.size() > (is_json ? 1 : 0)) {
    text::throw_usage(std::string("syncrun doctor: expected ") + kArguments + ", got '" + words[is_json ? 1 : 0] + "'");
  }
  const System system = this_system();
  const nodes::Engine engine = nodes::find_engine(system.variable);
  const std::string node = engine.has_others() ? devices::own_host_name() : std::string();
  const auto sections = examine(system, engine.task == 0);
  const std::string report = is_json ? as_json(sections, node) : as_text(sections, node);
  const bool is_written = std::fputs(report.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return is_written && count_of(sections, Level::wrong) == 0 ? 0 : 1;
}

}  // namespace syncrun::detail::master::doctor
