#include "worker/devices/hardware.hpp"

namespace syncrun::detail::worker::devices {

std::string describe_cpu(std::istream& cpuinfo) {
  constexpr std::string_view kKey = "model name";
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with(kKey)) continue;
    const auto colon = line.find(':');
    const auto begin = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "a CPU worker";
}

}  // namespace syncrun::detail::worker::devices
