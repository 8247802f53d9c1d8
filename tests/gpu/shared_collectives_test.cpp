// Collectives on shared variables that the master calls, on GPUs: through NCCL and through shared memory.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/gpu/bodies.hpp"
#include "tests/gpu/on_gpus.hpp"

namespace gpu_test {
namespace {

using testing::HasSubstr;

class GpuSharedCollectives : public OnGpus {
 protected:
  /// Rank r's element i is i % 100 + r.
  template <class T>
  void fill(sr::Shared<T, 2>& v, const sr::Shape<2>& shape) {
    for (int rank = 0; rank < world_size(); ++rank) {
      std::vector<T> own;
      for (std::int64_t i = 0; i < shape.elements(); ++i) own.push_back(T(static_cast<float>(i % 100 + rank)));
      v.set(rank, own, shape);
    }
  }
  template <class T>
  void expect_reduced(const sr::Array<T, 2>& got, const sr::Shape<2>& shape, sr::Reduction reduction) {
    ASSERT_EQ(got.shape(), shape);
    const int n = world_size();
    for (std::int64_t i = 0; i < shape.elements(); ++i) {
      const auto least = static_cast<double>(i % 100);
      const double expected = reduction == sr::Reduction::sum   ? n * least + n * (n - 1) / 2.0
                              : reduction == sr::Reduction::avg ? least + (n - 1) / 2.0
                              : reduction == sr::Reduction::max ? least + n - 1
                                                                : least;
      const bool is_exact = reduction != sr::Reduction::avg;
      ASSERT_NEAR(static_cast<double>(got.data()[i]), expected, is_exact ? 0 : expected / 100 + 1e-6)
          << to_string(sr::dtype_of<T>) << ' ' << to_string(reduction) << ", element " << i;
    }
  }
  template <class T>
  void check_reductions(sr::Route route, const sr::Shape<2>& shape) {
    const sr::CollectiveOptions options{.route = route};
    const int n = world_size();
    auto v = session().shared<T, 2>("v");
    for (const auto reduction : {sr::Reduction::sum, sr::Reduction::avg, sr::Reduction::max, sr::Reduction::min}) {
      if (reduction == sr::Reduction::avg && !sr::FloatingElement<T>) continue;
      fill(v, shape);
      const auto before = v.get(n - 1).to_vector();
      expect_reduced(v.reduce(reduction, options), shape, reduction);
      EXPECT_TRUE(v.get(n - 1).to_vector() == before) << "reduced to the master, copies stay";
      v.all_reduce(reduction, options);
      for (int rank = 0; rank < n; ++rank) expect_reduced(v.get(rank), shape, reduction);
      fill(v, shape);
      v.reduce(reduction, n - 1, options);
      expect_reduced(v.get(n - 1), shape, reduction);
      fill(v, shape);
      v.reduce_scatter(reduction, options);
      expect_reduced(v.gather(), shape, reduction);
    }
  }
};
INSTANTIATE_ON_GPUS(GpuSharedCollectives);

TEST_P(GpuSharedCollectives, ReduceToEveryPlaceOnEitherRoute) {
  const int n = world_size();
  for (const auto route : {sr::Route::device, sr::Route::host}) {
    // Numbers of rows that the ranks divide evenly, that they do not, and that are smaller than the number of ranks.
    for (const auto& shape : {sr::Shape{2 * n, 3}, sr::Shape{2 * n + 1, 5}, sr::Shape{1, 7}, sr::Shape{30'001, 11}}) {
      check_reductions<float>(route, shape);
    }
    check_reductions<double>(route, {7, 3});
    check_reductions<sr::float16>(route, {7, 3});
    check_reductions<sr::bfloat16>(route, {7, 1});
    check_reductions<std::int32_t>(route, {7, 3});
    check_reductions<std::int64_t>(route, {1001, 3});
    check_reductions<std::uint32_t>(route, {7, 3});
    check_reductions<std::uint64_t>(route, {1001, 3});
  }
  check_reductions<std::int16_t>(sr::Route::host, {7, 3});
  check_reductions<std::uint16_t>(sr::Route::host, {7, 3});
}

/// Reduces in every way. One rank has NaN in the last element. Two variables take part in a group.
template <class T>
void expect_nan_in_every_way(sr::Session& session, const sr::Shape<2>& shape) {
  const int n = session.world_size();
  auto v = session.shared<T, 2>("v");
  auto w = session.shared<T, 2>("w");
  const auto is_right = [&](const sr::Array<T, 2>& got, float expected) {
    const auto last = got.span().end() - 1;
    return got.shape() == shape && std::isnan(static_cast<float>(*last)) &&
           std::all_of(got.span().begin(), last, [&](T value) { return static_cast<float>(value) == expected; });
  };
  for (const auto reduction : {sr::Reduction::min, sr::Reduction::max}) {
    const auto expected = static_cast<float>(reduction == sr::Reduction::min ? -1 : n - 2);
    for (int nan_rank = 0; nan_rank < n; ++nan_rank) {
      const auto fill = [&] {
        for (int rank = 0; rank < n; ++rank) {
          std::vector<T> own(static_cast<std::size_t>(shape.elements()), T(static_cast<float>(rank - 1)));
          if (rank == nan_rank) own.back() = T(std::numeric_limits<float>::quiet_NaN());
          v.set(rank, own, shape);
          w.set(rank, own, shape);
        }
      };
      const auto what = std::string(to_string(sr::dtype_of<T>)) + ", " + std::string(to_string(reduction));
      fill();
      EXPECT_TRUE(is_right(v.reduce(reduction), expected)) << what << ", reduce to the master";
      v.all_reduce(reduction);
      EXPECT_TRUE(is_right(v.get(n - 1), expected)) << what << ", all_reduce";
      fill();
      v.reduce(reduction, n - 1);
      EXPECT_TRUE(is_right(v.get(n - 1), expected)) << what << ", reduce";
      fill();
      v.reduce_scatter(reduction);
      EXPECT_TRUE(is_right(v.gather(), expected)) << what << ", reduce_scatter";
      fill();
      session.all_reduce({v, w}, reduction);
      EXPECT_TRUE(is_right(v.get(0), expected)) << what << ", a group";
      EXPECT_TRUE(is_right(w.get(0), expected)) << what << ", a group";
      fill();
      session.reduce({v, w}, reduction, 0);
      EXPECT_TRUE(is_right(v.get(0), expected)) << what << ", a group of reduce";
      EXPECT_TRUE(is_right(w.get(0), expected)) << what << ", a group of reduce";
      fill();
      session.reduce_scatter({v, w}, reduction);
      EXPECT_TRUE(is_right(w.gather(), expected)) << what << ", a group of reduce_scatter";
    }
  }
}

TEST_P(GpuSharedCollectives, GiveNanAsMinimumAndMaximum) {
  const int n = world_size();
  for (const auto& shape : {sr::Shape{2 * n, 3}, sr::Shape{2 * n + 1, 5}, sr::Shape{30'001, 301}}) {
    expect_nan_in_every_way<float>(session(), shape);
    expect_nan_in_every_way<sr::bfloat16>(session(), shape);
  }
  expect_nan_in_every_way<double>(session(), {2 * n + 1, 5});
  expect_nan_in_every_way<sr::float16>(session(), {2 * n + 1, 5});
}

TEST_P(GpuSharedCollectives, WhatNcclLacksIsRefusedWithTheWayThatHasIt) {
  auto v = session().shared("v", std::vector<std::int16_t>{1, 2, 3});
  if (world_size() > 1) {
    const sr::Error error = error_of([&] { v.all_reduce(sr::Reduction::sum); });
    EXPECT_EQ(error.kind(), sr::ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("all_reduce of 'v': in NCCL int16 has no sum"));
    EXPECT_THAT(error.what(), HasSubstr("{.route = syncrun::Route::host}"));
  }
  v.all_reduce(sr::Reduction::sum, {.route = sr::Route::host});
  EXPECT_EQ(v.get(0)[2], 3 * world_size());
}

TEST_P(GpuSharedCollectives, MoveBytesOfEveryTypeOnEitherRoute) {
  for (const auto route : {sr::Route::device, sr::Route::host}) {
    auto v = session().shared<std::int16_t, 2>("v");
    std::vector<std::int16_t> all;
    for (int rank = 0; rank < world_size(); ++rank) {
      const std::int64_t rows = rank == 1 ? 0 : 1000 + 7 * rank;
      std::vector<std::int16_t> own(static_cast<std::size_t>(3 * rows), static_cast<std::int16_t>(rank + 5));
      v.set(rank, own, {rows, 3});
      all.insert(all.end(), own.begin(), own.end());
    }
    v.all_gather({.route = route});
    for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(v.get(rank).to_vector(), all) << "rank " << rank;
    v.set(world_size() - 1, std::vector<std::int16_t>{1, 2, 3, 4, 5, 6}, {2, 3});
    v.broadcast(world_size() - 1, {.route = route});
    for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(v.get(rank)(1, 2), 6) << "rank " << rank;
  }
}

TEST_P(GpuSharedCollectives, TakeSeveralVariablesAsOne) {
  auto a = session().shared<float, 2>("a");
  auto b = session().shared<double, 2>("b");
  auto c = session().shared<sr::bfloat16, 2>("c");
  const int n = world_size();
  for (const auto route : {sr::Route::device, sr::Route::host}) {
    const sr::CollectiveOptions options{.route = route};
    const auto fill_all = [&] {
      fill(a, {100 * n, 3});
      fill(b, {n + 1, 5});
      fill(c, {3, 1});
    };
    fill_all();
    session().all_reduce({a, "b", c}, sr::Reduction::avg, options);
    for (int rank = 0; rank < n; ++rank) {
      expect_reduced(a.get(rank), {100 * n, 3}, sr::Reduction::avg);
      expect_reduced(b.get(rank), {n + 1, 5}, sr::Reduction::avg);
      expect_reduced(c.get(rank), {3, 1}, sr::Reduction::avg);
    }
    fill_all();
    const auto [all_a, all_b] = session().reduce(sr::Reduction::sum, a, b);
    expect_reduced(all_a, {100 * n, 3}, sr::Reduction::sum);
    expect_reduced(all_b, {n + 1, 5}, sr::Reduction::sum);
    session().reduce_scatter({a, b, c}, sr::Reduction::sum, options);
    expect_reduced(a.gather(), {100 * n, 3}, sr::Reduction::sum);
    expect_reduced(b.gather(), {n + 1, 5}, sr::Reduction::sum);
    session().all_gather({a, b, c}, options);
    for (int rank = 0; rank < n; ++rank) expect_reduced(b.get(rank), {n + 1, 5}, sr::Reduction::sum);
    session().reduce({a, b}, sr::Reduction::max, 0, options);
    session().broadcast({a, b, c}, 0, options);
    EXPECT_TRUE(a.get(n - 1).to_vector() == a.get(0).to_vector());
  }
}

TEST_P(GpuSharedCollectives, ScatterTakesABatch) {
  std::vector<float> values;
  for (int i = 0; i < 300; ++i) values.push_back(static_cast<float>(i));
  const auto x = session().data(values, sr::Shape{100, 3});
  auto v = session().shared<float, 2>("v");
  v.scatter(x, {.batch = std::vector{5, 99, 5, 0, 7}});
  EXPECT_EQ(v.gather()(1, 2), 299);
  v.scatter(x, {.batch = sr::Slice{10, 50}});
  EXPECT_EQ(v.gather()(39, 0), 147);
}

}  // namespace
}  // namespace gpu_test
