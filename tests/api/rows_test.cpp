// Rows, batches and slices that make no sense. The master refuses them before any worker moves, and the session stays
// usable.

#include "tests/support/on_workers.hpp"

namespace {

class BadRows : public OnWorkers {
 protected:
  auto sum() {
    return session().function(
        [](sr::Scattered<const float, 1> x) -> sr::Sum<double> { return std::accumulate(x.begin(), x.end(), 0.0); },
        "sum");
  }
  auto pair() {
    return session().function(
        [](sr::Scattered<const float, 1> x, sr::Scattered<const float, 1> y) -> sr::Sum<double> {
          return static_cast<double>(x.rows() + y.rows());
        },
        "pair");
  }

  void TearDown() override {
    const auto x = session().data(counting<float>(10));
    EXPECT_EQ(sum()(x), 45) << "the session is not usable after the error";
    OnWorkers::TearDown();
  }
};
INSTANTIATE_ON_WORKERS(BadRows, 1, 3);

TEST_P(BadRows, IndexOutOfRange) {
  const auto x = session().data(counting<float>(10));
  EXPECT_ERROR(sum()(x, {.batch = std::vector<int>{0, 10}}), sr::ErrorKind::usage, "index 10 at position 1");
}

TEST_P(BadRows, NegativeIndex) {
  const auto x = session().data(counting<float>(10));
  EXPECT_ERROR(sum()(x, {.batch = std::vector<std::int64_t>{3, -1}}), sr::ErrorKind::usage, "index -1 at position 1");
}

TEST_P(BadRows, UnsignedIndexTooLargeToBeOne) {
  const auto x = session().data(counting<float>(10));
  EXPECT_ERROR(sum()(x, {.batch = std::vector<std::uint64_t>{~std::uint64_t{0}}}), sr::ErrorKind::usage, "index");
}

TEST_P(BadRows, SliceOutOfRange) {
  const auto x = session().data(counting<float>(10));
  EXPECT_ERROR(sum()(x, {.batch = sr::Slice{5, 11}}), sr::ErrorKind::usage, "[5, 11)");
  EXPECT_ERROR(sum()(x, {.batch = sr::Slice{-1, 3}}), sr::ErrorKind::usage, "[-1, 3)");
  EXPECT_ERROR(sum()(x, {.batch = sr::Slice{3, 2}}), sr::ErrorKind::usage, "[3, 2)");
}

TEST_P(BadRows, NoRows) {
  auto x = session().data(counting<float>(10));
  EXPECT_ERROR(sum()(x, {.batch = std::vector<int>{}}), sr::ErrorKind::usage, "at least one row");
  EXPECT_ERROR(sum()(x, {.batch = sr::Slice{4, 4}}), sr::ErrorKind::usage, "at least one row");
  x.resize({0});
  EXPECT_ERROR(sum()(x), sr::ErrorKind::usage, "at least one row");
}

TEST_P(BadRows, NumbersBeyondInt64AreReportedAsTheyAre) {
  constexpr std::uint64_t kBeyond = std::uint64_t{1} << 63U;
  const std::string number = "9223372036854775808";
  const auto x = session().data(counting<float>(10));
  EXPECT_ERROR(sum()(x, {.batch = std::vector{std::uint64_t{3}, kBeyond}}), sr::ErrorKind::usage,
               "batch has index " + number + " at position 1, but");
  EXPECT_ERROR(sum()(x, {.batch = kBeyond}), sr::ErrorKind::usage, "batch is the slice [0, " + number + "), but");
  EXPECT_ERROR(sum()(x, {.batch = std::vector{-2}}), sr::ErrorKind::usage, "batch has index -2 at position 0, but");
  EXPECT_ERROR(x.at(kBeyond), sr::ErrorKind::usage, "got the element at [" + number + "]");
  EXPECT_ERROR(x.at(-2), sr::ErrorKind::usage, "got the element at [-2]");
  EXPECT_ERROR((session().data<float, 1>(sr::Shape{kBeyond})), sr::ErrorKind::usage, "overflows");
  auto changed = session().data(counting<float>(10));
  EXPECT_ERROR(changed.resize(sr::Shape{~std::uint64_t{0}}), sr::ErrorKind::usage, "overflows");

  auto own = session().shared<float, 1>("own");
  own.broadcast(counting<float>(10));
  EXPECT_ERROR(own.scatter(x, {.batch = std::vector{kBeyond}}), sr::ErrorKind::usage, "has index " + number);
  const auto rows = session().function([](sr::Sliced<const float, 1> x) -> sr::Sum<std::int64_t> { return x.rows(); });
  EXPECT_ERROR(static_cast<void>(rows(own, {.batch_s = kBeyond})), sr::ErrorKind::usage, "slice [0, " + number + ")");
  const std::vector<std::vector<std::uint64_t>> lists(static_cast<std::size_t>(world_size()), {kBeyond});
  EXPECT_ERROR(static_cast<void>(rows(own, {.batch_s = lists})), sr::ErrorKind::usage, "has index " + number);
}

TEST_P(BadRows, SlicesOutOfRange) {
  const auto x = session().data(counting<float>(10));
  EXPECT_ERROR(sum()(x, {.slices = 0}), sr::ErrorKind::usage, "slices");
  EXPECT_ERROR(sum()(x, {.slices = -3}), sr::ErrorKind::usage, "got -3");
  EXPECT_ERROR(sum()(x, {.slices = 11}), sr::ErrorKind::usage, "10, got 11");
}

TEST_P(BadRows, InputsOfDifferentLengths) {
  const auto x = session().data(counting<float>(10));
  const auto y = session().data(counting<float>(9));
  EXPECT_ERROR(pair()(x, y), sr::ErrorKind::usage,
               "argument 1 (Scattered) of 'pair' has 9 rows, but argument 0 (Scattered) of 'pair' has 10");
}

TEST_P(BadRows, BatchWithoutAnythingToPickFrom) {
  const auto f = session().function([] {}, "nothing");
  EXPECT_ERROR(f({.batch = sr::Slice{0, 1}}), sr::ErrorKind::usage, "no scattered argument");
  EXPECT_ERROR(f({.batch_s = sr::Slice{0, 1}}), sr::ErrorKind::usage, "no Sliced argument");
  EXPECT_ERROR(f({.slices = 2}), sr::ErrorKind::usage, "no rows to slice");
}

TEST_P(BadRows, WrongNumberOfPerWorkerValues) {
  const auto f = session().function([](sr::PerWorker<int>) {}, "per_worker");
  EXPECT_ERROR(f(std::vector<int>(static_cast<std::size_t>(world_size()) + 1)), sr::ErrorKind::usage,
               "one value per rank");
}

TEST_P(BadRows, NegativeTimeout) {
  const auto f = session().function([] {}, "nothing");
  EXPECT_ERROR(f({.timeout = std::chrono::milliseconds(-1)}), sr::ErrorKind::usage, "timeout");
}

}  // namespace
