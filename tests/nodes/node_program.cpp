// The program that nodes_test.py runs on several hosts. The first argument says what it does. It prints what the test
// compares.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <thread>
#include <vector>

#include "tests/nodes/actions.hpp"

namespace {

namespace sr = syncrun;
using sr::test::await_line;
using sr::test::require;
using sr::test::say;

sr::Gather<std::int64_t, 1> places(sr::CpuWorker& worker) {
  const std::vector<std::int64_t> place{worker.rank() * 100 + worker.node() * 10 + worker.local_rank()};
  return {place, sr::Shape{1}};
}

struct Sums {
  sr::Sum<double> sum;
  sr::Max<double> max;
  sr::Gather<double, 1> doubled;
};

Sums sums(sr::CpuWorker&, sr::Scattered<const double, 2> x, sr::Broadcast<const double, 1> factors, double more) {
  double sum = 0, max = 0;
  std::vector<double> doubled;
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    double of_row = 0;
    for (std::int64_t column = 0; column < x.shape()[1]; ++column) of_row += x(row, column) * factors(column);
    sum += of_row + more;
    max = std::max(max, of_row);
    doubled.push_back(2 * of_row);
  }
  return {.sum = sum, .max = max, .doubled = {doubled, sr::Shape{x.rows()}}};
}

void nothing(sr::CpuWorker&) {}

void sleep_for(sr::CpuWorker&, double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void fail_on(sr::CpuWorker& worker, int rank) {
  if (worker.rank() == rank) throw std::runtime_error("it broke");
}

void abort_on(sr::CpuWorker& worker, int rank) {
  if (worker.rank() != rank) return;
  std::fprintf(stderr, "last words\n");
  std::abort();
}

class Counter {
 public:
  explicit Counter(std::int64_t start) : count_(start) {}
  sr::Sum<std::int64_t> count(sr::CpuWorker&) { return {++count_}; }

 private:
  std::int64_t count_;
};

/// What `sums` returns for these rows, computed here.
double serial_sum(const std::vector<double>& x, std::int64_t width, const std::vector<std::int64_t>& rows) {
  double sum = 0;
  for (const std::int64_t row : rows) {
    for (std::int64_t column = 0; column < width; ++column)
      sum += x[static_cast<std::size_t>(row * width + column)] * static_cast<double>(column + 1);
  }
  return sum;
}

struct Large {
  sr::Sum<float, 1> sum;
  sr::Avg<double, 1> mean;
  sr::Max<std::int32_t, 1> max;
};

/// Element i of a row is the first number of the row, plus i % 7. `longer_on` is a rank whose arrays are longer, or -1.
Large large(sr::CpuWorker& worker, sr::Scattered<const double, 2> x, int longer_on) {
  const std::int64_t elements = (1 << 15) + (worker.rank() == longer_on ? 1 : 0);
  std::vector<float> sum;
  std::vector<double> mean;
  std::vector<std::int32_t> max;
  double first = 0, largest = 0;
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    first += x(row, 0);
    largest = std::max(largest, x(row, 0));
  }
  const auto rows = static_cast<double>(x.rows());
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto more = static_cast<double>(i % 7);
    sum.push_back(static_cast<float>(first + rows * more));
    mean.push_back(first / rows + more);
    max.push_back(static_cast<std::int32_t>(largest + more));
  }
  return {.sum = {sum, sr::Shape{elements}}, .mean = {mean, sr::Shape{elements}}, .max = {max, sr::Shape{elements}}};
}

