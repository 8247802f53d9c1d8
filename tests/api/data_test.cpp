// Data: arrays in shared memory, and batches of them.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "tests/api/element_types.hpp"
#include "tests/support/gate.hpp"
#include "tests/support/on_workers.hpp"

namespace {

using syncrun::test::Gate;
using syncrun::test::pass;

class DataIn : public OnWorkers {};
INSTANTIATE_ON_WORKERS(DataIn, 2);

TEST_P(DataIn, IsZeroWhenMadeFromAShape) {
  for (int round = 0; round < 3; ++round) {
    auto x = session().data<float, 2>({100, 1000});
    EXPECT_TRUE(std::all_of(x.span().begin(), x.span().end(), [](float v) { return v == 0; }));
    const auto guard = x.write();
    EXPECT_EQ(guard.rows(), 100);
    std::fill(guard.begin(), guard.end(), 1.0F);  // so that reused memory is dirty
  }
}

template <class T>
sr::Gather<T, 1> pass_through(sr::Scattered<const T, 1> x) {
  return {x, {x.rows()}};
}

template <class T>
void pass_all_through(sr::Session& session) {
  auto x = session.data<T, 1>({7});
  {
    const auto guard = x.write();
    for (int i = 0; i < 7; ++i) guard[i] = static_cast<T>(static_cast<float>(i % 2));
  }
  const auto back = session.function(pass_through<T>)(x);
  for (int i = 0; i < 7; ++i)
    EXPECT_EQ(static_cast<float>(back[i]), static_cast<float>(i % 2)) << to_string(sr::dtype_of<T>);
}

TEST_P(DataIn, ReachesTheWorkersInEveryElementType) {
  for_arithmetic_types([&]<class T> { pass_all_through<T>(session()); });
  pass_all_through<bool>(session());
}

TEST_P(DataIn, WriteWaitsForCallsThatReadIt) {
  auto x = session().data(std::vector<float>(1000, 1.0F));
  const auto slow_sum = session().function([](sr::Scattered<const float, 1> x) -> sr::Sum<double> {
    double sum = 0;
    for (const float v : x) {
      sum += v;
      for (int spin = 0; spin < 2000; ++spin) asm volatile("");
    }
    return sum;
  });
  auto future = slow_sum.async(x);
  {
    const auto guard = x.write();
    std::fill(guard.begin(), guard.end(), 2.0F);
  }
  EXPECT_EQ(future.get(), 1000);
  EXPECT_EQ(slow_sum(x), 2000);
}

TEST_P(DataIn, IsWrittenWithoutAWaitForCallsThatDoNotReadIt) {
  auto data = session().data(counting<float>(4));
  const auto other = session().data(counting<float>(4));
  Gate gate;
  const auto slow = session().function([](sr::Broadcast<const float, 1>, Gate::Key key) { pass(key); });
  auto running = slow.async(other, gate.key());
  data.set(std::vector<float>(4, 7));
  data.set_rows(1, std::vector<float>{8});
  data.resize({2});
  gate.open();
  running.get();
  EXPECT_EQ(data.at(0), 7);
  EXPECT_EQ(data.at(1), 8);
}

TEST_P(DataIn, SurvivesTheEndOfItsHandleWhileACallReadsIt) {
  const auto f = session().function(pass_through<float>);
  std::vector<sr::Future<sr::Gather<float, 1>>> futures;
  for (int i = 0; i < 20; ++i) {
    futures.push_back(f.async(session().data(std::vector<float>(50'000, static_cast<float>(i)))));
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(futures[static_cast<std::size_t>(i)].get()[49'999], static_cast<float>(i));
}

TEST_P(DataIn, IsReadByElementAndByRows) {
  const auto x = session().data(counting<float>(12), sr::Shape{4, 3}, "x");
  EXPECT_EQ(x.at(3, 2), 11);
  EXPECT_EQ(x.view()[1][2], 5);
  const auto middle = x.slice({1, 3});
  EXPECT_EQ(middle.shape(), (sr::Shape<2>{2, 3}));
  EXPECT_EQ(middle(0, 0), 3);
  EXPECT_EQ(x.slice({4, 4}).rows(), 0);
  EXPECT_ERROR(static_cast<void>(x.at(4, 0)), sr::ErrorKind::usage,
               "Data 'x' has shape [4, 3], got the element at [4, 0]");
  EXPECT_ERROR(static_cast<void>(x.at(0, -1)), sr::ErrorKind::usage, "[0, -1]");
  EXPECT_ERROR(static_cast<void>(x.slice({2, 5})), sr::ErrorKind::usage, "Data 'x' has 4 rows, got the slice [2, 5)");
  EXPECT_ERROR(static_cast<void>(x.slice({3, 2})), sr::ErrorKind::usage, "[3, 2)");
}

TEST_P(DataIn, IsWrittenByElementByRowsAndAsAWhole) {
  auto x = session().data<float, 2>({4, 2}, "x");
  x.fill(1);
  x.set_rows(1, std::vector<float>{2, 3, 4, 5});
  {
    const auto guard = x.write();
    guard(3, 1) = 9;
    for (float& value : guard.slice({0, 1})) value = 7;
    EXPECT_ERROR(static_cast<void>(guard.slice({0, 5})), sr::ErrorKind::usage, "4 rows");
  }
  EXPECT_EQ(session().function(pass_through<float>)(session().data(x.span())).to_vector(),
            (std::vector<float>{7, 7, 2, 3, 4, 5, 1, 9}));
  EXPECT_ERROR(x.set_rows(3, std::vector<float>(4)), sr::ErrorKind::usage, "Data 'x' has 4 rows, got the slice [3, 5)");
  EXPECT_ERROR(x.set_rows(-1, std::vector<float>(2)), sr::ErrorKind::usage, "[-1, 0)");
  EXPECT_ERROR(x.set_rows(0, std::vector<float>(3)), sr::ErrorKind::usage,
               "rows of Data 'x' have 2 elements each, got 3 in all");
  x.set_rows(2, std::vector<float>{});
}

TEST_P(DataIn, GrowsIntoTheRoomItWasGiven) {
  auto x = session().data(counting<float>(8), sr::Shape{4, 2});
  EXPECT_EQ(x.capacity_bytes(), 32U);
  x.resize_rows(10, {.oversize = 2});
  EXPECT_EQ(x.capacity_bytes(), 160U);
  const float* const place = x.view().data();
  x.resize_rows(20);
  EXPECT_EQ(x.view().data(), place) << "there was room";
  EXPECT_EQ(x.at(3, 1), 7);
  EXPECT_EQ(x.at(19, 1), 0);
  x.resize_rows(1);
  EXPECT_EQ(x.capacity_bytes(), 160U) << "memory is given back by free only";
  x.resize_rows(3);
  EXPECT_EQ(x.at(0, 1), 1);
  EXPECT_EQ(x.at(2, 1), 0) << "new elements are zero";
  x.resize({3, 4}, {.oversize = 1.5});
  EXPECT_EQ(x.view().data(), place);
  x.set(counting<float>(100), {50, 2}, {.oversize = 1.5});
  EXPECT_EQ(x.capacity_bytes(), 600U);
  EXPECT_EQ(x.at(49, 1), 99);
  x.free();
  EXPECT_EQ(x.capacity_bytes(), 0U);
  x.set(counting<float>(4), {2, 2});
  EXPECT_EQ(x.at(1, 1), 3);
  for (const double oversize : {0.5, 0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_ERROR(x.resize({3, 4}, {.oversize = oversize}), sr::ErrorKind::usage, "Allocation::oversize");
  }
}

/// The shape itself is too large for any machine, so the message must not blame the factor.
TEST_P(DataIn, ThatIsTooLargeIsNotBlamedOnAFactor) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  auto x = session().data(counting<double>(3), "x");
  for (const double oversize : {1.0, 1.5}) {
    EXPECT_ERROR(x.resize({kMost / 8}, {.oversize = oversize}), sr::ErrorKind::system,
                 "Data 'x' of shape [1152921504606846975] requires 9223372036854775800 bytes");
  }
  EXPECT_ERROR(x.resize({kMost / 4}), sr::ErrorKind::usage,
               "the size of shape [2305843009213693951] of float64 overflows");
  EXPECT_ERROR(x.resize({kMost / 32}, {.oversize = 4}), sr::ErrorKind::usage,
               "Allocation::oversize is a factor from 1, got 4 for 2305843009213693944 bytes");
  EXPECT_EQ(x.view()[2], 2);
}

template <class T>
std::vector<T> copy_of(const sr::Data<T, 1>& data) {
  return {data.span().begin(), data.span().end()};
}

struct Gathered {
  sr::Gather<float, 1> flat;
  sr::Gather<float, 2> rows;
};

Gathered gathered(sr::Scattered<const float, 1> x, std::array<float, 2> added) {
  std::vector<float> rows;
  for (const float value : x) rows.insert(rows.end(), {value + added[0], value + added[1]});
  return {.flat = {x.span(), {x.rows()}}, .rows = {rows, {x.rows(), 2}}};
}

/// As docs/api/data.md says, results, arrays and a std::array are ranges of values, like a vector. As an argument, a
/// std::array is a value.
TEST_P(DataIn, IsMadeOfAResult) {
  const auto f = session().function(gathered);
  const Gathered result = f(session().data(counting<float>(4)), {10, 20});
  EXPECT_EQ(copy_of(session().data(result.flat)), counting<float>(4));
  const auto rows = session().data(result.rows, result.rows.shape());
  EXPECT_EQ(rows.shape(), (sr::Shape<2>{4, 2}));
  EXPECT_EQ(rows.at(3, 1), 23);
  auto shared = session().shared("flat", result.flat);
  EXPECT_EQ(copy_of(session().data(shared.get(0))), counting<float>(4));
  EXPECT_EQ(session().data(std::array<int, 2>{3, 4}).at(1), 4);
}

TEST_P(DataIn, IsNamedInMessages) {
  auto x = session().data(counting<float>(10), "pixels");
  EXPECT_EQ(x.name(), "pixels");
  const auto f = session().function(pass_through<float>, "f");
  {
    const auto guard = x.write();
    EXPECT_ERROR(f(x), sr::ErrorKind::usage, "argument 0 (Scattered 'pixels') of 'f' is open for writing");
    EXPECT_ERROR(x.resize({3}), sr::ErrorKind::usage, "Data 'pixels' is open for writing");
  }
  EXPECT_ERROR(f(x, {.batch = std::vector{10}}), sr::ErrorKind::usage,
               "batch has index 10 at position 0, but argument 0 (Scattered 'pixels') of 'f' has rows 0 to 9");
  EXPECT_ERROR((session().data<double, 1>({std::int64_t{1} << 35}, "much")), sr::ErrorKind::system,
               "Data 'much' of shape [34359738368]");
}

// ---- batches -----------------------------------------------------------------------------------------------------

class Minibatch : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Minibatch, 1, 3);

sr::Gather<std::int64_t, 1> pairs(sr::Scattered<const std::int64_t, 1> x, sr::Scattered<const std::int64_t, 1> y) {
  std::vector<std::int64_t> both;
  for (std::int64_t i = 0; i < x.rows(); ++i) both.push_back(1000 * x[i] + y[i]);
  return {both, {both.size()}};
}

TEST_P(Minibatch, IsTakenFromItsStart) {
  const auto f = session().function(pairs);
  const auto x = session().data(counting<std::int64_t>(20));
  const auto noise = session().data(counting<std::int64_t>(7, 100));
  const std::vector<int> batch{19, 0, 0, 3, 4, 18, 7};
  std::vector<std::int64_t> by_list;
  std::vector<std::int64_t> by_slice;
  for (std::size_t i = 0; i < 7; ++i) {
    by_list.push_back(1000 * batch[i] + 100 + static_cast<std::int64_t>(i));
    by_slice.push_back(1000 * static_cast<std::int64_t>(i + 5) + 100 + static_cast<std::int64_t>(i));
  }
  for (const int slices : {1, 3}) {
    EXPECT_EQ(f(x, sr::minibatch(noise), {.batch = batch, .slices = slices}).to_vector(), by_list);
    EXPECT_EQ(f(x, sr::minibatch(noise), {.batch = sr::Slice{5, 12}, .slices = slices}).to_vector(), by_slice);
  }
  const auto swapped = f(sr::minibatch(noise), x, {.batch = 7});
  EXPECT_EQ(swapped[6], 106'006);
  EXPECT_EQ(f(sr::minibatch(noise), sr::minibatch(noise)).rows(), 7);
}

TEST_P(Minibatch, MustHaveTheSizeOfTheBatch) {
  const auto f = session().function(pairs, "pairs");
  const auto x = session().data(counting<std::int64_t>(20), "x");
  const auto noise = session().data(counting<std::int64_t>(7), "noise");
  EXPECT_ERROR(f(x, sr::minibatch(noise), {.batch = 6}), sr::ErrorKind::usage,
               "argument 1 (Scattered 'noise') of 'pairs' is a minibatch of 7 rows, but the batch has 6");
  EXPECT_ERROR(f(x, sr::minibatch(noise)), sr::ErrorKind::usage, "is a minibatch of 7 rows, but the batch has 20");
  EXPECT_ERROR(f(sr::minibatch(noise), sr::minibatch(noise), {.batch = 7}), sr::ErrorKind::usage, "all minibatches");
  EXPECT_ERROR(
      f(sr::minibatch(noise), sr::minibatch(x)), sr::ErrorKind::usage,
      "argument 1 (Scattered 'x') of 'pairs' has 20 rows, but argument 0 (Scattered 'noise') of 'pairs' has 7");
  EXPECT_EQ(f(x, x).rows(), 20) << "the session goes on";
}

TEST_P(Minibatch, BatchCanBeANumberOfRows) {
  const auto f = session().function(pairs, "pairs");
  const auto x = session().data(counting<std::int64_t>(20));
  EXPECT_EQ(f(x, x, {.batch = 3}).to_vector(), (std::vector<std::int64_t>{0, 1001, 2002}));
  EXPECT_EQ(f(x, x, {.batch = std::size_t{20}}).rows(), 20);
  EXPECT_EQ(f(x, x, {.batch = std::vector{8, 8, 1}}).to_vector(), (std::vector<std::int64_t>{8008, 8008, 1001}));
  EXPECT_ERROR(f(x, x, {.batch = 21}), sr::ErrorKind::usage, "batch is the slice [0, 21), but argument 0");
  EXPECT_ERROR(f(x, x, {.batch = -1}), sr::ErrorKind::usage, "[0, -1)");
  EXPECT_ERROR(f(x, x, {.batch = 0}), sr::ErrorKind::usage, "at least one row");
}

}  // namespace
