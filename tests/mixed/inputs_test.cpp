// The inputs of a call on a GPU stay as they are while it computes, whatever the next calls are. The master makes many
// calls at once, so a GPU copies the inputs of its next call while it computes. The tests require one GPU, or two GPUs,
// which may be fake ones.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/mixed/mixed_bodies.hpp"

namespace mixed_test {
namespace {

/// The parameter: a list of two devices, and whether the GPUs replay their work.
class MixedInputs : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  using Devices = std::vector<sr::Device>;

  void SetUp() override {
    const auto& [devices, replays] = GetParam();
    const int needed = devices.find("cuda1") == std::string::npos ? 1 : 2;
    if (gpus() < needed) GTEST_SKIP() << needed << " GPUs wanted, " << gpus() << " present";
    session_ =
        std::make_unique<sr::Session>(sr::SessionOptions{.devices = devices, .timeout = std::chrono::seconds(60)});
    f_.emplace(replays ? session_->function(late_sum_on_cpu, sr::replayable(late_sum_on_gpu), "late_sum")
                       : session_->function(late_sum_on_cpu, late_sum_on_gpu, "late_sum"));
  }
  void TearDown() override {
    if (!session_) return;
    check();
    session_->close();
  }
  sr::Session& session() { return *session_; }
  sr::Device device(int rank) { return session_->device(rank); }

  /// Starts a call on these devices. Its inputs differ from those of all other calls.
  void start(const Devices& devices, std::int64_t rows) {
    const auto number = static_cast<float>(pending_.size() + 1);
    const auto x = session_->data(std::vector<float>(static_cast<std::size_t>(rows), number));
    const auto y = session_->data(std::vector<float>(100, number));
    const double ranks = static_cast<double>(devices.size());
    const double sum = (static_cast<double>(rows) + 100 * ranks) * static_cast<double>(number);
    const double factor = 1 + static_cast<double>(pending_.size() % 7);
    pending_.emplace_back(f_->on(devices).async(x, y, factor), sum * factor);
  }
  /// Awaits all calls.
  void check() {
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      auto& [future, expected] = pending_[i];
      EXPECT_EQ(static_cast<double>(future.get()), expected) << "call " << i;
    }
    pending_.clear();
  }

  static constexpr std::int64_t kRowCounts[] = {256, 4'096, 100'000};

 private:
  using Function = decltype(std::declval<sr::Session>().function(late_sum_on_cpu, late_sum_on_gpu, "late_sum"));
  std::unique_ptr<sr::Session> session_;
  std::optional<Function> f_;
  std::vector<std::pair<sr::Future<sr::Sum<double>>, double>> pending_;
};
INSTANTIATE_TEST_SUITE_P(Devices, MixedInputs,
                         testing::Combine(testing::Values("cuda0,cpu0", "cpu0,cuda0", "cuda0,cuda1"), testing::Bool()),
                         [](const testing::TestParamInfo<std::tuple<std::string, bool>>& parameter) {
                           std::string name = std::get<0>(parameter.param);
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name + (std::get<1>(parameter.param) ? "_replayed" : "");
                         });

TEST_P(MixedInputs, AreRightWithAnyNumberOfCallsElsewhereBetween) {
  for (const std::int64_t rows : kRowCounts) {
    for (int between = 0; between < 4; ++between) {
      for (int pair = 0; pair < 2; ++pair) {
        start({device(0)}, rows);
        for (int i = 0; i < between; ++i) start({device(1)}, rows);
        start({device(0)}, rows);
        start({device(1)}, rows);
      }
      check();
    }
  }
}

TEST_P(MixedInputs, AreRightInStepsOnAllRanksWithAnEvaluationOnOneBetween) {
  for (const std::int64_t rows : kRowCounts) {
    for (int step = 0; step < 6; ++step) {
      start({device(0), device(1)}, rows);
      start({device(step % 2)}, rows / 2);
    }
    check();
  }
}

TEST_P(MixedInputs, AreRightWithAMoveBetweenTwoSteps) {
  for (const std::int64_t rows : kRowCounts) {
    const std::vector<float> values(1'000, 7);
    const auto value = session().value(values, sr::Shape{1'000}, device(0));
    for (int step = 0; step < 6; ++step) {
      start({device(0), device(1)}, rows);
      value.to(device(1 - step % 2));
      const auto other = session().value(values, sr::Shape{1'000}, device(step % 2));
      other.to(device(1 - step % 2));
      EXPECT_EQ(other.get()[999], 7);
    }
    check();
    EXPECT_EQ(value.get()[999], 7);
  }
}

// ---- copies between GPUs ---------------------------------------------------------------------------------------

/// Real GPUs copy from each other. Fake ones stand for GPUs that cannot.
TEST(MixedSets, OfTwoGpusGetTheValuesOfEachOther) {
  if (gpus() < 2) GTEST_SKIP() << "2 GPUs wanted, " << gpus() << " present";
  sr::Session session({.devices = "cuda0,cuda1", .timeout = std::chrono::seconds(60)});
  const auto twice = session.function(twice_kept<sr::CpuWorker>, twice_kept<sr::CudaWorker>);
  auto x = session.value(std::vector<float>{1, 2, 3}, sr::Shape{3}, session.device(0));
  for (const int rank : {1, 0, 1}) x = twice.on(session.device(rank))(x);
  EXPECT_EQ(x.get()[2], 24);
  auto v = session.shared<float, 1>("v");
  v.broadcast(std::vector<float>(3, 1));
  v.set(0, std::vector<float>{5, 6, 7, 8});
  v.copy(0, 1);
  EXPECT_EQ(v.get(1)[3], 8);
  session.close();
}

// ---- texts -----------------------------------------------------------------------------------------------------

/// A GPU's body reads a text in host memory.
TEST(MixedTexts, ArriveOnDevicesOfBothKinds) {
  if (gpus() < 1) GTEST_SKIP() << "1 GPU wanted, none present";
  sr::Session session({.devices = "cuda0,cpu0", .timeout = std::chrono::seconds(60)});
  const auto f = session.function(
      [](sr::CpuWorker&, std::string_view text) -> sr::Sum<std::int64_t> { return std::int64_t(text.size()); },
      [](sr::CudaWorker&, std::string_view text) -> sr::Sum<std::int64_t> {
        return text.find_first_not_of('t') == std::string_view::npos ? std::int64_t(text.size()) : -1;
      });
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{1} << 20U})
    EXPECT_EQ(f(std::string(bytes, 't')), 2 * static_cast<std::int64_t>(bytes));
  session.close();
}

}  // namespace
}  // namespace mixed_test
