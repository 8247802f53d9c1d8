// `syncrun --launcher` with an engine of these tests: a script that calls itself the mpirun of MPICH, and starts its one task
// on this machine. tests/nodes/launch_test.py has real engines.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "tests/support/command_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::Not;

/// An engine, which does `start` with the words of the task in "$@".
class Engine {
 public:
  explicit Engine(const std::string& start) {
    std::ofstream(path()) << "#!/bin/bash\n"
                             "if [ \"$1\" = --version ]; then echo HYDRA build details; exit; fi\n"
                             "while [[ \"$1\" != /* ]]; do shift; done\n"
                          << start << '\n';
    ::chmod(path().c_str(), S_IRWXU);
  }
  std::string path() const { return folder_.at("mpirun"); }
  std::string at(const std::string& name) const { return folder_.at(name); }
  std::vector<std::string> with(const std::vector<std::string>& words, const std::string& hosts = "a") const {
    std::vector<std::string> all{"--launcher", path(), "--hosts", hosts};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }

 private:
  TemporaryFolder folder_;
};

TEST(LaunchedJob, HasTheExitCodeAndTheReasonOfTheProgram) {
  const Engine engine("\"$@\"; exit 0");  // an engine may return 0 after a failure
  CommandRun run(engine.with({scripted_program(), "exit", "7"}));
  EXPECT_EQ(run.exit_code(), 7);
  EXPECT_EQ(run.errors(), "syncrun: the program exited with code 7\n");
  CommandRun verdict(engine.with({scripted_program(), "verdict", "rank 2 was lost\nits last words"}));
  EXPECT_EQ(verdict.exit_code(), 1);
  EXPECT_EQ(verdict.errors(), "syncrun: rank 2 was lost\n  its last words\n");
}

TEST(LaunchedJob, SucceedsIfTheProgramDoes) {
  const Engine engine("\"$@\"; exit 3");
  CommandRun run(engine.with({scripted_program(), "exit", "0"}));
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_EQ(run.errors(), "");
}

TEST(LaunchedJob, HasFailedWithoutAWordOfTheProgram) {
  const Engine empty("exit 0");
  CommandRun none(empty.with({scripted_program(), "exit", "0"}));
  EXPECT_EQ(none.exit_code(), 1);
  EXPECT_THAT(none.errors(), HasSubstr("(MPICH) exited with code 0 before syncrun had begun on any node"));
  const Engine killing(
      "cd $(dirname $0); \"$@\" >0 & until grep -q ready 0; do sleep 0.01; done; kill -9 $!; wait; exit 0");
  CommandRun killed(killing.with({scripted_program(), "ignore-requests"}));
  EXPECT_EQ(killed.exit_code(), 1);
  EXPECT_THAT(killed.errors(),
              HasSubstr("exited with code 0 before the program had said how it ended; without a last word: node 0 ("));
  EXPECT_TRUE(eventually([&] { return killed.nothing_remains(); }));
}

/// Somebody kills the syncrun of node 1, and the engine stops node 0.
TEST(LaunchedJob, NamesTheNodeThatHadNoLastWordAndStartsAgain) {
  const Engine engine(
      "[ \"$2\" = --version ] && exit 0\n"
      "cd $(dirname $0); rm -f 0 1; export PMI_SIZE=2 MPI_LOCALNRANKS=1 PMI_FD=9\n"
      "PMI_RANK=1 \"$@\" & lost=$!\n"
      "PMI_RANK=0 \"$@\" & stopped=$!\n"
      "until [ -e 0 ] && [ -e 1 ]; do sleep 0.01; done\n"
      "kill -KILL $lost; kill -TERM $stopped; wait; exit 1");
  CommandRun run(engine.with({"--max-restarts", "1", "/bin/sh", "-c", "touch $PMI_RANK; exec sleep 1000"}, "a,b"));
  EXPECT_EQ(run.exit_code(), 1);
  const char* const verdict =
      "exited with code 1 before the program had said how it ended; without a last word: node 1 (";
  EXPECT_THAT(run.errors(), testing::ContainsRegex("restart 1 of 1, after: .*without a last word: node 1 \\("));
  EXPECT_THAT(run.last_error_line(), HasSubstr(verdict));
  EXPECT_TRUE(eventually([&] { return run.nothing_remains(); }));
}

