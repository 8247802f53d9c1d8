// What ranks of several nodes tell each other before NCCL connects them.

#include "worker/devices/cuda/node_facts.hpp"

#include <gtest/gtest.h>

namespace syncrun::detail {
namespace {

TEST(NodeFacts, AreTheSameAfterTheirWay) {
  const worker::devices::cuda::NodeFacts facts{3, false, "eth0 10.0.0.4, ib0 10.1.0.4"};
  const auto numbers = facts.packed();
  const worker::devices::cuda::NodeFacts there = worker::devices::cuda::NodeFacts::unpacked(numbers);
  EXPECT_EQ(there.node, 3);
  EXPECT_FALSE(there.reduces_by_node);
  EXPECT_EQ(there.interfaces, facts.interfaces);
  EXPECT_EQ(worker::devices::cuda::NodeFacts::unpacked(worker::devices::cuda::NodeFacts{}.packed()).interfaces, "");
}

TEST(NodeFacts, ALongTextLosesItsEnd) {
  const std::string text(10'000, 'x');
  const std::string there =
      worker::devices::cuda::NodeFacts::unpacked(worker::devices::cuda::NodeFacts{0, true, text}.packed()).interfaces;
  EXPECT_GT(there.size(), 400u);
  EXPECT_EQ(there, text.substr(0, there.size()));
}

TEST(NodeFacts, AMessageNamesEachNodeOnce) {
  const std::vector<worker::devices::cuda::NodeFacts> facts{
      {0, true, "eth0 10.0.0.1"}, {0, true, "eth0 10.0.0.1"}, {1, true, "ib0 10.1.0.2"}};
  EXPECT_EQ(worker::devices::cuda::interfaces_of(facts),
            "node 0 has the interfaces eth0 10.0.0.1; node 1 has the interfaces ib0 10.1.0.2");
}

}  // namespace
}  // namespace syncrun::detail
