// Every phase of a worker, every way to fail, on the first and the last rank. In bounded time, the first line of the
// verdict names the rank, the phase and the cause, and nothing of the job is left. docs/reliability.md shows the
// results of these tests.

#include "tests/fault/matrix/matrix.hpp"

namespace syncrun::test {
namespace {

const std::vector<std::string> kWays{"kill",      "segv",   "stop", "exit0",  "exit3",
                                     "exception", "number", "loop", "memory", "shared"};

class Matrix : public testing::TestWithParam<Cell> {};

TEST_P(Matrix, NamesWhoWhereAndWhy) { expect_cell(GetParam(), "cpu", 3); }

INSTANTIATE_TEST_SUITE_P(Cpu, Matrix,
                         testing::ValuesIn(cells_of({"spawn", "attach", "device", "dependencies", "inputs", "function",
                                                     "collective", "reduction", "idle", "close"},
                                                    kWays, {0, 2})),
                         name_of);

TEST(MatrixOfCpus, HasNoCommunicatorToMake) {
  const Variable fault("SYNCRUN_FAULT", "rank=1,phase=communicator,way=kill");
  CommandRun run({"-n", "3", SYNCRUN_MATRIX_PROGRAM, "20000", "20000"});
  EXPECT_EQ(run.exit_code(), 0) << run.errors();
  EXPECT_TRUE(run.prints("done"));
  record("cpu", "communicator", "*", "none: CPU workers use shared memory and need no communicator");
}

TEST(MatrixOfCpus, SaysWhatIsWrongWithAFault) {
  const Variable fault("SYNCRUN_FAULT", "rank=1,phase=nowhere");
  CommandRun run({"-n", "2", SYNCRUN_MATRIX_PROGRAM, "20000", "20000"});
  EXPECT_EQ(run.exit_code(), 1);
  EXPECT_NE(run.errors().find("there is no phase 'nowhere'"), std::string::npos) << run.errors();
}

}  // namespace
}  // namespace syncrun::test