/// A scheduler tells all nodes to stop. The program ends by itself, and the engine kills what is left.
TEST(LaunchedJob, HasTheExitCodeOfAProgramThatWasToldToStop) {
  const Engine engine(
      "[ \"$2\" = --version ] && exit 0\n"
      "cd $(dirname $0); export PMI_SIZE=2 MPI_LOCALNRANKS=1 PMI_FD=9\n"
      "PMI_RANK=1 \"$@\" >1 & lost=$!\n"
      "PMI_RANK=0 \"$@\" >0 & told=$!\n"
      "until grep -q ready 0 && grep -q ready 1; do sleep 0.01; done\n"
      "kill -TERM $told; wait $told; kill -KILL $lost; wait; exit 1");
  CommandRun run(engine.with({"--max-restarts", "1", scripted_program(), "report-signals", "75"}, "a,b"));
  EXPECT_EQ(run.exit_code(), 75) << run.errors();
  EXPECT_THAT(run.errors(), Not(HasSubstr("restart")));
}

/// Starts two tasks, whose standard error is also in the files e0 and e1.
constexpr const char* kTwoTasks =
    "[ \"$2\" = --version ] && exit 0\n"
    "cd $(dirname $0); export PMI_SIZE=2 MPI_LOCALNRANKS=1 PMI_FD=9\n"
    "PMI_RANK=1 \"$@\" >1 2> >(tee e1 >&2) & other=$!\n"
    "PMI_RANK=0 \"$@\" >0 2> >(tee e0 >&2) & first=$!\n"
    "until grep -q ready 0 && grep -q ready 1; do sleep 0.01; done\n";
constexpr const char* kNoRestart = "restart 1 of 1 is not possible, after: .*; a signal has told all nodes to stop";

/// A scheduler tells all nodes to stop, and kills them when their time is over.
TEST(LaunchedJob, DoesNotStartAgainIfAllNodesWereToldToStopAndHadNoLastWord) {
  const Engine engine(std::string(kTwoTasks) +
                      "kill -TERM $first $other; until grep -q asked e0 && grep -q asked e1; do sleep 0.01; done\n"
                      "kill -KILL $first $other; wait; exit 1");
  CommandRun run(engine.with({"--max-restarts", "1", scripted_program(), "ignore-requests"}, "a,b"));
  EXPECT_EQ(run.exit_code(), 1);
  EXPECT_THAT(run.errors(), testing::ContainsRegex(kNoRestart));
  EXPECT_TRUE(eventually([&] { return run.nothing_remains(); }));
}

/// The program on the first node does not handle the signal, and an agent still waits for it.
TEST(LaunchedJob, DoesNotStartAgainIfANodeHasEndedAfterTheSignalForAll) {
  const Engine engine(std::string(kTwoTasks) +
                      "kill -TERM $first; wait $first; kill -TERM $other; until grep -q asked e1; do sleep 0.01; done\n"
                      "kill -KILL $other; wait; exit 1");
  CommandRun run(engine.with(
      {"--max-restarts", "1", "/bin/sh", "-c", "[ $PMI_RANK = 0 ] || trap '' TERM; echo ready; exec sleep 1000"},
      "a,b"));
  EXPECT_NE(run.exit_code(), 0);
  EXPECT_THAT(run.errors(), testing::ContainsRegex(kNoRestart));
  EXPECT_TRUE(eventually([&] { return run.nothing_remains(); }));
}

/// The program of a node has died, and its `syncrun` gets the signal before it has noticed that.
TEST(LaunchedJob, StartsAgainIfAnEngineStopsAllNodesBecauseAProgramHasDied) {
  const Engine engine(std::string(kTwoTasks) +
                      "kill -STOP $other; kill -KILL $(cat /proc/$other/task/$other/children)\n"
                      "kill -TERM $first $other; kill -CONT $other; wait $other; kill -KILL $first; wait; exit 1");
  CommandRun run(engine.with({"--max-restarts", "1", scripted_program(), "ignore-requests"}, "a,b"));
  EXPECT_NE(run.exit_code(), 0);
  EXPECT_THAT(run.errors(), HasSubstr("restart 1 of 1, after: "));
  EXPECT_TRUE(eventually([&] { return run.nothing_remains(); }));
}

