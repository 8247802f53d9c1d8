#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/nodes/actions.hpp"

namespace syncrun::test {

namespace {

constexpr std::int64_t kBatchRows = 2000;
constexpr std::int64_t kColumns = 64;  // a batch has 1 MiB
constexpr int kProducers = 2;

struct Numbers {
  Data<double, 2> x;
  Data<std::int64_t, 1> row;
};

std::int64_t rows_of(std::int64_t batch, std::int64_t batches) { return batch + 1 == batches ? 701 : kBatchRows; }

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

void fill(const std::tuple<ArrayView<double, 2>, ArrayView<std::int64_t, 1>>& arrays, std::int64_t batch,
          double noise) {
  auto [x, row] = arrays;
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    for (std::int64_t column = 0; column < kColumns; ++column)
      x(i, column) = static_cast<double>(batch * kBatchRows + i) + static_cast<double>(column) / kColumns;
    x(i, 0) += noise;
    row[i] = batch * kBatchRows + i;
  }
}

/// Makes all batches. Drops a draft now and then, as a function does that finds nothing in a file.
void make_numbers(Producer<Numbers>& out, std::int64_t batches) {
  for (std::int64_t batch = out.index(); batch < batches; batch += out.count()) {
    if (batch % 3 == 0) static_cast<void>(out.next());
    auto draft = out.next();
    if (!draft) return;
    fill(draft.arrays(), batch, static_cast<double>(out.rng()() % 1000));
    draft.push(rows_of(batch, batches));
  }
}

struct Seen {
  Sum<double> sum;
  Sum<std::int64_t> rows;
  Gather<std::int64_t, 1> first;  // the number of the first row of each rank
};

Seen look_at(CpuWorker&, Scattered<const double, 2> x, Scattered<const std::int64_t, 1> row) {
  double sum = 0;
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    for (std::int64_t column = 0; column < kColumns; ++column) sum += x(i, column);
    rows += row[i];
  }
  std::vector<std::int64_t> first;
  if (x.rows() != 0) first.push_back(row[0]);
  const auto count = static_cast<std::int64_t>(first.size());
  return {.sum = sum, .rows = rows, .first = {first, Shape{count}}};
}

Sum<std::int64_t> total_of_all(CpuWorker&, Broadcast<const std::int64_t, 1> row) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < row.rows(); ++i) sum += row(i);
  return {sum};
}

std::int64_t sum_to(std::int64_t begin, std::int64_t end) { return (end - begin) * (begin + end - 1) / 2; }

QueueOptions on_every_node(int capacity) {
  return {.capacity = capacity, .name = "reader", .places = ProducerPlaces::every_node};
}

/// Takes all batches of a queue whose producers run on the first node ("first") or on every node ("every"), and prints
/// what calls return for them. The results do not depend on where the producers and the ranks run. Waits for a line of
/// input before the first batch and after the last one.
void take_batches(Session& session, const std::string& places) {
  constexpr std::int64_t kBatches = 15;
  const auto f = session.function(look_at, "look_at");
  auto queue =
      session.producers(kProducers, make_numbers, {{kBatchRows, kColumns}, {kBatchRows}},
                        {.capacity = 6,
                         .name = "reader",
                         .places = places == "every" ? ProducerPlaces::every_node : ProducerPlaces::first_node},
                        kBatches);
  require(queue.producer_pids().size() == kProducers, "the producers of this node");
  say("ready to take");
  await_line();
  std::int64_t number = 0;
  for (const Numbers& batch : queue) {
    const auto seen = f(batch.x, batch.row);
    // Sums of whole numbers and 64ths are exact.
    std::printf("batch %d has %d rows, sum %.17g\n", static_cast<int>(number), static_cast<int>(batch.row.rows()),
                seen.sum.value());
    const std::int64_t begin = number * kBatchRows;
    require(seen.rows.value() == sum_to(begin, begin + rows_of(number, kBatches)), "the rows of a batch");
    require(seen.first.to_vector().size() == static_cast<std::size_t>(session.world_size()), "rows for each rank");
    require(batch.row.view()[0] == begin, "a row on the master's node");
    ++number;
  }
  require(number == kBatches, "the number of batches");
  std::fflush(stdout);
  say("taken");
  await_line();
}

