// Plans of convolutions on a GPU. A stored plan must be the one that computes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "demos/resnet/network/conv_plans.hpp"
#include "demos/resnet/network/cuda/cuda_convolution.hpp"
#include "demos/resnet/network/cuda/cuda_network.hpp"
#include "demos/resnet/network/cuda/cuda_queue.hpp"
#include "tests/demos/cuda_support.hpp"
#include "tests/demos/resnet/reference.hpp"

namespace resnet {
namespace {

using demos::testing::OnDevice;
using demos::testing::read_one;
using ::testing::HasSubstr;
using testing::Reference;
using testing::relative_error;

constexpr ConvShape kShape{
    .rows = 8, .channels_in = 64, .channels_out = 64, .size_in = 16, .kernel = 3, .stride = 1, .padding = 1};
constexpr std::size_t kImageElements = 8 * 16 * 16 * 64;  // elements of the input, and of the output
constexpr std::size_t kFilterElements = 64 * 3 * 3 * 64;

std::vector<float> some_values(std::size_t count, std::size_t first) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(testing::uniform_at(first + i));
  return values;
}

class ConvPlanOnGpu : public demos::testing::OnGpu, public ::testing::WithParamInterface<ConvPass> {
 protected:
  /// These arrays are made only if there is a GPU.
  struct Arrays {
    CudaQueue queue;
    OnDevice<float> input{some_values(kImageElements, 0)};
    OnDevice<float> filter{some_values(kFilterElements, 1 << 20)};
    OnDevice<float> output{some_values(kImageElements, 1 << 21)};
    demos::DeviceBuffer workspace{kMostWorkspaceBytes};

    TuningMemory tuning() const {
      return {{input.data(), filter.data(), output.data(), workspace.data()}, workspace.bytes()};
    }
    /// The result of the plan for the initial arrays.
    std::vector<float> result(const ConvPlan& plan, ConvPass pass) {
      input.write(some_values(kImageElements, 0));
      filter.write(some_values(kFilterElements, 1 << 20));
      output.write(some_values(kImageElements, 1 << 21));
      demos::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // the stream does not wait for writes
      plan.run(queue.handles().cudnn, tuning().place);
      switch (pass) {
        case ConvPass::kForward: return output.read();
        case ConvPass::kBackwardInput: return input.read();
        case ConvPass::kBackwardFilter: return filter.read();
      }
      return {};
    }
  };
};

TEST_P(ConvPlanOnGpu, IsTheStoredOneWhicheverThatIs) {
  Arrays arrays;
  const CudaHandles handles = arrays.queue.handles();
  const PlanKey key{GetParam(), CudaMath::kFloat32, kShape};
  const ConvPlan fastest(handles.cudnn, handles.stream, key, arrays.tuning());
  const std::vector<std::string> names = proposed_plans(handles.cudnn, key);
  ASSERT_THAT(names, ::testing::Contains(fastest.choice().name));
  const std::vector<float> expected = arrays.result(fastest, GetParam());
  // The later plans may be thousands of times slower.
  for (const std::string& name : {fastest.choice().name, names.front(), names[names.size() / 2]}) {
    SCOPED_TRACE(name);
    const ConvPlan stored(handles.cudnn, handles.stream, key, arrays.tuning(), PlanChoice{name, 0});
    EXPECT_EQ(stored.choice().name, name);
    const std::vector<float> result = arrays.result(stored, GetParam());
    EXPECT_LT(relative_error(result, expected), 1e-4);
    EXPECT_EQ(arrays.result(stored, GetParam()), result) << "the same bits again";
    const ConvPlan again(handles.cudnn, handles.stream, key, arrays.tuning(), stored.choice());
    EXPECT_EQ(again.choice(), stored.choice());
    EXPECT_EQ(arrays.result(again, GetParam()), result) << "and of the same plan, made again";
  }
}

TEST_P(ConvPlanOnGpu, ThatIsNotProposedIsNamed) {
  const Arrays arrays;
  const CudaHandles handles = arrays.queue.handles();
  const PlanKey key{GetParam(), CudaMath::kFloat32, kShape};
  try {
    const ConvPlan plan(handles.cudnn, handles.stream, key, arrays.tuning(), PlanChoice{"eng9999_k1=2", 0});
    ADD_FAILURE() << plan.choice().name;
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the stored plan 'eng9999_k1=2' cannot be used: cuDNN does not propose it"));
  }
}

std::string name_of(const ::testing::TestParamInfo<ConvPass>& info) {
  switch (info.param) {
    case ConvPass::kForward: return "forward";
    case ConvPass::kBackwardInput: return "backward_input";
    case ConvPass::kBackwardFilter: return "backward_filter";
  }
  return "none";
}

INSTANTIATE_TEST_SUITE_P(Passes, ConvPlanOnGpu,
                         ::testing::Values(ConvPass::kForward, ConvPass::kBackwardInput, ConvPass::kBackwardFilter),
                         name_of);

/// A network with a list of plans, which computes a step.
struct Step {
  Step(const Architecture& architecture, std::size_t count, const std::shared_ptr<ConvPlans>& plans)
      : rows(count),
        network(architecture, CudaMath::kBfloat16, plans),
        params(testing::reference_params(architecture)),
        statistics(testing::reference_statistics(architecture)),
        gradient(std::vector<float>(architecture.parameter_count)),
        images(testing::reference_images(architecture, count)),
        labels(testing::reference_labels(architecture, count)) {}

