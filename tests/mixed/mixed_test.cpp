// Sessions with a GPU and CPU devices. The results are compared with those of one CPU rank, and with numbers computed
// here. The tests require one GPU, which may be a fake one.

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/mixed/mixed_bodies.hpp"
#include "tests/support/least_squares.hpp"
#include "tests/support/serial_rounds.hpp"

namespace mixed_test {
namespace {

using testing::Contains;
using testing::HasSubstr;

/// The parameter is a list of devices. Tests are named after it.
class Mixed : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (gpus() < 1) GTEST_SKIP() << "1 GPU wanted, none present";
    session_ = std::make_unique<sr::Session>(options());
  }
  void TearDown() override {
    if (session_) session_->close();
  }
  virtual sr::SessionOptions options() const {
    sr::SessionOptions options;
    options.devices = GetParam();
    options.timeout = std::chrono::seconds(60);
    return options;
  }
  sr::Session& session() { return *session_; }
  int world_size() { return session_->world_size(); }
  bool is_gpu(int rank) { return session_->devices()[static_cast<std::size_t>(rank)].starts_with("cuda"); }
  int gpu() {
    int rank = 0;
    while (!is_gpu(rank)) ++rank;
    return rank;
  }
  int cpu() {
    int rank = 0;
    while (is_gpu(rank)) ++rank;
    return rank;
  }
  /// Element i of rank r is i % 100 + 1000 * r.
  static std::vector<float> values_of(int rank, std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<float>(i % 100 + 1000 * static_cast<unsigned>(rank));
    return values;
  }
  std::vector<float> sum_of_all(std::size_t count) {
    std::vector<float> sum(count);
    for (int rank = 0; rank < world_size(); ++rank) {
      const auto own = values_of(rank, count);
      for (std::size_t i = 0; i < count; ++i) sum[i] += own[i];
    }
    return sum;
  }
  sr::Shared<float, 1> variable(const std::string& name, std::size_t count) {
    auto made = session().shared<float, 1>(name);
    fill(made, count);
    return made;
  }
  void fill(sr::Shared<float, 1>& v, std::size_t count) {
    for (int rank = 0; rank < world_size(); ++rank) v.set(rank, values_of(rank, count));
  }
  static std::vector<float> on(const sr::Shared<float, 1>& v, int rank) { return v.get(rank).to_vector(); }
  /// The share of this rank of the elements.
  std::vector<float> part(const std::vector<float>& all, int rank) {
    const auto count = static_cast<std::int64_t>(all.size());
    const std::int64_t begin = count / world_size() * rank + std::min<std::int64_t>(rank, count % world_size());
    return {all.begin() + begin, all.begin() + begin + count / world_size() + (rank < count % world_size() ? 1 : 0)};
  }
  /// Compares the copies with `expected(rank)`.
  template <class Expected>
  void expect_copies(const sr::Shared<float, 1>& v, Expected&& expected) {
    for (int rank = 0; rank < world_size(); ++rank)
      EXPECT_TRUE(on(v, rank) == expected(rank)) << v.name() << ' ' << rank;
  }

  std::unique_ptr<sr::Session> session_;
};

const auto kLists = testing::Values("cuda0,cpu0", "cpu3,cuda0", "cpu0,cuda0,cpu1");
const auto kNameOfList = [](const testing::TestParamInfo<std::string>& list) {
  std::string name = list.param;
  std::replace(name.begin(), name.end(), ',', '_');
  return name;
};
INSTANTIATE_TEST_SUITE_P(Devices, Mixed, kLists, kNameOfList);

