#include "master/process/debugger.hpp"

#include <unistd.h>

#include <fstream>
#include <string>

#include "master/process/nursery.hpp"

namespace syncrun::detail::master::process {

int tracer_of(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("TracerPid:", 0) == 0) return std::stoi(line.substr(10));
  }
  return 0;
}

bool traces_descendants(int pid) {
  std::ifstream children("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
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
