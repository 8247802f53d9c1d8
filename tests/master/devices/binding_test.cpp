#include "master/devices/binding.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "master/devices/placement.hpp"
#include "master/process/spawn.hpp"
#include "tests/master/devices/some_devices.hpp"

namespace {

using namespace syncrun::detail::master::devices;
using syncrun::test::counting;
using syncrun::test::cpu;
using syncrun::test::cuda;
using testing::ElementsAre;
using testing::HasSubstr;
using Cores = std::vector<int>;

/// The machine that hwloc describes by a text.
Machine synthetic(const std::string& text) {
  ::setenv("HWLOC_SYNTHETIC", text.c_str(), 1);
  std::string why;
  auto machine = machine_by_hwloc(why);
  ::unsetenv("HWLOC_SYNTHETIC");
  EXPECT_TRUE(machine) << why;
  return machine ? *machine : Machine{};
}

bool has_hwloc() {
  std::string why;
  return machine_by_hwloc(why).has_value();
}

/// Two sockets with two NUMA nodes each, whose numbers have gaps. The second hardware threads of the cores have the last
/// numbers.
Machine two_sockets() {
  Machine machine{.sockets = {{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}},
                  .nodes = {{0, {0, 1, 8, 9}}, {1, {2, 3, 10, 11}}, {8, {4, 5, 12, 13}}, {9, {6, 7, 14, 15}}}};
  for (int core = 0; core < 8; ++core) machine.physical_cores.push_back({core, core + 8});
  return machine;
}

TEST(Binding, ToCoresGivesEachWorkerItsOwnPhysicalCores) {
  const Machine machine = two_sockets();
  const Cores all = counting(0, 15);
  EXPECT_EQ(cores_to_bind(BindTo::core, 0, 8, all, machine), (Cores{0, 8}));
  EXPECT_EQ(cores_to_bind(BindTo::core, 7, 8, all, machine), (Cores{7, 15}));
  EXPECT_EQ(cores_to_bind(BindTo::core, 1, 4, all, machine), (Cores{2, 3, 10, 11}));
  Cores together;
  for (int worker = 0; worker < 3; ++worker) {
    const Cores own = cores_to_bind(BindTo::core, worker, 3, all, machine);
    together.insert(together.end(), own.begin(), own.end());
  }
  EXPECT_THAT(together, testing::UnorderedElementsAreArray(all)) << "three workers leave no core out";
}

TEST(Binding, SharesHardwareThreadsIfThereAreMoreWorkersThanCores) {
  const Machine machine = two_sockets();
  const Cores all = counting(0, 15);
  EXPECT_EQ(cores_to_bind(BindTo::core, 0, 16, all, machine), Cores{0});
  EXPECT_EQ(cores_to_bind(BindTo::core, 1, 16, all, machine), Cores{8});
  for (int worker = 0; worker < 40; ++worker)
    EXPECT_EQ(cores_to_bind(BindTo::core, worker, 40, all, machine).size(), 1U) << worker;
  EXPECT_EQ(cores_to_bind(BindTo::core, 39, 40, all, machine), Cores{15});
}

TEST(Binding, ToNodesAndSocketsTakesAllThatHaveAPartOfTheShare) {
  const Machine machine = two_sockets();
  const Cores all = counting(0, 15);
  EXPECT_EQ(cores_to_bind(BindTo::numa, 5, 8, all, machine), (Cores{4, 5, 12, 13}));
  EXPECT_EQ(cores_to_bind(BindTo::socket, 5, 8, all, machine), (Cores{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(cores_to_bind(BindTo::numa, 0, 2, all, machine), (Cores{0, 1, 2, 3, 8, 9, 10, 11})) << "two nodes";
  EXPECT_EQ(cores_to_bind(BindTo::socket, 0, 1, all, machine), all);
}

TEST(Binding, StaysWithinTheCoresThatTheProcessMayUse) {
  const Machine machine = two_sockets();
  const Cores allowed{1, 2, 3, 4, 9};
  EXPECT_EQ(cores_to_bind(BindTo::core, 0, 4, allowed, machine), (Cores{1, 9})) << "a core with both threads";
  EXPECT_EQ(cores_to_bind(BindTo::core, 3, 4, allowed, machine), Cores{4});
  EXPECT_EQ(cores_to_bind(BindTo::numa, 1, 4, allowed, machine), (Cores{2, 3}));
  EXPECT_EQ(cores_to_bind(BindTo::socket, 0, 4, allowed, machine), (Cores{1, 2, 3, 9}));
  EXPECT_TRUE(cores_to_bind(BindTo::core, 0, 4, Cores{99}, machine).empty()) << "hwloc does not see this core";
}

TEST(Binding, NamesTheNodeOfTheMemoryByItsNumber) {
  const Machine machine = two_sockets();
  EXPECT_EQ(node_of_cores(Cores{4, 13}, machine), 8);
  EXPECT_EQ(node_of_cores(Cores{1, 2}, machine), std::nullopt) << "cores of two nodes";
  EXPECT_EQ(node_of_cores(Cores{0}, Machine{.nodes = {{0, {0, 1}}}}), std::nullopt) << "there is one node only";
}

TEST(Binding, PlacesWorkersOfGpusNearTheirGpus) {
  const std::vector<DeviceId> devices{cuda(0), cuda(1), cpu(0), cuda(2)};
  const Cores first = counting(0, 3);
  const Cores second = counting(4, 7);
  const std::vector<Cores> near{first, second, second};
  const auto place = [&](BindTo to, int rank) {
    return Binding(to, two_sockets(), counting(0, 15)).place(devices, rank, near);
  };
  EXPECT_EQ(place(BindTo::device, 1).cores, second);
  EXPECT_EQ(place(BindTo::device, 2).cores, counting(0, 15)) << "the share of the only CPU worker";
  EXPECT_EQ(place(BindTo::core, 0).cores, first) << "no other GPU is near these cores";
  EXPECT_EQ(place(BindTo::core, 1).cores, (Cores{4, 5}));
  EXPECT_EQ(place(BindTo::core, 3).cores, (Cores{6, 7}));
  EXPECT_EQ(place(BindTo::core, 3).memory_node, 9);
  EXPECT_TRUE(place(BindTo::none, 1).cores.empty());
  EXPECT_EQ(place(BindTo::none, 1).memory_node, std::nullopt);
}

TEST(Machine, IsDescribedByHwlocWithSparseNodesAndThousandsOfCores) {
  if (!has_hwloc()) GTEST_SKIP() << "there is no hwloc";
  const Machine large = synthetic("pack:2 numa:4(indexes=0,8,16,24,32,40,48,56) core:100 pu:2");
  EXPECT_EQ(large.physical_cores.size(), 800U);
  ASSERT_EQ(large.sockets.size(), 2U);
  ASSERT_EQ(large.nodes.size(), 8U);
  EXPECT_EQ(large.nodes[3].number, 24);
  EXPECT_EQ(large.nodes[3].cores, counting(600, 799));
  EXPECT_EQ(large.sockets[1], counting(800, 1599));
  EXPECT_EQ(cores_to_bind(BindTo::core, 799, 800, counting(0, 1599), large), (Cores{1598, 1599}));
  EXPECT_EQ(cores_to_bind(BindTo::numa, 700, 800, counting(0, 1599), large), counting(1400, 1599));
}

TEST(Machine, IsDescribedByFilesToo) {
  const Machine machine = machine_by_files();
  std::size_t cores = 0;
  for (const NumaNode& node : machine.nodes) cores += node.cores.size();
  EXPECT_EQ(machine.physical_cores.size(), cores);
  EXPECT_TRUE(machine_by_files("/nonexistent").nodes.empty());
}

TEST(MemoryNode, IsThatOfAllMemoryOfTheChild) {
  const auto policies = [](std::optional<int> node) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    syncrun::detail::master::process::SpawnRequest request;
    request.program = "/bin/cat";
    request.arguments = {"cat", "/proc/self/numa_maps"};
    request.standard_output = ends[1];
    request.memory_node = node;
    const auto child = syncrun::detail::master::process::spawn(request);
    ::close(ends[1]);
    std::string text;
    std::array<char, 4096> block{};
    for (ssize_t got = 0; (got = ::read(ends[0], block.data(), block.size())) > 0;)
      text.append(block.data(), static_cast<std::size_t>(got));
    ::close(ends[0]);
    ::waitpid(child.pid, nullptr, 0);
    return text;
  };
  const std::string usual = policies({});
  if (usual.empty()) GTEST_SKIP() << "the kernel does not show policies";
  EXPECT_THAT(usual, testing::Not(HasSubstr(" prefer:0")));
  const std::string near = policies(0);
  if (near.find(" prefer") == std::string::npos) GTEST_SKIP() << "this system forbids set_mempolicy: " << near;
  EXPECT_THAT(near, HasSubstr(" prefer:0 "));
}

TEST(ReportOfBindings, SaysWhatTheKernelSays) {
  const std::vector<NumaNode> nodes{{0, {0, 1, 2, 3}}, {8, {4, 5, 6, 7}}};
  const Cores usable = counting(0, 7);
  EXPECT_EQ(describe_binding("rank 0 on cpu0", Cores{4, 5, 7}, Cores{4, 5, 7}, usable, nodes),
            "rank 0 on cpu0: cores 4-5,7, NUMA node 8");
  EXPECT_EQ(describe_binding("rank 1 on cpu1", Cores{3}, {}, usable, nodes), "rank 1 on cpu1: core 3, NUMA node 0");
  EXPECT_EQ(describe_binding("rank 1 on cpu1", usable, {}, usable, nodes),
            "rank 1 on cpu1: cores 0-7, NUMA nodes 0,8 (all that the job may use)");
  EXPECT_EQ(describe_binding("rank 1 on cpu1", usable, Cores{40}, usable, nodes),
            "rank 1 on cpu1: cores 0-7, NUMA nodes 0,8, because the system refused cores 40");
}

}  // namespace
