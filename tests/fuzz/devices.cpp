// Texts in which users name devices: a list, a number of workers, CUDA_VISIBLE_DEVICES. Also the kernel's lists of
// cores.

#include "launcher/devices/devices.hpp"

#include <algorithm>

#include "common/protocol/control_block.hpp"
#include "launcher/devices/placement.hpp"
#include "tests/fuzz/fuzzing.hpp"

namespace {

using namespace syncrun::detail;
using Devices = std::vector<DeviceId>;

std::string list_of(const Devices& devices) {
  std::string text;
  for (const auto& device : devices) {
    if (!text.empty()) text += ',';
    text += to_string(device);
  }
  return text;
}

/// If a text is accepted, the list written from the result has the same meaning.
void resolve(std::string_view devices_text, std::string_view processes_text) {
  Devices devices;
  const bool is_good = fuzzing::accepts(syncrun::ErrorKind::usage,
                                        [&] { devices = resolve_devices(devices_text, processes_text, kFromProgram); });
  if (!is_good) return;
  fuzzing::expect(!devices.empty() && devices.size() <= static_cast<std::size_t>(kMaxWorldSize), "1 to 1024 devices");
  fuzzing::expect(std::all_of(devices.begin(), devices.end(), [](const auto& d) { return d.index >= 0; }), "indices");
  fuzzing::expect(resolve_devices(list_of(devices), "", kFromProgram) == devices, "the list says the same");
  fuzzing::expect(!describe_mapping(devices).empty(), "a mapping has words");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const std::string text(fuzzing::text_of(data, size));
  resolve(text, "");
  resolve("", text);
  for (const int physical : {0, 1, 8}) {
    const int count = count_visible_gpus(text.c_str(), physical);
    fuzzing::expect(count >= 0 && static_cast<std::size_t>(count) <= size, "as many GPUs as there are entries");
  }
  fuzzing::expect(parse_cpu_list(text).size() <= 65536, "a list of cores that ends");
  return 0;
}
