// What campaign.py lets fail: a program that uses most of a session in each step, checks every number that comes back, and
// saves. All values are whole numbers, so that they do not depend on the order of a sum.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/nodes/actions.hpp"

namespace syncrun::test {

namespace steps {
namespace {

using Numbers = std::vector<std::int64_t>;

constexpr std::int64_t kWeights = 16;
constexpr std::int64_t kLarge = 1 << 15;      // elements of an array that all ranks reduce
constexpr std::int64_t kRows = 300'000;       // rows that the nodes save themselves
constexpr std::int64_t kModulus = 1'000'003;  // keeps numbers small
constexpr int kStepsOfSave = 12;

/// What a rank adds to a weight.
std::int64_t addend(std::int64_t weight, int rank, int step) { return (weight * 31 + rank * 7 + step) % 1009; }

struct Trained {
  Gather<std::int64_t, 1> weights;  // those of each rank
  Sum<std::int64_t> large;
};

/// Adds what all ranks have to the weights. In every fourth step, the ranks also reduce a large array.
Trained train_step(CpuWorker& worker, Comm& comm, Local<std::int64_t, 1> weights, int step) {
  Numbers sums;
  for (const std::int64_t weight : weights) sums.push_back(addend(weight, worker.rank(), step));
  comm.all_reduce(sums, Reduction::sum);
  auto sum = sums.begin();
  for (std::int64_t& weight : weights) weight = (weight + *sum++) % kModulus;
  std::int64_t seen = 0;
  if (step % 4 == 0) {
    Numbers large(kLarge);
    for (std::int64_t i = 0; i < kLarge; ++i) large[static_cast<std::size_t>(i)] = i % 97 + worker.rank() + step;
    comm.all_reduce(large, Reduction::max);
    for (std::int64_t i = 0; i < kLarge; ++i)
      seen += large[static_cast<std::size_t>(i)] == i % 97 + worker.world_size() - 1 + step ? 1 : 0;
  }
  return {.weights = {Numbers(weights.begin(), weights.end()), Shape{kWeights}}, .large = seen};
}

/// The same on one processor.
void train_serially(Numbers& weights, int ranks, int step) {
  for (std::int64_t& weight : weights) {
    std::int64_t sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += addend(weight, rank, step);
    weight = (weight + sum) % kModulus;
  }
}

Sum<std::int64_t> sum_rows(CpuWorker&, Scattered<const std::int64_t, 1> x) {
  std::int64_t sum = 0;
  for (std::int64_t row = 0; row < x.rows(); ++row) sum += x(row);
  return {sum};
}

Sum<std::int64_t> sum_value(CpuWorker&, Local<const std::int64_t, 1> x) {
  std::int64_t sum = 0;
  for (const std::int64_t number : x) sum += number;
  return {sum};
}

void add_one(CpuWorker&, Local<std::int64_t, 1> x) {
  for (std::int64_t& number : x) ++number;
}

Numbers counted(std::int64_t count, std::int64_t first) {
  Numbers numbers(static_cast<std::size_t>(count));
  for (std::int64_t& number : numbers) number = first++ % kModulus;
  return numbers;
}

std::int64_t sum_of(const Numbers& numbers) {
  std::int64_t sum = 0;
  for (const std::int64_t number : numbers) sum += number;
  return sum;
}

/// The words are the folder of the checkpoint, and a number of seconds. Loads and checks the checkpoint if the folder has
/// one. Then makes steps for that time, which may be 0.
bool run(Session& session, const std::string& action, const Words& words) {
  if (action != "steps") return false;
  const std::string& folder = words.at(0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::stod(words.at(1)));
  const int ranks = session.world_size();
  Numbers expected(kWeights, 1);
  const auto weights = session.shared("weights", expected);
  auto rows = session.shared<std::int64_t, 1>("rows");
  rows.scatter(counted(kRows, 0));
  int step = 0;
  if (Checkpoint::exists(folder)) {
    const Checkpoint checkpoint(folder);
    checkpoint.load({{"weights", weights}, {"rows", rows}});
    const int steps = checkpoint.value<int>("step");
    for (; step < steps; ++step) train_serially(expected, checkpoint.value<int>("ranks"), step);
    require(weights.get(ranks - 1).to_vector() == expected, "the saved weights");
    require(rows.gather().to_vector() == counted(kRows, step / kStepsOfSave), "the saved rows");
    say("going on after step " + std::to_string(step));
  }
  const auto train = session.function(train_step, "train_step");
  const auto sum = session.function(sum_rows, "sum_rows");
  const auto read = session.function(sum_value, "sum_value");
  const auto add = session.function(add_one, "add_one");
  auto data = session.data(counted(600, 0), Shape{600}, "data");
  say("the steps begin");
  while (std::chrono::steady_clock::now() < end) {
    const Trained trained = train(weights, step);
    train_serially(expected, ranks, step);
    const Numbers seen = trained.weights.to_vector();
    for (int rank = 0; rank < ranks; ++rank) {
      require(std::equal(expected.begin(), expected.end(), seen.begin() + rank * kWeights),
              "the weights of rank " + std::to_string(rank) + " after step " + std::to_string(step));
    }
    require(trained.large.value() == (step % 4 == 0 ? kLarge * ranks : 0), "a large array that all ranks reduce");
    const Numbers batch = counted(60, step % 500);
    require(sum(data, {.batch = batch}).value() == sum_of(batch), "the sum of a batch");
    data.set_rows(0, Numbers{0});  // the rows travel again
    const auto value = session.value(counted(5000, step), Shape{5000}, session.device(step % ranks));
    require(read.on_rank((step * 5 + 1) % ranks)(value).value() == sum_of(counted(5000, step)),
            "a value on another rank");
    ++step;
    std::printf("step %d\n", step);
    std::fflush(stdout);
    if (step % kStepsOfSave != 0) continue;
    add(rows);
    say("saving");
    save_checkpoint(folder, {{"weights", weights}, {"rows", rows, Placement::scattered}},
                    {{"step", step}, {"ranks", ranks}});
    say("saved");
  }
  std::printf("as expected: %d steps\n", step);
  std::fflush(stdout);
  say("the end begins");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // faults come before the end, and during it
  return true;
}

}  // namespace
}  // namespace steps

bool run_steps(Session& session, const std::string& action, const Words& words) {
  return steps::run(session, action, words);
}

}  // namespace syncrun::test
