#include "master/nodes/start_messages.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "common/protocol/function_address.hpp"
#include "common/text/errors.hpp"
#include "master/devices/host_part.hpp"
#include "syncrun/version.hpp"

namespace syncrun::detail::master::nodes {

// ---- identities -----------------------------------------------------------------------------------------------

NodeIdentity own_identity(const std::string& transport) {
  NodeIdentity own;
  own.host = devices::own_host_name();
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), own.machine);
  struct stat names {};
  if (::stat("/proc/self/ns/uts", &names) == 0) own.machine.append(":").append(std::to_string(names.st_ino));
  own.version = version();
  own.transport = transport;
  const protocol::ImageAddress image = protocol::program_image();
  own.build = protocol::describe_build_id(image);
  own.build_id.assign(image.build_id.begin(), image.build_id.begin() + image.build_id_bytes);
  const protocol::ImageAddress library = protocol::locate(reinterpret_cast<const void*>(&own_identity));
  own.library = protocol::describe_build_id(library);
  own.library_id.assign(library.build_id.begin(), library.build_id.begin() + library.build_id_bytes);
  own.page_bytes = static_cast<std::uint64_t>(::getpagesize());
  return own;
}

namespace {

std::string describe_node(int node, const NodeIdentity& identity) {
  return "node " + std::to_string(node) + " (" + identity.host + ")";
}

[[noreturn]] void throw_unequal(const std::string& who, const std::string& what, const std::string& expected,
                                const std::string& found, const std::string& help) {
  text::throw_usage(who + " has another " + what + ": expected " + expected + ", as on the master's node, found " +
                    found + "; " + help);
}

}  // namespace

void check_identity(const NodeIdentity& own, const NodeIdentity& other, int node) {
  const std::string who = describe_node(node, other);
  if (own.version != other.version)
    throw_unequal(who, "version of Syncrun", own.version, other.version, "install the same version on all nodes");
  if (own.build_id != other.build_id)
    throw_unequal(who, "build of the program", own.build, other.build, "copy the same program file to all nodes");
  // The nodes exchange memory as this library lays it out.
  if (own.library_id != other.library_id)
    throw_unequal(who, "build of libsyncrun.so", own.library, other.library, "install the same build on all nodes");
  if (own.page_bytes != other.page_bytes) {
    throw_unequal(who, "page size", std::to_string(own.page_bytes) + " bytes", std::to_string(other.page_bytes),
                  "use machines with the same page size");
  }
  if (own.transport != other.transport)
    throw_unequal(who, "MPI library", own.transport, other.transport, "use the same library on all nodes");
}

void check_distinct(const std::vector<NodeIdentity>& identities) {
  for (std::size_t second = 1; second < identities.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      if (identities[first].machine != identities[second].machine) continue;
      text::throw_usage(
          "node " + std::to_string(first) + " and node " + std::to_string(second) + " are the same machine (" +
          identities[first].host +
          "): expected one task per machine; use srun --ntasks-per-node=1, mpirun --map-by ppr:1:node (Open MPI) or "
          "mpirun -ppn 1 (MPICH), and --nproc-per-node for the number of workers");
    }
  }
}

std::vector<std::string> names_of_nodes(const std::vector<NodeIdentity>& identities) {
  std::vector<std::string> names;
  for (std::size_t node = 0; node < identities.size(); ++node) {
    const std::string& host = identities[node].host;
    const auto same = std::count_if(identities.begin(), identities.end(),
                                    [&](const NodeIdentity& other) { return other.host == host; });
    names.push_back(same > 1 ? host + "." + std::to_string(node) : host);
  }
  return names;
}

void put_identity(MessageWriter& to, const NodeIdentity& identity) {
  to.put_text(identity.host);
  to.put_text(identity.machine);
  to.put_text(identity.version);
  to.put_text(identity.transport);
  to.put_text(identity.build);
  to.put_list(std::span(identity.build_id));
  to.put_text(identity.library);
  to.put_list(std::span(identity.library_id));
  to.put(identity.page_bytes);
}

NodeIdentity get_identity(MessageReader& from) {
  NodeIdentity identity;
  identity.host = from.get_text();
  identity.machine = from.get_text();
  identity.version = from.get_text();
  identity.transport = from.get_text();
  identity.build = from.get_text();
  identity.build_id = from.get_list<std::uint8_t>();
  identity.library = from.get_text();
  identity.library_id = from.get_list<std::uint8_t>();
  identity.page_bytes = from.get<std::uint64_t>();
  return identity;
}

// ---- the start of a session -----------------------------------------------------------------------------------

void put_session_settings(MessageWriter& to, const SessionStart& start) {
  const settings::Settings& settings = start.settings;
  to.put(start.segment_bytes, start.session, start.timelines_offset, start.totals_offset);
  to.put_list(std::span(settings.devices));
  to.put_list(std::span(settings.nodes));
  for (const std::string& name : settings.node_names) to.put_text(name);
  to.put(settings.call_timeout, settings.start_timeout, settings.grace, settings.seed);
  to.put_text(settings.log_dir);
  const process::OutputSettings& output = settings.output;
  to.put(output.has_tags, output.has_times, output.is_json_log, output.log_limit);
  for (const text::RankList* ranks : {&output.shown, &output.logged, &output.only_logged}) to.put_text(ranks->text());
  to.put_text(settings.master_host);
  to.put(settings.master_port);
  to.put(settings.log_level, settings.on_worker_lost);
  to.put_text(settings.wrappers.lines());
}

SessionStart get_session_start(MessageReader& from) {
  SessionStart start;
  settings::Settings& settings = start.settings;
  from.get_to(start.place, start.segment_bytes, start.session, start.timelines_offset, start.totals_offset);
  settings.devices = from.get_list<devices::DeviceId>();
  settings.nodes = from.get_list<protocol::NodePlace>();
  for (std::size_t node = 0; node < settings.nodes.size(); ++node) settings.node_names.push_back(from.get_text());
  from.get_to(settings.call_timeout, settings.start_timeout, settings.grace, settings.seed);
  settings.log_dir = from.get_text();
  process::OutputSettings& output = settings.output;
  from.get_to(output.has_tags, output.has_times, output.is_json_log, output.log_limit);
  for (text::RankList* ranks : {&output.shown, &output.logged, &output.only_logged})
    *ranks = text::RankList::parse(from.get_text()).value_or(text::RankList());
  settings.master_host = from.get_text();
  from.get_to(settings.master_port);
  from.get_to(settings.log_level, settings.on_worker_lost);
  const char* const terminal = environment::get(environment::kWrapTerminal);  // has a path of this node
  settings.wrappers = wrappers::Wrappers::read(from.get_text(), terminal == nullptr ? "" : terminal);
  return start;
}

}  // namespace syncrun::detail::master::nodes