/// A host is lost before it has begun.
TEST(LaunchedJob, PutsASpareHostInThePlaceOfOneThatHasNotBegun) {
  const Engine engine("");
  std::ofstream(engine.path()) << "#!/bin/bash\n"
                                  "if [ \"$1\" = --version ]; then echo HYDRA build details; exit; fi\n"
                                  "while [ \"$1\" != -hosts ]; do shift; done; hosts=$2; shift 2; cd $(dirname $0)\n"
                                  "[ $hosts = b ] && exit 1\n"
                                  "[ \"$2\" = --version ] && exit 0\n"
                                  "export PMI_SIZE=2 MPI_LOCALNRANKS=1 PMI_FD=9\n"
                                  "[ $hosts = a,c ] && touch again && exit 3\n"
                                  "PMI_RANK=0 \"$@\" >0 & until grep -q ready 0; do sleep 0.01; done\n"
                                  "kill -TERM $!; sleep 0.5; kill -KILL $!; wait; exit 1\n";
  CommandRun run(engine.with({"--max-restarts", "1", "--spares", "1", scripted_program(), "ignore-requests"}, "a,b,c"));
  EXPECT_NE(run.exit_code(), 0);
  EXPECT_THAT(run.errors(), HasSubstr("; b does not answer, c takes its place\n"));
  EXPECT_TRUE(std::ifstream(engine.at("again")).good());
}

/// The report of a signal comes in the middle of a line.
TEST(LaunchedJob, PassesOnTheBeginningOfALineBeforeASignal) {
  const Engine engine(
      "cd $(dirname $0); touch 0; \"$@\" >0 & until grep -q ready 0; do sleep 0.01; done\n"
      "printf 'step 5' >&2; kill -TERM $!; wait; exit 1");
  CommandRun run(engine.with({scripted_program(), "report-signals", "75"}));
  EXPECT_EQ(run.exit_code(), 75) << run.errors();
  EXPECT_THAT(run.errors(), testing::StartsWith("step 5"));
}

TEST(LaunchedJob, EndsAnEngineThatDoesNotReturn) {
  const Engine engine("\"$@\"; sleep 1000");
  CommandRun run(engine.with({scripted_program(), "exit", "7"}));
  EXPECT_EQ(run.exit_code(), 7);
  EXPECT_THAT(run.errors(), HasSubstr("did not return, and was ended"));
  EXPECT_EQ(run.last_error_line(), "syncrun: the program exited with code 7");
  EXPECT_TRUE(run.nothing_remains());
}

/// srun waits without end for a node whose slurmstepd was killed.
TEST(LaunchedJob, EndsAnEngineThatWaitsForTheLastWordOfTheFirstNode) {
  const Engine engine(
      "cd $(dirname $0); export PMI_SIZE=2 MPI_LOCALNRANKS=1 PMI_FD=9\n"
      "PMI_RANK=0 \"${@:1:$#-2}\" report-signals >0 & lost=$!\n"
      "until grep -q ready 0; do sleep 0.01; done\n"
      "PMI_RANK=1 \"$@\"; kill -KILL $lost; sleep 1000");
  CommandRun run(engine.with({scripted_program(), "exit", "0"}, "a,b"));
  EXPECT_EQ(run.exit_code(std::chrono::seconds(40)), 1);
  EXPECT_THAT(run.last_error_line(), HasSubstr("did not return, and was ended"));
  EXPECT_TRUE(run.nothing_remains());
}

/// As when slurmstepd is killed: srun noticed it only when the other nodes had ended, and their work was in vain.
TEST(LaunchedJob, EndsAProgramIfTheDaemonThatReadsItsOutputHasDied) {
  const Engine engine("\"$@\" 2> >(head -n 1 >&2)");  // the first line says that the task has begun
  CommandRun run(engine.with({scripted_program(), "report-signals"}));
  EXPECT_EQ(run.exit_code(), 128 + SIGKILL);
  EXPECT_THAT(run.last_error_line(), HasSubstr("without a last word: node 0 ("));
  EXPECT_TRUE(run.nothing_remains());
}

TEST(LaunchedJob, EndsAnEngineThatStartsNothing) {
  const Engine engine("sleep 1000");
  CommandRun run(engine.with({"--start-timeout", "0.2", scripted_program(), "exit", "0"}));
  EXPECT_NE(run.exit_code(), 0);
  EXPECT_THAT(run.last_error_line(), HasSubstr("has started syncrun on no node within 0.2 s"));
  EXPECT_TRUE(run.nothing_remains());
}

