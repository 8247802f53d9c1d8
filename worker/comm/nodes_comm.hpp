#pragma once

// Collectives among CPU devices of several nodes: through shared memory within a node, and through messages between the
// nodes. The rank that leads its node in the command asks for the messages.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "worker/comm/collectives.hpp"
#include "worker/comm/leader_links.hpp"
#include "worker/comm/node_link.hpp"
#include "worker/comm/node_staging.hpp"

namespace syncrun::detail::worker::comm {

/// The ranks of a command that are on several nodes. Here, a rank, a peer and a root are positions among these ranks. The
/// ranks of a node have neighbouring positions. They are a section.
///
/// Each collective begins with a meeting of all ranks, which brings the contribution of each rank to all ranks. It also
/// brings small values, which are then combined as on one node. In all_reduce, it brings what each node has combined of
/// medium values. Large values follow in rounds:
///
///   all ranks of a node fill a block | the leaders exchange blocks | all ranks of a node use what has come
///
/// During an exchange, ranks use the blocks of the one before and fill the next one.
///
/// Large values are combined on each node first, and then in the order of the nodes. So equal runs with the same ranks on
/// each node have the same bits. What a node has combined has the partial_type of the values. So values of 16-bit
/// floating-point types travel as float.
class NodesComm final : public CommCore {
 public:
  /// `here` is the communicator of the ranks of this node. All must outlive this object.
  NodesComm(const process::Attachment& attachment, Meetings& meetings, CpuComm& here,
            const process::Interruption& interruption);

  /// From this size on, an array that is reduced among more than two nodes is divided among them.
  static constexpr std::size_t kDividedBytes = std::size_t{128} << 10U;
  /// Up to this size, what a node has combined travels with the contributions, so that one exchange is enough. Only among
  /// up to kFewNodes nodes, because there is room for it from each of them.
  static constexpr std::size_t kMediumBytes = std::size_t{64} << 10U;
  static constexpr std::size_t kFewNodes = 16;

