// Rows, slices, shapes and values that do not fit. The master refuses them before a worker sees the call, and says what
// it expected and got.

#include <limits>

#include "tests/fault/scene.hpp"

namespace syncrun::test {
namespace {

Sum<int> rows_of(Scattered<const int, 1> x) { return static_cast<int>(x.rows()); }
Sum<int> rows_of_two(Scattered<const int, 1> x, Scattered<const float, 2>) { return static_cast<int>(x.rows()); }
Sum<int> of_per_worker(PerWorker<int> value) { return value.value(); }
Sum<int> of_sliced(Sliced<const int, 1> x) { return static_cast<int>(x.rows()); }

class BadRows : public WithWorkers {};
INSTANTIATE_WITH_WORKERS(BadRows);

TEST_P(BadRows, InABatchOrAnArgumentAreRefused) {
  const auto x = session.data(std::vector<int>(10, 1));
  const auto f = session.function(rows_of, "rows_of");
  const auto with = [&](auto batch) { return [&f, &x, batch] { f(x, {.batch = batch}); }; };
  expect_usage(with(std::vector<int>{0, 3, 10}), {"batch has index 10 at position 2", "rows 0 to 9"});
  expect_usage(with(std::vector<int>{0, -1}), {"batch has index -1 at position 1", "rows 0 to 9"});
  expect_usage(with(std::vector<std::uint64_t>{std::numeric_limits<std::uint64_t>::max()}), {"batch has index"});
  expect_usage(with(std::vector<int>{}), {"'rows_of' requires at least one row, got 0"});
  expect_usage(with(Slice{3, 11}), {"batch is the slice [3, 11)", "10 rows"});
  expect_usage(with(Slice{-1, 3}), {"batch is the slice [-1, 3)", "10 rows"});
  expect_usage(with(Slice{5, 3}), {"batch is the slice [5, 3)"});
  expect_usage(with(Slice{4, 4}), {"at least one row, got 0"});
  EXPECT_EQ(f(x, {.batch = std::vector<int>(100, 9)}), 100) << "repeats are allowed, also more than there are rows";
  EXPECT_EQ(f(x, {.batch = Slice{9, 10}}), 1) << "fewer rows than workers are allowed";
  EXPECT_EQ(f(x), 10);
  auto freed = session.data<int, 1>({5});
  freed.free();
  expect_usage([&] { f(freed); }, {"'rows_of' requires at least one row, got 0"});
  expect_usage([&] { f(freed, {.batch = std::vector<int>{0}}); }, {"batch has index 0"});
  const auto g = session.function(rows_of_two, "rows_of_two");
  const auto of_rows = [&](std::int64_t rows) { return [&g, &x, y = session.data<float, 2>({rows, 0})] { g(x, y); }; };
  expect_usage(of_rows(9), {"argument 1 (Scattered) of 'rows_of_two' has 9 rows", "has 10"});
  EXPECT_NO_THROW(of_rows(10)());
  expect_usable(session);
}

TEST_P(BadRows, WithBadSlicesAreRefused) {
  const auto x = session.data(std::vector<int>(10, 1));
  const auto f = session.function(rows_of, "rows_of");
  for (const std::int64_t slices :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{11}, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()}) {
    expect_usage([&] { f(x, {.slices = slices}); },
                 {"slices is from 1 to the number of rows, 10, got " + std::to_string(slices)});
  }
  expect_usage([&] { f(x, {.batch = Slice{0, 3}, .slices = 4}); }, {"number of rows, 3, got 4"});
  EXPECT_EQ(f(x, {.slices = 10}), 10);
  expect_usable(session);
}

TEST_P(BadRows, ValuesInTheWrongNumberAreRefused) {
  const auto f = session.function(of_per_worker, "of_per_worker");
  const std::vector<int> one_more(static_cast<std::size_t>(GetParam()) + 1, 1);
  expect_usage([&] { f(one_more); }, {"argument 0 (PerWorker) of 'of_per_worker' requires one value per rank",
                                      std::to_string(GetParam()) + " in all, got " + std::to_string(GetParam() + 1)});
  expect_usage([&] { f(std::vector<int>{}); }, {"got 0"});
  EXPECT_EQ(f(std::vector<int>(static_cast<std::size_t>(GetParam()), 1)), GetParam());
  expect_usage([&] { session.data(std::vector<int>(10), Shape{3, 4}); }, {"shape [3, 4] requires 12 values, got 10"});
  auto data = session.data<int, 2>({3, 4});
  expect_usage([&] { data.set(std::vector<int>(10)); }, {"shape [3, 4] requires 12 values, got 10"});
  auto variable = session.shared<int, 2>("v");
  expect_usage([&] { variable.broadcast(std::vector<int>(10), {3, 4}); }, {"requires 12 values, got 10"});
  expect_usage([&] { variable.scatter(std::vector<int>(10), {3, 4}); }, {"requires 12 values, got 10"});
  expect_usage([&] { variable.set(0, std::vector<int>(10), {-3, 4}); }, {"at least 0"});
  expect_usable(session);
}

TEST_P(BadRows, OfARankThatThereIsNotAreRefused) {
  const auto x = session.data(std::vector<int>(10, 1));
  const auto f = session.function(rows_of, "rows_of");
  auto variable = session.shared<int, 1>("v");
  const std::string ranks = "rank from 0 to " + std::to_string(GetParam() - 1);
  expect_usage([&] { f.on_rank(GetParam())(x); }, {ranks, "got " + std::to_string(GetParam())});
  expect_usage([&] { static_cast<void>(f.on_rank(-1)); }, {"got -1"});
  expect_usage([&] { static_cast<void>(variable.get(GetParam())); }, {ranks});
  expect_usage([&] { static_cast<void>(variable.get(-1)); }, {ranks, "got -1"});
  expect_usage([&] { variable.set(GetParam(), std::vector<int>{1}, {1}); }, {ranks});
  expect_usage([&] { variable.broadcast(GetParam()); }, {ranks});
  expect_usage([&] { static_cast<void>(variable.shape(-1)); }, {ranks});
  EXPECT_EQ(f.on_rank(GetParam() - 1)(x), 10);
}

TEST_P(BadRows, ThatAreNoInt64AreReportedAsTheyAre) {
  constexpr std::uint64_t kBeyond = std::uint64_t{1} << 63U;
  const std::string number = "9223372036854775808";
  const auto x = session.data(std::vector<int>(10, 1));
  const auto f = session.function(rows_of, "rows_of");
  expect_usage([&] { f(x, {.batch = std::vector{std::uint64_t{3}, kBeyond}}); }, {"has index " + number});
  expect_usage([&] { f(x, {.batch = kBeyond}); }, {"batch is the slice [0, " + number + "), but"});
  expect_usage([&] { static_cast<void>(x.at(kBeyond)); }, {"got the element at [" + number + "]"});
  expect_usage([&] { session.data<float, 1>(Shape{kBeyond}); }, {"overflows"});
  auto own = session.shared("own", std::vector<int>(10, 1));
  expect_usage([&] { own.scatter(x, {.batch = std::vector{kBeyond}}); }, {"has index " + number});
  const auto sliced = session.function(of_sliced, "of_sliced");
  expect_usage([&] { sliced(own, {.batch_s = kBeyond}); }, {"slice [0, " + number + ")"});
  const std::vector<std::vector<std::uint64_t>> lists(static_cast<std::size_t>(GetParam()), {kBeyond});
  expect_usage([&] { sliced(own, {.batch_s = lists}); }, {"has index " + number});
}

}  // namespace
}  // namespace syncrun::test
