// How the master chooses the communicator of a command.

#include "launcher/devices/comm_table.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace syncrun::detail {
namespace {

RankSet set_of(std::initializer_list<int> ranks) {
  RankSet set;
  for (const int rank : ranks) set.add(rank);
  return set;
}

/// CPU devices and GPUs, by rank: "cgg".
RankDevices devices(const char* kinds, std::vector<NodePlace> nodes = {}) {
  std::vector<DeviceId> list;
  for (int rank = 0; kinds[rank] != '\0'; ++rank) {
    list.push_back({.kind = kinds[rank] == 'g' ? DeviceKind::cuda : DeviceKind::cpu, .index = rank});
  }
  return RankDevices(list, std::move(nodes));
}

TEST(CommTable, ChoosesNoCommunicatorForOneRank) {
  for (const char* const kinds : {"cg", "gg", "cc"}) {
    const RankDevices of_session = devices(kinds);
    EXPECT_EQ(CommTable(of_session).choose(set_of({1})), CommChoice::alone()) << kinds;
  }
}

TEST(CommTable, ChoosesThatOfCpuDevicesInAnySession) {
  for (const char* const kinds : {"ccc", "cgc"}) {
    const RankDevices of_session = devices(kinds);
    CommTable table(of_session);
    EXPECT_EQ(table.choose(set_of({0, 2})), CommChoice::devices(CommChoice::kOfSession)) << kinds;
    EXPECT_FALSE(table.is_nccl(table.choose(set_of({0, 2})), set_of({0, 2}))) << kinds;
  }
}

TEST(CommTable, ChoosesHostMemoryForBothKinds) {
  const RankDevices of_session = devices("gcg");
  CommTable table(of_session);
  for (const RankSet& ranks : {set_of({0, 1, 2}), set_of({0, 1})}) {
    EXPECT_EQ(table.choose(ranks), CommChoice::host());
    EXPECT_FALSE(table.is_nccl(table.choose(ranks), ranks));
  }
}

TEST(CommTable, ChoosesThatOfNodesForCpuDevicesAndBothKindsOnSeveral) {
  const RankDevices of_session = devices("ccggc", {{0, 2, 0, 2}, {1, 2, 2, 3}});
  CommTable table(of_session);
  EXPECT_EQ(table.choose(set_of({0, 1})), CommChoice::devices(CommChoice::kOfSession)) << "on one node";
  for (const RankSet& ranks : {set_of({1, 4}), set_of({1, 2}), set_of({0, 1, 2, 3, 4})}) {
    EXPECT_EQ(table.choose(ranks), CommChoice::nodes());
    EXPECT_FALSE(table.is_nccl(table.choose(ranks), ranks));
  }
  EXPECT_EQ(table.choose(set_of({3})), CommChoice::alone());
}

TEST(CommTable, ChoosesNcclForGpusOnSeveralNodes) {
  const RankDevices of_session = devices("gggg", {{0, 2, 0, 2}, {1, 2, 2, 2}});
  CommTable table(of_session);
  EXPECT_EQ(table.choose(set_of({0, 1, 2, 3})), CommChoice::devices_of_nodes(CommChoice::kOfSession));
  EXPECT_EQ(table.choose(set_of({0, 1})), CommChoice::devices(1)) << "on one node";
  EXPECT_EQ(table.choose(set_of({1, 2})), CommChoice::devices_of_nodes(2));
  EXPECT_TRUE(table.is_nccl(table.choose(set_of({1, 2})), set_of({1, 2})));
  EXPECT_TRUE(table.choose(set_of({1, 2})).spans_nodes());
  EXPECT_FALSE(table.choose(set_of({0, 1})).spans_nodes());
}

TEST(CommTable, GivesEachSetOfGpusItsOwn) {
  const RankDevices of_session = devices("ggg");
  CommTable table(of_session);
  EXPECT_EQ(table.choose(set_of({0, 2})), CommChoice::devices(1));
  EXPECT_EQ(table.choose(set_of({0, 1, 2})), CommChoice::devices(CommChoice::kOfSession));
  EXPECT_EQ(table.choose(set_of({1, 2})), CommChoice::devices(2));
  EXPECT_EQ(table.choose(set_of({0, 2})), CommChoice::devices(1)) << "as before";
  EXPECT_TRUE(table.is_nccl(table.choose(set_of({0, 2})), set_of({0, 2})));
}

TEST(CommTable, GivesTheGpusOfAMixedSessionOneOfTheirOwn) {
  const RankDevices of_session = devices("ggc");
  CommTable table(of_session);
  EXPECT_EQ(table.choose(set_of({0, 1})), CommChoice::devices(1)) << "index 0 is for sessions of GPUs only";
}

TEST(CommTable, ChoosesHostMemoryWhenAllIndicesAreInUse) {
  const RankDevices of_session = devices("gggggggggggggggggggggggg");
  CommTable table(of_session);
  int index = 1;
  for (int a = 0; a < 24; ++a) {
    for (int b = a + 1; b < 24; ++b) {
      const CommChoice choice = table.choose(set_of({a, b}));
      EXPECT_EQ(choice, index < CommChoice::kMostComms ? CommChoice::devices(index) : CommChoice::host());
      ++index;
    }
  }
  EXPECT_EQ(table.choose(set_of({0, 1})), CommChoice::devices(1)) << "as before";
  EXPECT_FALSE(table.is_nccl(table.choose(set_of({22, 23})), set_of({22, 23})));
}

}  // namespace
}  // namespace syncrun::detail
