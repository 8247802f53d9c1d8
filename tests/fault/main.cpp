// The main of the fault tests. A worker serves calls. A master under test runs the program that its arguments name.
// Otherwise the process runs the tests.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <syncrun/syncrun.hpp>

#include "tests/fault/leak_check.hpp"
#include "tests/fault/programs.hpp"
#include "tests/fault/ways_to_die.hpp"

int main(int argc, char** argv) {
  const rlimit no_cores{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_cores);
  syncrun::test::die_while_starting();
  syncrun::test::get_signals_at_birth(argc, argv);
  if (const auto code = syncrun::serve_if_worker(argc, argv)) return *code;
  if (argc > 2 && std::strcmp(argv[1], "--program") == 0) return syncrun::test::run_program(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new syncrun::test::LeakCheck);
  return RUN_ALL_TESTS();
}