/// Keeps batches, drops them in another order, writes to some, and reads rows that other ranks have. Then closes and drops
/// queues in the middle.
void use_batches_freely(Session& session) {
  constexpr std::int64_t kBatches = 40;
  const auto f = session.function(look_at, "look_at");
  const auto sum_all = session.function(total_of_all, "total_of_all");
  const std::int64_t last = session.world_size() - 1;
  auto queue =
      session.producers(kProducers, make_numbers, {{kBatchRows, kColumns}, {kBatchRows}}, on_every_node(8), kBatches);
  std::optional<Numbers> kept;
  std::vector<Numbers> several;
  for (std::int64_t number = 0; number < kBatches; ++number) {
    auto batch = queue.next();
    require(batch.has_value(), "there is one more batch");
    const std::int64_t begin = number * kBatchRows;
    const std::int64_t rows = rows_of(number, kBatches);
    require(sum_all(batch->row).value() == sum_to(begin, begin + rows) * session.world_size(), "broadcast rows");
    const std::vector<std::int64_t> list{rows - 1, 0, 5, rows - 2};
    require(f(batch->x, batch->row, {.batch = list}).rows.value() == 4 * begin + 2 * rows + 2, "an index list");
    require(f(batch->x, batch->row, {.batch = Slice{3, 9}}).rows.value() == sum_to(begin + 3, begin + 9), "a slice");
    require(f.on_rank(static_cast<int>(last))(batch->x, batch->row).rows.value() == sum_to(begin, begin + rows),
            "one rank of another node");
    auto pending = f.async(batch->x, batch->row);
    if (number % 4 == 1) {
      batch->row.set_rows(0, std::vector<std::int64_t>(2, 0));
      require(f(batch->x, batch->row).rows.value() == sum_to(begin + 2, begin + rows),
              "rows that the program has written");
    }
    pending.get();
    if (number == 2) kept = *batch;  // to the end
    if (number % 3 == 0) several.push_back(std::move(*batch));
    if (several.size() == 3) {  // in another order than they came
      several.erase(several.begin() + 1);
      several.erase(several.begin());
      several.clear();
    }
  }
  several.clear();
  require(f(kept->x, kept->row).rows.value() == sum_to(2 * kBatchRows, 3 * kBatchRows), "a batch that was kept");
  require(!queue.next(), "the queue is at its end");
  say("the first queue is over");

  {
    auto closed = session.producers(kProducers, make_numbers, {{kBatchRows, kColumns}, {kBatchRows}}, on_every_node(4),
                                    std::int64_t{1000});
    const auto batch = closed.next();
    closed.close();
    require(f(batch->x, batch->row).rows.value() == sum_to(0, kBatchRows), "a batch of a closed queue");
  }
  for (int queues = 0; queues < 2; ++queues) {
    auto dropped = session.producers(kProducers, make_numbers, {{kBatchRows, kColumns}, {kBatchRows}}, on_every_node(4),
                                     std::int64_t{1000});
    const auto first = dropped.next();
    const auto second = dropped.next();
    require(f(first->x, second->row).rows.value() == sum_to(kBatchRows, 2 * kBatchRows), "two batches");
  }
  auto by_arrival = on_every_node(4);
  by_arrival.order = BatchOrder::arrival;
  auto queue_by_arrival =
      session.producers(kProducers, make_numbers, {{kBatchRows, kColumns}, {kBatchRows}}, by_arrival, std::int64_t{9});
  std::int64_t rows = 0;
  for (const Numbers& batch : queue_by_arrival) rows += f(batch.x, batch.row).rows.value();
  require(rows == sum_to(0, 8 * kBatchRows + 701), "batches by arrival");
  auto idle =
      session.producers(1, make_numbers, {{kBatchRows, kColumns}, {kBatchRows}}, on_every_node(2), std::int64_t{1000});
  require(idle.next().has_value(), "it ends with the session");
}