template <class F>
sr::Error error_of(F&& statement) {
  try {
    statement();
  } catch (const sr::Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {sr::ErrorKind::usage, ""};
}

std::vector<double> counting(std::size_t count) {
  std::vector<double> values(count);
  std::iota(values.begin(), values.end(), 1);
  return values;
}

/// Lengths of small values, of values that are reduced in place, and of values with an uneven division.
constexpr std::size_t kLengths[] = {4, 1'001, 300'003};

// ---- calls ----------------------------------------------------------------------------------------------------

TEST_P(Mixed, OutputsOfAnySizeAreReduced) {
  const auto f = session().function(arrays_on_cpu, arrays_on_gpu);
  const auto x = session().data(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 20});
  // Few bytes, large on CPU devices only, and large on all devices. The last one is large also for 16-bit elements.
  for (const std::int64_t size : {3, 6'000, 20'000, 100'000}) {
    const Arrays all = f(x, size);
    ASSERT_EQ(all.mean.size(), size);
    for (std::int64_t i = 0; i < size; ++i) {
      ASSERT_FLOAT_EQ(all.mean[i], 6.5F + static_cast<float>(i % 5)) << i;
      ASSERT_EQ(all.most[i], world_size() - 1) << i;
    }
    EXPECT_EQ(f.on_rank(gpu())(x, size).most[0], gpu());
    const Arrays one = f(x, size, {.batch = 1});
    EXPECT_EQ(one.mean[2], 3);
    EXPECT_EQ(one.most[2], 0) << "rank 0 has the only row";
  }
}

TEST_P(Mixed, AMissingBodyIsRefusedBeforeAnythingMoves) {
  const auto f = session().function(statistics_on_cpu, "cpu_only");
  const auto x = session().data(counting(8));
  const sr::Error error = error_of([&] { f(x); });
  EXPECT_EQ(error.kind(), sr::ErrorKind::usage);
  EXPECT_THAT(error.what(), HasSubstr("'cpu_only' has no body for CUDA devices"));
  EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(gpu()) + " (cuda0)"));
  EXPECT_THAT(error.what(), testing::EndsWith(": give it one that takes a CudaWorker&, or call it on CPU devices only "
                                              "(syncrun -n cpu, or on() with CPU devices)"));
  EXPECT_EQ(f.on_rank(cpu())(x).sum, 36);
  const auto only_gpu = session().function(statistics_on_gpu, "gpu_only");
  const sr::Error other = error_of([&] { only_gpu(x); });
  EXPECT_THAT(other.what(), HasSubstr("rank " + std::to_string(cpu()) + " (cpu"));
  EXPECT_THAT(other.what(), HasSubstr(": give it one that takes a CpuWorker&"));
  EXPECT_EQ(only_gpu.on_rank(gpu())(x).sum, 36);
}

// ---- collectives of a body --------------------------------------------------------------------------------------

TEST_P(Mixed, CommReducesAndMovesValues) {
  const auto f = session().function(collect<sr::CpuWorker>, collect<sr::CudaWorker>);
  const int n = world_size();
  for (const std::size_t length : kLengths) {
    auto v = variable("v" + std::to_string(length), length);
    auto all = variable("all" + std::to_string(length), length);
    const auto sum = sum_of_all(length);
    std::vector<float> joined;  // the shares of all ranks
    for (int rank = 0; rank < n; ++rank) {
      for (const float value : part(values_of(rank, length), rank)) joined.push_back(value);
    }
    const auto own = [&](int rank) { return values_of(rank, length); };
    const auto run = [&](Operation operation, int root = 0) {
      fill(v, length);
      fill(all, length);
      f(v, all, operation, root);
    };
    run(Operation::all_reduce);
    expect_copies(v, [&](int) { return sum; });
    run(Operation::reduce_scatter);
    for (int rank = 0; rank < n; ++rank) EXPECT_TRUE(part(on(v, rank), rank) == part(sum, rank)) << length;
    run(Operation::all_gather);
    expect_copies(all, [&](int) { return joined; });
    for (int root = 0; root < n; ++root) {
      run(Operation::reduce, root);
      EXPECT_TRUE(on(v, root) == sum) << length;
      run(Operation::gather_and_scatter, root);
      EXPECT_TRUE(on(all, root) == joined) << length;
      expect_copies(v, own);
      run(Operation::broadcast, root);
      expect_copies(v, [&](int) { return own(root); });
    }
  }
}

TEST_P(Mixed, CommHandlesNumbersOfTheHost) {
  const auto f = session().function(tell_numbers<sr::CpuWorker>, tell_numbers<sr::CudaWorker>);
  const int n = world_size();
  EXPECT_EQ(f(), n * n * (n + 1) / 2);
}

