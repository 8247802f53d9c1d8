#pragma once

// What the nodes tell each other before a session, and at its start.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "master/nodes/messages.hpp"
#include "master/settings/settings.hpp"

namespace syncrun::detail::master::nodes {

/// What a node is. An agent sends it once, before anything else. The master compares it with its own.
struct NodeIdentity {
  std::string host;       // the machine's name without its domain
  std::string machine;    // the same for all processes on a node, and different on any two nodes
  std::string version;    // of Syncrun
  std::string transport;  // Transport::description()
  std::string build;      // of the program, in words (describe_build_id)
  std::vector<std::uint8_t> build_id;
  std::string library;  // the same of Syncrun's library
  std::vector<std::uint8_t> library_id;
  std::uint64_t page_bytes = 0;
};

/// This process's identity. A node is a boot of a machine together with a UTS namespace.
NodeIdentity own_identity(const std::string& transport);
/// Throws Error (usage) if a node does not fit to the master's. The message names the node, what was expected and what
/// was found.
void check_identity(const NodeIdentity& own, const NodeIdentity& other, int node);
/// Throws Error (usage) if two nodes are the same machine. `identities` is by node.
void check_distinct(const std::vector<NodeIdentity>& identities);
/// The names of all nodes. Hosts that have the same name get the number of their node: "n1.2".
std::vector<std::string> names_of_nodes(const std::vector<NodeIdentity>& identities);

void put_identity(MessageWriter& to, const NodeIdentity& identity);
NodeIdentity get_identity(MessageReader& from);

/// What an agent has to know to start its part of a session.
struct SessionStart {
  settings::Settings settings;
  protocol::NodePlace place;           // of the agent's node
  std::size_t segment_bytes = 0;       // the same on all nodes, so that an offset means the same
  std::uint64_t session = 0;           // its number among the sessions of the job
  std::uint64_t timelines_offset = 0;  // as in ControlHeader
  std::uint64_t totals_offset = 0;     // as in ControlHeader
};
/// Writes everything but the place. It is the same for all nodes, and comes after the place of the node.
void put_session_settings(MessageWriter& to, const SessionStart& start);
/// Reads the place and then the rest.
SessionStart get_session_start(MessageReader& from);

}  // namespace syncrun::detail::master::nodes
