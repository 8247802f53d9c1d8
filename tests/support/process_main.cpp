// The main of tests that open sessions. In a worker of such a session it serves calls and does not run the tests.

#include <gtest/gtest.h>

#include <syncrun/syncrun.hpp>

int main(int argc, char** argv) {
  if (const auto code = syncrun::serve_if_worker(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
