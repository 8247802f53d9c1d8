// The contract of transports, on the fake one: a thread for each node.

#include "tests/master/nodes/transport_contract.hpp"

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "tests/master/nodes/fake_transport.hpp"

namespace syncrun::test {
namespace {

class TransportContract : public testing::TestWithParam<TransportPromise> {};

TEST_P(TransportContract, HoldsForTheFake) {
  FakeNetwork network(kContractNodes);
  std::vector<std::string> wrong(kContractNodes);
  const auto run_node = [&](int node) {
    try {
      detail::master::nodes::Transport& transport = network.at(node);
      transport.open();
      GetParam().check(transport);
      if (GetParam().end != TransportPromise::End::closes || transport.close(kContractGrace)) return;
      wrong[static_cast<std::size_t>(node)] = "close() has failed";
    } catch (const std::exception& error) {
      wrong[static_cast<std::size_t>(node)] = error.what();
    }
  };
  std::vector<std::thread> nodes;
  for (int node = 0; node < kContractNodes; ++node) nodes.emplace_back(run_node, node);
  for (std::thread& node : nodes) node.join();
  EXPECT_EQ(wrong, std::vector<std::string>(kContractNodes));
}

INSTANTIATE_TEST_SUITE_P(All, TransportContract,
                         testing::ValuesIn(transport_contract().begin(), transport_contract().end()),
                         [](const auto& promise) { return std::string(promise.param.name); });

}  // namespace
}  // namespace syncrun::test
