// Collectives among ranks of several nodes, in one process: results that do not depend on the path, and votes. tests/nodes
// has tests of each collective and of its failures.

#include "worker/comm/nodes_comm.hpp"

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "common/arrays/reduce.hpp"
#include "tests/worker/comm/ranks_on_nodes.hpp"

namespace syncrun::detail {
namespace {

using testing::Each;

enum class Where { own_memory, segment };
enum class Way { carriers, links };

/// The ranks of each node, how many elements an array has, where it is, and how blocks travel between the nodes.
struct Layout {
  std::vector<int> nodes;
  std::size_t elements;
  Where where;
  Way way = Way::carriers;
};

std::string name_of(const testing::TestParamInfo<Layout>& info) {
  std::string name = "Nodes";
  for (const int ranks : info.param.nodes) name += std::to_string(ranks);
  return name + "Of" + std::to_string(info.param.elements) + (info.param.where == Where::segment ? "InSegment" : "") +
         (info.param.way == Way::links ? "OverLinks" : "");
}

class CollectivesOfNodes : public testing::TestWithParam<Layout> {
 protected:
  using Values = std::vector<std::int64_t>;

  CollectivesOfNodes() {
    if (GetParam().way == Way::links) nodes.link();
  }
  static std::size_t elements() { return GetParam().elements; }
  int count() const { return nodes.world_size(); }
  /// Element i is 1000 * position + i % 777.
  static Values values_of(int position, std::size_t count = elements()) {
    Values values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = 1000 * position + static_cast<std::int64_t>(i % 777);
    return values;
  }
  worker::comm::Division division() const { return {elements(), count(), sizeof(std::int64_t)}; }
  Values part_of(const Values& all, int position) const {
    const arrays::RowRange range = division().of(position);
    return {all.begin() + range.begin, all.begin() + range.end};
  }
  Values sum() const {
    Values sum(elements());
    for (int position = 0; position < count(); ++position) {
      const Values own = values_of(position);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
    }
    return sum;
  }
  /// An array of this rank with these values.
  template <class T>
  T* put(RankOnNode& rank, std::vector<T>& values) {
    if (GetParam().where == Where::own_memory) return values.data();
    const auto local = static_cast<std::uint64_t>(rank.attachment.place.local_rank(rank.attachment.rank));
    T* const place = rank.attachment.segment.at<T>((512 + 32 * local) << 20U);
    std::copy(values.begin(), values.end(), place);
    return place;
  }
  template <class T>
  static std::vector<T> seen(const T* values, std::size_t count = elements()) {
    return {values, values + count};
  }
  void on_all(const std::function<void(RankOnNode&, worker::comm::NodesComm&)>& body) {
    EXPECT_EQ(nodes.run([&](RankOnNode& rank) { body(rank, rank.comm); }), nodes.nothing_thrown());
  }

  RanksOnNodes nodes{GetParam().nodes};
};

TEST_P(CollectivesOfNodes, DivideAReductionInPlace) {
  on_all([this](RankOnNode& rank, worker::comm::NodesComm& comm) {
    Values own = values_of(comm.rank());
    auto* const values = put(rank, own);
    const arrays::RowRange range = division().of(comm.rank());
    comm.reduce_scatter(values, values + range.begin, division(), DType::int64, Reduction::sum, {});
    EXPECT_EQ(seen(values + range.begin, static_cast<std::size_t>(range.count())), part_of(sum(), comm.rank()));
  });
}

TEST_P(CollectivesOfNodes, JoinPartsOfUnequalLengths) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(count()), 0);
  lengths.front() = static_cast<std::int64_t>(elements()) - 3;
  lengths.back() += 3;
  const worker::comm::Division uneven(lengths, sizeof(std::int64_t));
  on_all([&](RankOnNode& rank, worker::comm::NodesComm& comm) {
    Values own = values_of(7);
    auto* const all = put(rank, own);
    const arrays::RowRange range = uneven.of(comm.rank());
    std::fill_n(all, range.begin, 0);
    std::fill(all + range.end, all + elements(), 0);
    comm.all_gather(all + range.begin, all, uneven);
    EXPECT_EQ(seen(all), values_of(7));
  });
}

TEST_P(CollectivesOfNodes, HaveTheSameBitsEachTimeAndOnAllRanks) {
  std::vector<std::vector<float>> results(static_cast<std::size_t>(2 * count()));
  for (int round = 0; round < 2; ++round) {
    on_all([&](RankOnNode& rank, worker::comm::NodesComm& comm) {
      std::vector<float> own(elements());
      for (std::size_t i = 0; i < own.size(); ++i)
        own[i] = std::sin(static_cast<float>(i + 1) * static_cast<float>(comm.rank() + 1));
      auto* const values = put(rank, own);
      comm.all_reduce(values, elements(), DType::float32, Reduction::sum, {});
      results[static_cast<std::size_t>(round) * static_cast<std::size_t>(count()) +
              static_cast<std::size_t>(comm.rank())] = seen(values);
    });
  }
  EXPECT_THAT(results, Each(results.front()));
}

