#pragma once

// Binds workers to cores as the user has chosen with --bind-to. Without a choice, placement.hpp places them.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "master/devices/chosen_devices.hpp"
#include "master/devices/machine.hpp"
#include "master/devices/placement.hpp"

namespace syncrun::detail::master::devices {

enum class BindTo : std::uint8_t {
  automatic,  ///< Not chosen: near the worker's GPU, or in the NUMA node of its share.
  none,
  core,    ///< Its share of the cores. With as many workers as physical cores, this is one of them.
  socket,  ///< The sockets of its share.
  numa,    ///< The NUMA nodes of its share.
  device,  ///< All cores near its GPU. For a CPU worker, the same as `numa`.
};

inline constexpr std::string_view kBindToWords = "none, core, socket, numa or device";

/// Empty if the text is none of kBindToWords.
std::optional<BindTo> parse_bind_to(std::string_view text) noexcept;

/// The choice in SYNCRUN_BIND_TO. Throws Error (usage) if it is none of kBindToWords, or if it requires hwloc and there is
/// none.
BindTo bind_to_from_environment();

/// The cores for one of `workers` workers that share the cores `allowed`, which are in ascending order. `position` is its
/// place among them. Workers share whole physical cores if there are enough. If there are more workers than cores,
/// neighbours share one.
std::vector<int> cores_to_bind(BindTo to, int position, int workers, std::span<const int> allowed,
                               const Machine& machine);

/// The number of the NUMA node that has all these cores. Empty if there is none, or only one node.
std::optional<int> node_of_cores(std::span<const int> cores, const Machine& machine);

/// Places the workers of one node of the job.
class Binding {
 public:
  /// Reads the environment. Asks for the machine only if the user has made a choice.
  Binding();
  /// For tests.
  Binding(BindTo to, Machine machine, std::vector<int> allowed)
      : to_(to), machine_(std::move(machine)), allowed_(std::move(allowed)) {}

  /// As placement_of().
  WorkerPlacement place(std::span<const DeviceId> devices, int local_rank) const;
  /// The same with the cores near each GPU, by the GPU's index.
  WorkerPlacement place(std::span<const DeviceId> devices, int local_rank,
                        std::span<const std::vector<int>> near_gpus) const;

 private:
  BindTo to_ = BindTo::automatic;
  Machine machine_;
  std::vector<int> allowed_;
};

/// Whether --report-bindings was given.
bool reports_bindings();

/// The line of --report-bindings about a rank: "rank 0 on cpu0: cores 0-3, NUMA node 0". `cores` are those on which its
/// process may run, `asked` those that it was to be bound to (empty: any), and `usable` those of this process.
std::string describe_binding(std::string_view rank_and_device, std::span<const int> cores, std::span<const int> asked,
                             std::span<const int> usable, std::span<const NumaNode> nodes);

/// "0-3,8", the format in which the kernel lists CPUs.
std::string cpu_list(std::span<const int> cores);

}  // namespace syncrun::detail::master::devices
