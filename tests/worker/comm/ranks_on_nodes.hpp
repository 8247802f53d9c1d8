#pragma once

// Ranks of several nodes in one process. Each node has a segment of its own, and a thread that carries its messages over a
// fake transport, as an agent does. Each rank is a thread.

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "common/os/segment.hpp"
#include "common/text/fixed_text.hpp"
#include "master/nodes/node_exchange.hpp"
#include "tests/master/nodes/fake_transport.hpp"
#include "tests/worker/comm/ranks_as_threads.hpp"
#include "worker/comm/call_interruption.hpp"
#include "worker/comm/nodes_comm.hpp"

namespace syncrun::detail {

/// One rank of a node.
struct RankOnNode {
  RankOnNode(const os::Segment& segment, int world_size, int rank, const protocol::NodePlace& place)
      : attachment(attach_to(segment, world_size, rank, place)) {}
  RankOnNode(const RankOnNode&) = delete;
  RankOnNode& operator=(const RankOnNode&) = delete;

  worker::process::Attachment attachment;
  worker::comm::CallInterruption interruption{attachment};
  worker::comm::Meetings meetings{attachment, os::WaitPolicy::yielding()};
  worker::comm::CpuComm here{attachment, meetings, interruption};
  worker::comm::NodesComm comm{attachment, meetings, here, interruption};
};

class RanksOnNodes {
 public:
  static constexpr std::uint64_t kFirst = 5;
  /// `sizes` has the number of ranks of each node.
  explicit RanksOnNodes(const std::vector<int>& sizes)
      : network(static_cast<int>(sizes.size())), world_size_(std::accumulate(sizes.begin(), sizes.end(), 0)) {
    int first = 0;
    for (std::size_t node = 0; node < sizes.size(); ++node) {
      add_node({static_cast<std::int32_t>(node), static_cast<std::int32_t>(sizes.size()), first, sizes[node]}, sizes);
      first += sizes[node];
    }
    for (Node& node : nodes_)
      node.carrier = std::jthread([this, &node](const std::stop_token& end) { carry(node, end); });
  }

  /// Connects all ranks, over the loopback interface. Each node has one. Later commands use the connections.
  void link() {
    protocol::ConnectPayload request{.answers = std::uint64_t{32} << 20U, .limit_ms = 20'000, .silence_ms = 2'000};
    text::put_text(request.interface, "lo");
    const std::uint64_t id = next_++;
    begin(id, all());
    EXPECT_EQ(run(id, all(),
                  [&](RankOnNode& rank) {
                    rank.comm.connect(request);
                    const auto* const answers =
                        rank.attachment.segment.at<const protocol::ConnectAnswer>(request.answers);
                    EXPECT_EQ(text::get_text(answers[rank.attachment.rank].problem), "");
                  }),
              nothing_thrown());
    are_linked_ = true;
  }

  int world_size() const noexcept { return world_size_; }
  protocol::RankSet all() const noexcept { return protocol::RankSet::all(world_size_); }
  RankOnNode& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  protocol::ControlBlock& control_of(int rank) { return at(rank).attachment.control; }