/// Rows of other nodes keep the values of an earlier batch, or are zero.
void make_own_rows(Producer<Numbers>& out, std::int64_t batches) {
  if (host_name() != "n" + std::to_string(out.node() + 1)) throw std::runtime_error("this is another node");
  for (std::int64_t batch = out.index(); batch < batches; batch += out.count()) {
    auto draft = out.next();
    if (!draft) return;
    auto [x, row] = draft.arrays();
    const std::int64_t rows = rows_of(batch, batches);
    const Slice here = out.rows_here(rows);
    for (std::int64_t i = here.begin; i < here.end; ++i) {
      for (std::int64_t column = 0; column < kColumns; ++column)
        x(i, column) = static_cast<double>(batch * kBatchRows + i);
      row[i] = batch * kBatchRows + i;
    }
    draft.push_here(rows);
  }
}

template <class Use>
std::string refusal_of(Use&& use) {
  try {
    use();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::usage) return error.what();
    throw;
  }
  return "";
}

/// Each node fills only the rows of its own ranks. Calls that divide them evenly read them. All else is refused.
void share_batches(Session& session) {
  constexpr std::int64_t kBatches = 9;
  const bool is_shared = session.nodes().size() > 1;
  const auto f = session.function(look_at, "look_at");
  const auto sum_all = session.function(total_of_all, "total_of_all");
  const int last = session.world_size() - 1;
  auto queue =
      session.producers(kProducers, make_own_rows, {{kBatchRows, kColumns}, {kBatchRows}}, on_every_node(6), kBatches);
  std::int64_t number = 0;
  for (Numbers batch : queue) {
    const std::int64_t rows = rows_of(number, kBatches);
    const std::int64_t begin = number * kBatchRows;
    const auto seen = f(batch.x, batch.row, {.slices = 2});
    require(seen.rows.value() == sum_to(begin, begin + rows), "the rows of each node");
    require(seen.sum.value() == static_cast<double>(kColumns * sum_to(begin, begin + rows)), "the sum of each node");
    const std::vector<std::string> refusals{
        refusal_of([&] { sum_all(batch.row); }),
        refusal_of([&] {
          f(batch.x, batch.row, {.batch = std::vector<std::int64_t>{0, 1}});
        }),
        refusal_of([&] { f.on_rank(last)(batch.x, batch.row); }),
        refusal_of([&] {
          f(batch.x, batch.row, {.batch = Slice{0, 100}});
        }),
        refusal_of([&] { static_cast<void>(batch.row.view()); }),
        refusal_of([&] { batch.row.set_rows(0, std::vector<std::int64_t>{1}); }),
        refusal_of([&] { static_cast<void>(session.value(batch.row, session.device(0))); }),
    };
    for (const std::string& refusal : refusals) {
      require((refusal.find("push_here") != std::string::npos) == is_shared, "what is refused: " + refusal);
      if (number == 0) std::printf("%s\n", refusal.c_str());
    }
    if (is_shared && number % 2 == 0) {  // all rows are known again
      batch.row.set(std::vector<std::int64_t>(static_cast<std::size_t>(rows), 2), Shape{rows});
      require(sum_all(batch.row).value() == 2 * rows * session.world_size(), "values of the program");
      require(f(batch.x, batch.row).rows.value() == 2 * rows, "values of the program beside those of the nodes");
    }
    ++number;
  }
  require(number == kBatches, "the number of batches");
}

void make_like_no_other(Producer<Numbers>& out, const std::string& host, const std::string& how) {
  const bool is_it = host_name() == host && out.index() == 1;
  for (int batch = 0; batch < 5; ++batch) {
    if (is_it && batch == 2 && how == "ends") return;
    if (is_it && batch == 2 && how == "throws") throw std::runtime_error("numbers-0002.bin: no such file");
    if (is_it && batch == 2 && how == "hangs") std::this_thread::sleep_for(std::chrono::seconds(60));
    if (is_it && batch == 2 && how == "dies") {
      std::fprintf(stderr, "last words of a producer\n");
      std::fflush(stderr);
      std::abort();
    }
    auto draft = out.next();
    if (!draft) return;
    auto other = is_it && batch == 1 && how == "drops" ? out.next() : Draft<Numbers>(std::move(draft));
    fill(other.arrays(), batch, 0);
    other.push(is_it && batch == 1 && how == "fewer" ? 7 : 8);
  }
}

