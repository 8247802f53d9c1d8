// Explores the scenarios with Values: moves between ranks, spare copies, and what failures and losses do to them.

#include "tests/model/scenarios.hpp"

namespace model::tests {
namespace {

INSTANTIATE_TEST_SUITE_P(
    OfValues, Protocol,
    testing::Values(
        Scenario{.name = "a_value_is_read_elsewhere",
                 .calls = {writes(kA, kRank0), reads(kA, kRank1), writes(kA, kRank0)},
                 .failures = 1,
                 .values = {0}},
        Scenario{.name = "a_value_goes_back_and_forth",
                 .calls = {writes(kA, kRank1), writes(kA, kRank0), reads(kA, kRank1)},
                 .failures = 1,
                 .values = {0}},
        Scenario{.name = "a_value_is_made",
                 .calls = {makes(kA, kRank0), reads(kA, kRank1), reads(kA, kRank0)},
                 .failures = 1,
                 .values = {-1}},
        Scenario{.name = "a_value_is_made_from_another",
                 .calls = {{.has_outputs = false, .ranks = kRank1, .reads = kA, .makes = kB}, reads(kA | kB, kRank0)},
                 .failures = 1,
                 .values = {0, -1}},
        Scenario{.name = "all_ranks_read_a_value",
                 .calls = {reads(kA, kRanks01), writes(kA, kRank0), kUpdates},
                 .failures = 1,
                 .values = {0}},
        Scenario{.name = "a_move_fails",
                 .calls = {reads(kA, kRank1), writes(kA, kRank1), reads(kA, kRank0)},
                 .failures = 1,
                 .values = {0},
                 .moves_may_fail = true},
        Scenario{.name = "copies_are_dropped",
                 .calls = {reads(kA, kRank1), on(kRank1, kSilent), reads(kA, kRank1)},
                 .values = {0},
                 .drops = 2},
        Scenario{.name = "old_copies_are_dropped",
                 .calls = {writes(kA, kRank1), reads(kA, kRank0), writes(kA, kRank0)},
                 .failures = 1,
                 .values = {0},
                 .drops = 1},
        Scenario{.name = "a_death_during_a_move",
                 .calls = {writes(kA, kRank0), reads(kA, kRank1), writes(kA, kRank0)},
                 .deaths = 1,
                 .values = {0}},
        Scenario{.name = "a_lost_worker_is_replaced",
                 .calls = {writes(kA, kRank0), reads(kA, kRank1), writes(kA, kRank0)},
                 .deaths = 1,
                 .values = {0},
                 .respawns = true},
        Scenario{.name = "a_lost_copy_and_a_spare_one",
                 .calls = {reads(kA, kRank1), on(kRank1, kSilent), reads(kA, kRank1)},
                 .deaths = 1,
                 .values = {0},
                 .drops = 1,
                 .respawns = true},
        Scenario{.name = "a_full_inbox_and_moves",
                 .places = 1,
                 .calls = {reads(kA, kRank1), reads(kB, kRank1), writes(kA | kB, kRank0)},
                 .failures = 1,
                 .values = {0, 0},
                 .moves_may_fail = true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace model::tests
