#include "master/process/debugger.hpp"

#include <unistd.h>

#include <sstream>
#include <string>

#include "common/os/kernel_file.hpp"
#include "master/process/nursery.hpp"

namespace syncrun::detail::master::process {

int tracer_of(int pid) {
  std::istringstream status(os::kernel_file("/proc/" + std::to_string(pid) + "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("TracerPid:", 0) == 0) return std::stoi(line.substr(10));
  }
  return 0;
}

bool traces_descendants(int pid) {
  const std::string id = std::to_string(pid);
  std::istringstream children(os::kernel_file("/proc/" + id + "/task/" + id + "/children"));
  for (int child = 0; children >> child;) {
    if (tracer_of(child) != 0 || traces_descendants(child)) return true;
  }
  return false;
}

bool is_debugged(const Nursery& nursery) {
  if (tracer_of(::getpid()) != 0) return true;
  for (int child = 0; child < nursery.size(); ++child) {
    if (tracer_of(nursery.pid(child)) != 0) return true;
  }
  return false;
}

}  // namespace syncrun::detail::master::process
