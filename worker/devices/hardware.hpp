#pragma once

// The words in which a worker describes the hardware of its device. The master prints them at the start of a session.

#include <cstdint>
#include <istream>
#include <string>
#include <string_view>

namespace syncrun::detail::worker::devices {

/// "NVIDIA H100 PCIe, 85 GB". A GB is 10^9 bytes. In the header, because the library for CUDA devices uses it too.
inline std::string describe_gpu(std::string_view model, std::uint64_t memory_bytes) {
  constexpr std::uint64_t kGigabyte = 1'000'000'000;
  return std::string(model) + ", " + std::to_string((memory_bytes + kGigabyte / 2) / kGigabyte) + " GB";
}

/// The model of the first CPU in a text of the form of /proc/cpuinfo. "a CPU worker" if the text has none, as on many
/// machines that are not x86.
std::string describe_cpu(std::istream& cpuinfo);

}  // namespace syncrun::detail::worker::devices