/// In bfloat16, 256 + 1 is 256, and 256 + 1 + 1 is 258. The ones are on different nodes.
TEST_P(CollectivesOfNodes, RoundSumsOf16BitsOnce) {
  const int first = GetParam().nodes.front();
  const auto value_of = [first](int rank) {
    if (rank == 0) return 256.0F;
    return rank == first - 1 || rank == first ? 1.0F : 0.0F;
  };
  float sum = 0;
  for (int rank = 0; rank < count(); ++rank) sum += value_of(rank);
  on_all([&](RankOnNode& rank, worker::comm::NodesComm& comm) {
    const std::vector<bfloat16> own(elements(), bfloat16(value_of(comm.rank())));
    const worker::comm::Division shares(elements(), count(), sizeof(bfloat16));
    const auto expect_sums = [&](const bfloat16* values, std::size_t count, float expected) {
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(static_cast<float>(values[i]), static_cast<float>(bfloat16(expected)));
    };
    auto values = own;
    auto* const all = put(rank, values);
    comm.all_reduce(all, elements(), DType::bfloat16, Reduction::sum, {});
    expect_sums(all, elements(), sum);
    std::copy(own.begin(), own.end(), all);
    comm.all_reduce(all, elements(), DType::bfloat16, Reduction::avg, {1, count()});
    expect_sums(all, elements(), sum / static_cast<float>(count()));
    std::copy(own.begin(), own.end(), all);
    comm.reduce(all, elements(), DType::bfloat16, Reduction::sum, {}, 0);
    if (comm.rank() == 0) expect_sums(all, elements(), sum);
    std::copy(own.begin(), own.end(), all);
    std::vector<bfloat16> part(static_cast<std::size_t>(shares.of(comm.rank()).count()));
    comm.reduce_scatter(all, part.data(), shares, DType::bfloat16, Reduction::sum, {});
    expect_sums(part.data(), part.size(), sum);
  });
}

