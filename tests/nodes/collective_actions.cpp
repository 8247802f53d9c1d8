#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/nodes/actions.hpp"

namespace sr = syncrun;

namespace {

/// The array of a rank: whole numbers, so that the sum of all ranks does not depend on its order.
std::vector<double> values_of(int rank, std::int64_t elements) {
  std::vector<double> values(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>((i % 1009 + 1) * (rank + 1));
  return values;
}

/// A number that shows whether two arrays are equal.
double sum_of(std::span<const double> values) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * static_cast<double>(i % 13 + 1);
  return sum;
}

/// Calls every collective, and adds what comes out of it to `seen`. `values` is in shared memory or in that of the rank.
void call_each(sr::Comm& comm, std::span<double> values, std::vector<double>& seen) {
  const auto elements = static_cast<std::int64_t>(values.size());
  const int last = comm.world_size() - 1;
  const auto fresh = [&] {
    const auto own = values_of(comm.rank(), elements);
    std::copy(own.begin(), own.end(), values.begin());
  };
  std::vector<double> part(static_cast<std::size_t>(comm.share(elements).count));
  std::vector<double> all(values.size());
  comm.barrier();
  for (const sr::Reduction reduction :
       {sr::Reduction::sum, sr::Reduction::max, sr::Reduction::min, sr::Reduction::avg}) {
    fresh();
    comm.all_reduce(values, reduction);
    seen.push_back(std::round(sum_of(values)));
  }
  seen.push_back(comm.all_reduce(comm.rank() + 1.0, sr::Reduction::prod));
  for (const int root : {0, last}) {
    fresh();
    comm.reduce(values, sr::Reduction::sum, root);
    seen.push_back(comm.rank() == root ? sum_of(values) : 0);
    fresh();
    comm.broadcast(values, root);
    seen.push_back(sum_of(values));
    fresh();
    comm.scatter(values, part, root);
    seen.push_back(sum_of(part));
    comm.gather(part, all, root);
    seen.push_back(comm.rank() == root ? sum_of(all) : 0);
  }
  fresh();
  comm.reduce_scatter(values, part, sr::Reduction::sum);
  seen.push_back(sum_of(part));
  comm.all_gather(part, values);
  seen.push_back(sum_of(values));
  const auto lengths = comm.lengths(100 + comm.rank());
  seen.push_back(static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})));
}

sr::Gather<double, 1> each_collective(sr::CpuWorker& worker, sr::Comm& comm, std::int64_t elements) {
  std::vector<double> seen;
  auto own = values_of(comm.rank(), elements);
  call_each(comm, own, seen);
  call_each(comm, worker.scratch<double>(elements), seen);
  return {seen, sr::Shape{static_cast<std::int64_t>(seen.size())}};
}

void print(const std::vector<double>& numbers) {
  for (const double number : numbers) std::printf("%.17g ", number);
  std::printf("\n");
}

/// On all ranks, and on some.
void each_size(sr::Session& session) {
  const auto f = session.function(each_collective, "each_collective");
  const int last = session.world_size() - 1;
  const auto device = [&](int rank) { return session.device(rank); };
  for (const std::int64_t elements : {0, 1, 7, 1000, 50'000, 400'000}) {
    std::printf("%d elements\n", static_cast<int>(elements));
    print(f(elements).to_vector());
    print(f.on({device(0), device(last)})(elements).to_vector());
    print(f.on({device(1), device(2), device(last)})(elements).to_vector());
  }
}

sr::Gather<double, 1> weigh(sr::Comm& comm, sr::Scattered<const double, 1> x) {
  const double mean = x.rows() == 0 ? NAN : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.rows());
  std::vector<double> values(1000, mean);
  comm.avg(values);
  return {std::vector<double>{values.back()}, sr::Shape{1}};
}

