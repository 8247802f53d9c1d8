// Queues of batches that producers build in the background: which batches come, in which order, and that they are not
// copied.

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "tests/fault/leak_check.hpp"
#include "tests/fault/scene.hpp"
#include "tests/master/helper_processes/queue_scene.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kRows = 8;
const BatchShapes<Numbered> kShapes{{kRows, kColumns}, {kRows}};

void expect_is(const Numbered& batch, int producer, int number, std::int64_t rows) {
  ASSERT_EQ(batch.rows.shape(), (Shape{rows, kColumns}));
  ASSERT_EQ(batch.labels.shape(), Shape{rows});
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const auto value : batch.rows.view()[row]) ASSERT_EQ(value, number_of(producer, number, row));
    ASSERT_EQ(batch.labels.view()[row], row % 2);
  }
}

/// The order in which batches come if producers take turns, as pairs (producer, batch).
std::vector<std::pair<int, int>> turns(const std::vector<int>& counts) {
  std::vector<std::pair<int, int>> order;
  for (int batch = 0; batch < *std::max_element(counts.begin(), counts.end()); ++batch) {
    for (int producer = 0; producer < static_cast<int>(counts.size()); ++producer) {
      if (batch < counts[static_cast<std::size_t>(producer)]) order.emplace_back(producer, batch);
    }
  }
  return order;
}

class Producers : public testing::TestWithParam<int> {
 protected:
  int count() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Queue, Producers, testing::Values(1, 3), testing::PrintToStringParamName());

TEST_P(Producers, TakeTurnsWhateverTheirNumbersOfBatches) {
  Session session(workers(1));
  std::mt19937 rng(static_cast<unsigned>(count()));
  for (int round = 0; round < 6; ++round) {
    std::vector<int> counts(static_cast<std::size_t>(count()));
    for (int& number : counts) number = static_cast<int>(rng() % 9);
    const int capacity = count() + static_cast<int>(rng() % 7);
    const auto last_rows = static_cast<std::int64_t>(rng() % (kRows + 1));
    auto queue =
        session.producers(count(), build_numbered, kShapes, {.capacity = capacity, .name = "q"}, counts, last_rows);
    EXPECT_EQ(queue.capacity(), capacity);
    EXPECT_EQ(queue.producer_pids().size(), counts.size());
    const auto order = turns(counts);
    std::size_t at = 0;
    for (const Numbered& batch : queue) {
      ASSERT_LT(at, order.size());
      const auto [producer, number] = order[at++];
      const bool is_last = number == counts[static_cast<std::size_t>(producer)] - 1;
      expect_is(batch, producer, number, is_last ? last_rows : kRows);
    }
    EXPECT_EQ(at, order.size());
    EXPECT_EQ(queue.next(), std::nullopt) << "it stays at its end";
    queue.close();
  }
  session.close();
}

/// The first producer waits until the others have pushed. Their batches come first, no batch is missing, and the
/// batches of each producer come in its order.
TEST_P(Producers, InOrderOfArrivalWaitForNobody) {
  Session session(workers(1));
  const std::vector<int> counts(static_cast<std::size_t>(count()), 5);
  Board board(session);
  auto queue = session.producers(
      count(),
      +[](Producer<Numbered>& out, const std::vector<int>& counts, std::int64_t go_place) {
        while (out.index() == 0 && number_at(go_place).load() == 0) ::usleep(1000);
        build_numbered(out, counts, kRows);
      },
      kShapes, {.capacity = 2 * count(), .order = BatchOrder::arrival}, counts,
      place_in_segment(board.data().view().data()));
  std::vector<int> next(counts.size());
  for (int batch = 0; batch < 5 * count(); ++batch) {
    const bool are_others_done = batch == 5 * (count() - 1);
    if (are_others_done) board.set(0, 1);
    const auto taken = queue.next();
    ASSERT_TRUE(taken);
    const auto producer = static_cast<int>(taken->rows.view()(0, 0) / 1'000'000);
    EXPECT_EQ(producer == 0, batch >= 5 * (count() - 1));
    expect_is(*taken, producer, next[static_cast<std::size_t>(producer)]++, kRows);
  }
  EXPECT_EQ(queue.next(), std::nullopt);
  session.close();
}

