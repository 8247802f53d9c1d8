#include "master/inspect/running_job.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "common/text/visible_text.hpp"

namespace syncrun::detail::master::inspect {

namespace {

std::string folder_of(pid_t pid) { return "/proc/" + std::to_string(pid); }

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The value of a variable in the contents of /proc/PID/environ.
std::string value_in(const std::string& environment, const std::string& name) {
  const std::string start = name + "=";
  for (std::size_t at = 0; at < environment.size();) {
    const std::size_t end = std::min(environment.find('\0', at), environment.size());
    if (environment.compare(at, start.size(), start) == 0)
      return environment.substr(at + start.size(), end - at - start.size());
    at = end + 1;
  }
  return {};
}

/// "./program --its options"
std::string command_of(pid_t pid) {
  std::string words = contents_of(folder_of(pid) + "/cmdline");
  while (!words.empty() && words.back() == '\0') words.pop_back();
  std::replace(words.begin(), words.end(), '\0', ' ');
  return text::visible(words);
}

pid_t parent_of(pid_t pid) {
  const std::string status = contents_of(folder_of(pid) + "/status");
  const auto at = status.find("\nPPid:\t");
  return at == std::string::npos ? 0 : std::atoi(status.c_str() + at + 7);
}

bool is_session_memory(const std::string& descriptor) {
  std::error_code gone;
  return std::filesystem::read_symlink(descriptor, gone).string().starts_with("/memfd:syncrun");
}

/// The processes of this user.
std::vector<pid_t> own_processes() {
  std::vector<pid_t> processes;
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> folder(::opendir("/proc"), close);
  while (folder) {
    const dirent* const entry = ::readdir(folder.get());
    if (entry == nullptr) break;
    const pid_t pid = std::atoi(entry->d_name);
    struct stat status {};
    if (pid > 0 && ::stat(folder_of(pid).c_str(), &status) == 0 && status.st_uid == ::geteuid())
      processes.push_back(pid);
  }
  return processes;
}

std::string list_of(const std::vector<RunningJob>& jobs) {
  std::string list;
  for (const RunningJob& job : jobs) {
    list += "\n  --pid " + std::to_string(job.supervisor != 0 ? job.supervisor : job.master) + ": " + job.command;
  }
  return list;
}

}  // namespace

std::string variable_of(pid_t pid, const std::string& name) {
  return value_in(contents_of(folder_of(pid) + "/environ"), name);
}

std::vector<RunningJob> find_jobs() {
  std::map<pid_t, RunningJob> jobs;
  for (const pid_t worker : own_processes()) {
    const std::string environment = contents_of(folder_of(worker) + "/environ");
    const auto number = [&](const char* name) {
      return environment::whole_number(value_in(environment, name).c_str()).value_or(0);
    };
    if (value_in(environment, environment::kWorkerRank).empty()) continue;
    RunningJob job;
    job.master = static_cast<pid_t>(number(environment::kMasterPid));
    job.segment_fd = static_cast<int>(number(environment::kSegmentFd));
    if (jobs.contains(job.master) ||
        !is_session_memory(folder_of(job.master) + "/fd/" + std::to_string(job.segment_fd)))
      continue;
    if (!variable_of(job.master, environment::kSupervisorFd).empty()) job.supervisor = parent_of(job.master);
    job.command = command_of(job.master);
    jobs.emplace(job.master, std::move(job));
  }
  std::vector<RunningJob> found;
  for (auto& [master, job] : jobs) found.push_back(std::move(job));
  return found;
}

RunningJob choose_job(std::optional<int> pid) {
  const std::vector<RunningJob> jobs = find_jobs();
  if (!pid && jobs.size() == 1) return jobs.front();
  const auto has_pid = [&](const RunningJob& job) { return pid == job.master || pid == job.supervisor; };
  const auto chosen = std::find_if(jobs.begin(), jobs.end(), has_pid);
  if (pid && chosen != jobs.end()) return *chosen;
  if (jobs.empty()) {
    text::throw_usage(
        "expected a running job of this user on this machine, and found none. A job is found while it has workers");
  }
  if (!pid) text::throw_usage("expected one running job; choose one of these with --pid:" + list_of(jobs));
  text::throw_usage("--pid " + std::to_string(*pid) +
                    ": expected the process of a syncrun or of its program; the running jobs are:" + list_of(jobs));
}

}  // namespace syncrun::detail::master::inspect