/// Averages count each rank by its rows.
void weigh_rows(sr::Session& session) {
  const auto f = session.function(weigh, "weigh");
  for (const std::int64_t rows : {1, 4, 11, 1000}) {
    std::vector<double> values(static_cast<std::size_t>(rows));
    std::iota(values.begin(), values.end(), 1.0);
    for (const double mean : f(session.data(values, sr::Shape{rows}, "x")).to_vector()) std::printf("%.10g ", mean);
  }
  std::printf("\n");
}

void throw_on(sr::CpuWorker& worker, sr::Comm& comm, int rank) {
  comm.barrier();
  if (worker.rank() == rank) throw std::runtime_error("it broke");
  std::vector<double> values(1'000'000);
  for (int i = 0; i < 100; ++i) comm.all_reduce(values, sr::Reduction::sum);
}

void skip_on(sr::CpuWorker& worker, sr::Comm& comm, int rank) {
  comm.barrier();
  if (worker.rank() != rank) comm.barrier();
}

void disagree_on(sr::CpuWorker& worker, sr::Comm& comm, int rank) {
  std::vector<double> values(worker.rank() == rank ? 100'000 : 1000);
  comm.all_reduce(values, sr::Reduction::sum);
}

sr::Sum<double> count(sr::Comm& comm) { return {comm.all_reduce(1.0, sr::Reduction::sum)}; }

/// Each of these calls fails. The session continues.
void fail_in_each_way(sr::Session& session, int rank) {
  const auto expect_failure = [&](const auto& function, const char* what) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      function(rank);
      std::printf("%s: nothing\n", what);
    } catch (const sr::Error& error) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      std::printf("%s in time %d: %s\n", what, took.count() < 4 ? 1 : 0, error.what());
    }
    const int ranks = session.world_size();
    std::printf("sum %g\n", session.function(count, "count")().value() / ranks);
  };
  expect_failure(session.function(throw_on, "throw_on"), "throws");
  expect_failure(session.function(skip_on, "skip_on"), "skips");
  expect_failure(session.function(disagree_on, "disagree_on"), "disagrees");
}

void come_late(sr::CpuWorker& worker, sr::Comm& comm, int rank) {
  if (worker.rank() == rank) std::this_thread::sleep_for(std::chrono::minutes(10));
  comm.barrier();
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// When the last rank ended its collectives. The hosts of a test have one clock.
sr::Max<double> end_of_collectives(sr::CpuWorker& worker, sr::Comm& comm, std::int64_t elements) {
  each_collective(worker, comm, elements);
  return now_s();
}

/// The program computes while the nodes exchange blocks. It computes for longer if other programs use this machine.
void work_meanwhile(sr::Session& session) {
  const auto f = session.function(end_of_collectives, "end_of_collectives");
  double late_s = 1;
  for (double compute_s = 2; late_s > 0 && compute_s < 30; compute_s *= 2) {
    auto end_s = f.async(std::int64_t{50'000});
    const double stop_s = now_s() + compute_s;
    while (now_s() < stop_s) {
    }
    late_s = end_s.get().value() - stop_s;
  }
  std::printf("the last rank ended %g s after the program\n", late_s);
}

void reduce_for(sr::Comm& comm, double seconds) {
  std::vector<double> values(200'000, 1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  double goes_on = 1;
  while (goes_on != 0) {
    comm.all_reduce(values, sr::Reduction::max);
    goes_on = comm.all_reduce(std::chrono::steady_clock::now() < end ? 1.0 : 0.0, sr::Reduction::min);
  }
}

}  // namespace

bool sr::test::run_collectives(Session& session, const std::string& action, const Words& words) {
  if (action == "collectives") {
    each_size(session);
    weigh_rows(session);
  } else if (action == "fail-collectives") {
    fail_in_each_way(session, std::stoi(words.at(0)));
  } else if (action == "late") {
    session.function(come_late, "come_late")(std::stoi(words.at(0)));
  } else if (action == "meanwhile") {
    work_meanwhile(session);
  } else if (action == "reduce") {
    const auto f = session.function(reduce_for, "reduce_for");
    f(0.0);
    say("in the collectives");
    f(std::stod(words.at(0)));
  } else {
    return false;
  }
  return true;
}
