// Collectives among devices of different kinds, through host memory.

#include "worker/comm/host_comm.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "tests/worker/comm/mixed_ranks.hpp"

namespace syncrun::detail {
namespace {

using Integers = std::vector<std::int64_t>;

/// The parameter is the number of elements of a rank. Small values take another path than large ones.
class HostComms : public MixedRanks, public testing::WithParamInterface<std::size_t> {
 protected:
  static std::size_t elements() { return GetParam(); }
  /// Element i is 1000 * rank + i.
  static Integers values_of(int rank, std::size_t count = elements()) {
    Integers values(count);
    std::iota(values.begin(), values.end(), 1000 * rank);
    return values;
  }
  static Integers sum() {
    Integers sum(elements());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = 3000 + 3 * static_cast<std::int64_t>(i);
    return sum;
  }
  static Division thirds() { return {elements(), kWorldSize, sizeof(std::int64_t)}; }
  static Integers third_of(const Integers& all, int rank) {
    const RowRange range = thirds().of(rank);
    return {all.begin() + range.begin, all.begin() + range.end};
  }
  static std::size_t share(int rank) { return static_cast<std::size_t>(thirds().of(rank).count()); }

  void run(const std::function<void(MixedRank&, CommCore&)>& body) {
    EXPECT_EQ(on_all([&](MixedRank& rank) { body(rank, rank.comms().of(command_of(everyone()))); }), all(""));
  }
};
INSTANTIATE_TEST_SUITE_P(OfElements, HostComms, testing::Values(0, 2, 5, 3001, 300'001));

TEST_P(HostComms, ReduceToAllRanks) {
  run([](MixedRank& rank, CommCore& comm) {
    auto* const values = rank.put(values_of(rank.rank()));
    for (int round = 0; round < 3; ++round) {
      auto* const copy = rank.put(Integers(elements()));
      rank.device().copy_within(copy, values, elements() * sizeof(std::int64_t));
      comm.all_reduce(copy, elements(), DType::int64, Reduction::sum, {});
      EXPECT_EQ(rank.get(copy, elements()), sum()) << "round " << round;
    }
  });
}

// The second reduction uses the result of the first one before the host has seen it.
TEST_P(HostComms, ComeInTheOrderOfTheDevicesWork) {
  run([](MixedRank& rank, CommCore& comm) {
    auto* const values = rank.put(Integers(elements(), 1));
    comm.all_reduce(values, elements(), DType::int64, Reduction::sum, {});
    comm.all_reduce(values, elements(), DType::int64, Reduction::sum, {});
    EXPECT_EQ(rank.get(values, elements()), Integers(elements(), 9));
  });
}

TEST_P(HostComms, WeighMeansByTheRowsOfTheRanks) {
  run([](MixedRank& rank, CommCore& comm) {
    const std::array<std::int64_t, 3> rows{3, 0, 5};
    const auto own = static_cast<std::size_t>(rank.rank());
    const std::array<double, 3> means{8, std::numeric_limits<double>::quiet_NaN(), 16};
    auto* const values = rank.put(std::vector<double>(elements(), means[own]));
    comm.all_reduce(values, elements(), DType::float64, Reduction::avg, {rows[own], 8});
    EXPECT_EQ(rank.get(values, elements()), std::vector<double>(elements(), 13));
  });
}

TEST_P(HostComms, ReduceToAnyRank) {
  run([](MixedRank& rank, CommCore& comm) {
    for (int root = 0; root < kWorldSize; ++root) {
      auto* const values = rank.put(values_of(rank.rank()));
      comm.reduce(values, elements(), DType::int64, Reduction::sum, {}, root);
      const Integers got = rank.get(values, elements());
      if (rank.rank() != root) continue;
      EXPECT_EQ(got, sum()) << "root " << root;
    }
  });
}

TEST_P(HostComms, DivideAReduction) {
  run([](MixedRank& rank, CommCore& comm) {
    auto* const values = rank.put(values_of(rank.rank()));
    auto* const part = rank.put(Integers(share(rank.rank())));
    comm.reduce_scatter(values, part, thirds(), DType::int64, Reduction::sum, {});
    EXPECT_EQ(rank.get(part, share(rank.rank())), third_of(sum(), rank.rank()));
    EXPECT_EQ(rank.get(values, elements()), values_of(rank.rank()));
    auto* const in_place = values + thirds().of(rank.rank()).begin;
    comm.reduce_scatter(values, in_place, thirds(), DType::int64, Reduction::sum, {});
    EXPECT_EQ(rank.get(in_place, share(rank.rank())), third_of(sum(), rank.rank()));
  });
}

TEST_P(HostComms, BroadcastFromAnyRank) {
  run([](MixedRank& rank, CommCore& comm) {
    for (int root = 0; root < kWorldSize; ++root) {
      auto* const values = rank.put(values_of(rank.rank()));
      comm.broadcast(values, elements(), DType::int64, root);
      EXPECT_EQ(rank.get(values, elements()), values_of(root)) << "root " << root;
    }
  });
}

TEST_P(HostComms, JoinPartsOnAllRanks) {
  run([](MixedRank& rank, CommCore& comm) {
    const Integers all = values_of(7);
    auto* const part = rank.put(third_of(all, rank.rank()));
    auto* const joined = rank.put(Integers(elements()));
    comm.all_gather(part, joined, thirds());
    EXPECT_EQ(rank.get(joined, elements()), all);
    auto* const in_place = rank.put(values_of(7));
    comm.all_gather(in_place + thirds().of(rank.rank()).begin, in_place, thirds());
    EXPECT_EQ(rank.get(in_place, elements()), all);
  });
}

TEST_P(HostComms, JoinAndDivideOnAnyRank) {
  run([](MixedRank& rank, CommCore& comm) {
    for (int root = 0; root < kWorldSize; ++root) {
      const bool is_root = rank.rank() == root;
      auto* const part = rank.put(third_of(values_of(root), rank.rank()));
      auto* const all = rank.put(Integers(elements()));
      comm.gather(part, is_root ? all : nullptr, thirds(), root);
      EXPECT_EQ(rank.get(all, elements()), is_root ? values_of(root) : Integers(elements())) << "root " << root;
      auto* const back = rank.put(Integers(share(rank.rank())));
      comm.scatter(is_root ? all : nullptr, back, thirds(), root);
      EXPECT_EQ(rank.get(back, share(rank.rank())), third_of(values_of(root), rank.rank())) << "root " << root;
    }
  });
}

TEST_P(HostComms, HandlePartsOfAnyLengths) {
  const auto count = static_cast<std::int64_t>(elements());
  const Integers lengths{count, 0, 2 * count + 1};
  run([&](MixedRank& rank, CommCore& comm) {
    const Division division(lengths, sizeof(std::int64_t));
    const auto own = static_cast<std::size_t>(lengths[static_cast<std::size_t>(rank.rank())]);
    const Integers all = values_of(1, static_cast<std::size_t>(division.elements()));
    const auto begin = all.begin() + division.of(rank.rank()).begin;
    const Integers expected(begin, begin + static_cast<std::ptrdiff_t>(own));
    auto* const part = rank.put(expected);
    auto* const joined = rank.put(Integers(all.size()));
    comm.all_gather(part, joined, division);
    EXPECT_EQ(rank.get(joined, all.size()), all);
    auto* const back = rank.put(Integers(own));
    comm.scatter(joined, back, division, 1);
    EXPECT_EQ(rank.get(back, own), expected);
  });
}

TEST_P(HostComms, UseTheSameMemoryAgain) {
  run([](MixedRank& rank, CommCore& comm) {
    auto* const values = rank.put(values_of(rank.rank()));
    comm.all_reduce(values, elements(), DType::int64, Reduction::max, {});
    const std::size_t used = rank.arena().used_bytes();
    for (int round = 0; round < 5; ++round) comm.all_reduce(values, elements(), DType::int64, Reduction::max, {});
    EXPECT_EQ(rank.arena().used_bytes(), used);
  });
}

TEST_P(HostComms, TellOfRanksThatDisagree) {
  const auto thrown = on_all([](MixedRank& rank) {
    const std::size_t own = elements() + (rank.is_cpu() ? 1 : 0);
    auto* const values = rank.put(Integers(own));
    rank.comms().of(command_of(everyone())).all_reduce(values, own, DType::int64, Reduction::sum, {});
  });
  const std::string text = "ranks disagree in a collective: rank 0 calls all_reduce of " + std::to_string(elements()) +
                           " int64 (sum), rank 1 calls all_reduce of " + std::to_string(elements() + 1) +
                           " int64 (sum)";
  EXPECT_EQ(thrown, all(text));
}

class HostCommOnce : public MixedRanks {};

TEST_F(HostCommOnce, HandlesNumbersOfTheHost) {
  EXPECT_EQ(on_all([](MixedRank& rank) {
              CommCore& comm = rank.comms().of(command_of(everyone()));
              comm.barrier();
              EXPECT_EQ(comm.rank(), rank.rank());
              EXPECT_EQ(comm.world_size(), kWorldSize);
              std::int64_t number = rank.rank();
              comm.all_reduce_value(&number, DType::int64, Reduction::sum, {});
              EXPECT_EQ(number, 3);
              const std::int64_t own = rank.rank();
              std::array<std::int64_t, kWorldSize> numbers{};
              comm.exchange({&own, 1}, numbers);
              EXPECT_EQ(numbers, (std::array<std::int64_t, kWorldSize>{0, 1, 2}));
            }),
            all(""));
}

TEST_F(HostCommOnce, CannotBeCapturedAndHasNoBackground) {
  CommCore& comm = at(0).comms().of(command_of(everyone()));
  EXPECT_FALSE(comm.can_be_captured());
  EXPECT_FALSE(comm.has_background());
  EXPECT_FALSE(at(1).comms().of(command_of(everyone())).has_background()) << "so no rank divides an average";
}

// A peer may still write its part of an earlier result there.
TEST_F(HostCommOnce, LeavesItsMemoryAloneUntilPeersHaveEndedTheLastCommand) {
  const auto reduce = [](MixedRank& rank) {
    auto* const values = rank.put(Integers(5, 1));
    rank.comms().of(command_of(everyone())).all_reduce(values, 5, DType::int64, Reduction::sum, {});
    EXPECT_EQ(rank.get(values, 5), Integers(5, 3));
  };
  EXPECT_EQ(on_all(reduce), all(""));
  begin(kNext, everyone());
  const int copies = at(0).off_host().copies_out;
  std::jthread others([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(at(0).off_host().copies_out, copies);
    for (int rank = 0; rank < kWorldSize; ++rank) finish(kMeetingCommand, rank);
  });
  EXPECT_EQ(on_all(reduce), all(""));
  EXPECT_EQ(at(0).off_host().copies_out, copies + 1);
}

}  // namespace
}  // namespace syncrun::detail
