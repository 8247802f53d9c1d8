// Explores the model of sessions on several nodes (see docs/protocol.md).

#include "tests/model/nodes_scenarios.hpp"

namespace model::nodes::tests {
namespace {

constexpr Byte kAnyMishap = any_of(Mishap::worker_dies, Mishap::agent_dies, Mishap::agent_stops, Mishap::link_fails,
                                   Mishap::master_dies, Mishap::agent_fails);

INSTANTIATE_TEST_SUITE_P(
    Of, NodesProtocol,
    testing::Values(
        Scenario{
            .name = "calls_on_three_nodes", .node_of = kThreeNodes, .calls = {kCall, kCall, kCall, kCall}, .places = 2},
        Scenario{.name = "calls_on_two_workers_each",
                 .node_of = kTwoEach,
                 .calls = {kCall, kCall},
                 .places = 2,
                 .failures = 2},
        Scenario{.name = "dependencies_across_nodes",
                 .node_of = kThreeNodes,
                 .calls = {kCall, after(on(kRanks12), 1), after(on(kRank2), 2), after(on(kRank1), 1)},
                 .places = 2,
                 .failures = 3},
        Scenario{.name = "a_slot_fails_again",
                 .node_of = kTwoThere,
                 .calls = {on(kRank1), after(on(kRank1), 1), on(kRank2), after(on(kRanks12), 2, 3)},
                 .places = 2,
                 .failures = 3},
        Scenario{.name = "a_full_inbox",
                 .node_of = kTwoThere,
                 .calls = {on(kRank1), on(kRank1), on(kRank2), kCall},
                 .failures = 2},
        Scenario{.name = "rows",
                 .node_of = kThreeOnThree,
                 .calls = {on(kRank1, kReads), on(kRank2, kReads), kReads, on(kRank1)},
                 .places = 2},
        Scenario{.name = "a_file_is_unmapped",
                 .node_of = kThreeNodes,
                 .calls = {kCall, kWritesNoOutbox, kCall, kWritesNoOutbox},
                 .failures = 2},
        Scenario{.name = "mishaps",
                 .node_of = kThreeNodes,
                 .calls = {kCall, kCall},
                 .places = 2,
                 .mishaps = 2,
                 .kinds = kAnyMishap},
        Scenario{.name = "mishaps_and_failures",
                 .node_of = kTwoThere,
                 .calls = {kCall, after(on(kRank1), 1), on(kRanks12)},
                 .places = 2,
                 .failures = 1,
                 .mishaps = 1,
                 .kinds = kAnyMishap},
        Scenario{.name = "three_mishaps", .node_of = kThreeNodes, .calls = {kCall}, .mishaps = 3, .kinds = kAnyMishap},
        Scenario{
            .name = "mishaps_among_peers", .node_of = kTwoThere, .calls = {kCall}, .mishaps = 3, .kinds = kAnyMishap},
        Scenario{.name = "sessions",
                 .node_of = kThreeNodes,
                 .calls = {kCall},
                 .mishaps = 2,
                 .kinds = kAnyMishap,
                 .sessions = 2,
                 .refusals = 2},
        Scenario{.name = "three_sessions", .node_of = kThreeNodes, .calls = {kCall}, .sessions = 3, .refusals = 4}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace model::nodes::tests
