#include "worker/comm/nodes_comm.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/text/fixed_text.hpp"
#include "worker/comm/link_making.hpp"

namespace syncrun::detail::worker::comm {

namespace {

/// The room for the contribution of a rank in a meeting, and for its values.
constexpr std::size_t kMeetingBytesPerRank = 128 + CpuComm::kSmallBytes;
static_assert(kMeetingBytesPerRank * protocol::kMaxWorldSize <= NodeStaging::kOutBytes);
static_assert(kMeetingBytesPerRank * protocol::kMaxWorldSize + NodesComm::kMediumBytes * NodesComm::kFewNodes <=
              NodeStaging::kInBytes);
static_assert(NodesComm::kMediumBytes <= CpuComm::kChunkBytes);

/// The largest block of a round. With 1 MiB, large arrays took longer, because blocks did not stay in the cache.
constexpr std::size_t kMostBlockBytes = std::size_t{256} << 10U;
/// What goes out in a round in which each node gets something else. With 1 MiB, large arrays took longer as well.
constexpr std::size_t kMostBlocksBytes = std::size_t{512} << 10U;
static_assert(kMostBlockBytes <= CpuComm::kChunkBytes && kMostBlocksBytes <= CpuComm::kChunkBytes);
constexpr std::size_t kLine = 64;

}  // namespace

NodesComm::NodesComm(const process::Attachment& attachment, Meetings& meetings, CpuComm& here,
                     const process::Interruption& interruption)
    : attachment_(attachment), meetings_(meetings), here_(here), limits_{interruption}, link_(attachment, meetings) {}

void NodesComm::begin(const protocol::Command& command) {
  here_.begin(command);
  if (command.ranks != set_) take_sections(command.ranks);
  staging_ = NodeStaging(attachment_.control.arena_at(meetings_.rank_at(0)));
  link_.begin(links_of(command), set_);
  rounds_ = 0;
}

/// Null if the blocks of the command go through the carriers. Otherwise, each node has one rank of it.
LeaderLinks* NodesComm::links_of(const protocol::Command& command) const {
  if (!command.comm.is_linked()) return nullptr;
  if (links_ != nullptr) return links_.get();
  throw Error(ErrorKind::system, "rank " + std::to_string(attachment_.rank) + " has no connections to other nodes");
}

void NodesComm::connect(const protocol::ConnectPayload& request) {
  drop_links();
  auto maker = std::make_unique<LinkMaker>(attachment_.rank, text::get_text(request.interface));
  const std::string who = maker->offer().who();
  std::vector<LinkOffer> offers(static_cast<std::size_t>(world_size()));
  all_gather(&maker->offer(), offers.data(), Division(offers.size(), world_size(), sizeof(LinkOffer)));
  std::vector<protocol::ConnectAnswer> answers(offers.size());
  protocol::ConnectAnswer own{};
  text::put_text(own.problem, maker->connect(offers, os::Milliseconds(request.limit_ms), limits_.interruption));
  std::vector<LeaderLink> links = maker->take_links();
  maker.reset();  // nobody can call it any more
  all_gather(&own, answers.data(), Division(answers.size(), world_size(), sizeof(own)));
  // If two ranks could not connect, the higher rank made the call. Its answer says why the call failed.
  const auto failed = std::find_if(answers.rbegin(), answers.rend(), [](const protocol::ConnectAnswer& answer) {
    return !text::get_text(answer.problem).empty();
  });
  const bool are_made = failed == answers.rend();
  attachment_.segment.at<protocol::ConnectAnswer>(request.answers)[attachment_.rank] = are_made ? own : *failed;
  if (!are_made) return;
  links_ = std::make_unique<LeaderLinks>(who, std::move(links), os::Milliseconds(request.silence_ms));
}

// ---- the ranks ------------------------------------------------------------------------------------------------

void NodesComm::take_sections(const protocol::RankSet& ranks) {
  set_ = ranks;
  position_ = ranks.position_of(attachment_.rank);
  sections_.clear();
  int position = 0;
  for (const int rank : ranks) {
    const int node = attachment_.control.worker(rank).node;
    if (sections_.empty() || sections_.back().node != node) sections_.push_back({node, position, 0});
    ++sections_.back().count;
    ++position;
  }
  own_ = section_of(position_);
  brought_.resize(static_cast<std::size_t>(ranks.count()));
}

std::size_t NodesComm::section_of(int position) const noexcept {
  const auto after = std::upper_bound(sections_.begin(), sections_.end(), position,
                                      [](int wanted, const Section& section) { return wanted < section.first; });
  return static_cast<std::size_t>(after - sections_.begin()) - 1;
}

// ---- memory ---------------------------------------------------------------------------------------------------

/// The block of a round in which all nodes get the same.
std::size_t NodesComm::block_for_all() const noexcept {
  return std::min(kMostBlockBytes, NodeStaging::kInBytes / nodes()) / kLine * kLine;
}

/// The block of a round in which each node gets something else.
std::size_t NodesComm::block_for_each() const noexcept { return kMostBlocksBytes / nodes() / kLine * kLine; }

// ---- meetings -------------------------------------------------------------------------------------------------

/// Brings the contributions of all ranks to all ranks, and checks that they agree. The meeting of this node's ranks checks
/// theirs first.
void NodesComm::meet(const protocol::Contribution& mine, const Payload& payload) {
  here_.reclaim_buffers();
  const bool sends = payload.from == kAll || payload.from == rank();
  if (sends && payload.bytes != 0)
    std::memcpy(here_.small_buffer(meetings_.position(), meetings_.next_parity()), payload.data, payload.bytes);
  if (payload.to_combine != 0) std::memcpy(here_.chunk_buffer(meetings_.position()), payload.data, payload.to_combine);
  const std::size_t parity = meetings_.meet(mine, limits_);
  meeting_ = next_round();
  if (payload.to_combine != 0) {
    combine_here(parity, payload);
    step();
  }
  if (is_leader()) {
    link_.await_taken(limits_);
    put_meeting(meeting_, payload, parity);
    link_.begin_exchange(meetings_.command(), staging_.table(), limits_);
    link_.end_exchange(limits_);
  }
  step();
  for (std::size_t section = 0; section < nodes(); ++section) {
    const std::byte* const from = meeting_of(meeting_, section);
    for (int i = 0; i < sections_[section].count; ++i) {
      std::memcpy(&brought_by(sections_[section].first + i), from + static_cast<std::size_t>(i) * kContributionBytes,
                  sizeof(protocol::Contribution));
    }
  }
  auto other = set_.begin();
  for (const protocol::Contribution& contribution : brought_) {
    require_agreement(brought_.front(), set_.first(), contribution, *other);
    ++other;
  }
}

/// Writes what this node brings to the meeting: the contributions of its ranks, and then their values.
void NodesComm::put_meeting(const Round& round, const Payload& payload, std::size_t parity) {
  const Section& own = own_section();
  std::byte* to = round.out;
  for (int i = 0; i < own.count; ++i, to += kContributionBytes)
    std::memcpy(to, &meetings_.contribution(i, parity), sizeof(protocol::Contribution));
  for (int i = 0; i < own.count; ++i) {
    if (payload.stride == 0 || (payload.from != kAll && payload.from != own.first + i)) continue;
    std::memcpy(to, here_.small_buffer(i, parity), payload.stride);
    to += payload.stride;
  }
  to += payload.of_node;  // combine_here has put it there
  auto* const table = attachment_.segment.at<protocol::NodeBlock>(staging_.table());
  for (std::size_t section = 0; section < nodes(); ++section) {
    const std::size_t room = meeting_room(section);
    table[section] = {round.out_at, static_cast<std::uint64_t>(to - round.out), round.in_at + room,
                      meeting_room(section + 1) - room};
  }
}

const std::byte* NodesComm::meeting_of(const Round& round, std::size_t section) const noexcept {
  if (section == own_) return round.out;
  return round.in + meeting_room(section);
}

/// The offset in the incoming memory at which one node's block for a meeting begins. Nodes may call different collectives
/// by mistake, so each block has room for the largest one.
std::size_t NodesComm::meeting_room(std::size_t section) const noexcept {
  const int ranks_before = section == nodes() ? set_.count() : sections_[section].first;
  return static_cast<std::size_t>(ranks_before) * kMeetingBytesPerRank +
         (nodes() <= kFewNodes ? section * kMediumBytes : 0);
}

/// The values that a rank has brought to the last meeting.
const std::byte* NodesComm::payload_of(int position, const Payload& payload) const noexcept {
  const std::size_t section = section_of(position);
  const Section& ranks = sections_[section];
  const int before = payload.from == kAll ? position - ranks.first : 0;
  return meeting_of(meeting_, section) + static_cast<std::size_t>(ranks.count) * kContributionBytes +
         static_cast<std::size_t>(before) * payload.stride;
}

// ---- rounds ---------------------------------------------------------------------------------------------------

/// A rank uses a part again only after a step that all ranks of the node take once they no longer read it.
NodesComm::Round NodesComm::next_round() noexcept {
  const std::uint64_t round = rounds_++;
  const std::uint64_t out = staging_.out(round);
  const std::uint64_t in = staging_.in(round);
  return {out, in, attachment_.segment.at(out), attachment_.segment.at(in)};
}

/// Makes blocks_ ready for a round: nothing is sent yet, and there is room for a block from each node.
void NodesComm::plan(std::size_t block) {
  blocks_.assign(nodes(), {});
  for (std::size_t section = 0; section < nodes(); ++section) {
    blocks_[section].to = section * block;
    blocks_[section].to_bytes = block;
  }
}

/// The leader begins to exchange blocks_, which has offsets from the beginning of what goes out and what comes in.
void NodesComm::begin_exchange(const Round& round) {
  if (!is_leader()) return;
  link_.await_taken(limits_);
  auto* const table = attachment_.segment.at<protocol::NodeBlock>(staging_.table());
  for (std::size_t section = 0; section < nodes(); ++section) {
    const protocol::NodeBlock& block = blocks_[section];
    table[section] = {round.out_at + block.from, block.from_bytes, round.in_at + block.to, block.to_bytes};
  }
  link_.begin_exchange(meetings_.command(), staging_.table(), limits_);
}

void NodesComm::end_exchange() {
  if (is_leader()) link_.end_exchange(limits_);
}

/// What a node has put into its block. What this node's ranks have put there begins at `own_at`.
const std::byte* NodesComm::block_from(const Round& round, std::size_t section, std::size_t block,
                                       std::size_t own_at) const noexcept {
  return section == own_ ? round.out + own_at : round.in + section * block;
}

/// The bytes of the whole array that belong to the ranks of one node. Their parts lie side by side.
NodesComm::Range NodesComm::section_bytes(const Division& division, std::size_t section) const noexcept {
  const int last = sections_[section].first + sections_[section].count - 1;
  return {division.begin_bytes(sections_[section].first), division.begin_bytes(last) + division.bytes(last)};
}

std::size_t NodesComm::largest_section(const Division& division) const noexcept {
  std::size_t largest = 0;
  for (std::size_t section = 0; section < nodes(); ++section) {
    const Range bytes = section_bytes(division, section);
    largest = std::max(largest, bytes.end - bytes.begin);
  }
  return largest;
}

void NodesComm::barrier() {
  meet({0, 0, 0, 0, protocol::CollectiveKind::barrier, DType::uint8, Reduction::sum, 0}, {});
}

}  // namespace syncrun::detail::worker::comm
