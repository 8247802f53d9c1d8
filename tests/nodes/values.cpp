#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/nodes/actions.hpp"

namespace syncrun::test {

namespace {

using Clock = std::chrono::steady_clock;

/// Tests values in a message, and larger ones.
constexpr std::int64_t kLengths[] = {0, 5, 200'000};

Keep<double, 1> count_from(CpuWorker& worker, std::int64_t first, std::int64_t count) {
  Keep<double, 1> result(worker, {count});
  for (std::int64_t i = 0; i < count; ++i) result[i] = static_cast<double>(first + i);
  return result;
}

Keep<double, 1> add(CpuWorker& worker, Local<const double, 1> x, Local<const double, 1> y) {
  Keep<double, 1> result(worker, x.shape());
  for (std::int64_t i = 0; i < x.rows(); ++i) result[i] = x[i] + y[i];
  return result;
}

void increase(Local<double, 1> x, double number) {
  for (std::int64_t i = 0; i < x.rows(); ++i) x[i] += number;
}

void add_to(Local<double, 1> x, Local<const double, 1> y) {
  for (std::int64_t i = 0; i < x.rows(); ++i) x[i] += y[i];
}

struct Total {
  Sum<double> sum;
};

Total total(CpuWorker&, Local<const double, 1> x) {
  double sum = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) sum += x[i];
  return {.sum = sum};
}

Total total_of_rows(CpuWorker&, Sliced<const double, 1> x) {
  double sum = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) sum += x(i);
  return {.sum = sum};
}

Keep<double, 1> broken(CpuWorker& worker, std::int64_t count) {
  if (count >= 0) throw std::runtime_error("it broke");
  return {worker, {count}};
}

void sleep_for(CpuWorker&, double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

Keep<double, 1> make_slowly(CpuWorker& worker, double seconds) {
  sleep_for(worker, seconds);
  return {worker, {3}};
}

std::vector<double> counted(std::int64_t first, std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), static_cast<double>(first));
  return values;
}