  double run() {
    const CudaBatch batch{.rows = rows,
                          .images = nullptr,
                          .labels = labels.data(),
                          .row_ids = nullptr,
                          .image_shape = {},
                          .preparation = {},
                          .key = nullptr,
                          .normalised = images.data()};
    return read_one(
        network.loss_and_gradient(queue.handles(), batch, params.data(), statistics.data(), {}, {}, gradient.data())
            .mean_loss);
  }

  std::size_t rows;
  CudaQueue queue;
  CudaNetwork network;
  OnDevice<float> params;
  OnDevice<float> statistics;
  OnDevice<float> gradient;
  OnDevice<float> images;
  OnDevice<std::int64_t> labels;
};

class CudaNetworkWithPlans : public demos::testing::OnGpu {
 protected:
  const Reference reference_{"resnet18"};
};

TEST_F(CudaNetworkWithPlans, GivesTheBitsOfTheNetworkThatChoseThem) {
  const auto plans = std::make_shared<ConvPlans>(plan_place());
  Step first(reference_.architecture, reference_.rows, plans);
  const double loss = first.run();
  EXPECT_GT(plans->size(), 0U) << "what was chosen is in the list";
  const auto stored = std::make_shared<ConvPlans>(ConvPlans::parse(plans->text()));
  EXPECT_EQ(*stored, *plans);
  Step second(reference_.architecture, reference_.rows, stored);
  EXPECT_EQ(second.run(), loss);
  EXPECT_EQ(second.gradient.read(), first.gradient.read());
  EXPECT_EQ(*stored, *plans) << "nothing was chosen anew";
}

TEST_F(CudaNetworkWithPlans, HasAllOfThemWhenItIsPrepared) {
  const auto plans = std::make_shared<ConvPlans>(plan_place());
  Step step(reference_.architecture, reference_.rows, plans);
  step.network.prepare_training(step.queue.handles(), reference_.rows);
  const ConvPlans prepared = *plans;
  EXPECT_GT(prepared.size(), 0U);
  step.run();
  EXPECT_EQ(*plans, prepared);
}

TEST_F(CudaNetworkWithPlans, ComputesByEachOfThem) {
  const auto plans = std::make_shared<ConvPlans>(plan_place());
  Step(reference_.architecture, reference_.rows, plans).run();
  std::size_t number = 0;
  for (const auto& [key, choice] : plans->choices()) {
    if (number++ % 5 != 0) continue;  // each change requires another network
    const auto changed = std::make_shared<ConvPlans>(*plans);
    changed->set(key, {"eng9999", 0});
    Step step(reference_.architecture, reference_.rows, changed);
    EXPECT_THROW(step.run(), std::runtime_error) << "a plan that does not exist was not missed";
  }
}

}  // namespace
}  // namespace resnet
