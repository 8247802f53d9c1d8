#include "launcher/process/debugger.hpp"

#include <unistd.h>

#include <fstream>
#include <string>

#include "launcher/process/nursery.hpp"

namespace syncrun::detail {

int tracer_of(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("TracerPid:", 0) == 0) return std::stoi(line.substr(10));
  }
  return 0;
}

bool is_debugged(const Nursery& nursery) {
  if (tracer_of(::getpid()) != 0) return true;
  for (int child = 0; child < nursery.size(); ++child) {
    if (tracer_of(nursery.pid(child)) != 0) return true;
  }
  return false;
}

}  // namespace syncrun::detail
