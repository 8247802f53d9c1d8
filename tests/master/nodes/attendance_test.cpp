#include "master/nodes/attendance.hpp"

#include <gtest/gtest.h>

namespace {

using syncrun::detail::master::nodes::Attendance;
using syncrun::detail::master::nodes::describe_late_nodes;
using syncrun::detail::master::nodes::hosts_in_slurm_list;
using syncrun::detail::os::Milliseconds;
using Names = std::vector<std::string>;

TEST(LateNodes, GetTheNamesOfTheEngineWhereOthersAreMissing) {
  Attendance attendance{{true, false}, {"a", ""}};
  attendance.add_hosts({"x", "b"});
  EXPECT_EQ(attendance.hosts, Names({"a", "b"}));
}

TEST(LateNodes, AreNotNamedIfAllHaveCome) {
  const Attendance attendance{{true, true}, {"a", "b"}};
  EXPECT_NE(describe_late_nodes(2, Milliseconds(1), attendance).find("all of them have come. Is the network"),
            std::string::npos);
}

TEST(LateNodes, AreNotNamedIfTheEngineDoesNotSayThem) {
  const std::string text = describe_late_nodes(2, Milliseconds(1), std::nullopt);
  EXPECT_NE(text.find("expected 2 nodes, and this engine does not say which ones have come"), std::string::npos);
}

TEST(HostsInSlurmList, AreWrittenOut) {
  EXPECT_EQ(hosts_in_slurm_list("n1", 8), Names({"n1"}));
  EXPECT_EQ(hosts_in_slurm_list("n[1-3]", 8), Names({"n1", "n2", "n3"}));
  EXPECT_EQ(hosts_in_slurm_list("n[08-10,12],gpu,m[3]", 8), Names({"n08", "n09", "n10", "n12", "gpu", "m3"}));
}

TEST(HostsInSlurmList, AreNoneIfTheListIsNotWellFormed) {
  for (const char* list : {"", "n[1-", "n[2-1]", "n[x]", "n[]", "n[1]x", "n[1-3", ",n", "n[1-99999999999]"})
    EXPECT_EQ(hosts_in_slurm_list(list, 8), Names()) << list;
}

TEST(HostsInSlurmList, AreNoneIfThereAreTooMany) {
  EXPECT_EQ(hosts_in_slurm_list("n[1-4]", 3), Names());
  EXPECT_EQ(hosts_in_slurm_list("a,b,c", 2), Names());
}

}  // namespace