/// The workers of each node reduce large outputs, and the master combines what the nodes have.
void reduce_large_outputs(sr::Session& session) {
  const auto f = session.function(large, "large");
  for (const std::int64_t rows : {4, 7, 100}) {  // with 4, some ranks have none
    std::vector<double> values(static_cast<std::size_t>(rows));
    std::iota(values.begin(), values.end(), 0.0);
    const auto x = session.data(values, sr::Shape{rows, 1}, "x");
    const auto all = static_cast<double>(rows * (rows - 1)) / 2;
    for (const int slices : {1, 2}) {
      const Large result = f(x, -1, {.slices = slices});
      const auto sum = result.sum.to_vector();
      const auto mean = result.mean.to_vector();
      const auto max = result.max.to_vector();
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const auto more = static_cast<double>(i % 7);
        const auto count = static_cast<double>(rows);
        require(sum[i] == static_cast<float>(all + count * more), "the sum of large outputs");
        require(std::abs(mean[i] - (all / count + more)) < 1e-12 * count, "the average of large outputs");
        require(max[i] == static_cast<std::int32_t>(count - 1 + more), "the maximum of large outputs");
      }
    }
    if (rows != 100) continue;
    for (const int longer_on : {0, session.world_size() - 1}) {
      std::string refused;
      try {
        f(x, longer_on);
      } catch (const sr::Error& error) {
        refused = error.what();
      }
      require(refused.find("has shape") != std::string::npos, "large outputs of two shapes are refused");
    }
  }
}

void calls(sr::Session& session) {
  const auto seen = session.function(places)().to_vector();
  for (const std::int64_t place : seen) std::printf("%d ", static_cast<int>(place));
  std::printf("\n");
  constexpr std::int64_t kRows = 1000, kWidth = 20;
  std::vector<double> values(kRows * kWidth);
  std::iota(values.begin(), values.end(), 0.0);
  std::vector<double> factors(kWidth);
  std::iota(factors.begin(), factors.end(), 1.0);
  auto x = session.data(values, sr::Shape{kRows, kWidth}, "x");
  auto y = session.data(factors, sr::Shape{kWidth}, "y");
  const auto f = session.function(sums, "sums");
  std::vector<std::int64_t> order(kRows);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(1);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::shuffle(order.begin(), order.end(), random);
    for (std::int64_t begin = 0; begin < kRows; begin += 100) {
      const std::vector<std::int64_t> batch(order.begin() + begin, order.begin() + begin + 100);
      const auto result = f(x, y, 0.0, {.batch = batch, .slices = epoch + 1});
      require(std::abs(result.sum.value() - serial_sum(values, kWidth, batch)) < 1e-6, "the sum of a batch");
      require(result.doubled.to_vector().size() == 100, "the rows of a batch");
    }
    x.set_rows(0, std::vector<double>(2 * kWidth, epoch));
    std::fill_n(values.begin(), 2 * kWidth, epoch);
  }
  auto first = f.on_rank(0).async(x, y, 0.0);
  auto last = f.on_rank(session.world_size() - 1).async(x, y, 0.0);
  require(first.get().sum.value() == last.get().sum.value(), "one rank gets the same as another one");
  auto counter = session.replicate<Counter>(std::int64_t{10});
  const auto count = session.function(&Counter::count, counter, "count");
  count();
  require(count().value() == 12 * session.world_size(), "replicated objects");
  const auto length = session.function([](std::string_view text) -> sr::Sum<std::int64_t> {
    return {text.find_first_not_of('t') == std::string_view::npos ? static_cast<std::int64_t>(text.size()) : -1};
  });
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{1} << 20U}) {
    require(length(std::string(bytes, 't')).value() == static_cast<std::int64_t>(bytes) * session.world_size(),
            "a text on every rank");
  }
  reduce_large_outputs(session);
  std::printf("as expected on %s\n",
              [&] {
                std::string nodes;
                for (const auto& node : session.nodes()) nodes += node + " ";
                return nodes;
              }()
                  .c_str());
}

struct Means {
  sr::Avg<double> mean;
  sr::Gather<std::int64_t, 1> rows;
};

Means means(sr::CpuWorker&, sr::Scattered<const double, 2> x) {
  double sum = 0;
  for (std::int64_t row = 0; row < x.rows(); ++row) sum += x(row, 0);
  return {.mean = sum / static_cast<double>(x.rows()), .rows = {std::vector<std::int64_t>{x.rows()}, sr::Shape{1}}};
}

