#include "master/devices/placement.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "common/os/core_set.hpp"
#include "tests/master/devices/some_devices.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using namespace syncrun::detail;
using syncrun::test::counting;
using syncrun::test::cpu;
using syncrun::test::cuda;

TEST(CpuList, IsReadAsTheKernelWritesIt) {
  EXPECT_EQ(master::devices::parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(master::devices::parse_cpu_list("5"), std::vector<int>{5});
  EXPECT_TRUE(master::devices::parse_cpu_list("").empty());
}

TEST(CpuList, EndsAlsoWhereItsRangesDoNot) {
  EXPECT_EQ(master::devices::parse_cpu_list("0-2147483647").size(), 65536U);
  EXPECT_EQ(master::devices::parse_cpu_list("0-99999999999999999999").size(), 65536U);
  EXPECT_TRUE(master::devices::parse_cpu_list("7-3").empty());
}

// ---- cores of a worker ----------------------------------------------------------------------------------------

/// Two NUMA nodes, as on a POWER machine: their numbers have a gap. Each has 1,000 cores.
std::vector<std::vector<int>> nodes_with_a_gap() {
  const TemporaryFolder folder;
  const auto write = [&](const char* file, const char* text) {
    std::filesystem::create_directories((folder.path() / file).parent_path());
    std::ofstream(folder.path() / file) << text;
  };
  write("online", "0,8\n");
  write("node0/cpulist", "0-999\n");
  write("node8/cpulist", "1000-1999\n");
  return master::devices::numa_nodes(folder.path());
}

TEST(Cores, OfAWorkerAreThoseOfItsNodeIfNumbersOfNodesHaveGaps) {
  const auto nodes = nodes_with_a_gap();
  ASSERT_EQ(nodes.size(), 2U);
  const auto all = counting(0, 1999);
  EXPECT_EQ(master::devices::cores_for(0, 2, all, nodes), counting(0, 999));
  EXPECT_EQ(master::devices::cores_for(1, 2, all, nodes), counting(1000, 1999));
  EXPECT_EQ(master::devices::cores_for(1, 2, counting(990, 1009), nodes), counting(1000, 1009))
      << "only those that are allowed";
  EXPECT_TRUE(master::devices::cores_for(0, 1, all, nodes).empty()) << "its share is in two nodes";
}

TEST(Cores, OfAWorkerAreThoseOfItsNodeIfSecondThreadsOfCoresAreNumberedLast) {
  const std::vector<std::vector<int>> nodes{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}};
  const auto all = counting(0, 15);
  for (int worker = 0; worker < 4; ++worker) {
    EXPECT_EQ(master::devices::cores_for(worker, 4, all, nodes), nodes[static_cast<std::size_t>(worker / 2)]);
  }
  EXPECT_EQ(master::devices::cores_for(1, 2, all, nodes), nodes[1]);
  EXPECT_TRUE(master::devices::cores_for(1, 3, all, nodes).empty()) << "its share is in two nodes";
}

/// A kernel for 2,048 cores refuses smaller sets. The thread may use the cores 7 and 1500.
int ask_large_kernel(pid_t, std::size_t bytes, cpu_set_t* cores) {
  if (bytes < 2048 / 8) {
    errno = EINVAL;
    return -1;
  }
  CPU_SET_S(7U, bytes, cores);
  CPU_SET_S(1500U, bytes, cores);
  return 0;
}

TEST(Cores, MayBeMoreThanTheUsualSetHolds) {
  const auto allowed = os::CoreSet::allowed(ask_large_kernel);
  ASSERT_TRUE(allowed);
  EXPECT_EQ(allowed->cores(), (std::vector<int>{7, 1500}));
  EXPECT_EQ(allowed->count(), 2);
}

TEST(Cores, AreKeptInASet) {
  EXPECT_EQ(os::CoreSet(std::vector<int>{3, 1500, 1024}).cores(), (std::vector<int>{3, 1024, 1500}));
  EXPECT_TRUE(os::CoreSet(std::vector<int>()).cores().empty());
}

TEST(Cores, AreUnknownIfTheSystemDoesNotSayIt) {
  EXPECT_FALSE(os::CoreSet::allowed([](pid_t, std::size_t, cpu_set_t*) {
    errno = EPERM;
    return -1;
  }));
  EXPECT_FALSE(os::CoreSet::allowed([](pid_t, std::size_t, cpu_set_t*) {
    errno = EINVAL;
    return -1;
  })) << "and the search ends";
}

using Variables = std::map<std::string, std::string>;

/// The variables of a worker whose share is one thread, if the user has set these.
Variables given(const Variables& by_user) {
  for (const auto& [name, value] : by_user) ::setenv(name.c_str(), value.c_str(), 1);
  Variables variables;
  for (const auto& [name, value] : master::devices::thread_variables(1)) variables[name] = value;
  for (const auto& [name, value] : by_user) ::unsetenv(name.c_str());
  return variables;
}

TEST(Threads, FollowWhatTheUserHasSet) {
  for (const char* name :
       {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"})
    ::unsetenv(name);
  const auto all = [](const char* blas, const char* mkl, const char* blis) {
    return Variables{{"OPENBLAS_NUM_THREADS", blas}, {"MKL_NUM_THREADS", mkl}, {"BLIS_NUM_THREADS", blis}};
  };
  Variables divided = all("1", "1", "1");
  divided["OMP_NUM_THREADS"] = "1";
  EXPECT_EQ(given({}), divided);
  EXPECT_EQ(given({{"OMP_NUM_THREADS", "7"}}), all("7", "7", "7"));
  EXPECT_EQ(given({{"OMP_NUM_THREADS", "5,2"}}), all("5", "5", "5")) << "a number for each level of parallelism";
  EXPECT_EQ(given({{"OMP_NUM_THREADS", ""}}), all("1", "1", "1")) << "that is no number";
  EXPECT_EQ(given({{"MKL_NUM_THREADS", "3"}}),
            (Variables{{"OMP_NUM_THREADS", "3"}, {"OPENBLAS_NUM_THREADS", "3"}, {"BLIS_NUM_THREADS", "3"}}));
  EXPECT_EQ(given({{"GOTO_NUM_THREADS", "3"}}),
            (Variables{{"OMP_NUM_THREADS", "3"}, {"MKL_NUM_THREADS", "3"}, {"BLIS_NUM_THREADS", "3"}}))
      << "another name for OPENBLAS_NUM_THREADS, which takes precedence over it";
  EXPECT_EQ(given({{"OMP_NUM_THREADS", "7"}, {"MKL_NUM_THREADS", "2"}, {"GOTO_NUM_THREADS", "4"}}),
            (Variables{{"BLIS_NUM_THREADS", "7"}}));
}

// ---- ranks of both kinds --------------------------------------------------------------------------------------

std::vector<int> threads_of(const std::vector<master::devices::DeviceId>& devices, int cores) {
  std::vector<int> threads;
  for (int rank = 0; rank < static_cast<int>(devices.size()); ++rank) {
    threads.push_back(master::devices::threads_for(devices, rank, cores));
  }
  return threads;
}

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