TEST_P(Mixed, ReplayableBodiesWithACommRunWithoutAGraph) {
  const auto f = session().function(reduce_twice<sr::CpuWorker>, sr::replayable(reduce_twice<sr::CudaWorker>));
  auto v = session().shared<float, 1>("v");
  for (int round = 0; round < 5; ++round) {
    v.broadcast(std::vector<float>(1'001, 1));
    f(v);
    const auto expected = static_cast<float>(world_size() * world_size());
    for (int rank = 0; rank < world_size(); ++rank) {
      EXPECT_EQ(on(v, rank), std::vector<float>(1'001, expected)) << "round " << round;
    }
  }
}

TEST_P(Mixed, HostCodeReadsADeviceScalarOnAnyDevice) {
  const auto f =
      session().function(read_on_host<sr::CpuWorker>, sr::replayable_if_possible(read_on_host<sr::CudaWorker>));
  std::vector<sr::Future<sr::Sum<double>>> sums;
  for (const double value : {1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5}) sums.push_back(f.async(value));
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i].get(), (static_cast<double>(i) + 1.5) * world_size());
}

// ---- collectives of the master ------------------------------------------------------------------------------------

TEST_P(Mixed, SharedVariablesAreReducedMovedAndCopied) {
  const int n = world_size();
  for (const std::size_t length : kLengths) {
    auto v = variable("v", length);
    const auto sum = sum_of_all(length);
    const auto own = [&](int rank) { return values_of(rank, length); };
    for (const auto route : {sr::Route::device, sr::Route::host}) {
      const sr::CollectiveOptions options{.route = route};
      fill(v, length);
      EXPECT_TRUE(v.reduce(sr::Reduction::sum, options).to_vector() == sum);
      expect_copies(v, own);
      v.all_reduce(sr::Reduction::sum, options);
      expect_copies(v, [&](int) { return sum; });
      fill(v, length);
      v.reduce(sr::Reduction::sum, n - 1, options);
      EXPECT_TRUE(on(v, n - 1) == sum);
      fill(v, length);
      v.reduce_scatter(sr::Reduction::sum, options);
      expect_copies(v, [&](int rank) { return part(sum, rank); });
    }
    fill(v, length);
    std::vector<float> joined;
    for (int rank = 0; rank < n; ++rank) {
      for (const float value : own(rank)) joined.push_back(value);
    }
    v.all_gather();
    expect_copies(v, [&](int) { return joined; });
    for (int from = 0; from < n; ++from) {
      fill(v, length);
      v.broadcast(from);
      expect_copies(v, [&](int) { return own(from); });
      for (int to = 0; to < n; ++to) {
        fill(v, length);
        v.copy(from, to);
        expect_copies(v, [&](int rank) { return own(rank == to ? from : rank); });
      }
    }
  }
}

// NCCL has no arithmetic on this type, and is not used.
TEST_P(Mixed, SharedVariablesOfAnyTypeAreReduced) {
  auto v = session().shared<std::int16_t, 1>("v");
  v.broadcast(std::vector<std::int16_t>(3'000, 5));
  v.all_reduce(sr::Reduction::sum);
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(v.get(rank)[2'999], 5 * world_size());
}

// ---- train steps ----------------------------------------------------------------------------------------------

TEST_P(Mixed, ValuesMoveBetweenKinds) {
  const auto twice = session().function(twice_kept<sr::CpuWorker>, twice_kept<sr::CudaWorker>);
  const auto x = session().value(std::vector<float>{1, 2, 3}, sr::Shape{3}, session().device(cpu()));
  const auto on_gpu = twice.on(session().device(gpu()))(x);
  EXPECT_EQ(on_gpu.get()[2], 6) << "a GPU reads the memory of a CPU device";
  const auto on_cpu = twice.on(session().device(cpu()))(on_gpu);
  EXPECT_EQ(on_cpu.get()[2], 12) << "a GPU brings its values to the host first";
  EXPECT_TRUE(on_gpu.is_on_host());
  const auto again = twice.on(session().device(gpu()))(on_cpu);
  EXPECT_EQ(again.get()[0], 8);
}

class MixedSteps : public Mixed {
 protected:
  /// Takes some steps on all devices, and the same steps serially. Copies of different kinds may differ in rounding.
  template <class Step>
  void check(Step&& step, sr::Shared<float, 1>& weights, least_squares::Serial& serial, std::int64_t rows) {
    const auto x = session().data(least_squares::as<float>(serial.x), sr::Shape{rows, serial.columns});
    const auto y = session().data(least_squares::as<float>(serial.y));
    const sr::Adam adam{.learning_rate = 0.05};
    for (int i = 0; i < 20; ++i) {
      std::vector<std::int64_t> batch;
      for (std::int64_t k = 0; k < 31; ++k) batch.push_back((7 * k + i) % rows);
      const double loss = step(x, y, adam, {.batch = batch, .slices = i % 2 + 1});
      const double expected = serial.take(batch, adam);
      EXPECT_NEAR(loss, expected, 1e-4 * std::max(1.0, expected)) << "step " << i;
    }
    for (int rank = 0; rank < world_size(); ++rank) {
      const auto got = on(weights, rank);
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], serial.params[i], 1e-4) << rank << ' ' << i;
    }
  }
  void check_form(sr::StepForm form) {
    constexpr std::int64_t kRows = 97;
    auto serial = least_squares::problem(kRows, 1'501, 3);
    auto weights = session().shared<float, 1>("weights");
    weights.broadcast(least_squares::as<float>(serial.params));
    check(sr::train_step<sr::Adam>(session(), loss_and_gradient_on_cpu, loss_and_gradient_on_gpu, weights,
                                   {.form = form}),
          weights, serial, kRows);
    if (form != sr::StepForm::sharded) return;  // otherwise copies may differ by rounding
    for (int rank = 1; rank < world_size(); ++rank) EXPECT_TRUE(on(weights, rank) == on(weights, 0));
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, MixedSteps, kLists, kNameOfList);

TEST_P(MixedSteps, AgreeWithSerialOnesUpToRounding) { check_form(sr::StepForm::replicated); }

TEST_P(MixedSteps, MayShareOutTheirStateAndThenHaveEqualParameters) { check_form(sr::StepForm::sharded); }

TEST_P(MixedSteps, MayBeReplayable) {
  constexpr std::int64_t kRows = 97;
  auto serial = least_squares::problem(kRows, 33, 4);
  auto weights = session().shared<float, 1>("weights");
  weights.broadcast(least_squares::as<float>(serial.params));
  check(
      sr::train_step<sr::Adam>(session(), loss_and_gradient_on_cpu, sr::replayable(loss_and_gradient_on_gpu), weights),
      weights, serial, kRows);
}

TEST_P(MixedSteps, MayAddTheirGradients) {
  constexpr std::int64_t kRows = 97;
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    for (const double clip_norm : {0.0, std::numeric_limits<double>::infinity()}) {
      auto serial = least_squares::problem(kRows, 33, 4);
      auto weights = session().shared<float, 1>();
      weights.broadcast(least_squares::as<float>(serial.params));
      check(sr::train_step<sr::Adam>(session(), summed_on_cpu, sr::replayable(summed_on_gpu), weights,
                                     {.form = form, .clip_norm = clip_norm}),
            weights, serial, kRows);
    }
  }
}

// Each kind of device has its own code for groups and clipping. A rank updates its own copy by it.
TEST_P(MixedSteps, MayHaveGroupsAndAClippedGradient) {
  constexpr std::int64_t kRows = 97;
  constexpr std::int64_t kColumns = 9'001;  // several tiles of a GPU's kernel
  const auto problem = least_squares::problem(kRows, kColumns, 5);
  const auto x = session().data(least_squares::as<float>(problem.x), sr::Shape{kRows, kColumns});
  const auto y = session().data(least_squares::as<float>(problem.y));
  const std::vector<sr::ParameterGroup> groups{{.begin = 3, .end = 5, .learning_rate = 0.5},
                                               {.begin = 5, .end = 4'500, .weight_decay = 0},
                                               {.begin = 6'001, .end = 6'010, .learning_rate = 0}};
  std::vector<float> replicated;
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    auto weights = session().shared<float, 1>();
    weights.broadcast(least_squares::as<float>(problem.params));
    auto step = sr::train_step<sr::Adam>(session(), loss_and_gradient_on_cpu, loss_and_gradient_on_gpu, weights,
                                         {.form = form, .groups = groups, .clip_norm = 0.01});
    for (int i = 0; i < 5; ++i) {
      step(x, y, {.learning_rate = 0.05, .decoupled_weight_decay = 0.1});
      EXPECT_GT(step.gradient_norm(), 0.01) << "the gradient is clipped";
    }
    const auto first = on(weights, 0);
    for (int rank = 1; rank < world_size(); ++rank) {
      const auto got = on(weights, rank);
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], first[i], 1e-4) << rank << ' ' << i;
    }
    for (std::size_t i = 6'001; i < 6'010; ++i)
      EXPECT_EQ(first[i], static_cast<float>(problem.params[i])) << "a frozen element";
    EXPECT_NE(first[0], static_cast<float>(problem.params[0]));
    // In the sharded form, each part is updated by a device of one kind. In the other one, each copy is.
    if (replicated.empty()) replicated = first;
    for (std::size_t i = 0; i < first.size(); ++i) ASSERT_NEAR(first[i], replicated[i], 1e-4) << i;
  }
}

// ---- asynchronous training ------------------------------------------------------------------------------------

/// Each device trains at its own pace. The center moves between the kinds of devices, because the device that exchanges
/// values with it has to have it.
class MixedRounds : public Mixed {
 protected:
  static constexpr std::size_t kParams = 1'001;
  static constexpr std::int64_t kRounds = 30;

  std::vector<sr::Device> devices() {
    std::vector<sr::Device> all;
    for (int rank = 0; rank < world_size(); ++rank) all.push_back(session().device(rank));
    return all;
  }
  sr::Value<float, 1> center() {
    return session().value(std::vector<float>(kParams, 1), sr::Shape{kParams}, session().device(cpu()), "center");
  }
  auto start() {
    const auto f = session().function(descend<sr::CpuWorker>, descend<sr::CudaWorker>, "descend");
    return [f, targets = variable("targets", kParams)](const sr::Round<float>& round) {
      return f.on(round.device).async(round.params, targets, round.number);
    };
  }
  static bool goes_on(const sr::Round<float>&) { return true; }
  static void train_serially(std::span<double> params, std::int64_t lane, std::int64_t round) {
    const auto target = values_of(static_cast<int>(lane), kParams);
    for (std::int64_t step = 0; step <= round % 3; ++step) {
      for (std::size_t i = 0; i < kParams; ++i)
        params[i] = (1 - kDescent) * params[i] + kDescent * static_cast<double>(target[i]);
    }
  }
  /// `serial` computes what the rounds must give, from the order of their arrivals.
  template <class Serial>
  void check(const sr::RoundsReport& report, const sr::Value<float, 1>& got, Serial&& serial) {
    EXPECT_EQ(report.arrivals.size(), static_cast<std::size_t>(kRounds));
    for (const std::int64_t rounds : report.rounds) EXPECT_GE(rounds, 1) << "each device takes part";
    const serial_rounds::Result expected =
        serial(std::vector<double>(kParams, 1), report.rounds.size(), report.arrivals);
    EXPECT_EQ(report.rounds, expected.rounds);
    const auto values = got.get();
    for (std::size_t i = 0; i < kParams; ++i) {
      const double wanted = expected.center[i];
      ASSERT_NEAR(values[static_cast<std::int64_t>(i)], wanted, 1e-4 * std::max(1.0, std::abs(wanted))) << i;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, MixedRounds, kLists, kNameOfList);
INSTANTIATE_TEST_SUITE_P(Cpus, MixedRounds, testing::Values("cpu0", "cpu0,cpu1,cpu2"), kNameOfList);

TEST_P(MixedRounds, OfElasticAveragingAreWhatASerialSimulationGives) {
  constexpr double kMoving = 0.3;
  const auto shared = center();
  const auto report =
      sr::easgd(session(), shared, devices(), start(), goes_on, {.moving_rate = kMoving, .rounds = kRounds});
  check(report, shared, [](const auto& begin, std::size_t lanes, const auto& arrivals) {
    return serial_rounds::easgd(begin, lanes, arrivals, kMoving, train_serially);
  });
}

TEST_P(MixedRounds, OfDownpourAreWhatASerialSimulationGives) {
  const auto shared = center();
  const auto report = sr::downpour(session(), shared, devices(), start(), goes_on, {.rounds = kRounds});
  check(report, shared, [](const auto& begin, std::size_t lanes, const auto& arrivals) {
    return serial_rounds::downpour(begin, lanes, arrivals, train_serially);
  });
}

// ---- failures -------------------------------------------------------------------------------------------------

class MixedFailures : public Mixed {
 protected:
  auto function() { return session().function(misbehave<sr::CpuWorker>, misbehave<sr::CudaWorker>, "misbehave"); }
  void expect_usable(sr::Shared<float, 1>& v) {
    fill(v, 1'001);
    function()(v, 0, Fault::none);
    for (int rank = 0; rank < world_size(); ++rank) EXPECT_TRUE(on(v, rank) == sum_of_all(1'001));
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, MixedFailures, kLists, kNameOfList);

TEST_P(MixedFailures, OfABodyOnEitherKindAreReportedAndTheSessionGoesOn) {
  for (const std::size_t length : kLengths) {
    auto v = variable("v" + std::to_string(length), length);
    for (const int rank : {gpu(), cpu()}) {
      const sr::Error error = error_of([&] { function()(v, rank, Fault::exception); });
      EXPECT_EQ(error.kind(), sr::ErrorKind::function);
      EXPECT_EQ(error.rank(), rank);
      EXPECT_THAT(error.what(), HasSubstr("this rank went wrong"));
      expect_usable(v);
    }
  }
}

TEST_P(MixedFailures, OfRanksThatDisagreeAreUsageErrors) {
  auto v = variable("v", 1'001);
  for (const Fault fault : {Fault::leaves, Fault::other_length}) {
    for (const int rank : {gpu(), cpu()}) {
      const sr::Error error = error_of([&] { function()(v, rank, fault); });
      EXPECT_THAT(error.what(), HasSubstr("ranks disagree in a collective"));
      expect_usable(v);
    }
  }
}

TEST_P(MixedFailures, OfAKilledWorkerEndTheSession) {
  auto v = variable("v", 1'001);
  const int rank = GetParam().starts_with("cuda") ? gpu() : cpu();
  const sr::Error error = error_of([&] { function()(v, rank, Fault::kill); });
  EXPECT_EQ(error.kind(), sr::ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), rank);
  session_.reset();
}

class MixedRespawns : public MixedFailures {
  sr::SessionOptions options() const override {
    sr::SessionOptions options = Mixed::options();
    options.on_worker_lost = sr::OnWorkerLost::respawn;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, MixedRespawns, kLists, kNameOfList);

TEST_P(MixedRespawns, ReplaceAWorkerOfEitherKind) {
  auto kept = session().shared<float, 1>("kept");
  kept.broadcast(std::vector<float>{1, 2, 3});
  auto v = variable("v", 1'001);
  for (const int rank : {gpu(), cpu(), gpu()}) {
    const sr::Error error = error_of([&] { function()(v, rank, Fault::kill); });
    EXPECT_EQ(error.kind(), sr::ErrorKind::worker_lost) << error.what();
    EXPECT_EQ(error.rank(), rank);
    EXPECT_THAT(error.failure().restored, Contains("kept"));
    EXPECT_EQ(on(kept, rank), (std::vector<float>{1, 2, 3}));
    expect_usable(v);
  }
}

TEST_P(MixedRespawns, ReplaceAWorkerWhoseGpuHasLostItsContext) {
  auto v = variable("v", 1'001);
  const auto lose = session().function(lose_context_on_cpu, lose_context_on_gpu);
  for (int round = 0; round < 2; ++round) {
    const sr::Error error = error_of([&] { lose(); });
    EXPECT_EQ(error.kind(), sr::ErrorKind::worker_lost) << error.what();
    EXPECT_EQ(error.rank(), gpu());
    EXPECT_THAT(error.what(), HasSubstr("context is lost"));
    expect_usable(v);
  }
}

// ---- several GPUs ---------------------------------------------------------------------------------------------

/// A GPU-only set of ranks in a session that also has a CPU device.
TEST(MixedSets, OfSomeGpusCommunicate) {
  if (gpus() < 2) GTEST_SKIP() << "2 GPUs wanted, " << gpus() << " present";
  sr::Session session({.devices = "cuda0,cuda1,cpu0", .timeout = std::chrono::seconds(60)});
  const auto x = session.data(std::vector<float>{1, 2, 3, 4});
  const auto f = session.function(arrays_on_cpu, arrays_on_gpu);
  const auto pair = f.on({session.device(0), session.device(1)});
  const Arrays both = pair(x, 100'000);
  EXPECT_EQ(both.mean[0], 2.5F);
  EXPECT_EQ(both.most[99'999], 1);
  auto v = session.shared<float, 1>("v");
  v.broadcast(std::vector<float>(3, 1));
  const auto g = session.function(reduce_twice<sr::CpuWorker>, reduce_twice<sr::CudaWorker>);
  g.on({session.device(0), session.device(1)})(v);
  EXPECT_EQ(v.get(0)[0], 4);
  EXPECT_EQ(v.get(1)[0], 4);
  EXPECT_EQ(v.get(2)[0], 1);
  g.on({session.device(1), session.device(2)})(v);
  EXPECT_EQ(v.get(0)[0], 4);
  EXPECT_EQ(v.get(1)[0], 10);
  EXPECT_EQ(v.get(2)[0], 10);
  session.close();
}

}  // namespace
}  // namespace mixed_test
