#include "launcher/debugger.hpp"

#include <unistd.h>

#include <fstream>
#include <string>

#include "launcher/nursery.hpp"

namespace syncrun::detail {

namespace {
bool is_traced(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("TracerPid:", 0) == 0) return std::stoi(line.substr(10)) != 0;
  }
  return false;
}
}  // namespace

bool is_debugged(const Nursery& nursery) {
  if (is_traced(::getpid())) return true;
  for (int child = 0; child < nursery.size(); ++child) {
    if (is_traced(nursery.pid(child))) return true;
  }
  return false;
}

}  // namespace syncrun::detail
