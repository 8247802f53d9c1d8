// Calls on GPUs: rows as inputs, results, and shared variables. The tests compare with sums computed here.

#include <algorithm>
#include <random>

#include "tests/gpu/bodies.hpp"
#include "tests/gpu/on_gpus.hpp"

namespace gpu_test {
namespace {

class GpuCall : public OnGpus {};
INSTANTIATE_ON_GPUS(GpuCall);

TEST_P(GpuCall, ReturnsNumbersThatAreInDeviceMemory) {
  const auto f = session().function(statistics);
  for (const std::int64_t rows : {500, 7, 1}) {
    const auto x = session().data(counting<double>(rows));
    for (const std::int64_t slices : {std::int64_t{1}, std::min(rows, std::int64_t{3})}) {
      const Five r = f(x, 2.0, {.slices = slices});
      const double n = static_cast<double>(rows);
      EXPECT_DOUBLE_EQ(r.sum, n * (n - 1));
      EXPECT_NEAR(r.avg, n - 1, 1e-9);
      EXPECT_EQ(r.min, 0);
      EXPECT_EQ(r.max, 2 * (n - 1));
      ASSERT_EQ(r.rows.rows(), rows);
      for (std::int64_t i = 0; i < rows; ++i) EXPECT_EQ(r.rows[i], 2.0 * static_cast<double>(i));
    }
  }
}

TEST_P(GpuCall, EveryRankGetsItsOwnRows) {
  const auto f = session().function(copy_rows);
  const std::int64_t rows = 1000;
  const std::int64_t width = 37;
  const auto x = session().data(counting<float>(rows * width), sr::Shape{rows, width});
  std::vector<std::int64_t> shuffled = counting<std::int64_t>(rows);
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(1));
  const auto check = [&](const sr::Gather<float, 2>& got, auto row_of) {
    for (std::int64_t i = 0; i < got.rows(); ++i) {
      ASSERT_EQ(got(i, 5), static_cast<float>(row_of(i) * width + 5 + i)) << "row " << i;
    }
  };
  for (const std::int64_t slices : {1, 4}) {
    check(f(x, {.slices = slices}), [](std::int64_t i) { return i; });
    check(f(x, {.batch = sr::Slice{100, 357}, .slices = slices}), [](std::int64_t i) { return i + 100; });
    check(f(x, {.batch = shuffled, .slices = slices}),
          [&](std::int64_t i) { return shuffled[static_cast<std::size_t>(i)]; });
  }
}

// The calls alternate, so a graph that is replayed for other rows would give the rows of another call.
TEST_P(GpuCall, NumbersRowsWithoutAnArrayAlsoInReplay) {
  const auto check = [this](const auto& f) {
    for (int round = 0; round < 6; ++round) {
      for (const std::int64_t rows : {1, 5, 1000}) {
        for (const std::int64_t slices : {std::int64_t{1}, std::min(rows, std::int64_t{3})}) {
          const Numbers all = f({.rows = rows, .slices = slices});
          EXPECT_EQ(all.rows.to_vector(), counting<std::int64_t>(rows)) << "round " << round;
          EXPECT_NEAR(all.mean[0], static_cast<double>(rows - 1) / 2, 1e-9) << "round " << round;
        }
        const Numbers on_last = f.on_rank(world_size() - 1)({.rows = rows});
        EXPECT_EQ(on_last.rows.to_vector(), counting<std::int64_t>(rows)) << "round " << round;
      }
    }
  };
  check(session().function(number_rows));
  check(session().function(sr::replayable(number_rows)));
}

TEST_P(GpuCall, GathersRowsOfAnySize) {
  const auto f = session().function(copy_bytes);
  for (const std::int64_t width : {1, 3, 8, 12, 784, 4097, 150'528, 1 << 20, (1 << 20) + 4}) {
    const std::int64_t rows = 40;
    auto x = session().data<std::uint8_t, 2>({rows, width});
    {
      const auto write = x.write();
      std::mt19937 random(7);
      for (auto& value : write.span()) value = static_cast<std::uint8_t>(random());
    }
    std::vector<int> indices;
    std::mt19937 random(3);
    for (int i = 0; i < 25; ++i) indices.push_back(static_cast<int>(random() % rows));
    const auto got = f(x, {.batch = indices});
    const auto all = x.span();
    ASSERT_EQ(got.rows(), 25);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const auto* row = all.data() + indices[i] * width;
      ASSERT_TRUE(std::equal(row, row + width, got.data() + static_cast<std::int64_t>(i) * width)) << "width " << width;
    }
  }
}

TEST_P(GpuCall, ReducesSmallAndLargeArrays) {
  const auto f = session().function(arrays);
  const int n = world_size();
  for (const std::int64_t size : {1, 100, 1'000'003}) {
    const Arrays r = f(size);
    double product = 1;
    for (int i = 1; i <= n; ++i) product *= i;
    for (const std::int64_t i : {std::int64_t{0}, size / 2, size - 1}) {
      EXPECT_EQ(r.sum[i], static_cast<float>(n * (n + 1) / 2 + n * (i % 7)));
      EXPECT_NEAR(r.avg[i], (n + 1) / 2.0, 1e-6);
      EXPECT_EQ(r.min[i], 1 + i);
      EXPECT_EQ(static_cast<float>(r.max[i]), static_cast<float>(n));
      EXPECT_EQ(r.prod[i], product);
    }
  }
}

TEST_P(GpuCall, AveragesLargeArraysByRowsAndLeavesOutRanksWithoutRows) {
  const auto f = session().function(average_of_rows);
  for (const std::int64_t rows : {1, 2, 5, 500}) {
    const auto x = session().data(counting<float>(rows));
    for (const std::int64_t size : {3, 200'000}) {
      const auto r = f(x, size);
      EXPECT_NEAR(r[size - 1], static_cast<double>(rows - 1) / 2, 1e-4) << rows << " rows, " << size << " elements";
    }
  }
}

TEST_P(GpuCall, TakesOutputsFromHostMemory) {
  const auto f = session().function(from_host);
  for (const std::int64_t size : {3, 100'000}) EXPECT_EQ(f(size)[size - 1], world_size() * (world_size() + 1) / 2);
}

TEST_P(GpuCall, ALaunchThatIsRefusedIsTheCallsOwnFailure) {
  const auto bad = session().function(launches_nothing_that_runs);
  const auto f = session().function(statistics);
  const auto x = session().data(counting<double>(10));
  EXPECT_EQ(error_of([&] { bad(); }).kind(), sr::ErrorKind::cuda);
  EXPECT_EQ(f(x, 1.0).sum, 45);
}

TEST_P(GpuCall, BroadcastsAndTakesAValuePerWorker) {
  const auto f = session().function(with_broadcast);
  const auto x = session().data(counting<float>(100));
  EXPECT_DOUBLE_EQ(f(x, std::vector<double>(static_cast<std::size_t>(world_size()), 0.5)), 4950 * 0.5 * world_size());
}

TEST_P(GpuCall, MemoryThatWasFreedIsReadAfreshWhenItComesBack) {
  const auto f = session().function(copy_bytes);
  for (int i = 1; i < 4; ++i) {
    auto x = session().data<std::uint8_t, 2>({100, 1 << 20});
    {
      const auto write = x.write();
      std::fill(write.span().begin(), write.span().end(), static_cast<std::uint8_t>(i));
    }
    const auto got = f(x, {.batch = sr::Slice{10, 12}});
    EXPECT_EQ(got(1, 12345), i);
    x.free();
  }
}

TEST_P(GpuCall, BodiesForOtherDevicesAreRefused) {
  const auto cpu_only = session().function(+[](sr::CpuWorker&) {});
  const sr::Error error = error_of([&] { cpu_only(); });
  EXPECT_EQ(error.kind(), sr::ErrorKind::usage);
  EXPECT_NE(std::string(error.what()).find("no body for CUDA devices"), std::string::npos) << error.what();
  const auto either = session().function(+[](double x) -> sr::Sum<double> { return x; });
  EXPECT_EQ(either(2), 2.0 * world_size());
}

TEST_P(GpuCall, GivesBodiesACublasHandleOnTheirStream) {
  const auto f = session().function(product);
  EXPECT_EQ(f()(1, 1), 11.0F * static_cast<float>(world_size()));  // [[0 2] [1 3]] squared, column-major
}

class GpuShared : public OnGpus {};
INSTANTIATE_ON_GPUS(GpuShared);

TEST_P(GpuShared, KeepsACopyOnEveryDevice) {
  auto v = session().shared<float, 1>("v");
  v.broadcast(counting<float>(1000));
  const auto add = session().function(add_to_variable);
  add(v, 1.5F);
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(v.get(rank)[999], 1000.5F);
  add.on_rank(0)(v, 1.0F);
  v.broadcast(0);
  EXPECT_EQ(v.get(world_size() - 1)[0], 2.5F);
  v.all_reduce(sr::Reduction::sum);
  EXPECT_EQ(v.get(world_size() - 1)[0], 2.5F * static_cast<float>(world_size()));
  v.all_reduce(sr::Reduction::avg);
  EXPECT_FLOAT_EQ(v.get(0)[0], 2.5F * static_cast<float>(world_size()));
}

TEST_P(GpuShared, SelectedRowsOfAScatteredSet) {
  auto rows = session().shared<float, 2>("rows");
  const std::int64_t n = 10 * world_size();
  rows.scatter(counting<float>(n * 2), sr::Shape{n, std::int64_t{2}});
  const auto f = session().function(sum_of_selected);
  const double all = static_cast<double>(n) * 2 * (static_cast<double>(n) * 2 - 1) / 2;
  EXPECT_EQ(f(rows), all);
  EXPECT_EQ(f(rows, {.slices = 3}), all);
  double expected = 0;
  for (int rank = 0; rank < world_size(); ++rank) expected += 2 * (20.0 * rank + 6) + 1 + 2 * (20.0 * rank + 2) + 1;
  EXPECT_EQ(f(rows, {.batch_s = std::vector<int>{3, 1}}), expected);
}

TEST_P(GpuShared, UpdatesAreCommittedOnce) {
  auto total = session().shared<float, 1>("total");
  total.broadcast(std::vector<float>(4, 100));
  const auto f = session().function(update_with_sum);
  const auto x = session().data(std::vector<float>(static_cast<std::size_t>(12 * world_size()), 1.0F));
  f(x, total);
  EXPECT_EQ(total.get(0)[3], 112);
  f(x, total, {.slices = 4});
  EXPECT_EQ(total.get(world_size() - 1)[0], 124);
}

}  // namespace
}  // namespace gpu_test
