// A command for some ranks of a session. These ranks meet and work together, without the others.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "syncrun/error.hpp"
#include "tests/worker/comm/ranks_as_threads.hpp"

namespace syncrun::detail {
namespace {

RankSet two_ranks(int one, int other) {
  RankSet ranks = RankSet::only(one);
  ranks.add(other);
  return ranks;
}

// ---- meetings -------------------------------------------------------------------------------------------------

class MeetingsOfSomeRanks : public RanksAsThreads {
 protected:
  static void meet(MeetingRank& rank) { rank.rendezvous.barrier({}, kEndless); }
  const std::vector<std::string> both_well_ = {"", ""};
};

TEST_F(MeetingsOfSomeRanks, DoNotWaitForTheOthers) {
  const RankSet ranks = two_ranks(0, 2);
  begin(kNext, ranks);
  for (int round = 0; round < 100; ++round) EXPECT_EQ(on_ranks(ranks, meet), both_well_);
}

TEST_F(MeetingsOfSomeRanks, NumberThemInOrder) {
  begin(kNext, two_ranks(0, 2));
  const Meetings& last = ranks_[2].meetings;
  EXPECT_EQ(last.count(), 2);
  EXPECT_EQ(last.position(), 1);
  EXPECT_EQ(last.ranks(), (std::vector<int>{0, 2}));
}

TEST_F(MeetingsOfSomeRanks, NameThemByTheirRanksInTheSession) {
  const RankSet ranks = two_ranks(1, 2);
  begin(kNext, ranks);
  const auto thrown = on_ranks(ranks, [](MeetingRank& rank) {
    const bool is_first = rank.attachment.rank == 1;
    rank.rendezvous.barrier(
        is_first ? MeetingPurpose{} : MeetingPurpose{.kind = MeetingPurpose::Kind::connecting_peers}, kEndless);
  });
  const std::string text =
      "ranks disagree in a collective: rank 1 calls barrier, rank 2 calls one that has to be set up first";
  EXPECT_EQ(thrown, (std::vector<std::string>{text, text}));
}

TEST_F(MeetingsOfSomeRanks, TellOfOneThatHasLeft) {
  begin(kNext, two_ranks(0, 2));
  leave(kNext, 2);
  EXPECT_EQ(on_ranks(RankSet::only(0), meet).front(),
            "ranks disagree in a collective: rank 2 has left the call, and rank 0 is still in one");
}

TEST_F(MeetingsOfSomeRanks, TellOfOneThatSkipsACommandInTheSlotOfAnEarlierOne) {
  begin(kNext, two_ranks(0, 2));
  EXPECT_EQ(on_ranks(two_ranks(0, 2), meet), both_well_);
  Command& command = control_.command_in(kNext);
  command.id = kNext + 10;
  ranks_[2].meetings.leave(command);  // without a begin: a command on which this one depends has failed
  EXPECT_EQ(control_.outbox(command, 2).collective_steps, 0U);
  EXPECT_EQ(control_.worker(2).collective_command.load(), kNext + 10);
}

TEST_F(MeetingsOfSomeRanks, DoNotWaitForTheOthersToReadWhatTheyBrought) {
  const RankSet ranks = two_ranks(1, 2);
  begin(kNext, ranks);
  EXPECT_EQ(on_ranks(ranks, meet), both_well_);
  for (const int rank : ranks) finish(kNext, rank);
  begin(kNext + 1, ranks);  // rank 0 has reached neither command yet
  EXPECT_EQ(on_ranks(ranks, meet), both_well_);
}

TEST_F(MeetingsOfSomeRanks, WaitForWhoeverReadsWhatTheyBroughtToAnEarlierCommand) {
  EXPECT_EQ(on_every_rank(meet), all(""));
  for (const int rank : {1, 2}) finish(kMeetingCommand, rank);
  begin(kNext, two_ranks(1, 2));
  const WaitLimits soon{kNothing, std::chrono::milliseconds(30)};
  EXPECT_THROW(ranks_[1].meetings.reclaim_buffers(soon), Error);  // rank 0 may still be reading
  finish(kMeetingCommand, 0);
  EXPECT_NO_THROW(ranks_[1].meetings.reclaim_buffers(soon));
}

// ---- collectives ----------------------------------------------------------------------------------------------

/// The parameter is the number of elements of a rank. Small values take another path than large ones.
class CollectivesOfSomeRanks : public RanksAsThreads, public testing::WithParamInterface<std::size_t> {
 protected:
  CollectivesOfSomeRanks() { begin(kNext, set_); }

