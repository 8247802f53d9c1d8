// Inputs that are already the batch, together with inputs from which the batch selects rows. Also batches given as a
// count.

#include "tests/support/on_workers.hpp"

namespace {

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
  EXPECT_ERROR(f(x, x, {.batch = 21}), sr::ErrorKind::usage, "batch is the slice [0, 21), but argument 0");
  EXPECT_ERROR(f(x, x, {.batch = -1}), sr::ErrorKind::usage, "[0, -1)");
  EXPECT_ERROR(f(x, x, {.batch = 0}), sr::ErrorKind::usage, "at least one row");
}

TEST_P(Minibatch, TheSameDataMayStandTwice) {
  const auto f = session().function(pairs);
  const auto x = session().data(counting<std::int64_t>(9));
  const auto all = f(x, x, {.batch = std::vector{8, 8, 1}});
  EXPECT_EQ(all.to_vector(), (std::vector<std::int64_t>{8008, 8008, 1001}));
}

}  // namespace
