// is_finite(): a run keeps its last checkpoint if parameters, statistics or state are not finite.

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <syncrun/syncrun.hpp>

#include "demos/resnet/program/checkpoints.hpp"

namespace resnet {
namespace {

/// A step of an update rule that has two state vectors.
class StepWithState : public TrainingStep {
 public:
  explicit StepWithState(std::vector<std::pair<std::string, sr::Shared<float, 1>>> state) : state_(std::move(state)) {}
  sr::Future<Fit> launch(std::span<const std::int64_t>, std::int64_t, const StepInput&, double) override {
    throw std::logic_error("nothing is trained here");
  }
  std::vector<std::pair<std::string, sr::Shared<float, 1>>> state() const override { return state_; }
  std::int64_t steps() const override { return 0; }
  void set_steps(std::int64_t) override {}

 private:
  std::vector<std::pair<std::string, sr::Shared<float, 1>>> state_;
};

TEST(ResnetProgress, IsFiniteWhereEveryVectorOfItIs) {
  sr::Session session({.processes = "2"});
  const std::vector<float> good{1, -2, 0};
  std::vector<sr::Shared<float, 1>> vectors;
  for (const char* name : {"params", "statistics", "m", "v"}) vectors.push_back(session.shared(name, good));
  StepWithState step({{"m", vectors[2]}, {"v", vectors[3]}});
  const Progress progress{vectors[0], vectors[1], step};
  EXPECT_TRUE(is_finite(progress));
  for (auto& vector : vectors) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      vector.broadcast(std::vector<float>{1, bad, 0});
      EXPECT_FALSE(is_finite(progress)) << &vector - vectors.data();
    }
    vector.broadcast(good);
  }
  EXPECT_TRUE(is_finite(progress));
}

}  // namespace
}  // namespace resnet