  using Values = std::vector<std::int64_t>;
  static std::size_t elements() { return GetParam(); }
  /// Element i is 1000 * (the rank in the session) + i.
  static Values values_of(int rank, std::size_t count = elements()) {
    Values values(count);
    std::iota(values.begin(), values.end(), 1000 * rank);
    return values;
  }
  static Division halves() { return {elements(), 2, sizeof(std::int64_t)}; }
  static Values half_of(const Values& all, int position) {
    const RowRange range = halves().of(position);
    return {all.begin() + range.begin, all.begin() + range.end};
  }
  static Values sum() {
    Values sum = values_of(0);
    const Values other = values_of(2);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    return sum;
  }
  /// Runs `body(comm, rank in the session)` on both ranks of the command.
  void on_both(const std::function<void(CpuComm&, int)>& body) {
    const auto thrown = on_ranks(set_, [&](MeetingRank& rank) { body(rank.comm, rank.attachment.rank); });
    EXPECT_EQ(thrown, (std::vector<std::string>{"", ""}));
  }

  const RankSet set_ = two_ranks(0, 2);
};

TEST_P(CollectivesOfSomeRanks, AreAmongRanksThatAreNumberedFromZero) {
  on_both([](CpuComm& comm, int rank) {
    EXPECT_EQ(comm.rank(), rank == 0 ? 0 : 1);
    EXPECT_EQ(comm.world_size(), 2);
    comm.barrier();
  });
}

TEST_P(CollectivesOfSomeRanks, ReduceWhatTheseBring) {
  on_both([](CpuComm& comm, int rank) {
    Values values = values_of(rank);
    comm.all_reduce(values.data(), values.size(), DType::int64, Reduction::sum, {});
    EXPECT_EQ(values, sum());
  });
}

TEST_P(CollectivesOfSomeRanks, ReduceValuesInTheSegmentWhereTheyAre) {
  on_both([this](CpuComm& comm, int rank) {
    auto* const values = ranks_[static_cast<std::size_t>(rank)].attachment.segment.at<std::int64_t>(
        std::uint64_t{64 + 4 * static_cast<unsigned>(rank)} << 20U);
    const Values own = values_of(rank);
    std::copy(own.begin(), own.end(), values);
    comm.all_reduce(values, own.size(), DType::int64, Reduction::sum, {});
    EXPECT_EQ(Values(values, values + own.size()), sum());
  });
}

TEST_P(CollectivesOfSomeRanks, WeighMeansByTheRowsOfThese) {
  on_both([](CpuComm& comm, int rank) {
    std::vector<double> values(elements(), rank == 0 ? 4 : 8);
    comm.all_reduce(values.data(), values.size(), DType::float64, Reduction::avg, {rank == 0 ? 3 : 1, 4});
    EXPECT_EQ(values, std::vector<double>(elements(), 5));
  });
}

TEST_P(CollectivesOfSomeRanks, ReduceToTheRankOfThatNumber) {
  on_both([](CpuComm& comm, int rank) {
    Values values = values_of(rank);
    comm.reduce(values.data(), values.size(), DType::int64, Reduction::sum, {}, 1);
    if (rank == 2) {
      EXPECT_EQ(values, sum());
    }
  });
}

TEST_P(CollectivesOfSomeRanks, DivideAReductionAmongThese) {
  on_both([](CpuComm& comm, int rank) {
    Values values = values_of(rank);
    Values part(static_cast<std::size_t>(halves().of(comm.rank()).count()));
    comm.reduce_scatter(values.data(), part.data(), halves(), DType::int64, Reduction::sum, {});
    EXPECT_EQ(part, half_of(sum(), comm.rank()));
  });
}

TEST_P(CollectivesOfSomeRanks, BroadcastFromTheRankOfThatNumber) {
  on_both([](CpuComm& comm, int rank) {
    Values values = values_of(rank);
    comm.broadcast(values.data(), values.size(), DType::int64, 1);
    EXPECT_EQ(values, values_of(2));
  });
}

TEST_P(CollectivesOfSomeRanks, JoinTheirPartsInOrder) {
  on_both([](CpuComm& comm, int rank) {
    const Values all = values_of(7);
    const Values part = half_of(all, comm.rank());
    Values joined(elements());
    comm.all_gather(part.data(), joined.data(), halves());
    EXPECT_EQ(joined, all);
    Values gathered(elements());
    comm.gather(part.data(), gathered.data(), halves(), 1);
    EXPECT_EQ(gathered, rank == 2 ? all : Values(elements()));
  });
}

TEST_P(CollectivesOfSomeRanks, ScatterFromTheRankOfThatNumber) {
  on_both([](CpuComm& comm, int rank) {
    const Values all = values_of(rank);
    Values part(static_cast<std::size_t>(halves().of(comm.rank()).count()));
    comm.scatter(all.data(), part.data(), halves(), 1);
    EXPECT_EQ(part, half_of(values_of(2), comm.rank()));
  });
}

TEST_P(CollectivesOfSomeRanks, TellEachOtherNumbers) {
  on_both([](CpuComm& comm, int rank) {
    const std::int64_t own = rank;
    std::array<std::int64_t, 2> numbers{};
    comm.exchange({&own, 1}, numbers);
    EXPECT_EQ(numbers, (std::array<std::int64_t, 2>{0, 2}));
  });
}

INSTANTIATE_TEST_SUITE_P(OfElements, CollectivesOfSomeRanks, testing::Values(5, 3001, 300001));

}  // namespace
}  // namespace syncrun::detail
