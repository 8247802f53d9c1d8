#include "demos/gpt/device_peak.hpp"

#include <array>

namespace gpt {
namespace {

struct Peak {
  std::string_view part_of_name;
  double operations;
};

/// The first one that fits applies. The data sheets of H100 and H200 state twice as much, for sparse matrices.
constexpr std::array kPeaks{
    Peak{"A100", 312e12},   Peak{"H100 PCIe", 756e12}, Peak{"H100 NVL", 835e12},
    Peak{"H100", 989.4e12}, Peak{"H200 NVL", 835e12},  Peak{"H200", 989.4e12},
};

}  // namespace

std::optional<double> bfloat16_peak(std::string_view name) {
  if (name.find(" MIG ") != std::string_view::npos) return std::nullopt;  // a part of a GPU
  for (const Peak& peak : kPeaks) {
    const auto at = name.find(peak.part_of_name);
    if (at == std::string_view::npos || (at != 0 && name[at - 1] != ' ')) continue;
    const std::string_view rest = name.substr(at + peak.part_of_name.size());
    if (rest.empty() || rest.front() == ' ' || rest.front() == '-') return peak.operations;
  }
  return std::nullopt;
}

}  // namespace gpt
