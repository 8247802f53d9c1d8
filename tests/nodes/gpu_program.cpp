// The program that gpu_nodes_test.py runs on several nodes with GPUs. The first argument is the list of devices of each
// node, and the second says what the program does. It checks what comes out, and prints a line for each part.

#include "tests/nodes/gpu_program.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/nodes/actions.hpp"

namespace node_test {
namespace {

namespace sr = syncrun;
using sr::Shape;
using sr::test::require;

/// 1 + 2 + ... + count.
float sum_to(int count) { return static_cast<float>(count * (count + 1) / 2); }

/// first + i % 5 * factor, for each element i.
std::vector<float> varied(std::int64_t elements, float first, float factor) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i % 5) * factor;
  return values;
}

// ---- bodies ---------------------------------------------------------------------------------------------------

void reduce_gpu(sr::CudaWorker&, sr::Comm& comm, sr::Local<float, 1> v) { comm.all_reduce(v, sr::Reduction::sum); }
void largest_gpu(sr::CudaWorker&, sr::Comm& comm, sr::Local<float, 1> v) { comm.all_reduce(v, sr::Reduction::max); }
void reduce_cpu(sr::CpuWorker&, sr::Comm& comm, sr::Local<float, 1> v) { comm.all_reduce(v, sr::Reduction::sum); }

/// Numbers of the host go through host memory.
sr::Gather<double, 1> numbers(sr::CudaWorker&, sr::Comm& comm) {
  comm.barrier();
  const double product = comm.all_reduce(comm.rank() + 1.0, sr::Reduction::prod);
  const double most = comm.all_reduce(comm.rank() + 1.0, sr::Reduction::max);
  return {std::vector<double>{product, most}, Shape{2}};
}

void each_collective(sr::CudaWorker&, sr::Comm& comm, sr::Local<float, 1> v, sr::Local<float, 1> all,
                     sr::Local<float, 1> of_root) {
  const int last = comm.world_size() - 1;
  comm.all_gather(v, all);
  comm.reduce_scatter(all, v,
                      sr::Reduction::sum);  // all ranks have the same in `all`, so v is multiplied by their number
  comm.gather(v, of_root, last);
  comm.broadcast(of_root, last);
  comm.scatter(of_root, v, last);
}

void throw_on(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> v, int rank, int when) {
  for (int i = 0; i < 3; ++i) {
    if (worker.rank() == rank && i == when) throw std::runtime_error("it broke");
    comm.all_reduce(v, sr::Reduction::max);
  }
}

sr::Keep<float, 1> copy_on_cpu(sr::CpuWorker& worker, sr::Local<const float, 1> x) {
  sr::Keep<float, 1> result(worker, x.shape());
  std::copy(x.begin(), x.end(), result.data());
  return result;
}
sr::Keep<float, 1> copy_on_gpu(sr::CudaWorker& worker, sr::Local<const float, 1> x) {
  sr::Keep<float, 1> result(worker, x.shape());
  copy_on_device(worker, result.data(), x.data(), static_cast<std::size_t>(x.size()));
  return result;
}

void overwrite_on_cpu(sr::CpuWorker&, sr::Local<float, 1> to, sr::Local<const float, 1> from) {
  std::copy(from.begin(), from.end(), to.begin());
}
void overwrite_on_gpu(sr::CudaWorker& worker, sr::Local<float, 1> to, sr::Local<const float, 1> from) {
  copy_on_device(worker, to.data(), from.data(), static_cast<std::size_t>(to.size()));
}

/// The fake GPUs wait in a product as NCCL does if ranks disagree: without end.
void multiply(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> v, sr::Local<float, 1> longer, int rank) {
  comm.all_reduce(worker.rank() == rank ? longer : v, sr::Reduction::prod);
}

void die_on(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> v, int rank) {
  comm.all_reduce(v, sr::Reduction::max);
  if (worker.rank() == rank) std::raise(SIGKILL);
  comm.all_reduce(v, sr::Reduction::max);
}

/// What the last rank does to its node while all GPUs compute.
enum class Blow {
  none,
  kill_agent,
  freeze  ///< stops the agent and all workers. Other nodes cannot tell this from a dead link
};

/// The other workers are children of the agent too, of one of its threads.
void freeze_node(int other_workers) {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(::getppid()) + "/task")) {
    std::ifstream children(thread.path() / "children");
    for (pid_t pid = 0; children >> pid;) {
      if (pid == ::getpid()) continue;
      ::kill(pid, SIGSTOP);
      --other_workers;
    }
  }
  require(other_workers <= 0, "the other workers of the node");
  ::kill(::getppid(), SIGSTOP);
  std::raise(SIGSTOP);
}