  enum class Votes : std::uint8_t { none, awaited };
  /// Gives a command to these ranks.
  void begin(std::uint64_t id, const protocol::RankSet& ranks, Votes votes = Votes::none) {
    for (Node& node : nodes_) give(node, id, ranks, votes);
  }
  /// Gives the command to the ranks of one node only.
  void begin(std::uint64_t id, const protocol::RankSet& ranks, int node) {
    give(nodes_[static_cast<std::size_t>(node)], id, ranks, Votes::none);
  }
  void leave(std::uint64_t id, int rank) { at(rank).meetings.leave(control_of(rank).command_in(id)); }
  /// The rank has failed in the command.
  void fail(std::uint64_t id, int rank) {
    control_of(rank).command_in(id).failed.store(id);
    control_of(rank).header().to_peers.ring();
  }
  void finish(std::uint64_t id, int rank) {
    leave(id, rank);
    control_of(rank).worker(rank).done.store(id);
    control_of(rank).header().to_peers.ring();
  }
  /// Runs a body on these ranks. Afterwards, the command is over for them. Returns what each one threw, in the order of
  /// the ranks, or "".
  std::vector<std::string> run(std::uint64_t id, const protocol::RankSet& ranks,
                               const std::function<void(RankOnNode&)>& body) {
    std::vector<std::string> thrown(static_cast<std::size_t>(ranks.count()));
    std::vector<std::jthread> threads;
    for (const int rank : ranks) {
      threads.emplace_back([&, rank] {
        try {
          body(at(rank));
        } catch (const worker::process::SessionLost& lost) {
          thrown[static_cast<std::size_t>(ranks.position_of(rank))] = lost.what();
          return;  // the worker ends
        } catch (const std::exception& error) {
          thrown[static_cast<std::size_t>(ranks.position_of(rank))] = error.what();
          fail(id, rank);
        }
        finish(id, rank);
      });
    }
    threads.clear();
    return thrown;
  }
  /// Gives all ranks a command and runs it.
  std::vector<std::string> run(const std::function<void(RankOnNode&)>& body) {
    const std::uint64_t id = next_++;
    begin(id, all());
    return run(id, all(), body);
  }
  std::vector<std::string> nothing_thrown() const {
    return std::vector<std::string>(static_cast<std::size_t>(world_size_));
  }

  test::FakeNetwork network;

 private:
  struct Node {
    protocol::NodePlace place;
    os::Segment segment;
    protocol::ControlBlock control;
    std::unique_ptr<master::nodes::NodeExchange> exchange;
    std::jthread carrier;
  };

  void add_node(const protocol::NodePlace& place, const std::vector<int>& sizes) {
    Node& node = nodes_.emplace_back();
    node.place = place;
    node.segment = os::Segment::create(os::Segment::kSmallestReservation);
    node.control = protocol::ControlBlock(node.segment.base(), world_size_);
    protocol::ControlHeader& header = node.control.header();
    header.place = place;
    header.arenas_offset = std::uint64_t{64} << 20U;
    header.arena_bytes = std::uint64_t{64} << 20U;
    int rank = 0;
    for (std::size_t other = 0; other < sizes.size(); ++other) {
      for (int i = 0; i < sizes[other]; ++i) node.control.worker(rank++).node = static_cast<std::int32_t>(other);
    }
    network.at(place.node).open();
    node.exchange =
        std::make_unique<master::nodes::NodeExchange>(network.at(place.node), node.control, node.segment, 1);
    for (int local = 0; local < place.local_size; ++local)
      ranks_.push_back(std::make_unique<RankOnNode>(node.segment, world_size_, place.rank(local), place));
  }

  void give(Node& node, std::uint64_t id, const protocol::RankSet& ranks, Votes votes) {
    protocol::Command& command = node.control.command_in(id);
    command.begin<protocol::CallPayload>();
    command.id = id;
    command.ranks = ranks;
    command.comm = are_linked_ ? protocol::CommChoice::linked_nodes() : protocol::CommChoice::nodes();
    command.has_comm = true;
    command.wants_vote = votes == Votes::awaited;
    for (const int rank : ranks) command.places[static_cast<std::size_t>(rank)] = id % protocol::kInboxSize;
    node.exchange->add(id);
    for (const int rank : ranks) {
      if (!node.place.has(rank)) continue;
      RankOnNode& own = at(rank);
      const protocol::Command& seen = own.attachment.control.command_in(id);
      own.interruption.begin(seen, worker::comm::CallInterruption::Peers::needed);
      own.comm.begin(seen);
    }
  }

  void carry(Node& node, const std::stop_token& end) {
    while (!end.stop_requested()) {
      bool did_something = node.exchange->look();
      while (const auto next = network.at(node.place.node).receive()) {
        master::nodes::MessageReader message(next->message, "another node");
        node.exchange->take(next->node, message);
        did_something = true;
      }
      if (!did_something) os::yield_core();
    }
  }

  int world_size_;
  bool are_linked_ = false;
  std::uint64_t next_ = kFirst;
  std::vector<std::unique_ptr<RankOnNode>> ranks_;
  std::deque<Node> nodes_;
};

}  // namespace syncrun::detail
