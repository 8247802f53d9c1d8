#include "launcher/devices/placement.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

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

class Threads : public testing::Test {
 protected:
  void SetUp() override { unset_all(); }
  void TearDown() override { unset_all(); }

  /// The variables by name, for a worker whose share is one thread.
  static std::map<std::string, std::string> given() {
    std::map<std::string, std::string> variables;
    for (const auto& [name, value] : thread_variables(1)) variables[name] = value;
    return variables;
  }

 private:
  static void unset_all() {
    for (const char* name :
         {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"}) {
      ::unsetenv(name);
    }
  }
};

using Variables = std::map<std::string, std::string>;

TEST_F(Threads, AreDividedAmongTheWorkers) {
  EXPECT_EQ(given(), (Variables{{"OMP_NUM_THREADS", "1"},
                                {"OPENBLAS_NUM_THREADS", "1"},
                                {"MKL_NUM_THREADS", "1"},
                                {"BLIS_NUM_THREADS", "1"}}));
}

TEST_F(Threads, OfLibrariesFollowTheUsersOpenMp) {
  ::setenv("OMP_NUM_THREADS", "7", 1);
  EXPECT_EQ(given(), (Variables{{"OPENBLAS_NUM_THREADS", "7"}, {"MKL_NUM_THREADS", "7"}, {"BLIS_NUM_THREADS", "7"}}));
  ::setenv("OMP_NUM_THREADS", "5,2", 1);  // one number for each level of nested parallelism
  EXPECT_EQ(given()["MKL_NUM_THREADS"], "5");
}

TEST_F(Threads, FollowTheOnlyLibraryThatTheUserHasSet) {
  ::setenv("MKL_NUM_THREADS", "3", 1);
  EXPECT_EQ(given(), (Variables{{"OMP_NUM_THREADS", "3"}, {"OPENBLAS_NUM_THREADS", "3"}, {"BLIS_NUM_THREADS", "3"}}));
}

TEST_F(Threads, FollowALibrarysOtherNameToo) {
  ::setenv("GOTO_NUM_THREADS", "3", 1);
  EXPECT_EQ(given(), (Variables{{"OMP_NUM_THREADS", "3"}, {"MKL_NUM_THREADS", "3"}, {"BLIS_NUM_THREADS", "3"}}));
}

TEST_F(Threads, OfALibraryThatTheUserHasSetAreLeftAlone) {
  ::setenv("OMP_NUM_THREADS", "7", 1);
  ::setenv("MKL_NUM_THREADS", "2", 1);
  ::setenv("GOTO_NUM_THREADS", "4", 1);  // another name for OPENBLAS_NUM_THREADS, which takes precedence over it
  EXPECT_EQ(given(), (Variables{{"BLIS_NUM_THREADS", "7"}}));
}

TEST_F(Threads, ThatTheUserHasNotSetToANumberAreNotFollowed) {
  ::setenv("OMP_NUM_THREADS", "", 1);
  EXPECT_EQ(given(), (Variables{{"OPENBLAS_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"}, {"BLIS_NUM_THREADS", "1"}}));
}

// ---- ranks of both kinds --------------------------------------------------------------------------------------

std::vector<int> threads_of(const std::vector<DeviceId>& devices, int cores) {
  std::vector<int> threads;
  for (int rank = 0; rank < static_cast<int>(devices.size()); ++rank) {
    threads.push_back(threads_for(devices, rank, cores));
  }
  return threads;
}

constexpr DeviceId cpu(int index) { return {syncrun::detail::DeviceKind::cpu, index}; }
constexpr DeviceId cuda(int index) { return {syncrun::detail::DeviceKind::cuda, index}; }

TEST(ThreadsOfRanks, AreEqualShareOfDevicesOfOneKind) {
  EXPECT_EQ(threads_of({cpu(0), cpu(1), cpu(2)}, 16), (std::vector<int>{5, 5, 5}));
  EXPECT_EQ(threads_of({cuda(0), cuda(1)}, 16), (std::vector<int>{8, 8}));
  EXPECT_EQ(threads_of({cpu(0), cpu(1), cpu(2)}, 2), (std::vector<int>{1, 1, 1}));
}

TEST(ThreadsOfRanks, AreThoseThatGpusLeaveToTheCpus) {
  EXPECT_EQ(threads_of({cuda(0), cpu(0)}, 16), (std::vector<int>{1, 15}));
  EXPECT_EQ(threads_of({cpu(0), cuda(0), cpu(1), cuda(1)}, 16), (std::vector<int>{7, 1, 7, 1}));
  EXPECT_EQ(threads_of({cpu(0), cuda(0), cuda(1)}, 2), (std::vector<int>{1, 1, 1})) << "at least one";
}

}  // namespace
