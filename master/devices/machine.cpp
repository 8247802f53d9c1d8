#include "master/devices/machine.hpp"

#include <algorithm>
#include <memory>

#include "common/code/optional_library.hpp"
#include "master/devices/placement.hpp"

#if defined(SYNCRUN_HAVE_HWLOC)
#include <hwloc.h>
#endif

namespace syncrun::detail::master::devices {

namespace {

#if defined(SYNCRUN_HAVE_HWLOC)

/// The functions of hwloc that are used here. The library is loaded at the first use, so that no other start pays for it.
struct Hwloc {
  Hwloc() : library(kName) {
    library.find(init, "hwloc_topology_init");
    library.find(load, "hwloc_topology_load");
    library.find(destroy, "hwloc_topology_destroy");
    library.find(version, "hwloc_get_api_version");
    library.find(depth_of, "hwloc_get_type_depth");
    library.find(count_at, "hwloc_get_nbobjs_by_depth");
    library.find(object_at, "hwloc_get_obj_by_depth");
    library.find(next, "hwloc_bitmap_next");
  }
  bool is_usable() const { return library.has_all() && version() >> 16U == HWLOC_API_VERSION >> 16U; }

  static constexpr const char* kName = "libhwloc.so.15";
  code::OptionalLibrary library;
  decltype(hwloc_topology_init)* init = nullptr;
  decltype(hwloc_topology_load)* load = nullptr;
  decltype(hwloc_topology_destroy)* destroy = nullptr;
  decltype(hwloc_get_api_version)* version = nullptr;
  decltype(hwloc_get_type_depth)* depth_of = nullptr;
  decltype(hwloc_get_nbobjs_by_depth)* count_at = nullptr;
  decltype(hwloc_get_obj_by_depth)* object_at = nullptr;
  decltype(hwloc_bitmap_next)* next = nullptr;
};

std::vector<int> cores_of(const Hwloc& hwloc, hwloc_const_cpuset_t set) {
  std::vector<int> cores;
  for (int core = hwloc.next(set, -1); core >= 0; core = hwloc.next(set, core)) cores.push_back(core);
  return cores;
}

/// Calls `take` with the number and the cores of each object of a type that has cores.
template <class Take>
void for_each(const Hwloc& hwloc, hwloc_topology_t topology, hwloc_obj_type_t type, Take take) {
  const int depth = hwloc.depth_of(topology, type);
  if (depth == HWLOC_TYPE_DEPTH_UNKNOWN || depth == HWLOC_TYPE_DEPTH_MULTIPLE) return;
  const unsigned count = hwloc.count_at(topology, depth);
  for (unsigned i = 0; i < count; ++i) {
    const hwloc_obj_t object = hwloc.object_at(topology, depth, i);
    if (object == nullptr || object->cpuset == nullptr) continue;
    if (auto cores = cores_of(hwloc, object->cpuset); !cores.empty())
      take(static_cast<int>(object->os_index), std::move(cores));
  }
}

#endif

}  // namespace

std::optional<Machine> machine_by_hwloc(std::string& why) {
#if defined(SYNCRUN_HAVE_HWLOC)
  const Hwloc hwloc;
  if (!hwloc.is_usable()) {
    why = std::string("the library hwloc (") + Hwloc::kName + ") was not found; install it (libhwloc15)";
    return std::nullopt;
  }
  hwloc_topology_t made = nullptr;
  if (hwloc.init(&made) != 0) {
    why = "hwloc cannot begin to describe this machine";
    return std::nullopt;
  }
  const std::unique_ptr<hwloc_topology, decltype(hwloc.destroy)> topology(made, hwloc.destroy);
  if (hwloc.load(made) != 0) {
    why = "hwloc cannot describe this machine; if HWLOC_XMLFILE or HWLOC_SYNTHETIC is set, correct it";
    return std::nullopt;
  }
  Machine machine;
  for_each(hwloc, made, HWLOC_OBJ_CORE,
           [&](int, std::vector<int> cores) { machine.physical_cores.push_back(std::move(cores)); });
  if (machine.physical_cores.empty()) {  // a virtual machine may hide them
    for_each(hwloc, made, HWLOC_OBJ_PU,
             [&](int, std::vector<int> cores) { machine.physical_cores.push_back(std::move(cores)); });
  }
  for_each(hwloc, made, HWLOC_OBJ_PACKAGE,
           [&](int, std::vector<int> cores) { machine.sockets.push_back(std::move(cores)); });
  for_each(hwloc, made, HWLOC_OBJ_NUMANODE, [&](int number, std::vector<int> cores) {
    // Cores may have a second node, of another kind of memory. The first one is the usual memory.
    const bool is_known = std::ranges::any_of(machine.nodes, [&](const NumaNode& node) { return node.cores == cores; });
    if (!is_known) machine.nodes.push_back({number, std::move(cores)});
  });
  return machine;
#else
  why = "Syncrun was built without hwloc; install libhwloc-dev and build it again";
  return std::nullopt;
#endif
}

Machine machine_by_files(const std::string& folder) {
  Machine machine{.nodes = numa_nodes_in(folder)};
  for (const NumaNode& node : machine.nodes) {
    for (const int core : node.cores) machine.physical_cores.push_back({core});
  }
  return machine;
}

}  // namespace syncrun::detail::master::devices