TEST(LaunchedJob, PassesOnWhatTheEnginePrints) {
  const Engine engine("echo out; echo error >&2; \"$@\"; printf 'not yet a line' >&2");
  CommandRun run(engine.with({scripted_program(), "exit", "0"}));
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_EQ(run.output(), "out\n");
  EXPECT_EQ(run.errors(), "error\nnot yet a line");
}

TEST(LaunchedJob, GivesSignalsToTheEngineAsItPassesThemOn) {
  const Engine engine(
      "for s in TERM INT USR1 QUIT; do trap \"echo got $s\" $s; done; \"$@\" & while kill -0 $! 2>/dev/null; "
      "do wait; done");
  CommandRun run(engine.with({scripted_program(), "ignore-requests"}));
  ASSERT_TRUE(eventually([&] { return run.prints("ready"); }));
  for (const auto& [sent, name] : {std::pair{SIGUSR1, "USR1"}, std::pair{SIGUSR2, "QUIT"}, std::pair{SIGINT, "INT"}}) {
    run.send(sent);
    EXPECT_TRUE(eventually([&] { return run.prints(std::string("got ") + name + "\n"); })) << name << run.output();
  }
  run.send(SIGTERM);  // the second one that asks to stop
  EXPECT_EQ(run.exit_code(), 128 + SIGINT);
  EXPECT_EQ(run.last_error_line(), "syncrun: stopped by SIGINT (Interrupt), and killed at the second signal");
  EXPECT_TRUE(run.nothing_remains());
}

TEST(LaunchedJob, StartsAgainAfterAFailure) {
  const Engine engine("\"$@\"");
  CommandRun run(engine.with({"--max-restarts", "5", "--restart", "1", scripted_program(), "fail-times", "3"}));
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_EQ(run.output(), "restart 1\nrestart 2\nrestart 3\n");
  EXPECT_EQ(run.errors(),
            "syncrun: restart 1 of 5, after: the program exited with code 3\n"
            "syncrun: restart 2 of 5, after: the program exited with code 3\n");
  CommandRun usage(engine.with({"--max-restarts", "5", scripted_program(), "exit", "2"}));
  EXPECT_EQ(usage.exit_code(), 2);
  EXPECT_THAT(usage.errors(), Not(HasSubstr("restart")));
}

TEST(LaunchedJob, PutsASpareHostInThePlaceOfALostOne) {
  // Host a is lost during the first start.
  const Engine engine("");
  std::ofstream(engine.path()) << "#!/bin/bash\n"
                                  "if [ \"$1\" = --version ]; then echo HYDRA build details; exit; fi\n"
                                  "while [ \"$1\" != -hosts ]; do shift; done; host=$2; shift 2\n"
                                  "lost="
                               << engine.at("lost")
                               << "; [ $host = a ] && [ -e $lost ] && exit 1\n"
                                  "[ \"$2\" = --version ] && exit 0\n"
                                  "if [ $host = b ]; then \"${@:1:$#-1}\" fail-times 1; exit; fi\n"
                                  "touch $lost; \"$@\" & sleep 0.5; kill -9 $!; exit 1\n";
  CommandRun run(engine.with({"--max-restarts", "2", "--spares", "1", scripted_program(), "ignore-requests"}, "a,b"));
  EXPECT_EQ(run.exit_code(), 0) << run.errors();
  EXPECT_THAT(run.errors(), HasSubstr("; a does not answer, b takes its place\n"));
}

TEST(LaunchedJob, ShowsTheCommandInADryRun) {
  const Engine engine("exit 1");
  CommandRun run(engine.with({"--dry-run", "-n", "2", "--tag", scripted_program(), "a b"}, "x,y"));
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_THAT(run.output(), HasSubstr("(MPICH), 2 nodes: x,y\ncommand:\n  "));
  EXPECT_THAT(run.output(),
              HasSubstr("mpirun -np 2 -ppn 1 -bind-to none -genvall -hosts x,y " + std::string(SYNCRUN_COMMAND)));
  EXPECT_THAT(run.output(), HasSubstr(" --nodes=2 --nproc-per-node=2 --tag -- " + scripted_program() + " 'a b'\n"));
}

}  // namespace
}  // namespace syncrun::test
