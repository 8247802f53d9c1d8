// Texts in which users choose and name devices: a list, a number of workers, Theano's contexts, CUDA_VISIBLE_DEVICES.
// Also the kernel's lists of cores.

#include "master/devices/devices.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "common/protocol/control_block.hpp"
#include "master/devices/placement.hpp"
#include "tests/fuzz/fuzzing.hpp"

namespace {

using namespace syncrun::detail;
/// The list in the form of --devices ("=", ",") or in Theano's form ("->", ";") that means `chosen`. Devices without a
/// name are in it as in --devices.
std::string list_of(const master::devices::ChosenDevices& chosen, const std::string& arrow, char separator) {
  std::string text;
  const auto add = [&](const std::string& entry) { (text.empty() ? text : text += separator) += entry; };
  std::size_t next = 0;  // the first rank that is not in the list yet
  const auto add_unnamed_before = [&](std::size_t rank) {
    while (next < rank) add(master::devices::to_string(chosen.by_rank[next++]));
  };
  for (const auto& name : chosen.names) {
    const auto rank = static_cast<std::size_t>(name.rank);
    add_unnamed_before(rank);
    next = std::max(next, rank + 1);
    add(name.name + arrow + master::devices::to_string(chosen.by_rank[rank]));
  }
  add_unnamed_before(chosen.by_rank.size());
  return text;
}

void check_names(const master::devices::ChosenDevices& chosen) {
  std::set<std::string> names;
  for (const auto& [name, rank] : chosen.names) {
    fuzzing::expect(rank >= 0 && static_cast<std::size_t>(rank) < chosen.by_rank.size(), "a name of a device");
    fuzzing::expect(!name.empty() && !master::devices::parse_device(name), "a name that is no device of the machine");
    fuzzing::expect(name.find_first_of(";,= \n") == std::string::npos, "a name without separators");
    fuzzing::expect(names.insert(name).second, "each name once");
  }
}

/// If a choice is accepted, the lists written from the result have the same meaning.
void resolve(const master::devices::DevicesChoice& choice) {
  master::devices::ChosenDevices chosen;
  const bool is_good = fuzzing::accepts(syncrun::ErrorKind::usage, [&] {
    chosen = master::devices::resolve_devices(choice, master::devices::kFromProgram);
  });
  if (!is_good) return;
  const auto& devices = chosen.by_rank;
  fuzzing::expect(!devices.empty() && devices.size() <= static_cast<std::size_t>(protocol::kMaxWorldSize),
                  "1 to 1024 devices");
  fuzzing::expect(std::all_of(devices.begin(), devices.end(), [](const auto& d) { return d.index >= 0; }), "indices");
  fuzzing::expect(!master::devices::describe_mapping(devices).empty(), "a mapping has words");
  check_names(chosen);
  fuzzing::expect(
      master::devices::resolve_devices({.devices = list_of(chosen, "=", ',')}, master::devices::kFromProgram) == chosen,
      "the list says the same");
  std::set<int> named;
  for (const auto& name : chosen.names) named.insert(name.rank);
  if (named.size() != devices.size()) return;  // Theano's form needs names
  fuzzing::expect(master::devices::resolve_devices({.contexts = list_of(chosen, "->", ';')},
                                                   master::devices::kFromProgram) == chosen,
                  "Theano's form says the same");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const std::string text(fuzzing::text_of(data, size));
  resolve({.devices = text});
  resolve({.processes = text});
  resolve({.contexts = text});
  for (const int physical : {0, 1, 8}) {
    const int count = master::devices::count_visible_gpus(text.c_str(), physical);
    fuzzing::expect(count >= 0 && static_cast<std::size_t>(count) <= size, "as many GPUs as there are entries");
  }
  fuzzing::expect(master::devices::parse_cpu_list(text).size() <= 65536, "a list of cores that ends");
  return 0;
}
