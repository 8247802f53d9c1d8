#include "tests/model/scenarios.hpp"

#include <cstdio>

namespace model::tests {

Report explore(const Scenario& scenario) {
  const Report report = Explorer<model::Protocol>(scenario).explore();
  std::printf("%-40s %9zu states, %9zu steps, %4zu ends\n", scenario.name, report.states, report.steps, report.ends);
  return report;
}

TEST_P(Protocol, HoldsInEveryInterleaving) {
  const Report report = explore(GetParam());
  EXPECT_EQ(report.wrong, "") << trace_of(report);
  EXPECT_GT(report.ends, 0U);
}

TEST_P(BrokenProtocol, IsFoundWithARunThatShowsIt) {
  const Report report = explore(GetParam().scenario);
  EXPECT_NE(report.wrong.find(GetParam().wrong), std::string::npos) << trace_of(report);
  EXPECT_GT(report.trace.size(), 5U);
  std::printf("%s\n", trace_of(report).c_str());
}

}  // namespace model::tests
