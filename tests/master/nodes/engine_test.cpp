// Which engine has started a process, from environments as engines set them.

#include "master/nodes/engine.hpp"

#include <gmock/gmock.h>

#include <map>
#include <optional>

#include "tests/common/error_text.hpp"
#include "tests/master/nodes/fake_transport.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;
using testing::AllOf;
using testing::HasSubstr;

using Environment = std::map<std::string, std::string>;

Engine engine_in(const Environment& environment) {
  return find_engine([&](const char* name) -> const char* {
    const auto at = environment.find(name);
    return at == environment.end() ? nullptr : at->second.c_str();
  });
}

Environment operator+(Environment left, const Environment& right) {
  left.insert(right.begin(), right.end());
  return left;
}

std::string usage_error_of(const auto& use) { return error_text(use, ErrorKind::usage); }

std::string start_error(const Environment& environment) {
  return usage_error_of([&] { check_start(engine_in(environment)); });
}

/// Slurm 22.05: what a batch script has.
const Environment kSlurmJob{
    {"SLURM_JOB_ID", "12"},        {"SLURM_NNODES", "2"}, {"SLURM_NTASKS", "2"},  {"SLURM_NPROCS", "2"},
    {"SLURM_PROCID", "0"},         {"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_TASKS_PER_NODE", "1(x2)"},
    {"SLURM_NTASKS_PER_NODE", "1"}};
