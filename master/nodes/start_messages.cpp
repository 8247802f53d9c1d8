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
    const auto same = std::ranges::count_if(identities, [&](const NodeIdentity& other) { return other.host == host; });
    names.push_back(same > 1 ? host + "." + std::to_string(node) : host);
  }
  return names;
}

namespace {

auto fields_of_identity(auto& identity) {
  return std::tie(identity.host, identity.machine, identity.version, identity.transport, identity.build,
                  identity.build_id, identity.library, identity.library_id, identity.page_bytes);
}

}  // namespace

void put_identity(MessageWriter& to, const NodeIdentity& identity) { to.put_fields(fields_of_identity(identity)); }

NodeIdentity get_identity(MessageReader& from) {
  NodeIdentity identity;
  from.get_fields(fields_of_identity(identity));
  return identity;
}

// ---- the start of a session -----------------------------------------------------------------------------------

namespace {

auto fields_of_start(auto& start) {
  auto& settings = start.settings;
  auto& output = settings.output;
  return std::tie(start.segment_bytes, start.session, start.timelines_offset, start.totals_offset, settings.devices,
                  settings.nodes, settings.node_names, settings.call_timeout, settings.start_timeout, settings.grace,
                  settings.seed, settings.log_dir, output.has_tags, output.has_times, output.is_json_log,
                  output.log_limit, settings.master_host, settings.master_port, settings.log_level,
                  settings.on_worker_lost);
}

}  // namespace

void put_session_settings(MessageWriter& to, const SessionStart& start) {
  to.put_fields(fields_of_start(start));
  const process::OutputSettings& output = start.settings.output;
  for (const text::RankList* ranks : {&output.shown, &output.logged, &output.only_logged}) to.put_text(ranks->text());
  to.put_text(start.settings.wrappers.lines());
}

SessionStart get_session_start(MessageReader& from) {
  SessionStart start;
  from.get_to(start.place);
  from.get_fields(fields_of_start(start));
  process::OutputSettings& output = start.settings.output;
  for (text::RankList* ranks : {&output.shown, &output.logged, &output.only_logged})
    *ranks = text::RankList::parse(from.get_text()).value_or(text::RankList());
  const char* const terminal = environment::get(environment::kWrapTerminal);  // has a path of this node
  start.settings.wrappers = wrappers::Wrappers::read(from.get_text(), terminal == nullptr ? "" : terminal);
  return start;
}

}  // namespace syncrun::detail::master::nodes
