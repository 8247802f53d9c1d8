// Models whose parameters are divided among GPUs.

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/gpu/on_gpus.hpp"
#include "tests/libtorch/sharded_models.hpp"
#include "tests/support/on_workers.hpp"

namespace sharded {
namespace {

class LibtorchShardedOnGpus : public gpu_test::OnGpus {
 protected:
  sr::Data<std::int64_t, 2> words() { return session().data(sentences(), sr::Shape{kRows, kLength + 1}); }
};
INSTANTIATE_ON_GPUS(LibtorchShardedOnGpus);

TEST_P(LibtorchShardedOnGpus, TrainLikeOneProcessOnTheCpu) {
  const auto all = torch::tensor(sentences()).reshape({kRows, kLength + 1});
  torch::manual_seed(kSeed);
  Net alone(0, 0);
  torch::optim::SGD sgd(alone.parameters(), 0.05);
  std::vector<double> losses;
  for (std::int64_t i = 0; i < kStepCount; ++i) {
    sgd.zero_grad();
    const auto loss = serial_mean(alone, all.index_select(0, torch::tensor(batch_of(i))));
    loss.backward();
    torch::nn::utils::clip_grad_norm_(alone.parameters(), 0.5);
    sgd.step();
    losses.push_back(loss.item<double>());
  }
  const auto data = words();
  for (const auto reshard : {Reshard::keep, Reshard::recompute, Reshard::never}) {
    const auto net = session().replicate<lt::ShardedReplica<Net>>(kSeed, static_cast<std::int64_t>(reshard), 0.0);
    const auto params = lt::parameters(session(), net);
    auto step = lt::train_step<sr::Sgd, mean_loss>(session(), net, params,
                                                   {.form = sr::StepForm::fully_sharded, .clip_norm = 0.5});
    for (std::int64_t i = 0; i < kStepCount; ++i) {
      const auto batch = batch_of(i);
      const auto slices = std::min<std::int64_t>(1 + i % 3, std::ssize(batch));
      const double loss = step(data, {.learning_rate = 0.05}, {.batch = batch, .slices = slices});
      EXPECT_NEAR(loss / losses[static_cast<std::size_t>(i)], 1, 1e-4) << "step " << i;
    }
    const int kept = session().world_size() == 1 ? 2 : 3;  // the next unit is gathered before
    EXPECT_EQ(lt::gather_peak(session(), net).units, reshard == Reshard::never ? kBlocks + 2 : kept);
    const double evaluated = lt::evaluation<mean_loss>(session(), net, params)(data);
    EXPECT_NEAR(evaluated / serial_mean(alone, all).item<double>(), 1, 1e-4);
  }
}

TEST_P(LibtorchShardedOnGpus, ComputeInBfloat16) {
  constexpr lt::ShardOptions kMixed{.gather = lt::UnitType::bfloat16};
  constexpr lt::ShardOptions kAllMixed{.gather = lt::UnitType::bfloat16, .reduce = lt::UnitType::bfloat16};
  const auto losses = [&]<lt::ShardOptions kOptions>() {
    const auto net =
        session().replicate<lt::ShardedReplica<Net, kOptions>>(kSeed, static_cast<std::int64_t>(Reshard::keep), 0.0);
    const auto params = lt::parameters(session(), net);
    auto step = lt::train_step<sr::Sgd, mean_loss>(session(), net, params, {.form = sr::StepForm::fully_sharded});
    std::vector<double> found;
    for (std::int64_t i = 0; i < kStepCount; ++i)
      found.push_back(step(words(), {.learning_rate = 0.05}, {.batch = batch_of(i)}));
    return found;
  };
  const auto exact = losses.operator()<lt::ShardOptions{}>();
  for (const auto& mixed : {losses.operator()<kMixed>(), losses.operator()<kAllMixed>()}) {
    for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(mixed[i] / exact[i], 1, 0.03) << "step " << i;
  }
}

/// NCCL does not notice it.
TEST_P(LibtorchShardedOnGpus, RefuseAnotherOrderOfUnitsOnOneRank) {
  if (session().world_size() == 1) GTEST_SKIP() << "requires two GPUs";
  const auto net = session().replicate<lt::ShardedReplica<Net>>(kSeed, std::int64_t{0}, 0.0);
  const auto params = lt::parameters(session(), net);
  auto step = lt::train_step<sr::Sgd, crossed_loss>(session(), net, params, {.form = sr::StepForm::fully_sharded});
  EXPECT_ERROR(step(words(), {.learning_rate = 0.01}), sr::ErrorKind::function,
               "in different orders: rank 0 had unit 'block0', rank 1 had unit 'block1'");
}

}  // namespace
}  // namespace sharded