/// A producer on this host does something else than on the others. Prints the error, and that the session goes on.
void break_one_node(Session& session, const std::string& host, const std::string& how) {
  const auto f = session.function(look_at, "look_at");
  auto queue =
      session.producers(2, make_like_no_other, {{kBatchRows, kColumns}, {kBatchRows}}, on_every_node(6), host, how);
  int batches = 0;
  try {
    while (queue.next()) ++batches;
  } catch (const Error& error) {
    std::printf("after %d batches, %s, producer %d on '%s': %s\n", batches,
                std::string(to_string(error.kind())).c_str(), error.failure().producer, error.failure().node.c_str(),
                error.what());
    std::fflush(stdout);
  }
  const auto x = session.data(std::vector<double>(kColumns, 1.0), Shape{1, kColumns}, "x");
  const auto row = session.data(std::vector<std::int64_t>{3}, Shape{1}, "row");
  require(f(x, row).rows.value() == 3, "the session goes on");
  say("the session goes on");
  await_line();
}

/// Closes a queue whose producer 1 does not end on this host. Prints the error.
void close_in_vain(Session& session, const std::string& host) {
  auto options = on_every_node(2);
  options.grace = std::chrono::seconds(5);
  auto queue = session.producers(2, make_like_no_other, {{kBatchRows, kColumns}, {kBatchRows}}, options, host,
                                 std::string("hangs"));
  for (int batch = 0; batch < 4; ++batch) require(queue.next().has_value(), "a batch before that");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // all producers are at their next batch
  try {
    queue.close();
  } catch (const Error& error) {
    std::printf("%s on '%s': %s\n", std::string(to_string(error.kind())).c_str(), error.failure().node.c_str(),
                error.what());
  }
  const auto f = session.function(look_at, "look_at");
  const auto x = session.data<double, 2>({8, kColumns});
  const auto row = session.data<std::int64_t, 1>({8});
  require(f(x, row).rows.value() == 0, "the session goes on");
}

void abort_as_rank(CpuWorker& worker, int rank) {
  if (worker.rank() == rank) std::abort();
}

/// Loses a worker of another node while its producers run, and goes on with the batch and with the next ones.
void lose_a_worker_between_batches(Session& session) {
  constexpr std::int64_t kBatches = 12;
  const auto f = session.function(look_at, "look_at");
  const auto abort = session.function(abort_as_rank, "abort_as_rank");
  auto queue =
      session.producers(kProducers, make_numbers, {{kBatchRows, kColumns}, {kBatchRows}}, on_every_node(4), kBatches);
  std::int64_t number = 0;
  for (const Numbers& batch : queue) {
    if (number == 3) {
      try {
        abort(session.world_size() - 1);
      } catch (const Error& error) {
        require(error.kind() == ErrorKind::worker_lost && error.failure().respawned_pid != 0, error.what());
      }
    }
    const std::int64_t begin = number * kBatchRows;
    require(f(batch.x, batch.row).rows.value() == sum_to(begin, begin + rows_of(number, kBatches)),
            "the rows of a batch");
    ++number;
  }
  require(number == kBatches, "the number of batches");
}

void make_one(Producer<Numbers>& out, double seconds) {
  auto draft = out.next();
  if (!draft) return;
  fill(draft.arrays(), 0, 0);
  draft.push();
  std::fprintf(stderr, "a line of a producer\n");
  std::fflush(stderr);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// Waits for a batch that never comes, after it has said so. Prints the error.
void await_no_batch(Session& session) {
  auto queue = session.producers(2, make_one, {{kBatchRows, kColumns}, {kBatchRows}}, on_every_node(4), 60.0);
  require(queue.next() && queue.next(), "the first batches");
  say("the queue is empty");
  try {
    queue.next();
  } catch (const Error& error) {
    say(std::string(to_string(error.kind())) + " on '" + error.failure().node + "': " + error.what());
  }
}

}  // namespace

bool run_producers(Session& session, const std::string& action, const Words& words) {
  if (action == "produce") take_batches(session, words.at(0));
  else if (action == "produce-freely") use_batches_freely(session);
  else if (action == "produce-shares") share_batches(session);
  else if (action == "produce-unlike") break_one_node(session, words.at(0), words.at(1));
  else if (action == "produce-hang") close_in_vain(session, words.at(0));
  else if (action == "respawn-produce") lose_a_worker_between_batches(session);
  else if (action == "produce-nothing") await_no_batch(session);
  else return false;
  std::printf("as expected\n");
  return true;
}

}  // namespace syncrun::test
