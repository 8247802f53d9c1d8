#include "worker/devices/hardware.hpp"

#include <gtest/gtest.h>

#include <sstream>

namespace {

using namespace syncrun::detail;

std::string cpu_in(const std::string& text) {
  std::istringstream cpuinfo(text);
  return worker::devices::describe_cpu(cpuinfo);
}

TEST(Hardware, OfAGpuIsItsModelAndItsMemoryInUnitsOf1e9Bytes) {
  EXPECT_EQ(worker::devices::describe_gpu("NVIDIA H100 PCIe", 85'029'158'912), "NVIDIA H100 PCIe, 85 GB");
  EXPECT_EQ(worker::devices::describe_gpu("A", 1'499'999'999), "A, 1 GB");
  EXPECT_EQ(worker::devices::describe_gpu("A", 1'500'000'000), "A, 2 GB");
}

TEST(Hardware, OfACpuIsTheModelOfTheFirstOne) {
  EXPECT_EQ(cpu_in("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9B14\nmodel name\t: other\n"),
            "AMD EPYC 9B14");
}

TEST(Hardware, OfACpuWithoutAModelHasWordsToo) {
  EXPECT_EQ(cpu_in(""), "a CPU worker");
  EXPECT_EQ(cpu_in("processor\t: 0\nCPU part\t: 0xd40\n"), "a CPU worker");
  EXPECT_EQ(cpu_in("model name\nmodel name\t: \n"), "a CPU worker");
}

}  // namespace
