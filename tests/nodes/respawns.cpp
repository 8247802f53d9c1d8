#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/nodes/actions.hpp"

namespace syncrun::test {

namespace {

using Names = std::vector<std::string>;

/// Where a rank dies: the others wait for it in a collective, have passed one, or need no other rank.
enum class Where : int { before_a_collective, among_many, after_one, without_one };
constexpr Where kEverywhere[] = {Where::before_a_collective, Where::among_many, Where::after_one, Where::without_one};

void lose(CpuWorker& worker, Comm& comm, int rank, Where where) {
  std::vector<double> values(100'000, 1);
  if (where == Where::after_one) comm.barrier();
  for (int i = 0; where == Where::among_many && i < 20; ++i) {
    if (worker.rank() == rank && i == 7) std::raise(SIGKILL);
    comm.all_reduce(values, Reduction::max);
  }
  if (worker.rank() == rank) std::raise(SIGKILL);
  if (where == Where::before_a_collective) comm.all_reduce(values, Reduction::max);
}

/// All of these ranks die at about the same time. Before that, all ranks have passed the barrier: otherwise the first death
/// would let the others give the call up.
void lose_set(CpuWorker& worker, Comm& comm, std::int64_t set) {
  comm.barrier();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  if ((set >> worker.rank() & 1) != 0) std::raise(SIGKILL);
  comm.barrier();
}

Stack<double> meet(CpuWorker& worker, Comm& comm, std::int64_t elements) {
  std::vector<double> values(static_cast<std::size_t>(elements), worker.rank() + 1.0);
  comm.all_reduce(values, Reduction::sum);
  return values.back() + comm.all_reduce(1.0, Reduction::sum);
}

Sum<double> sum_of_rows(Scattered<const double, 1> x) { return std::accumulate(x.begin(), x.end(), 0.0); }

void add_one(CpuWorker& worker, Update<op::sum, double, 1> w, int rank) {
  w.value()[0] = w.original()[0] + 1;
  if (worker.rank() == rank) std::raise(SIGKILL);
}

void half_write(CpuWorker& worker, Comm& comm, Local<double, 1> w, int rank) {
  w[0] = 7;
  if (worker.rank() == rank) std::raise(SIGKILL);
  comm.barrier();
}

Keep<double, 1> twice(CpuWorker& worker, Local<const double, 1> x) {
  Keep<double, 1> result(worker, x.shape());
  for (std::int64_t i = 0; i < x.rows(); ++i) result[i] = 2 * x[i];
  return result;
}

Keep<double, 1> make_or_die(CpuWorker& worker, double seconds, bool dies) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  if (dies) std::raise(SIGKILL);
  Keep<double, 1> result(worker, {3});
  std::fill_n(result.data(), 3, 1.0);
  return result;
}

Sum<double> sum_of(Local<const double, 1> x) { return std::accumulate(x.begin(), x.end(), 0.0); }

class Counter {
 public:
  explicit Counter(int start) : count_(start) {}
  Sum<int> add(int number) { return count_ += number; }

 private:
  int count_;
};

/// Returns the error about the loss of this rank.
template <class Call>
Error loss_of(int rank, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::worker_lost && error.rank() == rank, error.what());
    return error;
  }
  throw std::runtime_error("not as expected: rank " + std::to_string(rank) + " was not lost");
}

std::vector<double> copy_on(const Shared<double, 1>& variable, int rank) {
  const auto values = variable.get(rank);
  return {values.begin(), values.end()};
}

class Losses {
 public:
  explicit Losses(Session& session) : session_(session), ranks_(session.world_size()) {}

