#include "launcher/placement.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace {

using namespace syncrun::detail;

TEST(CpuList, IsReadAsTheKernelWritesIt) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5"), std::vector<int>{5});
  EXPECT_TRUE(parse_cpu_list("").empty());
}

TEST(CpuList, EndsAlsoWhereItsRangesDoNot) {
  EXPECT_EQ(parse_cpu_list("0-2147483647").size(), 65536U);
  EXPECT_EQ(parse_cpu_list("0-99999999999999999999").size(), 65536U);
  EXPECT_TRUE(parse_cpu_list("7-3").empty());
}

TEST(Threads, AreDividedAmongTheWorkersUnlessTheUserHasSaid) {
  ::unsetenv("OPENBLAS_NUM_THREADS");
  ::setenv("OMP_NUM_THREADS", "7", 1);
  bool has_blas = false;
  for (const auto& [name, value] : thread_variables(1'000'000)) {
    EXPECT_NE(name, "OMP_NUM_THREADS");
    if (name == "OPENBLAS_NUM_THREADS") {
      has_blas = true;
      EXPECT_EQ(value, "1");
    }
  }
  EXPECT_TRUE(has_blas);
  ::unsetenv("OMP_NUM_THREADS");
}

}  // namespace
