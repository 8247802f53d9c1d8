// Which `syncrun` belongs to the job of an engine: those that the engine has started, and no others that have inherited
// its variables.

#include "master/command_line/job_nodes.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <map>
#include <string>

#include "common/os/file_descriptor.hpp"

namespace syncrun::detail {
namespace {

using Environment = std::map<std::string, std::string>;

master::nodes::EnvironmentLookup lookup_in(const Environment& environment) {
  return [&environment](const char* name) -> const char* {
    const auto at = environment.find(name);
    return at == environment.end() ? nullptr : at->second.c_str();
  };
}

bool is_of_a_job(const Environment& environment) {
  return master::command_line::find_job({}, lookup_in(environment)).has_value();
}

/// The environment of a program that a `syncrun` in this environment starts.
Environment inside(Environment environment) {
  master::command_line::EnvironmentChanges changes;
  master::command_line::add_job(changes, master::command_line::find_job({}, lookup_in(environment)),
                                lookup_in(environment));
  environment.erase("SYNCRUN_IN_JOB");
  for (const auto& [name, value] : changes.set) environment[name] = value;
  environment.erase("SYNCRUN_NODE");
  return environment;
}

/// Task 1 of 2 of srun.
Environment step(const std::string& job, const std::string& number) {
  return {{"SLURM_JOB_ID", job},
          {"SLURM_STEP_ID", number},
          {"SLURM_PROCID", "1"},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"PMIX_NAMESPACE", "slurm.pmix." + job + "." + number},
          {"PMIX_RANK", "1"}};
}

TEST(JobNodes, AreThoseThatTheEngineHasStarted) {
  EXPECT_FALSE(is_of_a_job({}));
  EXPECT_TRUE(is_of_a_job(step("12", "3")));
}

TEST(JobNodes, DoNotIncludeWhatAProgramOfTheJobStarts) {
  const Environment program = inside(step("12", "3"));
  EXPECT_FALSE(is_of_a_job(program));
  EXPECT_FALSE(is_of_a_job(inside(program))) << "nor what the program of that one starts";
}

TEST(JobNodes, IncludeAJobThatHasInheritedTheVariablesOfAnother) {
  const std::string outer = inside(step("12", "3"))["SYNCRUN_IN_JOB"];
  for (Environment other : {step("13", "3"), step("12", "4")}) {
    other["SYNCRUN_IN_JOB"] = outer;
    EXPECT_TRUE(is_of_a_job(other));
    EXPECT_FALSE(is_of_a_job(inside(other)));
  }
}

TEST(JobNodes, IncludeAJobWithAVariableThatWasSetByAccident) {
  for (const std::string value : {"", "1", "yes"}) {
    Environment environment = step("12", "3");
    environment["SYNCRUN_IN_JOB"] = value;
    EXPECT_TRUE(is_of_a_job(environment)) << value;
  }
  EXPECT_EQ(inside({{"SYNCRUN_IN_JOB", "1"}}), Environment{}) << "without an engine, it has no meaning";
}

/// MPICH's mpirun gives its job no name, but each task a socket.
class SocketToMpich {
 public:
  SocketToMpich() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    own_ = os::FileDescriptor(ends[0]);
    other_ = os::FileDescriptor(ends[1]);
  }
  Environment task() const {
    return {{"PMI_FD", std::to_string(own_.get())}, {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "1"}};
  }
  void close() { own_ = os::FileDescriptor(); }

 private:
  os::FileDescriptor own_;
  os::FileDescriptor other_;
};

TEST(JobNodes, AreToldApartByTheirConnectionIfTheJobHasNoName) {
  SocketToMpich first;
  const SocketToMpich second;
  const Environment program = inside(first.task());
  EXPECT_FALSE(is_of_a_job(program));
  Environment other = second.task();
  other["SYNCRUN_IN_JOB"] = program.at("SYNCRUN_IN_JOB");
  EXPECT_TRUE(is_of_a_job(other));
  first.close();
  EXPECT_FALSE(is_of_a_job(program)) << "the variables are inherited, and the connection is not";
}

TEST(JobNodes, AreToldApartByTheirPortIfTheJobHasNoName) {
  const auto task = [](const std::string& port) {
    return Environment{{"PMI_PORT", port}, {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
  };
  const Environment program = inside(task("n1:4000"));
  EXPECT_FALSE(is_of_a_job(program));
  Environment other = task("n1:4001");
  other["SYNCRUN_IN_JOB"] = program.at("SYNCRUN_IN_JOB");
  EXPECT_TRUE(is_of_a_job(other));
}

}  // namespace
}  // namespace syncrun::detail