double sum_of(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

/// Each rank reads a value and writes it, in turn. Nothing waits until the end.
void check_moves(Session& session, std::int64_t length) {
  std::vector<double> expected = counted(0, length);
  const int n = session.world_size();
  const auto x = session.value(expected, Shape{length}, session.device(n - 1), "x");
  require(x.get().to_vector() == expected, "a value on another node");
  const auto f = session.function(total, "total");
  for (int rank = 0; rank < n; ++rank) {
    x.to(session.device(rank));
    require(f.on_rank(rank)(x).sum.value() == sum_of(expected), "a value that was moved");
  }
  require(static_cast<int>(x.where().size()) == n, "where the copies are");
  const auto write = session.function(increase, "increase");
  for (int i = 0; i < 5 * n; ++i) write.on(session.device(i * 5 % n))(x, 1.0);
  for (double& value : expected) value += 5 * n;
  require(x.get().to_vector() == expected, "a value that all ranks have written in turn");
  require(x.where().size() == 1, "the only valid copy is that of the last writer");
  require(f(x).sum.value() == n * sum_of(expected), "all ranks read a value in one call");
  if (length != 0)
    require(session.function(total_of_rows, "total_of_rows")(x).sum.value() == n * sum_of(expected),
            "rows of each copy");
  write.on(session.device(n / 2))(x, 1.0);
  for (double& value : expected) value += 1;
  require(f(x).sum.value() == n * sum_of(expected), "all ranks read a value that was written since");
}

/// Bodies make values from those of other nodes, before the master knows their shapes.
void check_kept(Session& session, std::int64_t length) {
  const int n = session.world_size();
  const auto make = session.function(count_from, "count_from");
  const auto sum = session.function(add, "add");
  std::vector<Value<double, 1>> parts;
  for (int rank = 0; rank < n; ++rank) parts.push_back(make.on(session.device(rank))(rank, length));
  auto all = sum.on(session.device(n - 1))(parts[0], parts[1]);
  for (int rank = 2; rank < n; ++rank)
    all = sum.on(session.device((rank * 3 + 1) % n))(all, parts[static_cast<std::size_t>(rank)]);
  const auto values = all.get().to_vector();
  require(static_cast<std::int64_t>(values.size()) == length && all.shape()[0] == length, "the shape of a kept result");
  for (std::int64_t i = 0; i < length; ++i)
    require(values[static_cast<std::size_t>(i)] == static_cast<double>(n * (n - 1) / 2 + n * i),
            "a chain of kept results");
}

/// Copies go to the memory of the master's node and back.
void check_host(Session& session, std::int64_t length) {
  const int n = session.world_size();
  std::vector<double> expected = counted(1, length);
  const auto x = session.value(expected, Shape{length});
  const auto write = session.function(increase, "increase");
  const auto f = session.function(total, "total");
  for (int i = 0; i < 2 * n; ++i) {
    const auto device = session.device((i * 2 + 1) % n);
    require(f(x).sum.value() == n * sum_of(expected), "all ranks read what is on the host");
    write.on(device)(x, 1.0);
    x.to_host();
    write.on(session.device(i % n))(x, 1.0);
    x.to_host();
    for (double& value : expected) value += 2;
    require(x.is_on_host(), "a copy on the host");
    auto fetched = x.get_async();
    write.on(device)(x, 1.0);
    require(fetched.get().to_vector() == expected, "what was fetched before the last write");
    for (double& value : expected) value += 1;
    require(x.get().to_vector() == expected, "a value that was on the host");
  }
}

void check_pinned(Session& session) {
  auto x = session.value(counted(0, 4), Shape{4}, session.device(0));
  const int last = session.world_size() - 1;
  x.pin(session.device(last));
  bool has_thrown = false;
  try {
    session.function(increase, "increase").on(session.device(0))(x, 1.0);
  } catch (const Error& error) {
    has_thrown = error.kind() == ErrorKind::usage;
  }
  require(has_thrown, "a pinned value does not move");
  session.function(increase, "increase").on(session.device(last))(x, 1.0);
  x.unpin();
  require(x.get().to_vector() == counted(1, 4), "a value that was pinned");
}

/// Ranks copy shared variables from those of other nodes, and both write them afterwards.
void check_shared(Session& session, std::int64_t length) {
  const int n = session.world_size();
  auto x = session.shared("copied", counted(0, length), Shape{length});
  const auto write = session.function(increase, "increase");
  write.on_rank(n - 1)(x, 100.0);
  x.copy(n - 1, 0);
  write.on_rank(n - 1)(x, 1.0);  // waits for the copy
  x.copy(0, 2);
  write.on_rank(2)(x, 1000.0);
  write(x, 0.0);
  require(x.get(0).to_vector() == counted(100, length), "a copy from another node");
  require(x.get(n - 1).to_vector() == counted(101, length), "the source writes after the copy");
  require(x.get(2).to_vector() == counted(1100, length), "a copy of a copy");
  x.set(1, counted(7, 3));
  x.copy(1, n - 1);
  require(x.get(n - 1).to_vector() == counted(7, 3), "a copy with another shape");
}

void check_failures(Session& session) {
  const int n = session.world_size();
  const auto make = session.function(broken, "broken");
  const auto sum = session.function(add, "add");
  for (const int from : {0, 2, n - 1}) {
    const auto bad = make.on(session.device(from))(3);
    const auto good = session.function(count_from, "count_from").on(session.device(1))(0, 3);
    const auto next = sum.on(session.device((from + 2) % n))(bad, good);
    const auto last = sum.on(session.device((from + 4) % n))(good, next);
    std::string why;
    try {
      static_cast<void>(last.get());
    } catch (const Error& error) {
      why = error.what();
    }
    require(why.find("it broke") != std::string::npos, "the failure of a value: " + why);
    require(why.find("rank " + std::to_string(from)) != std::string::npos, "the rank that has failed: " + why);
    require(good.get().to_vector() == counted(0, 3), "another value after a failure");
  }
}

/// A rank that has a value takes no part when others copy it.
void check_busy_source(Session& session) {
  for (const int source : {0, 2}) {
    const auto f = session.function(total, "total");
    bool is_copied_at_once = false;
    for (double busy_s = 2; !is_copied_at_once; busy_s *= 2) {  // this machine may be busy too
      require(busy_s <= 32, "a busy rank held up a copy of its value");
      const auto x = session.value(counted(0, 1000), Shape{1000}, session.device(source));
      require(x.get().to_vector() == counted(0, 1000), "a value of a rank");
      const auto begin = Clock::now();
      session.function(sleep_for, "sleep_for").on(session.device(source))(busy_s);
      require(f.on_rank(session.world_size() - 1)(x).sum.value() == 999 * 500, "a value of a busy rank");
      is_copied_at_once = Clock::now() - begin < std::chrono::duration<double>(busy_s * 0.95);
      session.synchronize(session.device(source));
    }
  }
}

/// Calls on all ranks in a random order, without a wait.
void check_at_random(Session& session, unsigned seed) {
  constexpr int kValues = 4;
  constexpr std::int64_t kLength = 20'000;
  std::mt19937 random(seed);
  const auto up_to = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  std::vector<Value<double, 1>> values;
  std::vector<double> expected;  // the first element of each value; the others follow it
  std::vector<double> factors(kValues, 1);
  for (int i = 0; i < kValues; ++i) {
    values.push_back(session.value(counted(i, kLength), Shape{kLength}, session.device(up_to(session.world_size()))));
    expected.push_back(i);
  }
  const auto write = session.function(increase, "increase");
  const auto accumulate = session.function(add_to, "add_to");
  for (int step = 0; step < 300; ++step) {
    const auto a = static_cast<std::size_t>(up_to(kValues));
    const auto b = static_cast<std::size_t>((static_cast<int>(a) + 1 + up_to(kValues - 1)) % kValues);
    const auto device = session.device(up_to(session.world_size()));
    switch (up_to(6)) {
      case 0: values[a].to(device); break;
      case 1: values[a].to_host(); break;
      case 2:
        write.on(device)(values[a], 1.0);
        expected[a] += 1;
        break;
      case 3:
        if (factors[a] + factors[b] > 1e6) break;
        accumulate.on(device)(values[a], values[b]);
        expected[a] += expected[b];
        factors[a] += factors[b];
        break;
      case 4:
        values[a] = session.function(count_from, "count_from").on(device)(step, kLength);
        expected[a] = step;
        factors[a] = 1;
        break;
      default:
        if (step % 7 == 0) require(values[a].get()(0) == expected[a], "a value at random");
    }
  }
  for (std::size_t i = 0; i < kValues; ++i) {
    const auto result = values[i].get();
    for (std::int64_t at = 0; at < kLength; ++at)
      require(result(at) == expected[i] + factors[i] * static_cast<double>(at), "values after random calls");
  }
}

/// Makes, moves, reads and writes values on the ranks of all nodes, and compares them with what one process computes.
void use_everywhere(Session& session) {
  for (const std::int64_t length : kLengths) {
    check_moves(session, length);
    check_kept(session, length);
    check_host(session, length);
    if (length != 0) check_shared(session, length);
  }
  check_pinned(session);
  check_failures(session);
  check_busy_source(session);
  for (unsigned seed = 1; seed <= 3; ++seed) check_at_random(session, seed);
}

/// Brings more values to the last rank than its node has memory for, while the rank is busy. Prints why calls have failed.
void bring_too_much(Session& session) {
  constexpr std::int64_t kLength = 5 << 18;  // 10 MiB
  const auto last = session.device(session.world_size() - 1);
  const auto f = session.function(total, "total").on_rank(last.rank());
  std::vector<Value<double, 1>> values;
  for (int i = 0; i < 16; ++i)
    values.push_back(session.value(counted(0, kLength), Shape{kLength}, session.device(i % 4)));
  session.function(sleep_for, "sleep_for").on(last)(0.5);
  for (const auto& value : values) value.to(last);
  for (const auto& value : values) {
    try {
      require(f(value).sum.value() == static_cast<double>(kLength) * (kLength - 1) / 2, "a value that has room");
      std::printf("it has room\n");
    } catch (const Error& error) {
      std::printf("%s\n", error.what());
    }
  }
  require(values.back().get().shape()[0] == kLength, "the value is still where it was");
}

/// Brings a value from rank 2, which makes it for so many seconds, to the last rank, and waits for it there. Says when
/// the value is on its way.
void await_value(Session& session, double seconds) {
  const auto x = session.function(make_slowly, "make_slowly").on(session.device(2))(seconds);
  const auto y = session.function(add, "add").on(session.device(session.world_size() - 1))(x, x);
  say("the value is on its way");
  std::printf("%g\n", y.get()(0));
}

}  // namespace

bool use_values(Session& session, const std::string& action, const Words& words) {
  if (action == "values") use_everywhere(session);
  else if (action == "too-much") bring_too_much(session);
  else if (action == "await-value") await_value(session, std::stod(words.at(0)));
  else return false;
  std::printf("as expected\n");
  return true;
}

}  // namespace syncrun::test
