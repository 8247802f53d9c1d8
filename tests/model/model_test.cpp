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
constexpr Call kOnRank1{.target = 1};

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
        Scenario{.name = "three_calls", .calls = {kPlain, kUpdates, kPlain}},
        Scenario{.name = "three_workers", .workers = 3, .calls = {kUpdates}},
        Scenario{.name = "a_failure_among_three_calls", .calls = {kUpdates, kUpdates, kPlain}, .failures = 1},
        Scenario{.name = "a_failure_and_three_in_flight",
                 .slots = 3,
                 .calls = {kPlain, kUpdates, kSilent},
                 .failures = 1,
                 .failing_call = 1},
        Scenario{.name = "two_failures", .calls = {kPlain, kUpdates}, .failures = 2},
        Scenario{.name = "a_late_failure", .calls = {kLarge, kUpdates}, .failures = 1, .may_fail_late = true},
        Scenario{.name = "collectives", .calls = {kMeetsTwice, kMeets}},
        Scenario{.name = "a_failure_among_collectives", .calls = {kMeetsAndUpdates, kMeets}, .failures = 1},
        Scenario{
            .name = "a_failure_and_a_full_ring", .calls = {kMeets, kSilent, kMeets}, .failures = 1, .failing_call = 2},
        Scenario{.name = "one_rank_alone", .calls = {kSilent, kOnRank1, kUpdates}, .failures = 1},
        Scenario{.name = "one_rank_runs_ahead", .calls = {kOnRank1, kOnRank1, kOnRank1}},
        Scenario{.name = "a_death_while_one_rank_runs_ahead", .calls = {kOnRank1, kOnRank1, kOnRank1}, .deaths = 1},
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
        Broken{{.name = "NoVoteAfterASharedFailure",
                .calls = {kPlain, kUpdates},
                .failures = 1,
                .mistake = Mistake::no_vote_after_shared_failure},
               kDeadlock},
        Broken{{.name = "CommittingWithoutTheVote",
                .calls = {kUpdates},
                .failures = 1,
                .mistake = Mistake::commits_without_vote},
               "committed"},
        Broken{{.name = "NoAcknowledgement",
                .calls = {kPlain, kPlain},
                .failures = 1,
                .mistake = Mistake::acknowledges_late},
               "no rank of it failed"},
        Broken{
            {.name = "ReusingAFullRing", .calls = {kSilent, kSilent, kSilent}, .mistake = Mistake::reuses_a_full_ring},
            "still reads it"},
        Broken{{.name = "ReusingWhatNotAllHavePassed",
                .calls = {kOnRank1, kOnRank1, kOnRank1},
                .mistake = Mistake::reuses_what_not_all_have_passed},
               "still reads it"},
        Broken{{.name = "ALossThatWakesNobody", .calls = {kMeets}, .deaths = 1, .mistake = Mistake::loss_wakes_nobody},
               kDeadlock},
        Broken{{.name = "EnteringACommandBeforeClearingTheStep",
                .calls = {kMeets, kMeets},
                .mistake = Mistake::command_before_step_is_cleared},
               ""},
        Broken{{.name = "OneContribution", .calls = {kMeetsTwice}, .mistake = Mistake::one_contribution},
               "not of this operation"},
        Broken{{.name = "NotReclaimingBuffers", .calls = {kMeets, kMeets}, .mistake = Mistake::no_reclaim},
               "not of this operation"},
        Broken{{.name = "ForgettingAFailedCall",
                .calls = {kPlain, kUpdates},
                .failures = 1,
                .mistake = Mistake::forgets_a_failed_call},
               "committed"}),
    [](const auto& info) { return info.param.scenario.name; });

}  // namespace
}  // namespace model