TEST_P(CollectivesOfNodes, GiveNanAsMinimumAndMaximum) {
  for (int with_nan = 0; with_nan < count(); ++with_nan) {
    on_all([this, with_nan](RankOnNode& rank, worker::comm::NodesComm& comm) {
      for (const Reduction reduction : {Reduction::min, Reduction::max}) {
        std::vector<double> own(elements(), comm.rank());
        if (comm.rank() == with_nan) own[3] = std::nan("");
        auto* const values = put(rank, own);
        comm.all_reduce(values, elements(), DType::float64, reduction, {});
        EXPECT_TRUE(std::isnan(values[3]));
        EXPECT_EQ(values[4], reduction == Reduction::min ? 0 : count() - 1);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Of, CollectivesOfNodes,
                         testing::Values(Layout{{2, 2}, 5, Where::own_memory}, Layout{{1, 2}, 3001, Where::segment},
                                         Layout{{3, 1, 2}, 20'000, Where::own_memory},
                                         Layout{{3, 1, 2}, 300'001, Where::own_memory},
                                         Layout{{3, 1, 2}, 300'001, Where::segment},
                                         Layout{{1, 1}, 5, Where::own_memory, Way::links},
                                         Layout{{1, 1, 1}, 3001, Where::segment, Way::links},
                                         Layout{{1, 1, 1}, 20'000, Where::own_memory, Way::links},
                                         Layout{{1, 1, 1}, 300'001, Where::segment, Way::links}),
                         name_of);

/// From 128 KiB on, an array is divided among three nodes, and large arrays travel in several rounds.
TEST(NodesComm, HasTheBitsOfOneNodeIfEachNodeHasOneRank) {
  constexpr std::size_t kDivided = (std::size_t{128} << 10U) / sizeof(float);
  const auto sums_over = [](const std::vector<int>& ranks_of_nodes, std::size_t elements, Way way) {
    RanksOnNodes nodes(ranks_of_nodes);
    if (way == Way::links) nodes.link();
    std::vector<std::vector<float>> sums(3);
    EXPECT_EQ(nodes.run([&](RankOnNode& rank) {
      const auto own_rank = static_cast<std::size_t>(rank.attachment.rank);
      std::vector<float>& values = sums[own_rank];
      values.resize(elements);
      for (std::size_t i = 0; i < elements; ++i) values[i] = std::sin(static_cast<float>((i + 1) * (own_rank + 1)));
      rank.comm.all_reduce(values.data(), elements, DType::float32, Reduction::sum, {});
    }),
              nodes.nothing_thrown());
    EXPECT_TRUE(sums[1] == sums[0] && sums[2] == sums[0]);
    return sums.front();
  };
  for (const std::size_t elements : {kDivided - 1, kDivided, kDivided + 1, std::size_t{1'200'001}}) {
    const auto expected = sums_over({3}, elements, Way::carriers);
    EXPECT_TRUE(sums_over({1, 1, 1}, elements, Way::carriers) == expected) << elements;
    EXPECT_TRUE(sums_over({1, 1, 1}, elements, Way::links) == expected) << elements;
  }
}

// ---- each type and reduction ----------------------------------------------------------------------------------

TEST(NodesComm, ReducesEachTypeAsOneNodeDoes) {
  RanksOnNodes nodes({2, 1});
  constexpr std::size_t kElements = 40;
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int8, DType::uint8,
                            DType::int16, DType::uint16, DType::int32, DType::uint32, DType::int64, DType::uint64}) {
    for (const Reduction reduction :
         {Reduction::sum, Reduction::avg, Reduction::max, Reduction::min, Reduction::prod}) {
      if (!arrays::can_reduce(dtype, reduction)) continue;
      std::vector<std::vector<std::byte>> own(3, std::vector<std::byte>(kElements * size_of(dtype)));
      for (std::size_t rank = 0; rank < own.size(); ++rank) {
        for (std::size_t i = 0; i < own[rank].size(); ++i)
          own[rank][i] = static_cast<std::byte>(i % 7 * (rank + 1) + 40);
      }
      std::vector<std::byte> expected(own[0].size());
      const std::array<void*, 1> to{expected.data()};
      const std::array<const void*, 3> from{own[0].data(), own[1].data(), own[2].data()};
      const std::array<double, 3> weights{1.0 / 3, 1.0 / 3, 1.0 / 3};
      arrays::reduce_elements(dtype, reduction, to, from, weights, kElements);
      EXPECT_EQ(nodes.run([&](RankOnNode& rank) {
        auto values = own[static_cast<std::size_t>(rank.attachment.rank)];
        rank.comm.all_reduce(values.data(), kElements, dtype, reduction, {});
        EXPECT_EQ(values, expected) << to_string(dtype) << " " << to_string(reduction);
      }),
                nodes.nothing_thrown());
    }
  }
}

/// The difference is between nodes, so each rank learns it from the others' contributions.
TEST(NodesComm, ComparesTheLabelsOfCollectives) {
  RanksOnNodes nodes({2, 1});
  const auto thrown = nodes.run([](RankOnNode& rank) {
    rank.comm.set_label(rank.attachment.rank == 2 ? "block 2" : "block 1");
    std::array<float, 8> values{};
    rank.comm.all_reduce(values.data(), values.size(), DType::float32, Reduction::sum, {});
  });
  const std::string both =
      "ranks disagree in a collective: rank 0 calls all_reduce of 8 float32 (sum) for block 1, rank 2 calls all_reduce "
      "of "
      "8 float32 (sum) for block 2";
  EXPECT_EQ(thrown, std::vector<std::string>(3, both));
}

TEST(NodesComm, TakesMessagesThatComeBeforeTheCommand) {
  RanksOnNodes nodes({1, 1});
  for (std::uint64_t id = RanksOnNodes::kFirst; id < RanksOnNodes::kFirst + 10; ++id) {
    const auto body = [](RankOnNode& rank) {
      std::int64_t value = rank.attachment.rank;
      rank.comm.all_reduce_value(&value, DType::int64, Reduction::sum, {});
      EXPECT_EQ(value, 1);
    };
    nodes.begin(id, nodes.all(), 0);
    std::jthread early(
        [&] { EXPECT_EQ(nodes.run(id, protocol::RankSet::only(0), body), std::vector<std::string>(1)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    nodes.begin(id, nodes.all(), 1);
    EXPECT_EQ(nodes.run(id, protocol::RankSet::only(1), body), std::vector<std::string>(1));
  }
}

// ---- votes ----------------------------------------------------------------------------------------------------

TEST(NodesComm, AwaitsTheVotesOfAllNodes) {
  RanksOnNodes nodes({2, 2, 1});
  std::uint64_t id = RanksOnNodes::kFirst;
  for (const int failing : {-1, 0, 3, 4}) {
    nodes.begin(id, nodes.all(), RanksOnNodes::Votes::awaited);
    const auto thrown = nodes.run(id, nodes.all(), [&](RankOnNode& rank) {
      const protocol::Command& command = rank.attachment.control.command_in(id);
      const int own = rank.attachment.rank;
      if (own == 4) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      rank.attachment.control.outbox(command, own).cast = own == failing ? protocol::Vote::failed : protocol::Vote::ok;
      rank.attachment.slot().vote.store(
          protocol::vote_word(id, own == failing ? protocol::Vote::failed : protocol::Vote::ok));
      rank.attachment.control.header().to_peers.ring();
      EXPECT_EQ(rank.meetings.all_voted_ok(command), failing == -1) << "rank " << own;
    });
    EXPECT_EQ(thrown, nodes.nothing_thrown());
    ++id;
  }
}

// ---- lost workers that are replaced -----------------------------------------------------------------------------

/// Ranks 0 and 1 are on the master's node, ranks 2 and 3 on another one, and rank 4 on a third one. Rank 3 is lost.
class NodesCommThatGoesOn : public testing::Test {
 protected:
  static constexpr int kLost = 3;
  static constexpr std::uint64_t kCommand = RanksOnNodes::kFirst;

  NodesCommThatGoesOn() {
    for (const int rank : {0, 2, 4}) nodes.control_of(rank).header().respawns = true;
  }
  /// The node of this rank learns of the loss.
  void tell_of_loss(int rank) {
    const protocol::ControlBlock& control = nodes.control_of(rank);
    control.worker(kLost).is_lost.store(1);
    control.header().lost.store(kLost + 1);
    control.header().to_peers.wake();
  }
  static void vote(RankOnNode& rank) {
    rank.attachment.control.outbox(rank.attachment.control.command_in(kCommand), rank.attachment.rank).cast =
        protocol::Vote::ok;
    rank.attachment.slot().vote.store(protocol::vote_word(kCommand, protocol::Vote::ok));
    rank.attachment.control.header().to_peers.ring();
  }
  /// All others have voted, and hear of the loss. Its own node hears of it last. Returns what each rank has found: "ok",
  /// "failed", or what it threw.
  std::vector<std::string> await_votes(bool lost_rank_votes) {
    std::vector<std::string> found(5);
    nodes.begin(kCommand, nodes.all(), RanksOnNodes::Votes::awaited);
    const auto thrown = nodes.run(kCommand, nodes.all(), [&](RankOnNode& rank) {
      const int own = rank.attachment.rank;
      if (own == kLost) {
        for (const int other : {0, 4}) tell_of_loss(other);
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        if (lost_rank_votes) vote(rank);
        tell_of_loss(kLost);
        throw worker::process::SessionLost();  // it does not finish the command
      }
      vote(rank);
      const protocol::Command& command = rank.attachment.control.command_in(kCommand);
      found[static_cast<std::size_t>(own)] = rank.meetings.all_voted_ok(command) ? "ok" : "failed";
    });
    for (std::size_t rank = 0; rank < found.size(); ++rank) found[rank] += thrown[rank];
    return found;
  }

  RanksOnNodes nodes{{2, 2, 1}};
};

TEST_F(NodesCommThatGoesOn, CountsTheVoteOfALostRankOnAllNodes) {
  const auto found = await_votes(true);
  for (const std::size_t rank : {0U, 1U, 2U, 4U}) EXPECT_EQ(found[rank], "ok") << "rank " << rank;
}

TEST_F(NodesCommThatGoesOn, FailsOnAllNodesIfALostRankHasNotVoted) {
  const auto found = await_votes(false);
  for (const std::size_t rank : {0U, 1U, 4U}) EXPECT_EQ(found[rank], "failed") << "rank " << rank;
  EXPECT_EQ(found[2], worker::process::SessionLost().what()) << "it gives the command up";
}

TEST_F(NodesCommThatGoesOn, LetsGoOfALostRankAndOfNoOther) {
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    for (const int rank : {0, 2, 4}) tell_of_loss(rank);
  });
  const auto thrown = nodes.run([](RankOnNode& rank) {
    if (rank.attachment.rank == kLost) throw worker::process::SessionLost();
    rank.comm.barrier();
  });
  for (const std::size_t rank : {0U, 1U, 2U, 4U})
    EXPECT_EQ(thrown[rank], worker::process::SessionLost().what()) << "rank " << rank;
  for (const int rank : {0, 1, 2, 4}) nodes.finish(kCommand, rank);  // survivors give the command up
  protocol::RankSet others = protocol::RankSet::only(0);
  for (const int rank : {2, 4}) others.add(rank);
  nodes.begin(kCommand + 1, others);
  const auto without = nodes.run(kCommand + 1, others, [](RankOnNode& rank) {
    std::int64_t value = 1;
    rank.comm.all_reduce_value(&value, DType::int64, Reduction::sum, {});
    EXPECT_EQ(value, 3);
  });
  EXPECT_EQ(without, std::vector<std::string>(3)) << "a command of other ranks goes on";
}

}  // namespace
}  // namespace syncrun::detail
