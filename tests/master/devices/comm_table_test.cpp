// How the master chooses the communicator of a command.

#include "master/devices/comm_table.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace syncrun::detail {
namespace {

protocol::RankSet set_of(std::initializer_list<int> ranks) {
  protocol::RankSet set;
  for (const int rank : ranks) set.add(rank);
  return set;
}

/// CPU devices and GPUs, by rank: "cgg".
master::devices::RankDevices devices(const char* kinds, std::vector<protocol::NodePlace> nodes = {}) {
  std::vector<master::devices::DeviceId> list;
  for (int rank = 0; kinds[rank] != '\0'; ++rank) {
    list.push_back({.kind = kinds[rank] == 'g' ? DeviceKind::cuda : DeviceKind::cpu, .index = rank});
  }
  return master::devices::RankDevices(list, std::move(nodes));
}

TEST(CommTable, ChoosesThatOfNodesForCpuDevicesAndBothKindsOnSeveral) {
  const master::devices::RankDevices of_session = devices("ccggc", {{0, 2, 0, 2}, {1, 2, 2, 3}});
  master::devices::CommTable table(of_session);
  EXPECT_EQ(table.choose(set_of({0, 1})), protocol::CommChoice::devices(protocol::CommChoice::kOfSession))
      << "on one node";
  for (const protocol::RankSet& ranks : {set_of({1, 4}), set_of({1, 2}), set_of({0, 1, 2, 3, 4})}) {
    EXPECT_EQ(table.choose(ranks), protocol::CommChoice::nodes());
    EXPECT_FALSE(table.is_nccl(table.choose(ranks), ranks));
  }
  EXPECT_EQ(table.choose(set_of({3})), protocol::CommChoice::alone());
}

TEST(CommTable, ChoosesNcclForGpusOnSeveralNodes) {
  const master::devices::RankDevices of_session = devices("gggg", {{0, 2, 0, 2}, {1, 2, 2, 2}});
  master::devices::CommTable table(of_session);
  EXPECT_EQ(table.choose(set_of({0, 1, 2, 3})),
            protocol::CommChoice::devices_of_nodes(protocol::CommChoice::kOfSession));
  EXPECT_EQ(table.choose(set_of({0, 1})), protocol::CommChoice::devices(1)) << "on one node";
  EXPECT_EQ(table.choose(set_of({1, 2})), protocol::CommChoice::devices_of_nodes(2));
  EXPECT_TRUE(table.is_nccl(table.choose(set_of({1, 2})), set_of({1, 2})));
  EXPECT_TRUE(table.choose(set_of({1, 2})).spans_nodes());
  EXPECT_FALSE(table.choose(set_of({0, 1})).spans_nodes());
}

TEST(CommTable, GivesEachSetOfGpusItsOwn) {
  const master::devices::RankDevices of_session = devices("ggg");
  master::devices::CommTable table(of_session);
  EXPECT_EQ(table.choose(set_of({0, 2})), protocol::CommChoice::devices(1));
  EXPECT_EQ(table.choose(set_of({0, 1, 2})), protocol::CommChoice::devices(protocol::CommChoice::kOfSession));
  EXPECT_EQ(table.choose(set_of({1, 2})), protocol::CommChoice::devices(2));
  EXPECT_EQ(table.choose(set_of({0, 2})), protocol::CommChoice::devices(1)) << "as before";
  EXPECT_TRUE(table.is_nccl(table.choose(set_of({0, 2})), set_of({0, 2})));
}

TEST(CommTable, GivesTheGpusOfAMixedSessionOneOfTheirOwn) {
  const master::devices::RankDevices of_session = devices("ggc");
  master::devices::CommTable table(of_session);
  EXPECT_EQ(table.choose(set_of({0, 1})), protocol::CommChoice::devices(1)) << "index 0 is for sessions of GPUs only";
}

TEST(CommTable, ChoosesHostMemoryWhenAllIndicesAreInUse) {
  const master::devices::RankDevices of_session = devices("gggggggggggggggggggggggg");
  master::devices::CommTable table(of_session);
  int index = 1;
  for (int a = 0; a < 24; ++a) {
    for (int b = a + 1; b < 24; ++b) {
      const protocol::CommChoice choice = table.choose(set_of({a, b}));
      EXPECT_EQ(choice, index < protocol::CommChoice::kMostComms ? protocol::CommChoice::devices(index)
                                                                 : protocol::CommChoice::host());
      ++index;
    }
  }
  EXPECT_EQ(table.choose(set_of({0, 1})), protocol::CommChoice::devices(1)) << "as before";
  EXPECT_FALSE(table.is_nccl(table.choose(set_of({22, 23})), set_of({22, 23})));
}

}  // namespace
}  // namespace syncrun::detail