TEST_P(Producers, NeverRunAheadOfTheQueuesCapacity) {
  Session session(workers(1));
  const int capacity = count() + 3;
  const std::vector<int> counts(static_cast<std::size_t>(count()), 20);
  Board board(session);
  // Every producer counts its drafts on the board.
  const auto count_drafts = +[](Producer<Numbered>& out, const std::vector<int>& counts, std::int64_t place) {
    const auto drafts = number_at(place);
    for (int batch = 0; batch < counts[static_cast<std::size_t>(out.index())]; ++batch) {
      auto draft = out.next();
      if (!draft) return;
      drafts.fetch_add(1);
      draft.array()(0, 0) = batch;
      draft.push();
    }
  };
  auto queue = session.producers(count(), count_drafts, kShapes, {.capacity = capacity}, counts,
                                 place_in_segment(board.data().view().data()));
  EXPECT_TRUE(board.reaches(0, capacity)) << "the queue is filled in the background";
  ::usleep(100'000);
  EXPECT_EQ(board.get(0), capacity);
  int taken = 0;
  while (true) {
    const auto batch = queue.next();
    if (!batch) break;
    EXPECT_LE(board.get(0), capacity + taken) << "what the program still has counts too";
    ++taken;
  }
  EXPECT_EQ(taken, 20 * count());
  EXPECT_EQ(board.get(0), taken);
  session.close();
}

// ---- without a copy -------------------------------------------------------------------------------------------

struct Places {
  Data<std::int64_t, 1> own_place;  // the offset at which the producer saw this array, once per row
};

struct Seen {
  Min<std::int64_t> place;
  Sum<std::int64_t> rows;
};

TEST(Queue, GivesWorkersTheMemoryThatTheProducerWrote) {
  Session session(workers(2));
  auto queue = session.producers(2,
                                 +[](Producer<Places>& out) {
                                   for (int batch = 0; batch < 4; ++batch) {
                                     auto draft = out.next();
                                     auto [own_place] = draft.arrays();
                                     std::fill(own_place.begin(), own_place.end(), place_in_segment(own_place.data()));
                                     draft.push();
                                   }
                                 },
                                 {{100'000}});
  const auto f = session.function(+[](Scattered<const std::int64_t, 1> x) {
    return Seen{place_in_segment(x.data()) - x.first_row() * 8, x.rows()};
  });
  int batches = 0;
  for (const Places& batch : queue) {
    const std::int64_t place = batch.own_place.view()[0];
    EXPECT_EQ(place_in_segment(batch.own_place.view().data()), place) << "the program sees the producer's memory";
    const Seen seen = f(batch.own_place);
    EXPECT_EQ(seen.place, place) << "and so do the workers";
    EXPECT_EQ(seen.rows, 100'000);
    ++batches;
  }
  EXPECT_EQ(batches, 8);
  session.close();
}

Sum<std::int64_t> slow_sum(Scattered<const std::int64_t, 2> x) {
  ::usleep(20'000);
  return std::accumulate(x.begin(), x.end(), std::int64_t{0});
}

std::int64_t sum_of(int producer, int batch) {
  std::int64_t sum = 0;
  for (std::int64_t row = 0; row < kRows; ++row) sum += kColumns * number_of(producer, batch, row);
  return sum;
}

/// The handles are dropped at once, while calls that read the batches wait for their turn. If a place were free too
/// early, a producer would overwrite the batch before the call has read it.
TEST(Queue, KeepsABatchForAsLongAsACallReadsIt) {
  Session session(workers(2));
  const std::vector<int> counts{6, 6};
  auto queue = session.producers(2, build_numbered, kShapes, {.capacity = 2}, counts, kRows);
  const auto f = session.function(slow_sum);
  std::vector<Future<Sum<std::int64_t>>> futures;
  while (const auto batch = queue.next()) futures.push_back(f.async(batch->rows));
  ASSERT_EQ(futures.size(), 12U);
  const auto order = turns(counts);
  for (std::size_t i = 0; i < futures.size(); ++i) {
    EXPECT_EQ(futures[i].get().value(), sum_of(order[i].first, order[i].second)) << i;
  }
  session.close();
}

TEST(Queue, LetsABatchBeAnyData) {
  Session session(workers(2));
  auto queue = session.producers(1, build_numbered, kShapes, {.capacity = 1}, std::vector<int>{4}, kRows);
  auto kept = queue.next();
  kept->rows.write()(0, 0) = -1;  // writes in place
  EXPECT_EQ(kept->rows.view()(0, 0), -1);
  kept->rows.resize({2, kColumns});
  EXPECT_EQ(kept->rows.view()(1, 0), number_of(0, 0, 1));
  kept->rows.resize({100, kColumns});  // does not fit into its place, so the data moves out of the queue
  EXPECT_EQ(kept->rows.view()(1, 0), number_of(0, 0, 1));
  EXPECT_EQ(kept->rows.view()(99, 0), 0);
  kept->labels.free();
  auto second = queue.next();
  expect_is(*second, 0, 1, kRows);
  EXPECT_EQ(kept->rows.view()(1, 0), number_of(0, 0, 1));
  const Data<std::int64_t, 2> one = second->rows;  // another handle for the same array
  second.reset();
  EXPECT_EQ(one.view()(0, 0), number_of(0, 1, 0));
  queue.close();
  EXPECT_EQ(one.view()(0, 0), number_of(0, 1, 0)) << "a batch outlives its queue";
  EXPECT_EQ(session.function(slow_sum)(one).value(), sum_of(0, 1));
  session.close();
}

// ---- arguments ------------------------------------------------------------------------------------------------

using Doubles = Data<double, 1>;

TEST(Queue, PassesArgumentsAndSeeds) {
  std::vector<double> first;
  for (int round = 0; round < 2; ++round) {
    Session session({.processes = "1", .seed = 7});
    auto queue = session.producers(
        2,
        +[](Producer<Doubles>& out, const std::string& name, double scale) {
          auto draft = out.next();
          const auto values = draft.array();
          values[0] = out.count();
          values[1] = static_cast<double>(name.size()) * scale;
          values[2] = static_cast<double>(out.rng()());
          draft.push();
        },
        {{3}}, {}, "four", 2);
    std::vector<double> values;
    for (const Doubles& batch : queue) {
      values.insert(values.end(), batch.view().begin(), batch.view().end());
    }
    ASSERT_EQ(values.size(), 6U);
    EXPECT_EQ(values[0], 2);
    EXPECT_EQ(values[1], 8);
    EXPECT_NE(values[2], values[5]) << "each producer has its own";
    if (round == 0) first = values;
    EXPECT_EQ(values, first) << "the same in every run";
    session.close();
  }
}

// ---- wrong use ------------------------------------------------------------------------------------------------

TEST(Queue, OnOneNodeHasAllRowsThere) {
  Session session(workers(2));
  for (const ProducerPlaces places : {ProducerPlaces::first_node, ProducerPlaces::every_node}) {
    auto queue = session.producers(1,
                                   +[](Producer<Doubles>& out) {
                                     auto draft = out.next();
                                     const Slice here = out.rows_here(3);
                                     draft.array()[0] = static_cast<double>(here.begin);
                                     draft.array()[1] = static_cast<double>(here.end);
                                     draft.push_here(3);
                                     out.rows_here(-1);
                                   },
                                   {{4}}, {.places = places});
    const auto batch = queue.next();
    EXPECT_EQ(batch->rows(), 3);
    EXPECT_EQ(batch->view()[0], 0);
    EXPECT_EQ(batch->view()[1], 3);
    try {
      queue.next();
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rows_here requires a number of rows from 0, got -1"));
      EXPECT_EQ(error.failure().node, "");
    }
  }
  session.close();
}

TEST(Queue, UsedAfterCloseIsAnError) {
  Session session(workers(1));
  auto queue = session.producers(2, build_numbered, kShapes, {.name = "numbers"}, std::vector<int>{9, 9}, kRows);
  EXPECT_TRUE(queue.next());
  queue.close();
  expect_usage([&] { queue.next(); }, {"the queue of 'numbers' was closed"});
  expect_usage([&] { queue.begin(); }, {"the queue of 'numbers' was closed"});
  EXPECT_NO_THROW(queue.close());
  expect_usable(session);
  session.close();
  expect_usage([&] { queue.next(); }, {"the session was closed"});
}

TEST(Queue, OptionsAndShapesAreChecked) {
  Session session(workers(1));
  const auto start = [&](int producers, const BatchShapes<Numbered>& shapes, const QueueOptions& options) {
    return [&session, producers, shapes, options] {
      session.producers(producers, build_numbered, shapes, options, std::vector<int>{1}, kRows);
    };
  };
  expect_usage(start(0, kShapes, {}), {"a queue requires 1 to 256 producers, got 0"});
  expect_usage(start(257, kShapes, {}), {"a queue requires 1 to 256 producers, got 257"});
  expect_usage(start(4, kShapes, {.capacity = 3}),
               {"QueueOptions::capacity is at least one batch for each of the 4 producers", "got 3"});
  expect_usage(start(1, kShapes, {.capacity = 1 << 20}), {"QueueOptions::capacity", "at most 65536, got 1048576"});
  expect_usage(start(1, kShapes, {.timeout = -1ms}), {"QueueOptions::timeout is at least 0, got -1 ms"});
  expect_usage(start(1, kShapes, {.grace = -1ms}), {"QueueOptions::grace is at least 0, got -1 ms"});
  expect_usage(start(1, kShapes, {.name = "a\nb"}), {"QueueOptions::name requires one line"});
  expect_usage(start(1, kShapes, {.environment = {{"A=", ""}}}), {"QueueOptions::environment", "got 'A='"});
  expect_usage(start(1, {{-1, 3}, {8}}, {}), {"extents of a shape are at least 0, got [-1, 3]"});
  expect_usage(start(1, {{std::int64_t{1} << 62, 4}, {8}}, {}), {"overflows"});
  const Error error = error_of(start(1, {{std::int64_t{1} << 44, 4}, {8}}, {}));
  EXPECT_EQ(error.kind(), ErrorKind::system);
  EXPECT_THAT(error.what(), HasSubstr("the queue of 'syncrun::test::build_numbered' requires"));
  expect_usable(session);
  session.close();
}

TEST(Queue, WhoseBatchesTheProgramKeepsIsAnErrorAtOnce) {
  for (const auto order : {BatchOrder::round_robin, BatchOrder::arrival}) {
    Session session(workers(1));
    auto queue = session.producers(1, build_numbered, kShapes, {.capacity = 2, .order = order, .name = "numbers"},
                                   std::vector<int>{5}, kRows);
    std::vector<Numbered> kept;
    kept.push_back(*queue.next());
    kept.push_back(*queue.next());
    const auto start = Clock::now();
    expect_usage([&] { queue.next(); }, {"the queue of 'numbers' has nothing to give: the program holds all of the 2 "
                                         "batches of producer 0"});
    EXPECT_LT(Clock::now() - start, 15s);
    kept.erase(kept.begin());
    expect_is(*queue.next(), 0, 2, kRows);  // the queue continues
    session.close();
  }
}

TEST(Queue, AllOfWhoseBatchesTheProgramKeepsComesToItsEnd) {
  Session session(workers(1));
  auto queue = session.producers(2, build_numbered, kShapes, {.capacity = 4}, std::vector<int>{2, 2}, kRows);
  std::vector<Numbered> kept;
  for (const Numbered& batch : queue) kept.push_back(batch);
  EXPECT_EQ(kept.size(), 4U);
  expect_is(kept[3], 1, 1, kRows);
  session.close();
}

void misuse(Producer<Numbered>& out, int way) {
  auto draft = out.next();
  if (way == 0) draft.push(kRows + 1);
  if (way == 1) draft.push(kRows, kRows + 1);
  if (way == 2) draft.push(-1);
  if (way == 3) {
    draft.push();
    draft.push();
  }
  if (way == 4) static_cast<void>(out.next());
}

TEST(Queue, MisusedByItsProducerSaysHow) {
  const std::vector<std::string> texts{
      "push: array 0 of a batch has 0 to 8 rows, got 9", "push: array 1 of a batch has 0 to 8 rows, got 9",
      "push: array 0 of a batch has 0 to 8 rows, got -1", "push: this Draft was already pushed or moved from",
      "the producer's function holds all of the 1 batches it can have"};
  Session session(workers(1));
  for (int way = 0; way < static_cast<int>(texts.size()); ++way) {
    auto queue = session.producers(1, misuse, kShapes, {.capacity = 1}, way);
    const Error error = error_of([&] {
      while (queue.next()) {
      }
    });
    EXPECT_EQ(error.kind(), ErrorKind::function);
    EXPECT_THAT(error.what(), HasSubstr(texts[static_cast<std::size_t>(way)]));
  }
  session.close();
}

TEST(Queue, HasPlaceAgainWhereADraftIsDropped) {
  Session session(workers(1));
  auto queue = session.producers(1,
                                 +[](Producer<Numbered>& out) {
                                   for (int i = 0; i < 5; ++i) static_cast<void>(out.next());
                                   auto draft = out.next();
                                   draft.array()(0, 0) = 17;
                                   draft.push(2, 1);  // the numbers of rows, by array
                                 },
                                 kShapes, {.capacity = 1});
  const auto batch = queue.next();
  EXPECT_EQ(batch->rows.view()(0, 0), 17);
  EXPECT_EQ(batch->rows.rows(), 2);
  EXPECT_EQ(batch->labels.rows(), 1);
  EXPECT_EQ(queue.next(), std::nullopt);
  session.close();
}

// ---- several --------------------------------------------------------------------------------------------------

TEST(Queues, CanBeUsedByTurns) {
  Session session(workers(2));
  auto a = session.producers(1, build_numbered, kShapes, {}, std::vector<int>{5}, kRows);
  auto b = session.producers(2, build_numbered, kShapes, {}, std::vector<int>{3, 2}, kRows);
  for (int batch = 0; batch < 5; ++batch) {
    expect_is(*a.next(), 0, batch, kRows);
    expect_is(*b.next(), batch % 2, batch / 2, kRows);
  }
  EXPECT_FALSE(a.next());
  EXPECT_FALSE(b.next());
  session.close();
}

std::int64_t resident_shared_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssShmem:")) return std::stoll(line.substr(9)) * 1024;
  }
  return -1;
}

TEST(Queues, LeaveNothingInTheMaster) {
  Session session(workers(1));
  std::set<std::string> descriptors;
  int threads = std::numeric_limits<int>::max();
  std::int64_t bytes = 0;
  for (int round = 0; round < 100; ++round) {
    // A thread that was joined may still be listed for a moment. So the least of many counts is the right one.
    if (round >= 10) threads = std::min(threads, count_threads());
    auto queue = session.producers(1 + round % 2, build_numbered, {{kRows * 4096, kColumns}, {kRows * 4096}}, {},
                                   std::vector<int>{3, 3}, 1);
    // In turn, the queue is drained, closed early, or dropped.
    std::optional<Numbered> batch = queue.next();
    ASSERT_TRUE(batch);
    if (round % 3 == 0) {
      batch.reset();
      while (queue.next()) {
      }
    }
    if (round % 3 == 1) queue.close();
    if (round != 9 && round != 99) continue;
    batch.reset();
    queue.close();
    if (round == 9) {
      descriptors = open_descriptors();
      bytes = resident_shared_bytes();
    } else {
      EXPECT_EQ(open_descriptors(), descriptors);
      EXPECT_TRUE(eventually([&] { return count_threads() == threads; }));
      EXPECT_LE(resident_shared_bytes(), bytes + (1 << 20));
    }
  }
  session.close();
}

}  // namespace
}  // namespace syncrun::test
