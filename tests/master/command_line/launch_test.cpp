// Which engine `syncrun --launcher` starts, and with which command line.

#include "master/command_line/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "master/command_line/host_list.hpp"
#include "master/command_line/task_report.hpp"
#include "tests/common/error_text.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::detail {
namespace {

using namespace master::command_line;
using master::nodes::EngineKind;
using master::nodes::Mpi;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kOpenMpi = "mpirun (Open MPI) 4.1.4\n";
constexpr const char* kHydra = "HYDRA build details:\n    Version: 4.0.2\n";
constexpr const char* kSlurm =
    "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n";

/// A machine with some engines, by the names of their programs, and what each says about itself.
struct Machine {
  std::map<std::string, std::string> engines;
  std::set<Mpi> transports = {Mpi::open_mpi, Mpi::mpich};
  std::map<std::string, std::string> variables = {};

  std::optional<Launch> find(std::vector<std::string> words) const {
    words.insert(words.begin(), "syncrun");
    words.emplace_back("prog");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const auto options = parse_command_line(static_cast<int>(words.size()), argv.data());
    const InstalledTools tools{
        .has = [this](const std::string& name) { return engines.contains(name); },
        .output = [this](const std::vector<std::string>& command) { return engines.at(command.front()); },
        .has_transport = [this](Mpi mpi) { return transports.contains(mpi); },
        .variables =
            [this] {
              std::vector<std::string> names;
              for (const auto& [name, value] : variables) names.push_back(name);
              return names;
            }};
    return find_launch(
        options,
        [this](const char* name) {
          const auto found = variables.find(name);
          return found == variables.end() ? nullptr : found->second.c_str();
        },
        tools);
  }
  /// The command line for the first nodes, with TASK in place of `syncrun` and its arguments.
  std::string command(const std::vector<std::string>& words) const {
    const Launch launch = find(words).value();
    const auto nodes = static_cast<std::size_t>(launch.nodes);
    const auto hosts = std::span(launch.hosts).first(std::min(nodes, launch.hosts.size()));
    std::string text;
    for (const std::string& word : engine_command(launch, launch.nodes, hosts, std::vector<std::string>{"TASK"}))
      text += (text.empty() ? "" : " ") + word;
    return text;
  }
  std::string refusal(const std::vector<std::string>& words) const {
    return test::error_text([&] { find(words); }, ErrorKind::usage);
  }
};

const std::map<std::string, std::string> kAllocation{
    {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[1-3]"}, {"SLURM_JOB_NUM_NODES", "3"}};

TEST(Launch, IsOnlyThereIfItIsAskedFor) {
  const Machine machine{{{"mpirun", kOpenMpi}, {"srun", kSlurm}}};
  EXPECT_FALSE(machine.find({}));
  EXPECT_FALSE(machine.find({"--nodes", "2"})) << "which checks the nodes of an engine around syncrun";
  EXPECT_FALSE(machine.find({"--launcher", "none", "--nodes", "2"}));
  EXPECT_TRUE(machine.find({"--hosts", "a,b"}));
}

TEST(Launch, StartsSlurmsTasksWithTheirCores) {
  Machine machine{{{"srun", kSlurm}}};
  const std::string start =
      "srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --mpi=pmix --kill-on-bad-exit=1 --cpu-bind=none "
      "--export=ALL --input=0 ";
  EXPECT_EQ(machine.command({"--launcher", "srun", "--nodes", "3", "-n", "8"}), start + "--cpus-per-task=9 TASK");
  EXPECT_EQ(machine.command({"--launcher", "srun", "--nodes", "3"}), start + "--exclusive TASK");
  EXPECT_EQ(machine.command({"--launcher", "auto", "--nodes", "3", "--devices", "cpu0,cpu1", "--launcher-args",
                             "--partition 'a b'"}),
            start + "--cpus-per-task=3 --partition a b TASK");
  machine.variables = kAllocation;
  EXPECT_EQ(machine.command({"--launcher", "srun", "-n", "8"}), start + "--nodelist=n1,n2,n3 TASK")
      << "a step has all cores of its allocation";
  Launch again = machine.find({"--launcher", "srun"}).value();
  again.overlaps = true;
  EXPECT_THAT(engine_command(again, 1, {}, {}), testing::Contains("--overlap"));
  machine.variables.insert({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  EXPECT_THAT(machine.command({"--launcher", "srun"}), HasSubstr(" --overlap ")) << "its own step holds the cores";
}

TEST(Launch, TakesThePmiOfAnMpiThatIsThere) {
  Machine machine{{{"srun", kSlurm}}, {Mpi::mpich}};
  EXPECT_THAT(machine.command({"--launcher", "srun", "--nodes", "2"}), HasSubstr(" --mpi=pmi2 "));
  machine.engines["srun"] = "none\n";
  EXPECT_THAT(machine.refusal({"--launcher", "srun", "--nodes", "2"}),
              HasSubstr("PMIx or PMI-2 (srun --mpi=list), got: none"));
}

TEST(Launch, GivesOpenMpiTheVariablesThatItDoesNotPassOn) {
  const Machine machine{{{"mpirun", kOpenMpi}},
                        {Mpi::open_mpi},
                        {{"PATH", "/x"},
                         {"OMP_NUM_THREADS", "1"},
                         {"HOME", "/"},
                         {"SSH_TTY", "x"},
                         {"SYNCRUN_RESTART", "1"},
                         {"SYNCRUN_JOB", "internal"},
                         {"BASH_FUNC_f%%", "() {}"}}};
  EXPECT_EQ(machine.command({"--launcher", "mpirun", "--hosts", "a,b"}),
            "mpirun -np 2 --map-by ppr:1:node --bind-to none --host a:1,b:1 -x OMP_NUM_THREADS -x PATH -x "
            "SYNCRUN_RESTART TASK");
  EXPECT_THAT(machine.command({"--launcher", "mpirun", "--hosts", "a,b", "--env", "HOME=/x"}), HasSubstr(" -x HOME "));
  EXPECT_THAT(machine.command({"--launcher", "ssh", "--hosts", "a,b"}), HasSubstr(" --mca plm rsh --host a:1,b:1 "));
}

TEST(Launch, StartsMpichsTasksOnHosts) {
  const Machine machine{{{"mpirun", kHydra}}};
  EXPECT_EQ(machine.command({"--launcher", "mpirun", "--hosts", "a,b,c", "--nodes", "2"}),
            "mpirun -np 2 -ppn 1 -bind-to none -genvall -hosts a,b TASK");
  EXPECT_EQ(machine.command({"--launcher", "ssh", "--hosts", "a,b"}),
            "mpirun -np 2 -ppn 1 -bind-to none -genvall -rmk user -launcher ssh -hosts a,b TASK");
}

TEST(Launch, PrefersAnEngineWhoseMpiIsThere) {
  Machine machine{{{"mpirun", kOpenMpi}, {"mpirun.mpich", kHydra}, {"srun", kSlurm}}, {Mpi::mpich}};
  EXPECT_EQ(machine.find({"--hosts", "a,b"})->engine, "mpirun.mpich");
  EXPECT_EQ(machine.find({"--launcher", "mpirun", "--hosts", "a"})->engine, "mpirun.mpich");
  machine.variables = kAllocation;
  EXPECT_EQ(machine.find({"--launcher", "auto"})->engine, "srun");
  EXPECT_EQ(machine.find({"--launcher", "mpirun.mpich"})->launcher, Launcher::hydra);
}

TEST(Launch, KeepsSpareHostsForRestarts) {
  Machine machine{{{"mpirun", kHydra}, {"srun", kSlurm}}};
  const Launch launch = machine.find({"--hosts", "a,b,c", "--spares", "1", "--max-restarts", "1"}).value();
  EXPECT_EQ(launch.nodes, 2);
  EXPECT_THAT(launch.hosts, ElementsAre("a", "b", "c"));
  EXPECT_THAT(machine.refusal({"--hosts", "a,b,c", "--spares", "1"}), HasSubstr("expected --max-restarts N with it"));
  EXPECT_THAT(machine.refusal({"--launcher", "srun", "--nodes", "2", "--spares", "1", "--max-restarts", "1"}),
              HasSubstr("expected --hosts with it, or an allocation of Slurm"));
  machine.variables = kAllocation;
  EXPECT_EQ(machine.find({"--launcher", "srun", "--spares", "1", "--max-restarts", "1"})->nodes, 2);
  EXPECT_EQ(machine.find({"--launcher", "srun", "--spares", "1", "--max-restarts", "1"})->pmi, "pmi2");
}

TEST(Launch, RefusesWhatDoesNotFit) {
  Machine machine{{{"mpirun", kOpenMpi}}};
  EXPECT_THAT(machine.refusal({"--launcher", "srun", "--nodes", "2"}),
              HasSubstr("expected Slurm's srun in PATH, found none"));
  EXPECT_THAT(
      machine.refusal({"--launcher", "mpirun", "--nodes", "2"}),
      HasSubstr("expected --hosts a,b,c or --hostfile FILE with it, or an allocation of a scheduler, got none"));
  EXPECT_THAT(machine.refusal({"--launcher", "mpirun"}), HasSubstr("expected --nodes N with it, or --hosts a,b,c"));
  EXPECT_THAT(machine.refusal({"--hosts", "a,b", "--nodes", "3"}),
              HasSubstr("--nodes 3: expected at most 2 nodes, as many as the list of hosts has"));
  EXPECT_THAT(machine.refusal({"--hosts", "a,b", "--spares", "2", "--max-restarts", "1"}),
              HasSubstr("expected fewer than the 2"));
  EXPECT_THAT(machine.refusal({"--launcher", "none", "--hosts", "a"}), HasSubstr("--launcher none and --hosts"));
  EXPECT_THAT(machine.refusal({"--launcher", "mpirun.mpich", "--hosts", "a"}),
              HasSubstr("expected the mpirun of Open MPI or MPICH"));
  EXPECT_THAT(machine.refusal({"--launcher", "pdsh", "--hosts", "a"}),
              HasSubstr("--launcher: expected srun, mpirun, ssh"));
  EXPECT_THAT(machine.refusal({"--hosts", "a,,b"}), HasSubstr("--hosts: expected the name of a host, got ''"));
  EXPECT_THAT(machine.refusal({"--hosts", "a:2"}), HasSubstr("-n says how many workers"));
  EXPECT_THAT(machine.refusal({"--hosts", "a,a"}), HasSubstr("expected each host once"));
  EXPECT_THAT(machine.refusal({"--launcher-args", "'x", "--hosts", "a"}), HasSubstr("expected words as in a shell"));
  machine.variables = {{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}, {"PMI_FD", "3"}, {"MPI_LOCALNRANKS", "1"}};
  EXPECT_THAT(machine.refusal({"--hosts", "a,b"}), HasSubstr("mpirun (MPICH) has started this already"));
}

/// The verdict of the job comes through the engine, too.
TEST(Launch, RefusesEnginesThatSendTheirOutputElsewhere) {
  Machine machine{{{"mpirun", kOpenMpi}, {"mpirun.mpich", kHydra}, {"srun", kSlurm}}};
  const auto refuses = [&](const std::string& launcher, const std::string& words) {
    return testing::Matches(HasSubstr("sends it elsewhere"))(
        machine.refusal({"--launcher", launcher, "--hosts", "a,b", "--launcher-args", words}));
  };
  for (const char* words : {"--error=x", "--output x", "-ex", "-o x", "--er x"}) EXPECT_TRUE(refuses("srun", words));
  EXPECT_TRUE(refuses("mpirun", "--output-filename x:nocopy"));
  EXPECT_TRUE(refuses("mpirun.mpich", "-errfile-pattern x"));
  EXPECT_TRUE(machine.find({"--launcher", "srun", "--hosts", "a,b", "--launcher-args", "--label --overcommit"}));
  EXPECT_TRUE(machine.find({"--launcher", "mpirun", "--hosts", "a,b", "--launcher-args", "--output-filename x"}));
  EXPECT_THAT(machine.refusal({"--hosts", "a,b", "--launcher", "mpirun", "--launcher-args", "-v : -np 1"}),
              HasSubstr("expected options, got ':'"));
  machine.variables = {{"SLURM_STDERRMODE", "x"}};
  EXPECT_TRUE(refuses("srun", ""));
}

/// The machine that starts the job may have no GPU.
TEST(Launch, LeavesTheDevicesOfOtherMachinesToThem) {
  const Machine machine{{{"srun", kSlurm}}};
  const auto words = [](const char* option, const char* value) {
    return std::vector<std::string>{"--launcher", "srun", "--nodes", "2", option, value};
  };
  EXPECT_THAT(machine.command(words("--devices", "cuda0,cuda63")), HasSubstr("--cpus-per-task=3 "));
  EXPECT_TRUE(machine.find(words("--devices", "x=other:cuda0")));
  EXPECT_TRUE(machine.find(words("-n", "gpu")));
  EXPECT_THAT(machine.refusal(words("--devices", "gpu0")), HasSubstr("--devices: "));
  EXPECT_THAT(machine.refusal(words("-n", "none")), HasSubstr("-n: expected a number from 1"));
  EXPECT_THAT(machine.refusal({"--hosts", "a,b", "-n", "3", "--devices", "cpu0,cpu1"}), HasSubstr("disagree"));
}

/// mpirun takes ":" for the end of a command.
TEST(Launch, ChangesAColonOnTheWayToTheNodes) {
  CommandOptions options;
  options.command = {"prog", ":", "a:b", "\\:", "\\", ""};
  auto words = task_command(options, {}, 0, "token");
  words.erase(words.begin(), words.end() - 6);
  EXPECT_THAT(words, testing::Not(testing::Contains(":")));
  for (std::string& word : words) word = word_of_task(word);
  EXPECT_EQ(words, options.command);
}

/// A node reads no configuration file, because the command that starts the job has done so.
TEST(Launch, GivesTheNodesWhatHoldsOfTheConfigurationFile) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.at("syncrun"));
  ::setenv("XDG_CONFIG_HOME", folder.path().c_str(), 1);
  std::ofstream(folder.at("syncrun/config")) << "tee = \"0\"\ntimeout = 30\nmax-restarts = 3\ntag = false\n";
  std::vector<std::string> words{"syncrun", "--hosts", "a,b", "prog"};
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const auto task = task_command(parse_command_line(static_cast<int>(words.size()), argv.data()), {}, 0, "");
  EXPECT_THAT(std::vector<std::string>(task.begin() + 1, task.end()),
              ElementsAre("--nodes=1", "--no-tag", "--timeout=30", "--", "prog"));
  EXPECT_TRUE(parse_task_command_line(static_cast<int>(words.size()), argv.data()).value_of("SYNCRUN_TIMEOUT").empty());
  ::unsetenv("XDG_CONFIG_HOME");
}

TEST(Launch, ReadsHostsFromAFile) {
  const TemporaryFolder folder;
  std::ofstream(folder.at("hosts")) << "# ours\na slots=8\n  b:4\n\nc # the third\n";
  EXPECT_THAT(hosts_in_file("--hostfile", folder.at("hosts")), ElementsAre("a", "b", "c"));
  std::ofstream(folder.at("hosts")) << "a\n-x\n";
  EXPECT_THAT(test::error_text([&] { hosts_in_file("--hostfile", folder.at("hosts")); }, ErrorKind::usage),
              HasSubstr("line 2: expected the name of a host, got '-x'"));
}

TEST(Launch, SendsSignalsThatTheEnginePassesOn) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    EXPECT_EQ(signal_from_engine(EngineKind::open_mpi, signal_for_engine(Launcher::open_mpi, signal)), signal);
    EXPECT_EQ(signal_from_engine(EngineKind::hydra, signal_for_engine(Launcher::hydra, signal)), signal);
  }
  for (const int signal : {SIGTERM, SIGINT})
    EXPECT_NE(signal_for_engine(Launcher::open_mpi, signal), signal) << "it would end the job within a second";
  EXPECT_EQ(signal_for_engine(Launcher::srun, SIGTERM), 0) << "Slurm sends it itself";
  EXPECT_EQ(signal_for_engine(Launcher::srun, SIGUSR2), SIGUSR2);
}

TEST(TaskReports, ComeBackFromALine) {
  const TaskReport report{.kind = TaskReport::Kind::ended,
                          .task = 2,
                          .host = "c",
                          .job = "12.0",
                          .exit_code = 3,
                          .message = "it broke:\n  50 % of \"all\"",
                          .may_restart = true,
                          .stay = std::chrono::seconds(4)};
  const std::string line = report_line("t0", report);
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const auto found = report_in("2: " + line, "t0");  // srun --label
  ASSERT_TRUE(found);
  EXPECT_EQ(found->task, 2);
  EXPECT_EQ(found->host, "c");
  EXPECT_EQ(found->job, "12.0");
  EXPECT_EQ(found->exit_code, 3);
  EXPECT_EQ(found->message, report.message);
  EXPECT_TRUE(found->may_restart);
  EXPECT_EQ(found->stay, report.stay);
  EXPECT_FALSE(report_in(line, "t1")) << "of another job";
  EXPECT_FALSE(report_in("syncrun-task t0 %zz", "t0"));
  EXPECT_FALSE(report_in("syncrun-task t0 ", "t0"));
}

TEST(OutputBlocks, AreAsLongAsOneReadOfTheEngine) {
  const std::string text = std::string(5000, 'x') + "\nsyncrun-block t0 1 o 3\n";
  const std::string blocks = blocks_of("t0", 12, BlockKind::errors, text);
  std::string found;
  for (std::string_view rest = blocks; !rest.empty();) {
    EXPECT_EQ(block_at(rest.substr(0, 20), "t0")->size, 0U) << "the rest comes later";
    EXPECT_EQ(block_at(rest.substr(0, 200), "t0")->size, 0U);
    const auto block = block_at(rest, "t0");
    ASSERT_TRUE(block);
    EXPECT_EQ(block->task, 12);
    EXPECT_EQ(block->kind, BlockKind::errors);
    EXPECT_LE(block->size, 4096U);
    found += block->bytes;
    rest.remove_prefix(block->size);
  }
  EXPECT_EQ(found, text);
  for (const std::string other :
       {"syncrun-block t1 1 o 0\n", "syncrun-block t0 1 x 0\n", "syncrun-block t0 1 o 9999\n", "a line\n"})
    EXPECT_FALSE(block_at(other, "t0")) << other;
}

}  // namespace
}  // namespace syncrun::detail