void reduce_for_seconds(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> v, Blow blow) {
  constexpr int kReductions = 200'000;
  comm.all_reduce(v, sr::Reduction::max);
  if (worker.rank() == comm.world_size() - 1) {
    std::printf("all ranks reduce\n");
    std::fflush(stdout);
    if (blow == Blow::kill_agent) ::kill(::getppid(), SIGKILL);
    if (blow == Blow::freeze) freeze_node(worker.local_world_size() - 1);
  }
  for (int i = 0; i < kReductions; ++i) comm.all_reduce(v, sr::Reduction::max);
}

/// Lets the last rank be late for the next call.
void delay_last(sr::CudaWorker& worker, int last, Blow blow) {
  if (worker.rank() != last) return;
  ::sleep(blow == Blow::none ? 60 : 2);
  if (blow == Blow::freeze) freeze_node(worker.local_world_size() - 1);
}

/// Each rank has one row, which is its gradient.
void gradient_of_row(sr::CudaWorker& worker, sr::Scattered<const float, 2> x, sr::Local<float, 1>,
                     sr::Local<float, 1> gradient) {
  copy_on_device(worker, gradient.data(), x.data(), static_cast<std::size_t>(gradient.size()));
}

void add_row(sr::CudaWorker& worker, sr::Scattered<const float, 2> x, sr::Update<sr::op::sum, float, 1> v) {
  copy_on_device(worker, v.value().data(), x.data(), static_cast<std::size_t>(v.value().size()));
}

// ---- what the program does ------------------------------------------------------------------------------------

class Checks {
 public:
  explicit Checks(sr::Session& session) : session_(session), ranks_(session.world_size()) {}

  /// Lengths that have remainders if they are divided among the GPUs of a node, for each way to reduce.
  void bodies() {
    const auto sum = session_.function(reduce_gpu, "reduce_gpu");
    const auto largest = session_.function(largest_gpu, "largest_gpu");
    for (const std::int64_t elements : {1, 3, 1000, 4001, 30'000, 100'003, 3'000'001}) {
      auto v = session_.shared<float, 1>();
      for (int rank = 0; rank < ranks_; ++rank) v.set(rank, varied(elements, static_cast<float>(rank + 1), 1));
      sum(v);
      const auto sums = varied(elements, sum_to(ranks_), static_cast<float>(ranks_));
      for (int rank = 0; rank < ranks_; ++rank) require(v.get(rank).to_vector() == sums, "all_reduce");
      sum.on({session_.device(0), session_.device(ranks_ - 1)})(v);
      const auto twice = varied(elements, 2 * sum_to(ranks_), static_cast<float>(2 * ranks_));
      for (const int rank : {0, ranks_ - 1}) require(v.get(rank).to_vector() == twice, "all_reduce of two");
      if (ranks_ > 2) require(v.get(1).to_vector() == sums, "the other ranks take no part");
      largest(v);
      for (int rank = 0; rank < ranks_; ++rank) require(v.get(rank).to_vector() == twice, "the maximum");
    }
    const auto seen = session_.function(numbers, "numbers")();
    double product = 1;
    for (int rank = 0; rank < ranks_; ++rank) product *= rank + 1;
    for (int rank = 0; rank < ranks_; ++rank)
      require(seen[2 * rank] == product && seen[2 * rank + 1] == ranks_, "numbers of the host");
    std::printf("collectives of bodies\n");
  }