  void begin(const protocol::Command& command) override;
  /// Connects the ranks of the command, each of which leads its node, in place of the connections before. Later commands use
  /// the connections if they say so. The answer says why they could not be made, or is empty. It is the same on all ranks.
  void connect(const protocol::ConnectPayload& request);
  void drop_links() noexcept { links_.reset(); }
  int rank() const noexcept override { return position_; }
  int world_size() const noexcept override { return set_.count(); }
  void barrier() override;
  void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                  const RankWeights& weights) override;
  void reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, const RankWeights& weights,
              int root) override;
  /// Changes `values` only where `part` lies in it.
  void reduce_scatter(void* values, void* part, const Division& division, DType dtype, Reduction reduction,
                      const RankWeights& weights) override;
  void broadcast(void* values, std::size_t elements, DType dtype, int root) override;
  void all_gather(const void* part, void* all, const Division& division) override;
  void gather(const void* part, void* all, const Division& division, int root) override;
  void scatter(const void* all, void* part, const Division& division, int root) override;
  void enter() override { here_.enter(); }
  void count(std::size_t bytes) noexcept override { here_.count(bytes); }
  void set_label(std::string_view text) noexcept override { here_.set_label(text); }
  void leave() noexcept override { here_.leave(); }

 private:
  /// The room for one rank's contribution to a meeting.
  static constexpr std::size_t kContributionBytes = 128;
  static_assert(sizeof(protocol::Contribution) <= kContributionBytes);
  /// All ranks send, or all ranks get the result.
  static constexpr int kAll = -1;
  /// The ranks of a node: positions [first, first + count).
  struct Section {
    int node;
    int first;
    int count;
  };
  /// Small values that travel with the contributions.
  struct Payload {
    const void* data = nullptr;
    std::size_t bytes = 0;   // of this rank
    std::size_t stride = 0;  // the room for those of one rank; the same on all ranks
    int from = kAll;         // the rank whose values travel
    /// If it is not 0: the size of an array of each rank, which the ranks of each node combine before it travels.
    std::size_t to_combine = 0;
    std::size_t of_node = 0;  // the size of the result
  };
  /// A part of an array: elements [begin, begin + count), and its place in what goes out.
  struct Piece {
    std::size_t begin;
    std::size_t count;
    std::size_t at;
  };
  /// The part of the staging memory that a round uses.
  struct Round {
    std::uint64_t out_at;
    std::uint64_t in_at;
    std::byte* out;
    std::byte* in;
  };
  struct Range {
    std::size_t begin;
    std::size_t end;
    /// How much comes next when `done` is done and at most `most` is handled at a time.
    std::size_t next(std::size_t done, std::size_t most) const noexcept {
      return std::min(most, end - begin - std::min(done, end - begin));
    }
  };

  // The ranks.
  LeaderLinks* links_of(const protocol::Command& command) const;
  void take_sections(const protocol::RankSet& ranks);
  bool is_leader() const noexcept { return meetings_.position() == 0; }
  const Section& own_section() const noexcept { return sections_[own_]; }
  std::size_t section_of(int position) const noexcept;
  std::size_t nodes() const noexcept { return sections_.size(); }

  // Memory.
  std::size_t block_for_all() const noexcept;
  std::size_t block_for_each() const noexcept;

  // Meetings.
  void meet(const protocol::Contribution& mine, const Payload& payload);
  void put_meeting(const Round& round, const Payload& payload, std::size_t parity);
  const std::byte* meeting_of(const Round& round, std::size_t section) const noexcept;
  std::size_t meeting_room(std::size_t section) const noexcept;
  void combine_here(std::size_t parity, const Payload& payload);
  protocol::Contribution& brought_by(int position) noexcept { return brought_[static_cast<std::size_t>(position)]; }
  const std::byte* payload_of(int position, const Payload& payload) const noexcept;

  // Rounds.
  void step() { meetings_.step(limits_); }
  Round next_round() noexcept;
  void plan(std::size_t block);
  template <class Fill, class Plan, class Use>
  void run_rounds(std::size_t rounds, const Fill& fill, const Plan& plan_round, const Use& use);
  void begin_exchange(const Round& round);
  void end_exchange();
  const std::byte* block_from(const Round& round, std::size_t section, std::size_t block,
                              std::size_t own_at) const noexcept;
  Range section_bytes(const Division& division, std::size_t section) const noexcept;
  std::size_t largest_section(const Division& division) const noexcept;

  // Reductions.
  void collect_weights();
  void reduce_small(void* to, std::size_t begin_bytes, std::size_t elements, const Payload& payload);
  void reduce_medium(void* to, std::size_t elements);
  void reduce_large(void* values, int root);
  void plan_chunk(Range elements, int root);
  void use_chunk(const Round& round, std::byte* values, Range elements, int root);
  void reduce_in_parts(void* values, void* part, const Division& division);
  void reduce_here(const std::byte* values, std::span<const Piece> pieces, const Round& round);
  void combine_nodes(const Round& round, std::size_t block, std::size_t own_at, Range elements);
  Range own_lines(std::size_t elements, DType dtype) const noexcept;

  // Moves.
  void collect(const void* part, void* all, const Division& division, int root);
  void collect_large(const void* part, void* all, const Division& division, int root);

  const process::Attachment& attachment_;
  Meetings& meetings_;
  CpuComm& here_;
  process::WaitLimits limits_;
  NodeLink link_;
  std::unique_ptr<LeaderLinks> links_;  // null until connect() has made them
  NodeStaging staging_{0};              // of the leader
  protocol::RankSet set_;
  std::vector<Section> sections_;  // in the order of the nodes
  std::size_t own_ = 0;            // this node's
  int position_ = 0;
  std::uint64_t rounds_ = 0;
  Round meeting_{};                              // the last meeting
  std::vector<protocol::NodeBlock> blocks_;      // of the next exchange
  std::vector<protocol::Contribution> brought_;  // to the last meeting, by position
  bool is_in_place_ = false;                     // the values of all ranks of this node are in the segment
  std::vector<double> weights_;                  // of the ranks that count, in an average
  std::vector<int> counting_;                    // these ranks, by position
  std::vector<char> counts_;                     // by section: whether it has such a rank
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
  std::vector<Piece> pieces_;
};

/// Exchanges the blocks of large values. `fill(i, round)` puts what goes out in round i into the block of `round`.
/// `plan_round(i)` writes blocks_. `use(i, round)` takes what has come. All ranks of the node call it. While the nodes
/// exchange the blocks of a round, the ranks use those of the round before, and fill those of the next one.
template <class Fill, class Plan, class Use>
void NodesComm::run_rounds(std::size_t rounds, const Fill& fill, const Plan& plan_round, const Use& use) {
  if (rounds == 0) return;
  const auto filled = [&](std::size_t i) {
    const Round round = next_round();
    fill(i, round);
    step();
    return round;
  };
  const auto begin = [&](std::size_t i, const Round& round) {
    plan_round(i);
    begin_exchange(round);
  };
  Round current = filled(0);
  begin(0, current);
  for (std::size_t i = 0; i < rounds; ++i) {
    const bool has_next = i + 1 < rounds;
    const Round next = has_next ? filled(i + 1) : Round{};
    end_exchange();
    if (has_next) begin(i + 1, next);
    step();
    use(i, current);
    current = next;
  }
}

}  // namespace syncrun::detail::worker::comm
