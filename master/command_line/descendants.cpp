#include "master/command_line/descendants.hpp"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "common/text/errors.hpp"

namespace syncrun::detail::master::command_line {

namespace {

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/// The parent of a process according to proc(5), or -1 if the process is gone.
pid_t parent_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string line;
  if (!std::getline(file, line)) return -1;
  const auto after_name = line.rfind(')');  // the name itself may contain any characters
  if (after_name == std::string::npos) return -1;
  std::istringstream fields(line.substr(after_name + 1));
  char state = '\0';
  pid_t parent = -1;
  fields >> state >> parent;
  return parent;
}

/// Searches /proc. This is slow if there are thousands of processes, but it is needed only if a job has left some
/// behind. (Not every kernel has /proc/self/task/*/children, and its contents are not reliable while children end.)
std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> children;
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> processes(::opendir("/proc"), close);
  const pid_t self = ::getpid();
  while (processes) {
    const dirent* entry = ::readdir(processes.get());
    if (entry == nullptr) break;
    const pid_t pid = std::atoi(entry->d_name);
    if (pid > 0 && parent_of(entry->d_name) == self) children.push_back(pid);
  }
  return children;
}

}  // namespace

Descendants::Descendants() {
  text::check_system(::prctl(PR_SET_CHILD_SUBREAPER, 1), "prctl(PR_SET_CHILD_SUBREAPER)");
  if (!has_children()) return;
  const auto children = children_of_this_process();
  foreign_ = {children.begin(), children.end()};
}

void Descendants::reap(pid_t keep) const {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (info.si_pid == keep) return;  // the others are collected after it
    collect(info.si_pid);
  }
}

bool Descendants::are_left() const {
  if (!has_children()) return false;
  return foreign_.empty() || !list().empty();
}

std::vector<pid_t> Descendants::list() const {
  auto children = children_of_this_process();
  std::erase_if(children, [this](pid_t pid) { return foreign_.contains(pid); });
  return children;
}

std::optional<int> collect(pid_t pid) {
  int status = 0;
  if (::waitpid(pid, &status, WNOHANG) != pid) return std::nullopt;
  return status;
}

}  // namespace syncrun::detail::master::command_line
