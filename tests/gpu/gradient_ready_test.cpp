// Gradients whose buckets are averaged while the body computes the rest (GradientReady), run and replayed. The tests
// compare with the same steps, computed serially here. They also combine this with collectives of the body's own, and
// with a rank that fails in the middle.

#include <gmock/gmock.h>

#include <cmath>
#include <csignal>

#include "tests/gpu/gradient_bodies.hpp"
#include "tests/gpu/on_gpus.hpp"

namespace gpu_test {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class GpuGradientReady : public OnGpus {
 protected:
  /// The sum of (rank + 1) * (k + 1) over all ranks.
  double sum_at(std::int64_t k) const { return world_size() * (world_size() + 1) / 2 * static_cast<double>(k + 1); }
};
INSTANTIATE_ON_GPUS(GpuGradientReady);

/// The size of a gradient, and of its buckets. Buckets go through the peers' memory by lines (up to 1 MiB) and by
/// copies (up to 16 MiB), and through NCCL. The last bucket of each gradient is averaged by kernels.
struct Case {
  std::int64_t elements;
  std::size_t bucket_bytes;
};
constexpr Case kCases[] = {{1, 256}, {100'003, 64 << 10}, {3'000'017, 4 << 20}, {12'000'001, 24 << 20}};

/// Parameters, and the steps that the bodies of gradient_bodies.hpp take with them.
struct Serial {
  explicit Serial(std::int64_t elements) : params(static_cast<std::size_t>(elements)) {
    for (std::size_t i = 0; i < params.size(); ++i) params[i] = static_cast<double>(i % 64) / 64;
  }
  template <class Added>
  void take(double mean, double rate, Added&& added) {
    for (std::int64_t k = 0; k < kPieces; ++k) {
      const auto size = static_cast<std::int64_t>(params.size());
      const double sum = added(k);
      for (auto i = begin_of_piece(k, size); i < begin_of_piece(k + 1, size); ++i) {
        double& param = params[static_cast<std::size_t>(i)];
        param -= rate * (mean * static_cast<double>(i % 7 + 1) + param + sum);
      }
    }
  }
  std::vector<double> params;
};

double nothing_added(std::int64_t) { return 0; }

template <class T>
void expect_equal(sr::Session& session, const sr::Shared<T, 1>& weights, const std::vector<double>& expected,
                  double tolerance) {
  const auto first = weights.get(0).to_vector();
  ASSERT_EQ(first.size(), expected.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    ASSERT_NEAR(first[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << "parameter " << i;
  }
  for (int rank = 1; rank < session.world_size(); ++rank) {
    EXPECT_TRUE(weights.get(rank).to_vector() == first) << "rank " << rank << " has other bits";
  }
}

/// Takes steps on two shapes in turn, so that captured steps are replayed. One of the shapes leaves some ranks without
/// rows.
template <class T, class Make, class Added = double(std::int64_t)>
void follow(sr::Session& session, const Case& one, double tolerance, Make&& make, Added&& added = nothing_added) {
  SCOPED_TRACE(std::to_string(one.elements) + " elements in buckets of " + std::to_string(one.bucket_bytes) + " bytes");
  Serial serial(one.elements);
  auto weights = session.shared<T, 1>("weights");
  weights.broadcast(std::vector<T>(serial.params.begin(), serial.params.end()));
  auto step = make(weights, one.bucket_bytes);
  for (int i = 0; i < 16; ++i) {
    std::vector<T> rows(i % 2 == 0 ? 1 : static_cast<std::size_t>(3 * session.world_size() + 1));
    double mean = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      rows[row] = static_cast<T>(static_cast<int>(row * 5 + static_cast<std::size_t>(i)) % 11 - 5);
      mean += static_cast<double>(rows[row]) / static_cast<double>(rows.size());
    }
    step(session.data(rows), {.learning_rate = 0.25});
    serial.take(mean, 0.25, added);
  }
  expect_equal(session, weights, serial.params, tolerance);
}

template <class T, Says kSays>
void follow_in_pieces(sr::Session& session, const Case& one, double tolerance) {
  follow<T>(session, one, tolerance, [&](const sr::Shared<T, 1>& weights, std::size_t bucket_bytes) {
    return sr::train_step<sr::Sgd>(session, gradient_in_pieces<T, kSays>, weights, {.bucket_bytes = bucket_bytes});
  });
  follow<T>(session, one, tolerance, [&](const sr::Shared<T, 1>& weights, std::size_t bucket_bytes) {
    return sr::train_step<sr::Sgd>(session, sr::replayable(&gradient_in_pieces<T, kSays>), weights,
                                   {.name = "replayed", .bucket_bytes = bucket_bytes});
  });
}

TEST_P(GpuGradientReady, GivesTheMeanOfAllRowsInEveryBucket) {
  for (const Case& one : kCases) follow_in_pieces<float, Says::each_piece>(session(), one, 1e-5);
  follow_in_pieces<double, Says::each_piece>(session(), kCases[1], 1e-12);
  follow_in_pieces<double, Says::each_piece>(session(), kCases[2], 1e-12);
}

TEST_P(GpuGradientReady, IsTheSameWhateverTheBodySays) {
  for (const Case& one : {kCases[1], kCases[2], Case{100'003, 0}}) {
    follow_in_pieces<float, Says::nothing>(session(), one, 1e-5);
    follow_in_pieces<float, Says::half>(session(), one, 1e-5);
    follow_in_pieces<float, Says::all_at_the_end>(session(), one, 1e-5);
  }
}

// The body calls collectives on the worker's stream while buckets are averaged. Both use the same communicator and the
// same memory.
TEST_P(GpuGradientReady, GoesTogetherWithCollectivesOfTheBodys) {
  for (const Case& one : kCases) {
    const auto added = [this](std::int64_t k) { return sum_at(k); };
    follow<float>(
        session(), one, 1e-5,
        [&](const sr::Shared<float, 1>& weights, std::size_t bucket_bytes) {
          return sr::train_step<sr::Sgd>(session(), gradient_with_sums, weights, {.bucket_bytes = bucket_bytes});
        },
        added);
    follow<float>(
        session(), one, 1e-5,
        [&](const sr::Shared<float, 1>& weights, std::size_t bucket_bytes) {
          return sr::train_step<sr::Sgd>(session(), sr::replayable(gradient_with_sums), weights,
                                         {.name = "replayed", .bucket_bytes = bucket_bytes});
        },
        added);
  }
}

TEST_P(GpuGradientReady, DoesNotMatterWithSlicesNorSharded) {
  for (const sr::StepForm form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    auto weights = session().shared<float, 1>("weights");
    weights.broadcast(std::vector<float>(100'003, 1.0F));
    auto step = sr::train_step<sr::Sgd>(session(), sr::replayable(&gradient_in_pieces<float, Says::each_piece>),
                                        weights, {.form = form, .bucket_bytes = 64 << 10});
    Serial serial(100'003);
    serial.params.assign(serial.params.size(), 1.0);
    const std::vector<float> rows(static_cast<std::size_t>(5 * world_size() + 1), 3.0F);
    for (int i = 0; i < 8; ++i) {
      step(session().data(rows), {.learning_rate = 0.25}, {.slices = 3});
      serial.take(3.0, 0.25, nothing_added);
    }
    expect_equal(session(), weights, serial.params, 1e-5);
  }
}

TEST_P(GpuGradientReady, CanBeInFlightSeveralTimes) {
  Serial serial(kCases[2].elements);
  auto weights = session().shared<float, 1>("weights");
  weights.broadcast(std::vector<float>(serial.params.begin(), serial.params.end()));
  auto step = sr::train_step<sr::Sgd>(session(), sr::replayable(&gradient_in_pieces<float, Says::each_piece>), weights,
                                      {.bucket_bytes = kCases[2].bucket_bytes});
  const auto x = session().data(std::vector<float>(static_cast<std::size_t>(world_size() + 1), 2.0F));
  std::vector<sr::Future<sr::Avg<double>>> means;
  for (int i = 0; i < 12; ++i) means.push_back(step.async(x, {.learning_rate = 0.125}));
  for (auto& mean : means) {
    EXPECT_EQ(mean.get(), 2.0);
    serial.take(2.0, 0.125, nothing_added);
  }
  expect_equal(session(), weights, serial.params, 1e-5);
}

// ---- failures ---------------------------------------------------------------------------------------------------

class GpuGradientFault : public OnGpus {
 protected:
  void SetUp() override {
    if (GetParam() == 1) GTEST_SKIP() << "one rank has no peers";
    OnGpus::SetUp();
  }
  sr::Shared<float, 1> weights_of(const Case& one) {
    auto weights = session().shared<float, 1>();
    weights.broadcast(std::vector<float>(static_cast<std::size_t>(one.elements), 1.0F));
    return weights;
  }
  auto step_with_fault(const sr::Shared<float, 1>& weights, const Case& one) {
    return sr::train_step<sr::Sgd>(session(), gradient_with_fault, weights,
                                   {.name = "step", .bucket_bytes = one.bucket_bytes});
  }
  /// One row more than there are ranks.
  sr::Data<float, 1> rows() {
    return session().data(std::vector<float>(static_cast<std::size_t>(world_size() + 1), 1));
  }
};
INSTANTIATE_ON_GPUS(GpuGradientFault);

TEST_P(GpuGradientFault, OfOneRankReleasesThePeersAndTheSessionGoesOn) {
  const auto x = rows();
  for (const Case& one : {kCases[1], kCases[2], kCases[3]}) {
    auto weights = weights_of(one);
    auto step = step_with_fault(weights, one);
    for (const Fault fault : {Fault::exception, Fault::other_length, Fault::exception}) {
      const auto begin = Clock::now();
      const sr::Error error = error_of([&] { step(x, world_size() - 1, fault, {}); });
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10)) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(fault == Fault::exception ? "misbehaved on purpose" : "ranks disagree"));
      weights.broadcast(std::vector<float>(static_cast<std::size_t>(one.elements), 1.0F));
      Serial serial(one.elements);
      serial.params.assign(serial.params.size(), 1.0);
      for (int i = 0; i < 3; ++i) {
        step(x, 0, Fault::none, {.learning_rate = 0.25});
        serial.take(1.0, 0.25, nothing_added);
      }
      expect_equal(session(), weights, serial.params, 1e-5);
    }
  }
}

TEST_P(GpuGradientFault, InAFirstRunReleasesPeersThatLoadKernels) {
  const Case one = kCases[2];
  auto weights = weights_of(one);
  auto step =
      sr::train_step<sr::Sgd>(session(), gradient_with_late_kernel, weights, {.bucket_bytes = one.bucket_bytes});
  const auto x = rows();
  const auto begin = Clock::now();
  const sr::Error error = error_of([&] { step(x, world_size() - 1, {}); });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10)) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("misbehaved on purpose"));
  Serial serial(one.elements);
  serial.params.assign(serial.params.size(), 1.0);
  for (int i = 0; i < 3; ++i) {
    step(x, -1, {.learning_rate = 0.25});
    serial.take(1.0, 0.25, nothing_added);
  }
  expect_equal(session(), weights, serial.params, 1e-5);
}

TEST_P(GpuGradientFault, AKilledWorkerIsNamedWhileBucketsAreInFlight) {
  for (const Case& one : {kCases[1], kCases[2], kCases[3]}) {
    if (one.elements != kCases[1].elements) SetUp();
    const auto weights = weights_of(one);
    auto step = step_with_fault(weights, one);
    const auto x = rows();
    step(x, 0, Fault::none, {});
    const auto begin = Clock::now();
    const sr::Error error = error_of([&] { step(x, world_size() - 1, Fault::kill, {}); });
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
    EXPECT_EQ(error.kind(), sr::ErrorKind::worker_lost) << error.what();
    EXPECT_EQ(error.rank(), world_size() - 1);
    EXPECT_THAT(error.what(), HasSubstr("SIGKILL"));
    end_session();
  }
}

TEST_P(GpuGradientFault, AWorkerKilledAmongReplaysIsNamed) {
  const Case one = kCases[3];
  const auto weights = weights_of(one);
  auto step = sr::train_step<sr::Sgd>(session(), sr::replayable(&gradient_in_pieces<float, Says::each_piece>), weights,
                                      {.bucket_bytes = one.bucket_bytes});
  const auto x = rows();
  for (int i = 0; i < 8; ++i) step(x, {});
  const auto begin = Clock::now();
  const sr::Error error = error_of([&] {
    std::vector<sr::Future<sr::Avg<double>>> means;
    for (int i = 0; i < 4; ++i) means.push_back(step.async(x, {}));
    ::kill(session().worker_pids().back(), SIGKILL);
    for (;;) {  // until a step fails
      for (auto& mean : means) static_cast<void>(mean.get());
      means.clear();
      means.push_back(step.async(x, {}));
    }
  });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
  EXPECT_EQ(error.kind(), sr::ErrorKind::worker_lost) << error.what();
  EXPECT_EQ(error.rank(), world_size() - 1);
  end_session();
}

TEST_P(GpuGradientFault, AnIllegalAddressInAGraphFreesThePeers) {
  const Case one = kCases[2];
  const auto weights = weights_of(one);
  auto step = sr::train_step<sr::Sgd>(session(), sr::replayable(gradient_with_crash), weights,
                                      {.bucket_bytes = one.bucket_bytes});
  const auto x = rows();
  for (int i = 0; i < 8; ++i) step(x, -1, {});
  const sr::Error error = error_of([&] { step(x, world_size() - 1, {}); });
  EXPECT_EQ(error.kind(), sr::ErrorKind::cuda) << error.what();
  EXPECT_EQ(error.rank(), world_size() - 1);
  end_session();
}

}  // namespace
}  // namespace gpu_test
