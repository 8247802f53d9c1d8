#include "master/doctor/system.hpp"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/os/core_set.hpp"
#include "common/os/environment.hpp"
#include "master/doctor/program_run.hpp"
#include "master/process/native_stack.hpp"

namespace syncrun::detail::master::doctor {

namespace {

Limits::Limit limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

std::optional<Space> space_in(const std::string& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) return std::nullopt;
  return Space{status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize};
}

std::string output_of(const std::vector<std::string>& command) {
  constexpr std::chrono::seconds kLongest{2};
  const ProgramEnd end = run_program(command, kLongest);
  return end.exit_code == 0 ? end.output : std::string();
}

}  // namespace

std::string System::text(const std::string& path) const {
  std::ifstream file(root + path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::optional<std::int64_t> System::number(const std::string& path) const {
  return environment::whole_number(text(path).c_str());
}

std::string System::target(const std::string& link) const {
  std::error_code error;
  return std::filesystem::read_symlink(root + link, error).string();
}

std::vector<std::string> System::names(const std::string& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root + folder, error))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

System this_system() {
  System system{.user = ::getuid(),
                .limits = {.open_files = limit_of(RLIMIT_NOFILE),
                           .processes = limit_of(RLIMIT_NPROC),
                           .locked_bytes = limit_of(RLIMIT_MEMLOCK),
                           .core_bytes = limit_of(RLIMIT_CORE),
                           .address_space_bytes = limit_of(RLIMIT_AS),
                           .file_bytes = limit_of(RLIMIT_FSIZE)},
                .gpus = ask_driver_for_gpus(),
                .space = space_in,
                .run = output_of,
                .variable = [](const char* name) { return static_cast<const char*>(::getenv(name)); }};
  const process::StackProblem stacks = process::why_no_stacks();
  system.stacks = {stacks.why, stacks.advice};
  if (const auto allowed = os::CoreSet::allowed()) system.cores = allowed->cores();
  return system;
}

}  // namespace syncrun::detail::master::doctor
