// Explores the model of the call protocol: all interleavings of its atomic steps (see docs/protocol.md).

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/model/explorer.hpp"

namespace model {

// For the names of tests and for messages.
void PrintTo(const Scenario& scenario, std::ostream* to) { *to << scenario.name; }

namespace {

constexpr Call kPlain{};                                               // the master reduces its outputs
constexpr Call kSilent{.has_outputs = false};                          // has no outputs
constexpr Call kUpdates{.wants_vote = true};                           // commits if all ranks vote for it
constexpr Call kLarge{.is_large = true};                               // the workers reduce its outputs
constexpr Call kMeets{.operations = 1, .has_outputs = false};          // one collective
constexpr Call kMeetsTwice{.operations = 2, .has_outputs = false};     // two collectives
constexpr Call kMeetsAndUpdates{.operations = 1, .wants_vote = true};  // a collective and an update

// Sets of ranks.
constexpr Byte kRank0 = 1, kRank1 = 2, kRanks01 = 3, kRanks12 = 6, kRanks02 = 5;

constexpr Call on(Byte ranks, Call call) {
  call.ranks = ranks;
  return call;
}
/// The call uses what the earlier calls with these numbers write.
template <class... Ids>
constexpr Call after(Call call, Ids... ids) {
  call.after = static_cast<Byte>((... | (1U << static_cast<unsigned>(ids))));
  return call;
}

std::string trace_of(const Report& report) {
  std::string text = report.wrong;
  for (const auto& step : report.trace) text += "\n  " + step;
  return text;
}

Report explore(const Scenario& scenario) {
  const Report report = Explorer(scenario).explore();
  std::printf("%-40s %9zu states, %9zu steps, %4zu ends\n", scenario.name, report.states, report.steps, report.ends);
  return report;
}

class Protocol : public testing::TestWithParam<Scenario> {};

TEST_P(Protocol, HoldsInEveryInterleaving) {
  const Report report = explore(GetParam());
  EXPECT_EQ(report.wrong, "") << trace_of(report);
  EXPECT_GT(report.ends, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Of, Protocol,
    testing::Values(
        // All ranks.
        Scenario{.name = "three_calls", .calls = {kPlain, kUpdates, kPlain}},
        Scenario{.name = "three_workers", .workers = 3, .calls = {kUpdates}},
        Scenario{.name = "a_failure_among_three_calls",
                 .calls = {kUpdates, after(kUpdates, 1), after(kPlain, 2)},
                 .failures = 1},
        Scenario{.name = "a_failure_and_three_in_flight",
                 .places = 3,
                 .calls = {kPlain, after(kUpdates, 1), after(kSilent, 1)},
                 .failures = 1,
                 .failing_call = 1},
        Scenario{.name = "two_failures", .calls = {kPlain, after(kUpdates, 1)}, .failures = 2},
        Scenario{.name = "a_late_failure", .calls = {kLarge, after(kUpdates, 1)}, .failures = 1, .may_fail_late = true},
        Scenario{.name = "independent_calls", .calls = {kUpdates, kUpdates}, .failures = 1},
        // Collectives.
        Scenario{.name = "collectives", .calls = {kMeetsTwice, kMeets}},
        Scenario{.name = "a_failure_among_collectives", .calls = {kMeetsAndUpdates, after(kMeets, 1)}, .failures = 1},
        Scenario{.name = "a_failure_and_a_slot_used_again",
                 .calls = {kMeets, kSilent, after(kMeets, 2)},
                 .failures = 1,
                 .failing_call = 2},
        Scenario{.name = "a_skipped_collective_and_another",
                 .calls = {kMeets, kSilent, after(kMeets, 2), kMeets},
                 .failures = 1,
                 .failing_call = 2},
        Scenario{.name = "independent_collectives", .calls = {kMeets, kMeets}, .failures = 1},
        Scenario{
            .name = "collectives_of_two_sets", .workers = 3, .calls = {on(kRanks01, kMeets), on(kRanks02, kMeets)}},
        // One rank, and sets of ranks.
        Scenario{.name = "one_rank_alone",
                 .calls = {kSilent, after(on(kRank1, kPlain), 1), after(kUpdates, 1, 2)},
                 .failures = 1},
        Scenario{.name = "one_rank_runs_ahead", .calls = {on(kRank1, kPlain), on(kRank1, kPlain), on(kRank1, kPlain)}},
        Scenario{.name = "side_by_side",
                 .calls = {on(kRank0, kUpdates), on(kRank1, kUpdates), after(on(kRank0, kPlain), 1),
                           after(on(kRank1, kPlain), 2)},
                 .failures = 1},
        Scenario{.name = "overlapping_sets",
                 .workers = 3,
                 .calls = {on(kRanks01, kUpdates), on(kRanks12, kPlain)},
                 .failures = 1,
                 .failing_call = 1},
        Scenario{.name = "a_dependency_across_sets",
                 .workers = 3,
                 .calls = {on(kRanks01, kSilent), after(on(kRanks12, kUpdates), 1)},
                 .failures = 1},
        Scenario{.name = "a_dependency_fails_later",
                 .calls = {kSilent, after(on(kRank1, kUpdates), 1), after(kUpdates, 1, 2)},
                 .failures = 1,
                 .failing_call = 1},
        Scenario{.name = "a_doomed_call_and_another",
                 .places = 3,
                 .calls = {kSilent, after(on(kRank1, kSilent), 1), after(on(kRank1, kSilent), 2),
                           after(on(kRank1, kUpdates), 3)},
                 .failures = 1,
                 .failing_call = 1},
        Scenario{.name = "a_full_inbox",
                 .places = 1,
                 .calls = {on(kRank0, kPlain), on(kRank0, kPlain), on(kRank1, kPlain), kUpdates}},
        Scenario{.name = "a_slot_fails_again",
                 .calls = {on(kRank0, kSilent), after(on(kRank0, kUpdates), 1), on(kRank1, kSilent)},
                 .failures = 2},
        // Deaths.
        Scenario{.name = "a_death_while_one_rank_runs_ahead",
                 .calls = {on(kRank1, kPlain), on(kRank1, kPlain), on(kRank1, kPlain)},
                 .deaths = 1},
        Scenario{.name = "a_death_side_by_side",
                 .calls = {on(kRank0, kPlain), on(kRank1, kUpdates), after(kSilent, 1)},
                 .failures = 1,
                 .deaths = 1},
        Scenario{.name = "a_death_in_overlapping_sets",
                 .workers = 3,
                 .calls = {on(kRanks01, kSilent), on(kRanks12, kSilent)},
                 .deaths = 1,
                 .mortal_ranks = kRank1},
        Scenario{.name = "a_death_and_a_full_inbox",
                 .places = 1,
                 .calls = {on(kRank0, kPlain), on(kRank0, kUpdates), on(kRank1, kPlain), kUpdates},
                 .deaths = 1},
        Scenario{.name = "a_failure_and_a_full_inbox",
                 .places = 1,
                 .calls = {on(kRank0, kPlain), after(on(kRank0, kUpdates), 1), on(kRank1, kPlain), after(kUpdates, 2)},
                 .failures = 1},
        Scenario{.name = "a_death", .calls = {kUpdates, kLarge}, .deaths = 1},
        Scenario{.name = "a_death_in_collectives", .calls = {kMeets, kPlain}, .deaths = 1},
        Scenario{.name = "two_deaths", .calls = {kUpdates}, .deaths = 2},
        Scenario{.name = "a_failure_and_a_death", .calls = {kMeetsAndUpdates}, .failures = 1, .deaths = 1},
        Scenario{.name = "the_master_dies", .calls = {kMeetsAndUpdates}, .failures = 1, .master_may_die = true},
        Scenario{.name = "a_function_hangs", .calls = {kMeetsAndUpdates}, .deaths = 1, .functions_may_hang = true}),
    [](const auto& info) { return info.param.name; });

// Shows that the explorer finds mistakes: it must find each of these, and a run that shows it.
struct Broken {
  Scenario scenario;
  const char* wrong;  // a part of the report's text
};
void PrintTo(const Broken& broken, std::ostream* to) { *to << broken.scenario.name; }

class BrokenProtocol : public testing::TestWithParam<Broken> {};

TEST_P(BrokenProtocol, IsFoundWithARunThatShowsIt) {
  const Report report = explore(GetParam().scenario);
  EXPECT_NE(report.wrong.find(GetParam().wrong), std::string::npos) << trace_of(report);
  EXPECT_GT(report.trace.size(), 5U);
  std::printf("%s\n", trace_of(report).c_str());
}

constexpr const char* kDeadlock = "deadlock";
INSTANTIATE_TEST_SUITE_P(
    By, BrokenProtocol,
    testing::Values(
        Broken{{.name = "SleepingWithoutAnotherLook", .calls = {kPlain}, .mistake = Mistake::sleeps_without_recheck},
               kDeadlock},
        Broken{{.name = "RingingBeforeDone", .calls = {kPlain}, .mistake = Mistake::rings_before_done}, kDeadlock},
        Broken{{.name = "DoneBeforeOutputs", .calls = {kPlain}, .mistake = Mistake::done_before_outputs},
               "not of this command"},
        Broken{{.name = "VoteBeforeOutbox", .calls = {kUpdates}, .mistake = Mistake::vote_before_outbox},
               "not of this command"},
        Broken{{.name = "NoVoteAfterSkipping",
                .calls = {kPlain, after(kUpdates, 1)},
                .failures = 1,
                .mistake = Mistake::no_vote_after_skipping},
               kDeadlock},
        Broken{{.name = "CommittingWithoutTheVote",
                .calls = {kUpdates},
                .failures = 1,
                .mistake = Mistake::commits_without_vote},
               "committed"},
        Broken{{.name = "ALossThatWakesNobody", .calls = {kMeets}, .deaths = 1, .mistake = Mistake::loss_wakes_nobody},
               kDeadlock},
        Broken{{.name = "EnteringACommandBeforeClearingTheStep",
                .calls = {kMeets, kMeets},
                .mistake = Mistake::command_before_step_is_cleared},
               "not of this command"},
        Broken{{.name = "OneContribution", .calls = {kMeetsTwice}, .mistake = Mistake::one_contribution},
               "not of this operation"},
        Broken{{.name = "NotReclaimingBuffers", .calls = {kMeets, kMeets}, .mistake = Mistake::no_reclaim},
               "not of this operation"},
        Broken{{.name = "IgnoringDependencies",
                .calls = {kPlain, after(kUpdates, 1)},
                .failures = 1,
                .mistake = Mistake::ignores_dependencies},
               "committed"},
        Broken{{.name = "IgnoringFailed",
                .calls = {kPlain, after(kUpdates, 1)},
                .failures = 1,
                .mistake = Mistake::ignores_failed},
               "committed"},
        Broken{{.name = "IgnoringSpoiled",
                .calls = {on(kRank0, kSilent), after(on(kRank0, kUpdates), 1), on(kRank1, kSilent)},
                .failures = 2,
                .mistake = Mistake::ignores_spoiled},
               "committed"},
        Broken{{.name = "CheckingSpoiledBeforeFailed",
                .calls = {on(kRank0, kSilent), after(on(kRank0, kUpdates), 1), on(kRank1, kSilent)},
                .failures = 2,
                .mistake = Mistake::spoiled_before_failed},
               "committed"},
        Broken{{.name = "MarkingNoDependents",
                .calls = {on(kRank0, kSilent), after(on(kRank0, kUpdates), 1), on(kRank1, kSilent)},
                .failures = 2,
                .mistake = Mistake::marks_no_dependents},
               "committed"},
        Broken{{.name = "FailingNoDependents",
                .calls = {kSilent, after(on(kRank1, kPlain), 1)},
                .failures = 1,
                .mistake = Mistake::fails_no_dependents},
               "another failure than the first"},
        Broken{{.name = "CollectingBeforeDependencies",
                .calls = {kSilent, after(on(kRank1, kPlain), 1)},
                .failures = 1,
                .mistake = Mistake::collects_before_dependencies},
               "succeeds though one did"},
        Broken{{.name = "ASlotThatIsFreeWhenOneRankIsDone",
                .calls = {kSilent, on(kRank0, kSilent)},
                .mistake = Mistake::slot_is_free_when_one_rank_is_done},
               "a slot is written"},
        Broken{{.name = "APlaceThatIsFreeWhenItsRankIsDone",
                .places = 1,
                .calls = {kUpdates, on(kRank0, kSilent)},
                .mistake = Mistake::place_is_free_when_the_rank_is_done},
               "a place of an inbox is written"},
        Broken{{.name = "WritingIntoAFullInbox",
                .calls = {kSilent, kSilent, kSilent},
                .mistake = Mistake::writes_into_a_full_inbox},
               "a place of an inbox is written"},
        Broken{{.name = "EntriesBeforePlaces",
                .calls = {on(kRank0, kPlain), on(kRank0, kPlain)},
                .mistake = Mistake::entries_before_places},
               "not of this command"},
        Broken{{.name = "RingingBeforeTheEntries", .calls = {kPlain}, .mistake = Mistake::rings_before_entries},
               kDeadlock},
        Broken{{.name = "MarkingOnlyDirectDependents",
                .places = 3,
                .calls = {kSilent, after(on(kRank1, kSilent), 1), after(on(kRank1, kSilent), 2),
                          after(on(kRank1, kSilent), 3)},
                .failures = 1,
                .failing_call = 1,
                .mistake = Mistake::marks_only_direct_dependents},
               "had seen before"},
        Broken{{.name = "DependingOnADoomedCall",
                .calls = {kSilent, after(on(kRank1, kSilent), 1), after(on(kRank1, kSilent), 2)},
                .failures = 1,
                .failing_call = 1,
                .mistake = Mistake::depends_on_doomed_calls},
               "had seen before"},
        Broken{{.name = "TellingCommandsByTheirSlots",
                .calls = {kMeets, kSilent, after(kMeets, 2), kMeets},
                .failures = 1,
                .failing_call = 2,
                .mistake = Mistake::leave_compares_slots},
               "not of this operation"},
        Broken{{.name = "DoneThatWakesNoReaders",
                .workers = 3,
                .calls = {on(kRanks01, kMeets), on(kRanks02, kMeets)},
                .mistake = Mistake::done_wakes_no_readers},
               kDeadlock},
        Broken{{.name = "TakingARankThatHasLeftForOneThatIsHere",
                .calls = {kMeets, kMeets},
                .failures = 1,
                .mistake = Mistake::behind_is_here},
               "not of this operation"}),
    [](const auto& info) { return info.param.scenario.name; });

}  // namespace
}  // namespace model