  void each() {
    const auto part = [](int rank) { return std::vector<float>(5, static_cast<float>(rank + 1)); };
    auto v = session_.shared<float, 1>();
    auto all = session_.shared<float, 1>();
    auto of_root = session_.shared<float, 1>();
    for (int rank = 0; rank < ranks_; ++rank) v.set(rank, part(rank));
    const std::vector<float> zeros(static_cast<std::size_t>(5 * ranks_), 0);
    all.broadcast(zeros);
    of_root.broadcast(zeros);
    session_.function(each_collective, "each_collective")(v, all, of_root);
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto expected = static_cast<float>(ranks_ * (rank + 1));
      require(v.get(rank)[4] == expected, "scatter");
      require(of_root.get(0)[5 * rank] == expected, "gather and broadcast");
    }
    std::printf("each collective\n");
  }

  void of_the_master() {
    for (const sr::Route route : {sr::Route::device, sr::Route::host}) {
      auto v = session_.shared<float, 1>();
      for (int rank = 0; rank < ranks_; ++rank) v.set(rank, std::vector<float>(1000, static_cast<float>(rank + 1)));
      v.all_reduce(sr::Reduction::sum, {.route = route});
      require(v.get(ranks_ - 1)[999] == sum_to(ranks_), "the master's all_reduce");
    }
    auto v = session_.shared<float, 1>();
    for (int rank = 0; rank < ranks_; ++rank) v.set(rank, std::vector<float>(100'000, static_cast<float>(rank + 1)));
    v.copy(0, ranks_ - 1);
    require(v.get(ranks_ - 1)[99'999] == 1 && v.get(0)[0] == 1, "a copy to another node");
    std::printf("collectives of the master\n");
  }

  /// Expects these values, up to rounding, on every rank.
  void require_near(const sr::Shared<float, 1>& variable, const std::vector<float>& expected, const char* what) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto found = variable.get(rank).to_vector();
      const bool is_near = std::equal(found.begin(), found.end(), expected.begin(), expected.end(),
                                      [](float a, float b) { return std::abs(a - b) < 1e-5F; });
      require(is_near, what);
    }
  }

  /// A row for each rank.
  sr::Data<float, 2> rows_of_ranks(std::int64_t elements) {
    std::vector<float> rows;
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto row = varied(elements, static_cast<float>(rank + 1), 1);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return session_.data(rows, Shape{ranks_, elements});
  }

  void steps() {
    constexpr std::int64_t kElements = 2'000'001;
    auto weights = session_.shared<float, 1>("weights");
    weights.broadcast(std::vector<float>(kElements, 1));
    const auto x = rows_of_ranks(kElements);
    auto step = sr::train_step<sr::Sgd>(session_, gradient_of_row, weights, {.bucket_bytes = 4 << 20});
    for (int i = 0; i < 3; ++i) step(x, {.learning_rate = 0.25});
    const float first = 1 - 3 * 0.25F * sum_to(ranks_) / static_cast<float>(ranks_);
    require_near(weights, varied(kElements, first, -0.75F), "the parameters after three steps");
    // The last rank has no rows, so its gradient does not count.
    std::vector<std::int64_t> all_but_one(static_cast<std::size_t>(ranks_ - 1));
    std::iota(all_but_one.begin(), all_but_one.end(), 0);
    step(x, {.learning_rate = 0.25}, {.batch = all_but_one});
    const float second = first - 0.25F * sum_to(ranks_ - 1) / static_cast<float>(ranks_ - 1);
    require_near(weights, varied(kElements, second, -1), "the parameters after a step without rows for a rank");
    auto sums = session_.shared<float, 1>("sums");
    sums.broadcast(std::vector<float>(kElements, 0));
    session_.function(add_row, "add_row")(x, sums);
    require(sums.get(ranks_ - 1)[7] == static_cast<float>(ranks_ + 2), "the update");
    std::printf("train steps\n");
  }

  /// After each failure, the ranks make a new communicator.
  void failures() {
    auto v = session_.shared<float, 1>("v");
    const auto f = session_.function(throw_on, "throw_on");
    const auto good = session_.function(reduce_gpu, "reduce_gpu");
    for (int rank = 0; rank < ranks_; ++rank) {
      for (int when = 0; when < 3; ++when) {
        v.broadcast(std::vector<float>(1000, 1));
        try {
          f(v, rank, when);
          require(false, "no failure");
        } catch (const sr::Error& error) {
          require(error.rank() == rank && error.kind() == sr::ErrorKind::function, error.what());
        }
        v.broadcast(std::vector<float>(1000, 1));
        good(v);
        require(v.get(ranks_ - 1)[0] == static_cast<float>(ranks_), "all_reduce after a failure");
      }
    }
    std::printf("failures\n");
  }

  void replays() {
    const auto f = session_.function(sr::replayable(reduce_gpu), "reduce_gpu");
    for (const std::int64_t elements : {1000, 100'003}) {
      auto v = session_.shared<float, 1>();
      v.broadcast(varied(elements, 1, 1));
      float times = 1;
      for (int i = 0; i < 8; ++i) {
        f(v);
        times *= static_cast<float>(ranks_);
      }
      for (const int rank : {0, ranks_ - 1})
        require(v.get(rank).to_vector() == varied(elements, times, times), "replayed calls");
    }
    replayed_steps();
    std::printf("replays\n");
  }

  void replayed_steps() {
    constexpr std::int64_t kElements = 2'000'001;
    constexpr int kSteps = 8;
    auto weights = session_.shared<float, 1>();
    weights.broadcast(std::vector<float>(kElements, 1));
    const auto x = rows_of_ranks(kElements);
    auto step = sr::train_step<sr::Sgd>(session_, sr::replayable(gradient_of_row), weights, {.bucket_bytes = 4 << 20});
    for (int i = 0; i < kSteps; ++i) step(x, {.learning_rate = 1.0 / kSteps});
    require_near(weights, varied(kElements, 1 - sum_to(ranks_) / static_cast<float>(ranks_), -1), "replayed steps");
  }

  void mixed() {
    auto v = session_.shared<float, 1>();
    for (int rank = 0; rank < ranks_; ++rank) v.set(rank, std::vector<float>(10'000, static_cast<float>(rank + 1)));
    session_.function(reduce_cpu, reduce_gpu)(v);
    for (int rank = 0; rank < ranks_; ++rank) require(v.get(rank)[9'999] == sum_to(ranks_), "all_reduce of both kinds");
    std::printf("both kinds\n");
  }

  /// Each rank makes a value from that of each other rank, and writes one that another rank has made.
  void values() {
    const auto copy = session_.function(copy_on_cpu, copy_on_gpu);
    const auto overwrite = session_.function(overwrite_on_cpu, overwrite_on_gpu);
    for (const std::int64_t elements : {0, 5, 50'000}) {
      std::vector<float> numbers(static_cast<std::size_t>(elements));
      std::iota(numbers.begin(), numbers.end(), 0.0F);
      const std::vector<float> ones(numbers.size(), 1);
      const auto equals = [](const auto& value, const std::vector<float>& wanted) {
        return value.get().to_vector() == wanted;
      };
      for (int from = 0; from < ranks_; ++from) {
        const auto x = session_.value(numbers, Shape{elements}, session_.device(from));
        require(equals(x, numbers), "a value on a rank");
        for (int to = 0; to < ranks_; ++to) {
          const auto y = copy.on(session_.device(to))(x);
          const auto z = copy.on(session_.device((to + ranks_ / 2) % ranks_))(y);
          require(!y.where().empty() && equals(z, numbers) && equals(y, numbers), "values that bodies have made");
          overwrite.on(session_.device(to))(z, session_.value(ones, Shape{elements}));
          require(equals(copy.on(session_.device(from))(z), ones), "a value that was written elsewhere");
          require(equals(x, numbers) && z.get_async().get().to_vector() == ones, "the others stay as they were");
        }
        x.to(session_.device((from + 1) % ranks_));
        x.to_host();
        require(equals(x, numbers), "a value on the host");
      }
    }
    std::printf("values\n");
  }

  /// Values that only a lost rank had are lost, and moves go on.
  void replace_with_values(int rank) {
    const auto copy = session_.function(copy_on_cpu, copy_on_gpu);
    const std::vector<float> numbers{1, 2, 3};
    const int other = (rank + ranks_ / 2) % ranks_;
    const auto x = session_.value(numbers, Shape{3}, session_.device(rank));
    const auto y = copy.on(session_.device(other))(x);
    require(y.get().to_vector() == numbers, "a move before a loss");
    replace(rank);
    require(copy.on(session_.device(rank))(y).get().to_vector() == numbers, "a move to a new worker");
    std::printf("replaced with values\n");
  }

  /// Ranks that disagree are told so soon, and the session goes on.
  void disagree() {
    auto v = session_.shared<float, 1>("v");
    auto longer = session_.shared<float, 1>("longer");
    longer.broadcast(std::vector<float>(1001, 1));
    const auto f = session_.function(multiply, "multiply");
    const auto good = session_.function(reduce_gpu, "reduce_gpu");
    for (const int rank : {0, ranks_ / 2, ranks_ - 1}) {
      v.broadcast(std::vector<float>(1000, 1));
      const auto begin = std::chrono::steady_clock::now();
      try {
        f(v, longer, rank);
        require(false, "no failure");
      } catch (const sr::Error& error) {
        std::printf("%s\n", error.what());
        require(error.kind() == sr::ErrorKind::function, "the kind of the error");
      }
      require(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10), "the error comes soon");
      v.broadcast(std::vector<float>(1000, 1));
      good(v);
      require(v.get(ranks_ - 1)[0] == static_cast<float>(ranks_), "all_reduce after a disagreement");
    }
    std::printf("disagreements\n");
  }

  /// Ranks that wait for something else agree, and the deadline ends the call.
  void wait_in_vain() {
    auto v = session_.shared<float, 1>("v");
    v.broadcast(std::vector<float>(1000, 1));
    session_.function(multiply, "multiply")(v, v, 0, {.timeout = std::chrono::seconds(3)});
  }

  /// A rank that is lost is replaced, and the ranks make a new communicator.
  void replace(int rank) {
    auto v = session_.shared<float, 1>("v");
    const auto f = session_.function(die_on, "die_on");
    const auto good = session_.function(reduce_gpu, "reduce_gpu");
    for (int times = 0; times < 2; ++times) {
      v.broadcast(std::vector<float>(1000, 1));
      try {
        f(v, rank);
        require(false, "no loss");
      } catch (const sr::Error& error) {
        require(error.kind() == sr::ErrorKind::worker_lost && error.rank() == rank, error.what());
      }
      require(session_.worker_pids()[static_cast<std::size_t>(rank)] > 0, "the new worker");
      v.broadcast(std::vector<float>(1000, 1));
      good(v);
      for (int other = 0; other < ranks_; ++other)
        require(v.get(other)[999] == static_cast<float>(ranks_), "all_reduce after a loss");
    }
    std::printf("replaced\n");
  }

  /// Rows of more than one part of what goes through host memory at once.
  void checkpoint(const std::string& folder) {
    std::vector<float> values(std::size_t{3'000'000} * static_cast<std::size_t>(ranks_) + 1);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 10'007);
    auto v = session_.shared<float, 1>("v");
    v.scatter(values);
    sr::save_checkpoint(folder, {{"v", v, sr::Placement::scattered}});
    auto w = session_.shared<float, 1>("w");
    sr::Checkpoint(folder).load({{"v", w}});
    require(w.gather().to_vector() == values, "the rows of a checkpoint");
    require(w.lengths() == v.lengths(), "the rows of each rank");
    std::printf("checkpoint\n");
  }

  void die(int rank) {
    auto v = session_.shared<float, 1>();
    v.broadcast(std::vector<float>(1000, 1));
    session_.function(die_on, "die_on")(v, rank);
  }

  void strike(Blow blow) {
    auto v = session_.shared<float, 1>();
    v.broadcast(std::vector<float>(1000, 1));
    session_.function(reduce_for_seconds, "reduce_for_seconds")(v, blow);
  }

  /// The other ranks wait in their first collective. Real GPUs make their communicator there.
  void wait_for_the_last(Blow blow) {
    auto v = session_.shared<float, 1>();
    v.broadcast(std::vector<float>(1000, 1));
    const auto late = session_.function(delay_last, "delay_last").async(ranks_ - 1, blow);
    auto waiting = session_.function(reduce_gpu, "reduce_gpu").async(v);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    std::printf("the others wait for it\n");
    std::fflush(stdout);
    waiting.get();
  }

 private:
  sr::Session& session_;
  int ranks_;
};

int program(sr::Session& session, int argc, char** argv) {
  const std::string action = argc > 2 ? argv[2] : "";
  Checks checks(session);
  if (action == "die") {
    checks.die(std::stoi(argv[3]));
  } else if (action == "late") {
    checks.wait_for_the_last(Blow::none);
  } else if (action == "late-and-freeze") {
    checks.wait_for_the_last(Blow::freeze);
  } else if (action == "lose-agent") {
    checks.strike(Blow::kill_agent);
  } else if (action == "freeze-node") {
    checks.strike(Blow::freeze);
  } else if (action == "replace") {
    checks.replace(std::stoi(argv[3]));
  } else if (action == "values") {
    checks.values();
  } else if (action == "replace-with-values") {
    checks.replace_with_values(std::stoi(argv[3]));
  } else if (action == "disagree") {
    checks.disagree();
  } else if (action == "wait") {
    checks.wait_in_vain();
  } else if (action == "checkpoint") {
    checks.checkpoint(argv[3]);
  } else if (action == "mixed") {
    checks.mixed();
  } else {
    checks.bodies();
    checks.of_the_master();
    checks.steps();
    checks.failures();
    if (are_real()) {
      checks.each();
      checks.replays();
    }
  }
  std::printf("as expected\n");
  return 0;
}

}  // namespace
}  // namespace node_test

int main(int argc, char** argv) {
  syncrun::SessionOptions options;
  options.devices = argc > 1 ? argv[1] : "";
  if (argc > 2 && std::string(argv[2]).starts_with("replace")) options.on_worker_lost = syncrun::OnWorkerLost::respawn;
  return syncrun::run(argc, argv, node_test::program, options);
}
