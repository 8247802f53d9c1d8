// Replicated objects: every worker has one, and its methods are called as functions.

#include <unistd.h>

#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "tests/support/on_workers.hpp"

namespace {

class Objects : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Objects, 1, 3);

class Counter {
 public:
  Counter(sr::CpuWorker& worker, int start, std::string name, std::vector<double> steps)
      : rank_(worker.rank()), count_(start), name_(std::move(name)), steps_(std::move(steps)) {}
  virtual ~Counter() = default;

  sr::Sum<double> add(int times) {
    count_ += times * static_cast<int>(steps_.at(1));
    return count_;
  }
  sr::Min<int> rank_matches(sr::CpuWorker& worker) const noexcept { return worker.rank() == rank_ ? 1 : 0; }
  sr::Sum<std::int64_t> name_length() const { return static_cast<std::int64_t>(name_.size()); }
  virtual sr::Sum<int> kind() { return 1; }

 private:
  int rank_;
  int count_;
  std::string name_;
  std::vector<double> steps_;
};

TEST_P(Objects, KeepStateBetweenCalls) {
  const auto counter = session().replicate<Counter>(10, "counter", std::vector<double>{0, 3});
  const auto add = session().function(&Counter::add, counter);
  EXPECT_EQ(add(1), 13 * world_size());
  EXPECT_EQ(add(2), 19 * world_size());
  EXPECT_EQ(session().function(&Counter::rank_matches, counter)(), 1);
  EXPECT_EQ(session().function(&Counter::name_length, counter)(), 7 * world_size());
  EXPECT_EQ(session().function(&Counter::kind, counter)(), world_size());
  const auto other = session().replicate<Counter>(100, "", std::vector<double>{0, 1});
  EXPECT_EQ(session().function(&Counter::add, other)(1), 101 * world_size());
  EXPECT_EQ(add(1), 22 * world_size()) << "objects of one type are independent";
}

class Fragile {
 public:
  sr::Sum<int> read(int number) const { return checked(number); }
  sr::Sum<int> write(int number) { return checked(number); }

 private:
  static int checked(int number) {
    if (number < 0) throw std::runtime_error("number " + std::to_string(number));
    return number;
  }
};

TEST_P(Objects, FailInConstMethodsWithoutHarmToLaterCallsAndInOthersTogetherWithThem) {
  const auto object = session().replicate<Fragile>();
  const auto read = session().function(&Fragile::read, object);
  const auto write = session().function(&Fragile::write, object);
  auto first = read.async(-1);
  auto second = write.async(2);
  EXPECT_EQ(second.get(), 2 * world_size()) << "the failed method only read the object";
  EXPECT_ERROR(first.get(), sr::ErrorKind::function, "number -1");
  first = write.async(-1);
  second = read.async(2);
  EXPECT_ERROR(second.get(), sr::ErrorKind::function, "number -1");
  EXPECT_ERROR(first.get(), sr::ErrorKind::function, "number -1");
  EXPECT_EQ(read(3), 3 * world_size()) << "the program has seen the failure";
}

Counter make_counter(sr::CpuWorker& worker, int start) { return {worker, start, "made", {0, 2}}; }

TEST_P(Objects, AreMadeByFactories) {
  const auto counter = session().replicate(make_counter, 5);
  EXPECT_EQ(session().function(&Counter::add, counter)(1), 7 * world_size());
}

struct Refuses {
  explicit Refuses(int) { throw std::runtime_error("no such object"); }
  sr::Sum<int> never() { return 0; }
};

TEST_P(Objects, WhoseConstructorThrowsAreAnErrorAndNoMore) {
  const auto object = session().replicate<Refuses>(1);
  EXPECT_ERROR(session().wait(), sr::ErrorKind::function, "no such object");
  EXPECT_ERROR(session().function(&Refuses::never, object)(), sr::ErrorKind::function, "no such object");
  EXPECT_EQ(session().function([]() -> sr::Sum<int> { return 1; })(), world_size());
}

/// Its bodies depend on its mode.
class Modal {
 public:
  std::span<const std::uint64_t> replay_state() {
    ++times_asked_;
    return mode_;
  }
  void call() {}
  sr::Avg<double> step(sr::Scattered<const float, 1>, sr::Local<float, 1>, sr::Local<float, 1> gradient) {
    gradient[0] = 1;
    return 0;
  }
  sr::Min<int> times_asked() const { return times_asked_; }

 private:
  std::array<std::uint64_t, 1> mode_{};
  int times_asked_ = 0;
};

TEST_P(Objects, AreAskedForTheirStateBeforeCallsThatMayBeReplayed) {
  const auto object = session().replicate<Modal>();
  const auto times_asked = session().function(&Modal::times_asked, object);
  const auto call = session().function(sr::replayable(&Modal::call), object);
  call();
  call();
  EXPECT_EQ(times_asked(), 2);
  auto params = session().shared<float, 1>();
  params.broadcast(std::vector<float>(1));
  auto step = sr::train_step<sr::Sgd>(session(), sr::replayable(&Modal::step), object, params);
  step(session().data(std::vector<float>(8)), {.learning_rate = 1});
  EXPECT_EQ(times_asked(), 3);
  EXPECT_EQ(params.get(0)[0], -1) << "the step ran";
}

int alive = 0;
struct Alive {
  Alive() { ++alive; }
  Alive(const Alive&) = delete;
  Alive& operator=(const Alive&) = delete;
  ~Alive() { --alive; }
  void nothing() {}
};

TEST_P(Objects, AreDestroyedWithTheLastHandleAndTheLastFunction) {
  const auto count = session().function([]() -> sr::Sum<int> { return alive; });
  {
    auto object = std::make_unique<sr::Replicated<Alive>>(session().replicate<Alive>());
    EXPECT_EQ(count(), world_size());
    const auto method = session().function(&Alive::nothing, *object);
    object.reset();
    EXPECT_EQ(count(), world_size());
    method();
  }
  EXPECT_EQ(count(), 0);
}

}  // namespace
