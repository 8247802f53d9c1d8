#include "master/inspect/top.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "master/inspect/gpu_use.hpp"
#include "master/inspect/words.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::inspect {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RankView view_of(int rank, std::uint64_t calls, std::uint64_t rows) {
  RankView view;
  view.rank = rank;
  view.pid = 100 + rank;
  view.device = "cpu" + std::to_string(rank);
  view.phase = "function";
  view.call = "train_step";
  view.calls = calls;
  view.rows = rows;
  view.memory_bytes = 1'500'000;
  return view;
}

TEST(Top, CountsPerSecondUnlessAnotherWorkerHasTakenTheRank) {
  const std::vector<RankView> before{view_of(0, 10, 100), view_of(1, 10, 100)};
  std::vector<RankView> after{view_of(0, 30, 5100), view_of(1, 30, 5100)};
  after[1].pid = 7;
  const auto rows = rows_between(before, after, std::chrono::seconds(2));
  EXPECT_EQ(rows[0].calls_per_second, 10);
  EXPECT_EQ(rows[0].rows_per_second, 2500);
  EXPECT_LT(rows[1].calls_per_second, 0);
}

TEST(Top, IsATableWithALineForAllRanks) {
  std::vector<TopRow> rows{{view_of(0, 0, 0), 12.34, 2500, 98, 87}, {view_of(1, 0, 0), 950, 4'000'000, -1, -1}};
  rows[1].view.call.clear();
  EXPECT_EQ(table_of(rows, false, 0),
            "rank  pid  device  phase     call        busy  calls/s  rows/s  memory  GPU\n"
            "   0  100  cpu0    function  train_step   98%       12    2.5k   1.5MB  87%\n"
            "   1  101  cpu1    function  -              -      950    4.0M   1.5MB    -\n"
            " all                                                      4.0M   3.0MB\n");
  EXPECT_THAT(table_of(rows, true, 20), HasSubstr("rank  node  pid  dev\n"));
}

std::string refusal(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  try {
    constexpr std::array<std::string_view, 3> kOptions{"--pid", "--once", "--interval"};
    const Words read = read_words("top", pointers, kOptions);
    return read.is_once ? "once" : "all " + std::to_string(read.interval.count());
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Top, ReadsItsOptions) {
  EXPECT_EQ(refusal({"--pid", "7", "--once"}), "once");
  EXPECT_EQ(refusal({"--interval=0.5"}), "all 500");
  EXPECT_THAT(refusal({"--pid"}), HasSubstr("option --pid: expected a value after it, got none"));
  EXPECT_THAT(refusal({"--pid", "x"}), HasSubstr("--pid: expected a process id, got 'x'"));
  EXPECT_THAT(refusal({"--interval", "0"}), HasSubstr("expected seconds from 0.1 to 3600, got '0'"));
  EXPECT_THAT(refusal({"--fast"}), HasSubstr("syncrun top: expected one of --pid, --once, --interval; got '--fast'"));
}

/// This program is linked with a library of the name of NVML, which has two GPUs (fake_nvml.cpp).
TEST(GpuUse, IsThatOfTheGpuThatTheProcessSees) {
  GpuUse gpus;
  ASSERT_TRUE(gpus.is_known());
  gpus.look();
  EXPECT_EQ(gpus.percent_of(7, "cuda0", ""), 40);
  EXPECT_EQ(gpus.percent_of(7, "cuda1", ""), 41);
  EXPECT_EQ(gpus.percent_of(7, "cuda0", "1,0"), 41);
  EXPECT_EQ(gpus.percent_of(7, "cuda2", ""), -1);
  EXPECT_EQ(gpus.percent_of(7, "cpu0", ""), -1);
  EXPECT_EQ(gpus.percent_of(7, "cuda0", "GPU-8f2e"), -1) << "the driver does not name this process";
  EXPECT_EQ(gpus.percent_of(1001, "cuda0", "GPU-8f2e"), 41) << "the driver names it on the second GPU";
}

}  // namespace
}  // namespace syncrun::detail::master::inspect