/// Task 1 of 2 of srun, on the second node.
const Environment kSlurmStep{{"SLURM_JOB_ID", "12"},
                             {"SLURM_STEP_ID", "3"},
                             {"SLURM_NTASKS", "2"},
                             {"SLURM_PROCID", "1"},
                             {"SLURM_NODEID", "1"},
                             {"SLURM_STEP_NUM_TASKS", "2"},
                             {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                             {"SLURM_TASKS_PER_NODE", "1(x2)"}};
const Environment kPmix{{"PMIX_NAMESPACE", "slurm.pmix.12.3"}, {"PMIX_RANK", "1"}};
const Environment kPmi2{{"PMI_FD", "11"}, {"PMI_JOBID", "12.3"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
const Environment kHydra{{"PMI_FD", "6"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "1"}};
const Environment kOpenMpi{{"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                           {"PMIX_NAMESPACE", "1658060801"},
                           {"PMIX_RANK", "3"}};

/// What an engine says: its kind, this task, the number of tasks, and that of this node.
struct Said {
  EngineKind kind;
  int task;
  std::optional<int> tasks, tasks_here;
  std::optional<Mpi> mpi;
  std::string job;
};

void expect_engine(const Environment& environment, const Said& expected) {
  const Engine engine = engine_in(environment);
  EXPECT_EQ(engine.kind, expected.kind);
  EXPECT_EQ(engine.task, expected.task);
  EXPECT_EQ(engine.tasks, expected.tasks);
  EXPECT_EQ(engine.tasks_here, expected.tasks_here);
  EXPECT_EQ(engine.mpi, expected.mpi);
  EXPECT_EQ(engine.job, expected.job);
  EXPECT_EQ(engine.has_others(), expected.tasks != 1);
}

TEST(Engine, IsNoneWithoutTheVariablesOfALaunch) {
  const Engine in_shell = engine_in({{"HOME", "/"}});
  EXPECT_EQ(in_shell.tasks, 1);
  EXPECT_FALSE(in_shell.has_others());
  const Environment left_over{{"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_RANK", "0"},
                              {"MPI_LOCALNRANKS", "2"},
                              {"PMI_RANK", "0"},
                              {"PMI_SIZE", "2"},
                              {"SLURM_STEP_ID", ""},
                              {"OMPI_MCA_btl", "tcp"}};
  const Environment interactive_step = Environment{{"SLURM_STEP_ID", "4294967290"}} + kSlurmStep;
  for (const Environment& environment :
       {Environment{{"HOME", "/"}}, kSlurmJob, interactive_step, left_over + kSlurmJob})
    EXPECT_EQ(engine_in(environment).kind, EngineKind::none);
}

TEST(Engine, IsMpirun) {
  expect_engine(kOpenMpi, {EngineKind::open_mpi, 3, 4, 1, Mpi::open_mpi, "1658060801"});
  expect_engine(kHydra, {EngineKind::hydra, 1, 2, 1, Mpi::mpich, ""});
  EXPECT_EQ(engine_in(kOpenMpi + kSlurmStep).kind, EngineKind::open_mpi) << "in a step that it started";
  EXPECT_EQ(engine_in(kHydra + kSlurmStep).kind, EngineKind::hydra);
}

TEST(Engine, IsSrun) {
  expect_engine(kPmix + kSlurmStep, {EngineKind::pmix, 1, 2, 1, Mpi::open_mpi, "12.3"});
  expect_engine(kPmi2 + kSlurmStep, {EngineKind::srun_pmi2, 1, 2, 1, Mpi::mpich, "12.3"});
}

TEST(Engine, IsAnyLauncherThatSpeaksPmi) {
  const Environment pmi1{{"PMI_PORT", "n1:4000"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
  expect_engine(pmi1, {EngineKind::hydra, 0, 2, {}, Mpi::mpich, ""});
  const Environment pmix{{"PMIX_NAMESPACE", "prte-1"}, {"PMIX_RANK", "5"}};  // it does not say how many tasks there are
  expect_engine(pmix, {EngineKind::pmix, 5, {}, {}, Mpi::open_mpi, "prte-1"});
}

TEST(Engine, CountsTheTasksOfAStepOnItsNode) {
  Environment step = Environment{{"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}, {"SLURM_STEP_NUM_TASKS", "7"}} + kSlurmStep;
  for (const auto& [node, tasks] : std::map<std::string, int>{{"0", 2}, {"2", 2}, {"3", 1}}) {
    step["SLURM_NODEID"] = node;
    EXPECT_EQ(engine_in(step).tasks_here, tasks) << "on node " << node;
  }
  for (const std::string wrong : {"", "many", "2(xmany)", "1"}) {
    step["SLURM_STEP_TASKS_PER_NODE"] = wrong;
    EXPECT_EQ(engine_in(step).tasks_here, std::nullopt) << wrong;
  }
}

TEST(Engine, RefusesNumbersThatAreNone) {
  EXPECT_THAT(usage_error_of([] {
                engine_in(Environment{{"PMI_SIZE", "two"}} + kHydra);
              }),
              HasSubstr("PMI_SIZE: expected a whole number from 1 to 2147483647, got 'two'"));
  EXPECT_THAT(usage_error_of([] {
                engine_in(Environment{{"PMI_RANK", "2"}} + kHydra);
              }),
              HasSubstr("PMI_RANK: expected a whole number from 0 to 1, got '2'"));
  EXPECT_THAT(usage_error_of([] {
                engine_in(Environment{{"SLURM_STEP_ID", "-1"}} + kSlurmStep);
              }),
              HasSubstr("SLURM_STEP_ID"));
}

TEST(StartOfNodes, NeedsOneTaskPerNode) {
  EXPECT_EQ(start_error(kOpenMpi), "");
  EXPECT_EQ(start_error(kHydra), "");
  EXPECT_EQ(start_error(kPmix + kSlurmStep), "");
  EXPECT_THAT(start_error(Environment{{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}} + kOpenMpi),
              AllOf(HasSubstr("4 tasks on one node"), HasSubstr("--map-by ppr:1:node")));
  EXPECT_THAT(start_error(Environment{{"MPI_LOCALNRANKS", "2"}} + kHydra), HasSubstr("Use -ppn 1"));
  EXPECT_THAT(start_error(Environment{{"SLURM_STEP_TASKS_PER_NODE", "2"}, {"SLURM_NODEID", "0"}} + kPmi2 + kSlurmStep),
              HasSubstr("--ntasks-per-node=1"));
}

TEST(StartOfNodes, NeedsTasksThatFindEachOther) {
  EXPECT_EQ(engine_in(kSlurmStep).kind, EngineKind::srun_no_mpi);
  EXPECT_THAT(start_error(kSlurmStep), AllOf(HasSubstr("2 tasks"), HasSubstr("--mpi=pmix"), HasSubstr("--mpi=pmi2")));
  EXPECT_EQ(start_error(Environment{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}} + kSlurmStep), "");
}

TEST(StartOfNodes, NeedsATransportWithAsManyNodesAsTasks) {
  FakeNetwork two(2);
  FakeNetwork one(1);
  const Engine engine = engine_in(kPmi2 + kSlurmStep);
  EXPECT_EQ(usage_error_of([&] { check_nodes(engine, two.at(0)); }), "");
  EXPECT_THAT(usage_error_of([&] { check_nodes(engine, one.at(0)); }),
              AllOf(HasSubstr("srun --mpi=pmi2 started 2 tasks"), HasSubstr("connects 1 task"),
                    HasSubstr("For MPICH, use srun --mpi=pmi2")));
  EXPECT_THAT(usage_error_of([&] { check_nodes(engine_in(kPmix + kSlurmStep), one.at(0)); }),
              HasSubstr("For Open MPI, use srun --mpi=pmix"));
  // Nothing is known, so nothing is compared.
  EXPECT_EQ(usage_error_of([&] { check_nodes(engine_in(kPmix), two.at(0)); }), "");
}

}  // namespace
}  // namespace syncrun::test
