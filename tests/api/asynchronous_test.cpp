// Asynchronous training around a center. tests/mixed compares it with a serial simulation with the same order of arrivals.

#include <chrono>
#include <cmath>
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

constexpr std::int64_t kParams = 50;

sr::Sum<double> train(sr::Local<double, 1> params, int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  for (double& param : params) param *= 0.8;
  return params[0];
}

class Asynchronous : public OnWorkers {
 protected:
  std::vector<sr::Device> devices() {
    std::vector<sr::Device> all;
    for (int rank = 0; rank < world_size(); ++rank) all.push_back(session().device(rank));
    return all;
  }
  sr::Value<double, 1> center() {
    return session().value(std::vector<double>(kParams, 1.0), Shape{kParams}, session().device(0), "center");
  }
  /// Rounds of different lengths.
  auto start() {
    return [f = session().function(train)](const sr::Round<double>& round) {
      const int milliseconds = static_cast<int>(3 * round.lane + (round.number % 3));
      return f.on(round.device).async(round.params, milliseconds);
    };
  }
};
INSTANTIATE_ON_WORKERS(Asynchronous, 1, 3);

// One is fast and one is slow.
using AsynchronousOnTwo = Asynchronous;
INSTANTIATE_ON_WORKERS(AsynchronousOnTwo, 2);

sr::Sum<double> train_behind_a_gate(sr::Local<double, 1> params, Gate::Key key) {
  pass(key);
  return train(params, 0);
}

TEST_P(AsynchronousOnTwo, FastDevicesDoNotWaitForSlowOnes) {
  const auto f = session().function(train_behind_a_gate);
  Gate fast;
  Gate slow;  // opens after five rounds of the fast device
  fast.open();
  const auto start = [&](const sr::Round<double>& round) {
    return f.on(round.device).async(round.params, (round.lane == 0 ? slow : fast).key());
  };
  const auto after = [&](const sr::Round<double>& round, double) {
    if (round.lane == 1 && round.number == 4) slow.open();
    return round.lane != 0;
  };
  const auto report = sr::easgd(session(), center(), devices(), start, after, {});
  EXPECT_GE(report.rounds[1], 5);
  EXPECT_EQ(report.rounds[0], 1);
}

TEST_P(Asynchronous, EndsWhenAfterSaysSo) {
  int count = 0;
  const auto report =
      sr::easgd(session(), center(), devices(), start(), [&](const auto&, double) { return ++count < 5; }, {});
  EXPECT_GE(report.arrivals.size(), 5U);
  EXPECT_LE(report.arrivals.size(), 4U + static_cast<std::size_t>(world_size())) << "rounds that run still end";
}

void fails(sr::Local<double, 1>, std::int64_t lane, std::int64_t round) {
  if (lane == 0 && round == 2) throw std::runtime_error("the third round fails");
}

TEST_P(Asynchronous, ThrowsTheErrorOfARound) {
  const auto f = session().function(fails);
  const auto start = [&](const sr::Round<double>& round) {
    return f.on(round.device).async(round.params, static_cast<std::int64_t>(round.lane), round.number);
  };
  const auto run = [&] {
    static_cast<void>(sr::easgd(session(), center(), devices(), start, [](const auto&) { return true; }, {}));
  };
  EXPECT_ERROR(run(), sr::ErrorKind::function, "the third round fails");
}

TEST_P(Asynchronous, RefusesBadOptions) {
  const auto yes = [](const auto&, double) { return true; };
  const auto shared = center();
  const auto all = devices();
  const auto run = [&](std::span<const sr::Device> on, const sr::EasgdOptions& options) {
    static_cast<void>(sr::easgd(session(), shared, on, start(), yes, options));
  };
  EXPECT_ERROR(run({}, {.rounds = 1}), sr::ErrorKind::usage, "requires one device or more, got none");
  EXPECT_ERROR(run(all, {.rounds = -1}), sr::ErrorKind::usage, "rounds is at least 0, got -1");
  EXPECT_ERROR(run(all, {.moving_rate = 1.5, .rounds = 1}), sr::ErrorKind::usage,
               "moving_rate is above 0 and at most 1");
  EXPECT_ERROR(run(all, {.moving_rate = std::nan(""), .rounds = 1}), sr::ErrorKind::usage, "moving_rate");
  const std::vector twice{all[0], all[0]};
  EXPECT_ERROR(run(twice, {.rounds = 1}), sr::ErrorKind::usage, "each device once");
}

}  // namespace
