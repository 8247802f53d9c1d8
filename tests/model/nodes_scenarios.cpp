#include "tests/model/nodes_scenarios.hpp"

#include <cstdio>

namespace model::nodes::tests {

namespace {

model::Report explore(const Scenario& scenario) {
  const auto report = Explorer<nodes::Protocol>(scenario).explore();
  std::printf("%-40s %9zu states, %9zu steps, %4zu ends\n", scenario.name, report.states, report.steps, report.ends);
  return report;
}

}  // namespace

TEST_P(NodesProtocol, HoldsInEveryInterleaving) {
  const auto report = explore(GetParam());
  EXPECT_EQ(report.wrong, "") << trace_of(report);
  EXPECT_GT(report.ends, 0U);
}

TEST_P(BrokenNodesProtocol, IsFoundWithARunThatShowsIt) {
  const auto report = explore(GetParam().scenario);
  EXPECT_NE(report.wrong.find(GetParam().wrong), std::string::npos) << trace_of(report);
  EXPECT_FALSE(report.trace.empty());
  std::printf("%s\n", trace_of(report).c_str());
}

}  // namespace model::nodes::tests
