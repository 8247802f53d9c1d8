// Values: arrays that lie where they are used, and move when a call on another device reads them.

#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/gate.hpp"
#include "tests/support/on_workers.hpp"

namespace {

using namespace std::chrono_literals;
using sr::Shape;
using syncrun::test::Gate;
using syncrun::test::pass;

class Values : public OnWorkers {
 protected:
  sr::Device device(int rank) { return session().device(rank); }
  sr::Device first() { return device(0); }
  sr::Device last() { return device(world_size() - 1); }
  static std::vector<int> ranks(const std::vector<sr::Device>& devices) {
    std::vector<int> ranks;
    for (const auto& each : devices) ranks.push_back(each.rank());
    return ranks;
  }
};
INSTANTIATE_ON_WORKERS(Values, 1, 3);

sr::Keep<double, 1> twice(sr::CpuWorker& worker, sr::Local<const double, 1> x) {
  sr::Keep<double, 1> y(worker, x.shape());
  for (std::int64_t i = 0; i < x.rows(); ++i) y[i] = 2 * x[i];
  return y;
}
sr::Keep<double, 1> sum_of(sr::CpuWorker& worker, sr::Local<const double, 1> x, sr::Local<const double, 1> y) {
  sr::Keep<double, 1> z(worker, x.shape());
  for (std::int64_t i = 0; i < x.rows(); ++i) z[i] = x[i] + y[i];
  return z;
}
void add_one(sr::Local<double, 1> x) {
  for (double& value : x) value += 1;
}
sr::Sum<double> total(sr::Local<const double, 1> x) {
  double sum = 0;
  for (const double value : x) sum += value;
  return sum;
}
sr::Keep<double, 1> slowly_twice(sr::CpuWorker& worker, sr::Local<const double, 1> x, int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return twice(worker, x);
}
sr::Keep<double, 1> twice_behind(sr::CpuWorker& worker, sr::Local<const double, 1> x, Gate::Key key) {
  pass(key);
  return twice(worker, x);
}
void sleep_for(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }
sr::Keep<double, 1> fails_to_make(sr::CpuWorker&, sr::Local<const double, 1>) {
  throw std::runtime_error("no such product");
}

/// The addresses of the Values that make_and_remember() has made on this worker.
std::set<const double*> places;
sr::Keep<double, 1> make_and_remember(sr::CpuWorker& worker, std::int64_t count) {
  sr::Keep<double, 1> x(worker, {count});
  places.insert(x.data());
  return x;
}
sr::Max<int> remembered_places(sr::CpuWorker&) { return static_cast<int>(places.size()); }

TEST_P(Values, MoveToTheDeviceThatReadsThem) {
  const auto f = session().function(twice);
  const auto g = session().function(sum_of);
  const auto x = session().value(counting<double>(100), Shape{100}, first());
  const sr::Value<double, 1> y = f.on(first())(x);
  const auto z = g.on(last())(y, x);
  EXPECT_EQ(z.shape(), Shape{100});
  const auto values = z.get();
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(values[i], 3.0 * static_cast<double>(i));
  EXPECT_EQ(ranks(z.where()), std::vector{world_size() - 1});
  if (world_size() == 1) return;
  EXPECT_EQ(ranks(x.where()), (std::vector{0, world_size() - 1}));
  EXPECT_EQ(ranks(y.where()), (std::vector{0, world_size() - 1}));
}

TEST_P(Values, HaveOneValidCopyAfterAWrite) {
  const auto write = session().function(add_one);
  const auto read = session().function(total);
  const auto x = session().value(std::vector<double>(10, 1.0), Shape{10}, first());
  EXPECT_EQ(read.on(last())(x), 10);
  write.on(first())(x);
  EXPECT_EQ(ranks(x.where()), std::vector{0});
  EXPECT_EQ(read.on(last())(x), 20);
  write.on(last())(x);
  EXPECT_EQ(ranks(x.where()), std::vector{world_size() - 1});
  EXPECT_EQ(read.on(first())(x), 30);
  EXPECT_EQ(x.get().to_vector(), std::vector<double>(10, 3.0));
}

TEST_P(Values, AreNotWrittenBySeveralRanks) {
  const auto write = session().function(add_one);
  const auto x = session().value(std::vector<double>(10, 1.0), Shape{10}, first());
  if (world_size() == 1) return write(x);
  EXPECT_ERROR(write(x), sr::ErrorKind::usage, "ranks would write it");
  EXPECT_EQ(x.get().to_vector(), std::vector<double>(10, 1.0));
}

TEST_P(Values, AreReceivedBeforeTheirCallHasRun) {
  Gate gate;
  const auto f = session().function(twice_behind);
  const auto g = session().function(twice);
  const auto x = session().value(counting<double>(4), Shape{4}, last());
  const auto y = f.on(last())(x, gate.key());
  const auto z = g.on(first())(y);
  gate.open();
  EXPECT_EQ(z.get()[3], 12);
}

TEST_P(Values, ComeFromTheHostAndGoThere) {
  const auto read = session().function(total);
  const auto x = session().value(std::vector<double>(10, 2.0), Shape{10});
  EXPECT_TRUE(x.is_on_host());
  EXPECT_TRUE(x.where().empty());
  EXPECT_EQ(x.get().to_vector(), std::vector<double>(10, 2.0));
  EXPECT_EQ(read.on(last())(x), 20);
  EXPECT_TRUE(x.is_on_host());
  session().function(add_one).on(last())(x);
  EXPECT_FALSE(x.is_on_host());
  x.to_host();
  EXPECT_TRUE(x.is_on_host());
  EXPECT_EQ(x.get().to_vector(), std::vector<double>(10, 3.0));
  x.to(first());
  EXPECT_EQ(x.where().front().rank(), 0);
}

TEST_P(Values, AreMadeOfAData) {
  auto data = session().data(counting<double>(6), Shape{6});
  const auto x = session().value(data, last(), "x");
  data.set(std::vector<double>(6, 0.0));
  EXPECT_EQ(x.get().to_vector(), counting<double>(6)) << "a Value has the values of the time when it was made";
  EXPECT_EQ(x.name(), "x");
}

TEST_P(Values, StayWhereTheyArePinned) {
  if (world_size() == 1) return;
  const auto read = session().function(total);
  auto x = session().value(std::vector<double>(10, 2.0), Shape{10}, first(), "x");
  x.pin(last());
  EXPECT_EQ(read.on(last())(x), 20);
  EXPECT_ERROR(read.on(first())(x), sr::ErrorKind::usage, "is pinned to rank");
  EXPECT_ERROR(x.to(first()), sr::ErrorKind::usage, "is pinned to rank");
  x.unpin();
  EXPECT_EQ(read.on(first())(x), 20);
}

TEST_P(Values, ThatWereNeverMadeStayFailed) {
  const auto f = session().function(fails_to_make, "f");
  const auto g = session().function(twice);
  const auto x = session().value(counting<double>(4), Shape{4}, first());
  auto y = f.on(first())(x);
  const auto z = g.on(last())(y);
  EXPECT_ERROR(static_cast<void>(z.get()), sr::ErrorKind::function, "no such product");
  EXPECT_ERROR(static_cast<void>(y.get()), sr::ErrorKind::function, "which 'f' was to make");
  y.set_name("y");
  EXPECT_EQ(y.name(), "y");
  EXPECT_ERROR(static_cast<void>(y.get()), sr::ErrorKind::function, "there is no value 'y', which 'f' was to make");
  EXPECT_ERROR(static_cast<void>(g.on(last())(y)), sr::ErrorKind::function, "no such product");
  EXPECT_EQ(g.on(last())(x).get()[3], 6) << "the session goes on";
  session().wait();
}

void add_one_or_throw(sr::Local<double, 1> x, int fails) {
  if (fails != 0) throw std::runtime_error("bad input");
  for (double& value : x) value += 1;
}

TEST_P(Values, ThatAFailedCallShouldHaveWrittenKeepWhatTheyHad) {
  const auto f = session().function(add_one_or_throw, "f");
  const auto add = session().function(sum_of);
  for (const bool is_on_host : {false, true}) {
    const auto x = session().value(counting<double>(4), Shape{4}, first(), "x");
    if (is_on_host) x.to_host();
    session().wait();
    f.on(first())(x, 1);
    for (int i = 0; i < 6; ++i) f.on(device(i % world_size()))(x, 0);  // launched, but none of them runs
    EXPECT_ERROR(session().wait(), sr::ErrorKind::function, "bad input");
    EXPECT_EQ(x.get().to_vector(), counting<double>(4));
    f.on(last())(x, 0);
    EXPECT_EQ(x.get().to_vector(), counting<double>(4, 1));
    EXPECT_EQ(add.on(first())(x, x).get()[3], 8);
  }
}

TEST_P(Values, AreSetAgain) {
  const auto f = session().function(fails_to_make, "f");
  const auto read = session().function(total);
  const auto slow = session().function(slowly_twice);
  auto x = session().value(counting<double>(4), Shape{4}, first(), "x");
  const auto before = slow.on(first())(x, 20);
  x.set(std::vector<double>(2, 5.0));  // while the device reads the old ones
  EXPECT_TRUE(x.is_on_host());
  EXPECT_EQ(read.on(last())(x), 10);
  EXPECT_EQ(read.on(first())(x), 10);
  EXPECT_EQ(x.shape(), Shape{2});
  EXPECT_EQ(before.get().to_vector(), (std::vector<double>{0, 2, 4, 6}));

  auto y = f.on(first())(x);
  auto z = session().function(twice).on(last())(y);  // fails too
  y.set(counting<double>(3));
  z.set(counting<double>(2));
  EXPECT_EQ(y.get().to_vector(), counting<double>(3)) << "what was to make it no longer matters";
  EXPECT_ERROR(session().wait(), sr::ErrorKind::function, "no such product");
  EXPECT_EQ(z.get().to_vector(), counting<double>(2));
  EXPECT_EQ(read.on(last())(y), 3);
  y.pin(first());
  y.set(counting<double>(5));
  EXPECT_EQ(ranks(y.where()), std::vector<int>{0});
  EXPECT_EQ(read.on(first())(y), 10);
  EXPECT_ERROR(y.set(counting<double>(3), Shape{4}), sr::ErrorKind::usage, "");
  EXPECT_EQ(read.on(first())(y), 10);
}

sr::Keep<double, 1> twice_the_rows(sr::CpuWorker& worker, sr::Sliced<const double, 1> x) {
  sr::Keep<double, 1> y(worker, x.shape());
  for (std::int64_t i = 0; i < x.rows(); ++i) y[i] = 2 * x[i];
  return y;
}

TEST_P(Values, AreKeptByCallsOnOneRankWithoutSlices) {
  const auto f = session().function(twice, "f");
  const auto g = session().function(twice_the_rows, "g");
  const auto x = session().value(counting<double>(4), Shape{4}, first());
  EXPECT_ERROR(static_cast<void>(g.on(first())(x, {.slices = 2})), sr::ErrorKind::usage,
               "of 'g' is a Keep, and the call has 2 slices: leave slices out");
  EXPECT_EQ(g.on(first())(x).get()[3], 6) << "the session goes on";
  if (world_size() > 1) EXPECT_ERROR(static_cast<void>(f(x)), sr::ErrorKind::usage, "call it on one device");
}

struct Parts {
  sr::Keep<double, 1> sorted;
  sr::Keep<std::int64_t, 0> count;
};
Parts parts_of(sr::CpuWorker& worker, sr::Local<const double, 1> x) {
  Parts parts{.sorted = {worker, x.shape()}, .count = {worker, {}}};
  for (std::int64_t i = 0; i < x.rows(); ++i) parts.sorted[i] = x[x.rows() - 1 - i];
  *parts.count.data() = x.rows();
  return parts;
}
sr::Sum<std::int64_t> number(sr::Local<const std::int64_t, 0> count) { return *count.data(); }

TEST_P(Values, AreFieldsOfAResult) {
  const auto f = session().function(parts_of);
  const auto x = session().value(counting<double>(4), Shape{4}, last());
  const auto [sorted, count] = f.on(last())(x);
  EXPECT_EQ(session().function(number).on(first())(count), 4);
  EXPECT_EQ(sorted.value().get().to_vector(), (std::vector<double>{3, 2, 1, 0}));
}

struct RowsSeen {
  sr::Gather<std::int64_t, 1> first_rows;
  sr::Gather<double, 1> rank_averages;
};
RowsSeen rows_seen(sr::CpuWorker& worker, sr::Comm& comm, sr::Sliced<const double, 1>) {
  RowsSeen seen{.first_rows = {worker, {1}}, .rank_averages = {worker, {1}}};
  seen.first_rows[0] = worker.first_row();
  seen.rank_averages[0] = comm.all_reduce(static_cast<double>(worker.rank()), sr::Reduction::avg);
  return seen;
}

TEST_P(Values, AreReadByRowsOnRanksToWhichACopyIsOnItsWay) {
  const auto f = session().function(rows_seen);
  const auto slow = session().function(sleep_for);
  const auto x = session().value(counting<double>(10), Shape{10}, last());
  slow.on(first())(100);  // so the copy arrives late there
  const RowsSeen seen = f(x);
  for (int rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(seen.first_rows[rank], 10 * rank);
    EXPECT_EQ(seen.rank_averages[rank], (world_size() - 1) / 2.0) << "every rank has as many rows";
  }
}

TEST_P(Values, AreFetchedWithoutAWait) {
  Gate gate;
  const auto write = session().function(add_one);
  const auto x = session().value(counting<double>(5), Shape{5}, first());
  const auto busy = session().function(twice_behind).on(first()).async(x, gate.key());
  auto before = x.get_async();
  write.on(first())(x);
  auto after = x.get_async();
  gate.open();
  EXPECT_EQ(before.get()[4], 4);
  EXPECT_EQ(after.get()[4], 5);
  static_cast<void>(busy);
  EXPECT_EQ(session().value(counting<double>(5), Shape{5}).get_async().get()[4], 4) << "of the host";
  auto dropped = x.get_async();
}

TEST_P(Values, OnTheHostAreFetchedWithoutADevice) {
  const auto waits = session().function(pass);
  const auto x = session().value(counting<double>(5), Shape{5});
  EXPECT_EQ(x.get_async().get()[4], 4);
  EXPECT_TRUE(x.where().empty()) << "it did not move";
  x.to(last());
  Gate gate;
  for (int i = 0; i < 32; ++i) waits.on(last())(gate.key());  // as many as it can have
  EXPECT_EQ(x.get()[4], 4);
  EXPECT_EQ(x.get_async().get()[4], 4);
  gate.open();
}

TEST_P(Values, StandInTheListOfWhatLiesOnADevice) {
  auto shared = session().shared("weights", std::vector<double>(4, 0.0));
  const auto x = session().value(std::vector<double>(1000, 0.0), Shape{1000}, first(), "x");
  x.to(last());
  const auto memory = session().memory(last());
  EXPECT_GT(memory.total_bytes, std::size_t{1} << 28U);
  EXPECT_GT(memory.free_bytes, 0U);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
  ASSERT_EQ(memory.arrays.size(), 2U);
  EXPECT_EQ(memory.arrays[0].name, "x");
  EXPECT_EQ(memory.arrays[0].bytes, 8000U);
  EXPECT_TRUE(memory.arrays[0].is_value);
  EXPECT_EQ(memory.arrays[0].can_be_dropped, world_size() > 1);
  EXPECT_EQ(memory.arrays[1].name, "weights");
  EXPECT_FALSE(memory.arrays[1].can_be_dropped);
  EXPECT_EQ(session().memory(first()).arrays[0].can_be_dropped, world_size() > 1) << "either of the two";
}

TEST_P(Values, ThatAreDroppedGiveTheirMemoryToTheNextOnes) {
  const auto make = session().function(make_and_remember);
  const auto remembered = session().function(remembered_places).on(first());
  for (int i = 0; i < 8; ++i) {
    make.on(first())(std::int64_t{1} << 18U);  // the program does not wait for it
    EXPECT_LE(int(remembered()), 3) << "after " << i + 1 << " Values";
  }
}

TEST_P(Values, AreDroppedWhereOthersNeedMemoryIfTheyAreValidElsewhere) {
  const auto make = session().function(
      [](sr::CpuWorker& worker, std::int64_t count) { return sr::Keep<double, 1>(worker, {count}); });
  for (const int rank : {0, world_size() - 1}) {  // at home, and where the copy is
    const auto x = session().value(std::vector<double>(1000, 2.0), Shape{1000}, first());
    x.to(last());
    session().wait();
    const auto large = make.on(device(rank))(std::int64_t{1} << 40U);
    EXPECT_ERROR(static_cast<void>(large.shape()), sr::ErrorKind::system,
                 world_size() == 1 ? "no copy of a Value can be dropped"
                                   : "8000 bytes of copies of Values were dropped, and no other copy can be");
    EXPECT_THROW(static_cast<void>(large.get()), sr::Error) << "it was never made";
    EXPECT_EQ(ranks(x.where()), std::vector{world_size() - 1 - rank});
    session().function(add_one).on(first())(x);
    EXPECT_EQ(x.get().to_vector(), std::vector<double>(1000, 3.0));
  }
}

TEST_P(Values, CopiesOfASharedRequireRanksAndAShape) {
  auto unset = session().shared<double, 1>("unset");
  EXPECT_ERROR(unset.copy(0, world_size()), sr::ErrorKind::usage, "copy requires a rank from 0 to");
  EXPECT_ERROR(unset.copy(0, world_size() - 1), sr::ErrorKind::usage, "'unset' has no shape yet");
  unset.set(0, std::vector<double>{1, 2, 3});
  unset.copy(0, world_size() - 1);
  EXPECT_EQ(unset.get(world_size() - 1).to_vector(), (std::vector<double>{1, 2, 3}));
}

TEST_P(Values, ACopyOfASharedDoesNotChangeTheRowsOfOtherCalls) {
  if (world_size() == 1) return;
  auto x = session().shared<double, 1>("x");
  x.broadcast(counting<double>(4));
  x.set(0, counting<double>(6));
  const auto rows = session().function([](sr::CpuWorker& worker, sr::Sliced<const double, 1>) {
    // rank 0 is slow, and the last rank begins late
    if (worker.rank() == 0) sleep_for(100);
    sr::Gather<std::int64_t, 1> first(worker, {1});
    first[0] = worker.first_row();
    return first;
  });
  session().function(sleep_for).on(last())(30);
  auto before = rows.async(x);
  x.copy(last().rank(), 0);  // 4 rows instead of 6
  auto after = rows.async(x);
  EXPECT_EQ(before.get()[1], 6);
  EXPECT_EQ(after.get()[1], 4);
}

TEST_P(Values, AreMadeOfAsManyElementsAsTheirShapeHas) {
  EXPECT_ERROR(static_cast<void>(session().value(counting<double>(4), Shape{5}, first())), sr::ErrorKind::usage, "4");
  EXPECT_ERROR(static_cast<void>(session().value(counting<double>(4), Shape{-4}, first())), sr::ErrorKind::usage, "-4");
}

}  // namespace