/// Prints the rows of each rank, and the average over all rows.
void divide_by_weights(sr::Session& session) {
  std::vector<double> values(1200);
  std::iota(values.begin(), values.end(), 0.0);
  const auto x = session.data(values, sr::Shape{1200, 1}, "x");
  session.set_weights({1, 1, 2, 2, 3, 3});
  const auto result = session.function(means, "means")(x);
  for (const std::int64_t rows : result.rows.to_vector()) std::printf("%d ", static_cast<int>(rows));
  std::printf("mean %.17g\n", result.mean.value());
}

/// Measures ranks of all nodes, and asks for the memory of their devices.
void measure_ranks(sr::Session& session) {
  std::vector<double> values(1200);
  std::iota(values.begin(), values.end(), 0.0);
  const auto x = session.data(values, sr::Shape{1200, 1}, "x");
  const auto f = session.function(means, "means");
  const auto weights = session.balance(f, x);
  std::printf("%d weights, sum %.3f\n", static_cast<int>(weights.size()),
              std::accumulate(weights.begin(), weights.end(), 0.0));
  const auto result = f(x);
  const auto rows = result.rows.to_vector();
  std::printf("%d rows, mean %.17g\n", static_cast<int>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})),
              result.mean.value());
  for (int rank = 0; rank < session.world_size(); ++rank) {
    const auto value = session.value(std::vector<double>(1 << 17), sr::Shape{1 << 17}, session.device(rank));
    const auto memory = session.memory(session.device(rank));
    const bool has_value = std::ranges::any_of(
        memory.arrays, [](const sr::ArrayInMemory& array) { return array.is_value && array.bytes == 1 << 20; });
    std::printf(
        "rank %d: %s\n", rank,
        has_value && memory.free_bytes > 0 && memory.free_bytes < memory.total_bytes ? "a value of 1 MiB" : "no value");
  }
}

/// Ten epochs of shuffled batches over an array that does not change.
void run_epochs(sr::Session& session) {
  constexpr std::int64_t kRows = 4096, kWidth = 512, kBatch = 256;  // 16 MiB
  std::vector<double> values(kRows * kWidth, 1);
  const auto x = session.data(values, sr::Shape{kRows, kWidth}, "x");
  const auto f = session.function(means, "means");
  f(x, {.batch = std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}});
  say("the epochs begin");
  await_line();
  std::vector<std::int64_t> order(kRows);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(1);
  for (int epoch = 0; epoch < 10; ++epoch) {
    std::shuffle(order.begin(), order.end(), random);
    for (std::int64_t begin = 0; begin < kRows; begin += kBatch) {
      const std::vector<std::int64_t> batch(order.begin() + begin, order.begin() + begin + kBatch);
      require(f(x, {.batch = batch}).mean.value() == 1, "the average of a batch");
    }
  }
  say("the epochs are over");
  await_line();
}

/// Rank r sleeps for 10 r ms.
void sleep_by_rank(sr::CpuWorker& worker) {
  std::this_thread::sleep_for(std::chrono::milliseconds(10 * worker.rank()));
}

sr::Sum<double> meet(sr::Comm& comm) { return {comm.all_reduce(1.0, sr::Reduction::sum)}; }

/// Prints how often each rank was in each function, and the medians in ms.
void profile(sr::Session& session) {
  const auto sleep = session.function(sleep_by_rank, "sleep_by_rank");
  const auto sum = session.function(meet, "meet");
  for (int i = 0; i < 5; ++i) sleep();
  for (int i = 0; i < 50; ++i) sum();
  std::vector<sr::Future<void>> last;
  for (int i = 0; i < 10; ++i) last.push_back(sleep.on_rank(session.world_size() - 1).async());
  for (auto& call : last) call.get();
  const auto ms = [](const sr::PhaseTimes& times) { return static_cast<double>(times.median.count()) / 1e6; };
  for (const sr::CallProfile& line : session.profile()) {
    std::printf("%s on rank %d: %d calls, whole %.3f, function %.3f, collective %.3f\n", line.name.c_str(), line.rank,
                static_cast<int>(line.calls), ms(line.whole), ms(line.function), ms(line.collective));
  }
}