  /// Every rank meets every other one, and rows travel.
  void check_usable() {
    const double sum = ranks_ * (ranks_ + 1) / 2 + ranks_;
    for (const std::int64_t elements : {1, 10'000, 300'000}) {
      for (const double result : meet_(elements).to_vector()) require(result == sum, "collectives after a loss");
    }
    std::vector<double> values(1000);
    std::iota(values.begin(), values.end(), 0);
    require(sum_(session_.data(values, Shape{1000}, "fresh")).value() == 499'500, "new rows after a loss");
    require(sum_(old_rows_).value() == 100'000, "old rows after a loss");
  }

  void give_the_rank_to_a_new_worker(int rank, Where where) {
    const auto before = session_.worker_pids();
    const Error error = loss_of(rank, [&] { lose_(rank, where); });
    const auto after = session_.worker_pids();
    require(error.failure().call == "lose" && error.failure().pid == before[at(rank)], "the lost worker");
    require(error.failure().respawned_pid == after[at(rank)], "the new worker");
    for (int other = 0; other < ranks_; ++other)
      require((after[at(other)] != before[at(other)]) == (other == rank), "only this worker is new");
    check_usable();
  }

  void restore_variables(int rank) {
    auto w = session_.shared<double, 1>("w");
    auto rows = session_.shared<double, 1>("rows");
    w.broadcast(std::vector<double>{1, 2, 3});
    std::vector<double> values(20'000);
    std::iota(values.begin(), values.end(), 0);
    rows.scatter(values);
    const Error error = loss_of(rank, [&] { lose_(rank, Where::before_a_collective); });
    require(error.failure().restored == Names{"w"} && error.failure().undefined == Names{"rows"}, error.what());
    require(copy_on(w, rank) == std::vector<double>{1, 2, 3}, "a variable that was restored");
    require(rows.lengths()[at(rank)] == 0, "rows that are gone");
    rows.scatter(values);
    const auto gathered = rows.gather();
    require(std::equal(gathered.begin(), gathered.end(), values.begin(), values.end()), "rows after a loss");
    w.all_reduce(Reduction::sum);
    require(copy_on(w, rank)[2] == 3.0 * ranks_, "the master's all_reduce after a loss");
    const Error half = loss_of(rank, [&] { half_write_(w, rank); });
    require(half.failure().undefined.front() == "w", half.what());
  }

  void commit_on_all_or_none(int rank) {
    auto w = session_.shared<double, 1>("counts");
    w.broadcast(std::vector<double>{0});
    add_one_(w, -1);
    loss_of(rank, [&] { add_one_(w, rank); });
    for (int other = 0; other < ranks_; ++other) require(w.get(other)[0] == 1, "an update of a lost call");
    add_one_(w, -1);
    for (int other = 0; other < ranks_; ++other) require(w.get(other)[0] == 2, "an update after a loss");
  }

  void build_objects_anew(int rank) {
    const auto counter = session_.replicate<Counter>(10);
    const auto add = session_.function(&Counter::add, counter, "add");
    require(add(5).value() == 15 * ranks_, "objects");
    loss_of(rank, [&] { lose_(rank, Where::without_one); });
    require(add(0).value() == 15 * (ranks_ - 1) + 10, "objects after a loss");
  }

  /// The lost rank is the source and the destination of moves between nodes, before and after.
  void lose_only_its_values(int rank) {
    const int other = (rank + ranks_ / 2) % ranks_;
    const auto f = session_.function(twice, "twice");
    const auto g = session_.function(sum_of, "total");
    const auto x = session_.value(std::vector<double>(1000, 1), Shape{1000}, session_.device(rank), "x");
    const auto only = f.on(session_.device(rank))(x);
    const auto copied = f.on(session_.device(rank))(x);
    require(g.on_rank(other)(copied) == 2000, "a move between nodes");
    loss_of(rank, [&] { lose_(rank, Where::after_one); });
    require(copied.get()(999) == 2, "a value that was on two ranks");
    loss_of(-1, [&] { static_cast<void>(only.get()); });
    require(g.on_rank(rank)(copied) == 2000, "a move to a new worker");
    const auto more = f.on(session_.device(rank))(copied);
    require(g.on_rank(other)(more) == 4000, "a move from a new worker");
  }

  /// Another node waits for a value that is never made.
  void lose_the_source_of_a_move(int rank) {
    const int other = (rank + ranks_ / 2) % ranks_;
    const auto x = session_.function(make_or_die, "make_slowly").on(session_.device(rank))(0.1, true);
    auto read = session_.function(sum_of, "total").on_rank(other).async(x);
    loss_of(rank, [&] { read.get(); });
    loss_of(rank, [&] { static_cast<void>(x.get()); });
    check_usable();
  }

  /// The rank is on the master's node, and waits for a value of another node. The value comes when the rank is gone.
  void lose_the_destination_of_a_move(int rank) {
    const auto f = session_.function(sum_of, "total");
    const auto x = session_.function(make_or_die, "make_slowly").on(session_.device(ranks_ - 1))(0.5, false);
    auto read = f.on_rank(rank).async(x);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    require(::kill(session_.worker_pids()[at(rank)], SIGKILL) == 0, "the worker is there");
    loss_of(rank, [&] { read.get(); });
    require(f.on_rank(rank)(x) == 3, "the value comes to the new worker");
    check_usable();
  }

  /// Calls that do not need the lost rank keep their results.
  void keep_other_calls(int rank) {
    const int other = (rank + 1) % ranks_;
    auto first = lose_.on({session_.device(rank), session_.device(other)}).async(rank, Where::before_a_collective);
    auto second = sum_.on_rank((rank + 2) % ranks_).async(old_rows_);
    auto third = meet_.async(std::int64_t{10});
    require(second.get().value() == 100'000, "a call of another rank");
    loss_of(rank, [&] { first.get(); });
    loss_of(rank, [&] { third.get(); });
    check_usable();
  }

  void lose_several(const std::vector<int>& ranks) {
    const auto before = session_.worker_pids();
    std::int64_t set = 0;
    for (const int rank : ranks) set |= std::int64_t{1} << rank;
    const auto f = session_.function(lose_set, "lose_set");
    bool is_lost = false;
    try {
      f(set);
    } catch (const Error& error) {
      is_lost = error.kind() == ErrorKind::worker_lost;
    }
    require(is_lost, "several ranks are lost");
    for (const int rank : ranks) require(session_.worker_pids()[at(rank)] != before[at(rank)], "a new worker for each");
    check_usable();
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  Session& session_;
  int ranks_;
  decltype(std::declval<Session&>().function(lose, "lose")) lose_{session_.function(lose, "lose")};
  decltype(std::declval<Session&>().function(meet, "meet")) meet_{session_.function(meet, "meet")};
  decltype(std::declval<Session&>().function(sum_of_rows, "sum_rows")) sum_{session_.function(sum_of_rows, "sum_rows")};
  decltype(std::declval<Session&>().function(add_one, "add_one")) add_one_{session_.function(add_one, "add_one")};
  decltype(std::declval<Session&>().function(half_write, "half_write")) half_write_{
      session_.function(half_write, "half_write")};
  Data<double, 1> old_rows_{session_.data(std::vector<double>(100'000, 1), Shape{100'000}, "old")};
};

/// Ranks of each node are lost in each phase of a call, and twice. Checks what the new workers have, and what the program
/// gets.
void lose_ranks_of_each_node(Session& session) {
  Losses losses(session);
  losses.check_usable();
  const int last = session.world_size() - 1;
  for (const int rank : {0, 1, last / 2 + 1, last}) {
    for (const Where where : kEverywhere) losses.give_the_rank_to_a_new_worker(rank, where);
    losses.restore_variables(rank);
    losses.commit_on_all_or_none(rank);
    losses.build_objects_anew(rank);
    losses.lose_only_its_values(rank);
    losses.lose_the_source_of_a_move(rank);
    if (rank <= 1) losses.lose_the_destination_of_a_move(rank);
    losses.keep_other_calls(rank);
    std::printf("rank %d was replaced\n", rank);
    std::fflush(stdout);
  }
  losses.lose_several({0, last});
  losses.lose_several({last - 1, last});
}

/// The same for a worker that the test kills between two calls. Waits until the test says that it has.
void lose_between_calls(Session& session) {
  Losses losses(session);
  losses.check_usable();
  say("between calls");
  await_line();
  try {
    losses.check_usable();
    throw std::runtime_error("not as expected: nobody was lost");
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::worker_lost && error.failure().phase == "idle", error.what());
    std::printf("%s\n", error.what());
  }
  losses.check_usable();
}

/// Calls functions with collectives, updates and moves for so many seconds, and prints which ranks were replaced meanwhile.
/// The test kills workers. At the end, all results have to be right.
void go_on_after_losses(Session& session, double seconds) {
  const int ranks = session.world_size();
  auto w = session.shared<double, 1>("w");
  w.broadcast(std::vector<double>{1, 2, 3});
  const auto collectives = session.function(meet, "meet");
  const auto make = session.function(twice, "twice");
  const auto read = session.function(sum_of, "total");
  const auto update = session.function(add_one, "add_one");
  const double sum = ranks * (ranks + 1) / 2 + ranks;
  say("going on");
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int calls = 0;
  while (std::chrono::steady_clock::now() < end) {
    try {
      for (const std::int64_t elements : {1, 10'000, 300'000}) {
        for (const double result : collectives(elements).to_vector()) require(result == sum, "a collective");
      }
      const auto x = session.value(std::vector<double>(20'000, 1), Shape{20'000}, session.device(calls % ranks));
      const auto y = make.on(session.device((calls + 1) % ranks))(x);
      require(read.on_rank((calls + ranks / 2) % ranks)(y) == 40'000, "a value");
      update(w, -1);
      const double first = w.get(0)[0];
      for (int rank = 1; rank < ranks; ++rank) require(w.get(rank)[0] == first, "an update on all ranks or on none");
      session.wait();  // throws a loss that no call has told of
      ++calls;
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::worker_lost, error.what());
      std::printf("%s\n", error.what());
      std::fflush(stdout);
    }
  }
  require(calls > 0, "no round without a loss");
  std::printf("%d rounds\n", calls);
}

/// Loses this rank. The new worker cannot start, because workers end if the file `bad_start` exists.
void lose_for_good(Session& session, int rank, const std::string& bad_start) {
  const auto f = session.function(lose, "lose");
  f(-1, Where::after_one);
  std::ofstream(bad_start) << "workers end\n";
  f(rank, Where::after_one);
}

}  // namespace

bool run_respawns(Session& session, const std::string& action, const Words& words) {
  if (action == "respawn") lose_ranks_of_each_node(session);
  else if (action == "respawn-between") lose_between_calls(session);
  else if (action == "respawn-go-on") go_on_after_losses(session, std::stod(words.at(0)));
  else if (action == "respawn-in-vain") lose_for_good(session, std::stoi(words.at(0)), words.at(1));
  else return false;
  std::printf("as expected\n");
  return true;
}

}  // namespace syncrun::test
