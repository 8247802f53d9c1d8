#pragma once

// The settings of a session. A value from the environment, set by `syncrun` or by the user, comes before an option of
// the program, and an option comes before the default. So the person who starts the program decides.

#include <optional>
#include <string>
#include <vector>

#include <syncrun/options.hpp>  // in brackets, because master/command_line/ has an options.hpp too
#include "common/os/wait.hpp"
#include "common/protocol/node_place.hpp"
#include "master/devices/devices.hpp"
#include "master/process/output_settings.hpp"
#include "master/settings/metrics_target.hpp"
#include "master/wrappers/wrappers.hpp"

namespace syncrun::detail::master::settings {

struct Settings {
  std::vector<devices::DeviceId> devices;         // by rank
  std::vector<devices::DeviceName> device_names;  // those that the user has given, in the user's order
  os::Milliseconds call_timeout{};                // 0: no limit
  os::Milliseconds start_timeout{};               // 0: no limit
  os::Milliseconds grace{};
  OnWorkerLost on_worker_lost = OnWorkerLost::end;
  int max_respawns = 0;
  std::uint64_t seed = 0;
  std::string log_dir;  // empty: no log files
  process::OutputSettings output;
  std::string master_host;  // how workers reach the machine of the program, and a port that was free there at the start
  int master_port = 0;
  std::string profile;  // empty: no profile; "-": standard error
  std::string trace;    // empty: no trace
  std::optional<MetricsTarget> metrics;
  LogLevel log_level = LogLevel::warning;
  wrappers::Wrappers wrappers;
  std::vector<protocol::NodePlace> nodes;  // all nodes of the session, at least this one
  std::vector<std::string> node_names;     // by node
  int tree_from = 16;                      // from as many nodes on, messages go along a tree of nodes
  bool has_node_links = true;              // the ranks that lead their nodes may connect to each other
  std::string link_interface;              // the only network interface for that; empty: any
  os::Milliseconds node_silence{3000};     // after which a node is lost
  std::string overruled;                   // says which choice of devices by the program was overruled; empty: none
  std::string too_few_cores;               // says which nodes have fewer cores than workers; empty: none
};

/// The name of a rank's device: "cpu0". If there are several nodes, the node comes first: "n1:cpu0".
std::string device_name(const Settings& settings, int rank);
/// The names of all ranks' devices, by rank.
std::vector<std::string> device_names(const Settings& settings);

/// Throws Error (usage) with the name of the option or variable, what was expected and what was got.
Settings resolve_settings(const SessionOptions& options);

/// Creates the folder for the output of the workers, if the settings name one. Throws Error (usage) if it cannot be
/// used, and Error (system).
void make_log_folder(const Settings& settings);

/// Cuts a timeout to the longest limit that can be counted. Throws Error (usage) with the name of `option` if it is
/// negative.
os::Milliseconds check_timeout(os::Milliseconds timeout, const std::string& option);
/// The deadline of a wait, and the deadline of a start. Here the program's option comes first, then the environment,
/// then the default.
os::Milliseconds resolve_timeout(const std::optional<os::Milliseconds>& chosen, const std::string& option);
os::Milliseconds resolve_start_timeout(const std::optional<os::Milliseconds>& chosen, const std::string& option);
/// How long the silence of a node may last. Empty if the variable is not set. Throws Error (usage) if it has a bad value.
std::optional<os::Milliseconds> node_timeout_from_environment();

}  // namespace syncrun::detail::master::settings
