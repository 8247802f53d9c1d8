#pragma once

// For how long nothing has been heard from each node of a job.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/os/wait.hpp"
#include "master/nodes/known_nodes.hpp"
#include "master/nodes/transport.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

/// Any thread says what it has heard. One thread looks who is silent.
class SignsOfLife {
 public:
  struct Limits {
    os::Milliseconds silence{3000};  // after which a node is lost
    os::Milliseconds beat{250};      // how often this node says that it is alive
    // How much longer another agent may be silent. If it is dead, it is silent for the master too, which says so first.
    os::Milliseconds masters_turn{700};
  };

  /// Refers to the transport and the nodes as long as it lives.
  SignsOfLife(Transport& transport, const KnownNodes& nodes, Limits limits)
      : transport_(transport), known_nodes_(nodes), limits_(limits), heard_(static_cast<std::size_t>(nodes.count())) {}

  os::Milliseconds beat() const noexcept { return limits_.beat; }
  void note_message(int node) noexcept { at(node).silent_ns.store(0, std::memory_order_relaxed); }
  /// A rank of this node waits for something from that node. Its silence counts for a second from now on.
  void note_wait_for(int node) noexcept;
  bool is_awaited(int node) const noexcept;
  /// A node has asked for a sign of life. After that, take_ping() returns true once.
  void note_ping(int node) noexcept { at(node).has_asked.store(true, std::memory_order_relaxed); }
  bool take_ping(int node) noexcept {
    std::atomic<bool>& has_asked = at(node).has_asked;
    return has_asked.load(std::memory_order_relaxed) && has_asked.exchange(false, std::memory_order_relaxed);
  }
  /// Called with the time since the last call for this node. The error says that the node is silent for too long, and names
  /// all others that are silent too. If the master hears from nobody, its own network is the likely cause. Time in which
  /// this process was stopped does not count.
  std::optional<Error> silence_of(int node, std::chrono::nanoseconds waited);
  /// The same for another agent, while this one waits for it or is its neighbour in the tree of nodes.
  std::optional<Error> silence_of_peer(int node, std::chrono::nanoseconds waited);

 private:
  struct Heard {
    std::atomic<std::int64_t> silent_ns = 0;         // since the last message
    std::atomic<std::int64_t> awaited_until_ns = 0;  // by the clock; 0: it never was
    std::atomic<bool> has_asked = false;
    // At the last look. The thread that looks uses them.
    std::uint64_t pieces = 0;       // that had arrived
    std::uint64_t pieces_left = 0;  // that had left
  };
  Heard& at(int node) noexcept { return heard_[static_cast<std::size_t>(node)]; }
  const Heard& at(int node) const noexcept { return heard_[static_cast<std::size_t>(node)]; }
  bool is_silent(int node, std::chrono::nanoseconds waited, os::Milliseconds limit);
  std::vector<int> also_silent(int node) const;

  Transport& transport_;
  const KnownNodes& known_nodes_;
  Limits limits_;
  std::vector<Heard> heard_;  // by node
};

}  // namespace syncrun::detail::master::nodes