void print_input(sr::Session&) {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  std::printf("input %zu\n", text.size());
}

int program(sr::Session& session, int argc, char** argv) {
  const std::string action = argc > 1 ? argv[1] : "";
  const double number = argc > 2 ? std::atof(argv[2]) : 0;
  if (action == "calls") calls(session);
  else if (action == "input") print_input(session);
  else if (action == "weights") divide_by_weights(session);
  else if (action == "measure") measure_ranks(session);
  else if (action == "epochs") run_epochs(session);
  else if (action == "profile") profile(session);
  else if (action == "words") {
    for (int i = 2; i < argc; ++i) std::printf("[%s]", argv[i]);
    std::printf("\n");
  } else if (action == "exit") return static_cast<int>(number);
  else if (action == "fail") session.function(fail_on, "fail_on")(static_cast<int>(number));
  else if (action == "abort") session.function(abort_on, "abort_on")(static_cast<int>(number));
  else if (action == "body") {
    say("in the body");
    session.function(sleep_for, "sleep_for")(number);
  } else if (action == "idle") {
    session.function(nothing, "nothing")();
    say("idle");
    std::this_thread::sleep_for(std::chrono::duration<double>(number));
    session.function(nothing, "nothing")();
  } else if (action == "stream") {  // one call after another
    const auto f = session.function(nothing, "nothing");
    f();
    say("streaming");
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(number);
    while (std::chrono::steady_clock::now() < end) f();
  } else if (action == "map" || action == "map-raw") {  // the header of the .npy file has 128 bytes
    auto x = action == "map" ? session.map_npy<double, 2>(argv[2], "x")
                             : session.map_raw<double, 2>(argv[2], {-1, 2}, 128, "x");
    const std::vector<double> factors(static_cast<std::size_t>(x.shape()[1]), 1);
    auto y = session.data(factors, sr::Shape{x.shape()[1]}, "y");
    std::printf("sum %g\n", session.function(sums, "sums")(x, y, 0.0).sum.value());
  } else if (action == "fresh") {  // rows of as many MiB
    const auto rows = static_cast<std::int64_t>(number);
    const auto x =
        session.data(std::vector<double>(static_cast<std::size_t>(rows) << 17U, 1), sr::Shape{rows, 1 << 17}, "x");
    std::printf("mean %g\n", session.function(means, "means")(x).mean.value());
  } else {
    namespace test = sr::test;
    const test::Words words(argv + std::min(argc, 2), argv + argc);
    if (action == "train") return test::train(session, words);
    if (!test::run_checkpoints(session, action, words) && !test::run_collectives(session, action, words) &&
        !test::run_producers(session, action, words) && !test::run_respawns(session, action, words) &&
        !test::run_signals(session, action, words) && !test::run_steps(session, action, words) &&
        !test::use_data(session, action, words) && !test::use_shared_variables(session, action) &&
        !test::use_values(session, action, words)) {
      throw std::invalid_argument("no such action: " + action);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  sr::SessionOptions options;
  const std::string_view action = argc > 1 ? argv[1] : "";
  if (action.starts_with("respawn")) {
    options.on_worker_lost = sr::OnWorkerLost::respawn;
    options.max_respawns = 1000;
  }
  if (action == "respawn-in-vain" && std::filesystem::exists(argv[3])) return 7;  // this is a new worker
  if (action == "stop-late") sr::test::wait_at_birth(argv[3]);
  return sr::run(argc, argv, program, options);
}
