// Collectives in which every rank has a share of its own, on GPUs. Lengths that the ranks divide evenly take another
// path than other lengths.

#include <gmock/gmock.h>

#include <algorithm>
#include <utility>

#include "tests/gpu/bodies.hpp"
#include "tests/gpu/on_gpus.hpp"

namespace gpu_test {
namespace {

class GpuCommShares : public OnGpus {};
INSTANTIATE_ON_GPUS(GpuCommShares);

/// Sizes that the ranks divide evenly, sizes that they do not, and one with fewer elements than ranks.
std::vector<std::int64_t> sizes_for(int world_size) {
  return {1, world_size, world_size + 1, 1000 * world_size, 1000 * world_size + world_size - 1, 3'000'001};
}

TEST_P(GpuCommShares, ReduceScatterAndAllGatherMakeAnAllReduce) {
  const auto f = session().function(reduce_in_shares);
  auto v = session().shared<float, 1>("v");
  const int n = world_size();
  for (const std::int64_t size : sizes_for(n)) {
    for (const auto& [in_place, in_background] :
         {std::pair(true, false), {false, false}, {true, true}, {false, true}}) {
      for (const auto reduction : {sr::Reduction::sum, sr::Reduction::avg, sr::Reduction::max, sr::Reduction::min}) {
        for (int rank = 0; rank < n; ++rank) {
          std::vector<float> own(static_cast<std::size_t>(size));
          for (std::size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(i % 1000 + rank);
          v.set(rank, own, sr::Shape{size});
        }
        f(v, reduction, in_place, in_background);
        const float offset = reduction == sr::Reduction::max   ? static_cast<float>(n - 1)
                             : reduction == sr::Reduction::min ? 0.0F
                                                               : static_cast<float>(n - 1) / 2;
        const float times = reduction == sr::Reduction::sum ? static_cast<float>(n) : 1.0F;
        for (int rank = 0; rank < n; ++rank) {
          const auto copy = v.get(rank);
          for (std::int64_t i = 0; i < size; i += std::max<std::int64_t>(1, size / 777)) {
            ASSERT_FLOAT_EQ(copy[i], (static_cast<float>(i % 1000) + offset) * times + 1)
                << sr::to_string(reduction) << " of " << size << ", element " << i << " on rank " << rank;
          }
          ASSERT_FLOAT_EQ(copy[size - 1], (static_cast<float>((size - 1) % 1000) + offset) * times + 1);
        }
      }
    }
  }
}

TEST_P(GpuCommShares, AverageIsWeightedByRowsAlsoIn16Bits) {
  const auto f = session().function(average_in_shares);
  auto v = session().shared<sr::bfloat16, 1>("v");
  for (const std::int64_t size : sizes_for(world_size())) {
    v.broadcast(std::vector<sr::bfloat16>(static_cast<std::size_t>(size)));
    for (const std::int64_t rows : {1, 5, 100}) {  // one row: the other ranks have a NaN, of weight zero
      std::vector<float> values;
      for (std::int64_t i = 0; i < rows; ++i) values.push_back(static_cast<float>(i));
      f(session().data(values), v);
      const double mean = static_cast<double>(rows - 1) / 2;
      for (int rank = 0; rank < world_size(); ++rank) {
        EXPECT_NEAR(v.get(rank)[size - 1], mean, mean / 64) << rows << " rows, " << size << " elements";
      }
    }
  }
}

TEST_P(GpuCommShares, AreReplayed) {
  const auto f = session().function(sr::replayable(replayed_shares));
  const auto n = static_cast<float>(world_size());
  for (const std::int64_t size : sizes_for(world_size())) {
    auto v = session().shared<float, 1>("v");
    v.broadcast(std::vector<float>(static_cast<std::size_t>(size), 1));
    float expected = 1;
    for (int i = 0; i < 6; ++i) {
      f(v);
      expected = expected * n + 1;
      for (int rank = 0; rank < world_size(); ++rank) ASSERT_EQ(v.get(rank)[size - 1], expected) << "call " << i;
    }
  }
}

TEST_P(GpuCommShares, GatherAndScatterPartsOfAnyLength) {
  const auto f = session().function(gather_and_scatter);
  auto v = session().shared<float, 1>("v");
  auto all = session().shared<float, 1>("all");
  all.broadcast(std::vector<float>(4'000'000));
  const auto n = static_cast<std::size_t>(world_size());
  const std::vector<std::vector<std::int64_t>> rounds{{5, 0, 3, 1, 0, 7, 2, 1}, {400'001, 3, 0, 250'000, 1, 2, 3, 0}};
  for (const auto& lengths : rounds) {
    for (int root = 0; root < world_size(); ++root) {
      std::int64_t begin = 0;
      for (std::size_t rank = 0; rank < n; ++rank) {
        std::vector<float> own;
        for (std::int64_t i = 0; i < lengths[rank]; ++i) own.push_back(static_cast<float>((begin + i) % 1000));
        v.set(static_cast<int>(rank), own, sr::Shape{lengths[rank]});
        begin += lengths[rank];
      }
      f(v, all, root);
      const auto gathered = v.gather();
      const auto everywhere = all.get(world_size() - 1);
      ASSERT_EQ(gathered.size(), begin);
      for (std::int64_t i = 0; i < begin; ++i) {
        ASSERT_EQ(gathered[i], static_cast<float>(2 * (i % 1000))) << "element " << i << ", root " << root;
        ASSERT_EQ(everywhere[i], gathered[i]) << "element " << i << ", root " << root;
      }
    }
  }
}

TEST_P(GpuCommShares, GatherAndScatterAreReplayed) {
  const auto f = session().function(sr::replayable(replayed_gather_and_scatter));
  auto v = session().shared<float, 1>("v");
  auto all = session().shared<float, 1>("all");
  const int n = world_size();
  all.broadcast(std::vector<float>(static_cast<std::size_t>(n * (n + 1) / 2)));
  for (int rank = 0; rank < n; ++rank) {
    v.set(rank, std::vector<float>(static_cast<std::size_t>(rank + 1), static_cast<float>(rank + 1)), {rank + 1});
  }
  for (int i = 1; i <= 6; ++i) {
    f(v, all);
    for (int rank = 0; rank < n; ++rank) {
      ASSERT_EQ(v.get(rank)[rank], static_cast<float>((rank + 1) << i)) << "call " << i;
    }
  }
}

TEST_P(GpuCommShares, ARankThatGathersWhereOthersReduceIsToldAndTheSessionGoesOn) {
  if (world_size() == 1) GTEST_SKIP() << "one rank cannot disagree";
  auto v = session().shared("v", std::vector<float>(100'000, 1));
  const sr::Error error = error_of([&] { session().function(gather_where_others_reduce)(v); });
  EXPECT_THAT(error.what(), testing::HasSubstr("ranks disagree in a collective"));
  v.broadcast(std::vector<float>(100'000, 1));
  session().function(reduce_in_place)(v);
  EXPECT_EQ(v.get(0)[7], static_cast<float>(world_size()));
}

TEST_P(GpuCommShares, ReduceToOneRank) {
  const auto f = session().function(reduce_to_root);
  auto v = session().shared<float, 1>("v");
  const int n = world_size();
  for (const std::int64_t size : sizes_for(n)) {
    for (const auto reduction : {sr::Reduction::sum, sr::Reduction::avg, sr::Reduction::max}) {
      const int root = static_cast<int>(size % n);
      for (int rank = 0; rank < n; ++rank) {
        v.set(rank, std::vector<float>(static_cast<std::size_t>(size), static_cast<float>(rank)), sr::Shape{size});
      }
      f(v, reduction, root);
      const auto sum = static_cast<float>(n * (n - 1) / 2);
      const float expected = reduction == sr::Reduction::sum   ? sum
                             : reduction == sr::Reduction::avg ? sum / static_cast<float>(n)
                                                               : static_cast<float>(n - 1);
      EXPECT_FLOAT_EQ(v.get(root)[size - 1], expected) << sr::to_string(reduction) << " of " << size;
    }
  }
}

}  // namespace
}  // namespace gpu_test
