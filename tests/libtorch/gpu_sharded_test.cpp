// Models whose parameters are divided among GPUs.

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
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
    const auto net = session().replicate<lt::ShardedReplica<Net, lt::ShardOptions{.prefetch = lt::Prefetch::on_gpus}>>(
        kSeed, static_cast<std::int64_t>(reshard), 0.0);
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

/// With few rows, its gather and reduction take longer than its products, and with many, less long.
struct WideBlock : nn::Module {
  WideBlock() : norm(nn::LayerNormOptions({kFeatures})), wide(kFeatures, kHidden), narrow(kHidden, kFeatures) {
    register_module("norm", norm);
    register_module("wide", wide);
    register_module("narrow", narrow);
  }
  Tensor forward(const Tensor& x) {
    const Tensor normal = lt::layer_norm(x, norm->weight, norm->bias, 1e-5);
    const Tensor hidden = torch::gelu(lt::linear(normal, wide->weight, wide->bias));
    return x + lt::linear(hidden, narrow->weight, narrow->bias);
  }

  static constexpr std::int64_t kFeatures = 1024;
  static constexpr std::int64_t kHidden = 8192;
  nn::LayerNorm norm;
  nn::Linear wide, narrow;
};

struct WideNet : nn::Module {
  explicit WideNet(std::int64_t reshard) : last(WideBlock::kFeatures, 1) {
    for (int i = 0; i < 6; ++i)
      blocks.push_back(register_module("block" + std::to_string(i),
                                       std::make_shared<lt::Sharded<WideBlock>>(static_cast<Reshard>(reshard))));
    register_module("last", last);
  }
  std::vector<std::shared_ptr<lt::Sharded<WideBlock>>> blocks;
  nn::Linear last;
};

Tensor wide_loss(WideNet& net, sr::Scattered<const float, 2> rows) {
  auto x = lt::tensor(rows).to(net.last->weight.scalar_type());
  for (const auto& block : net.blocks) x = block->forward(x);
  return (net.last(x) - 1).to(torch::kFloat32).square().mean();
}

/// Losses of steps with these rows, with and without prefetch.
template <lt::ShardOptions kOptions>
std::vector<double> wide_losses(sr::Session& session, std::int64_t rows, Reshard reshard) {
  std::vector<float> values(static_cast<std::size_t>(rows * WideBlock::kFeatures));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * i % 1009) / 1009 - 0.5F;
  const auto data = session.data(values, sr::Shape{rows, WideBlock::kFeatures});
  using Replica = lt::ShardedReplica<WideNet, kOptions>;
  const auto net = session.replicate<Replica>(kSeed, static_cast<std::int64_t>(reshard));
  const auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Adam, wide_loss>(session, net, params, {.form = sr::StepForm::fully_sharded});
  std::vector<double> found;
  for (int i = 0; i < 8; ++i) found.push_back(step(data, {.learning_rate = 2e-5}));
  return found;
}

TEST_P(LibtorchShardedOnGpus, HaveTheSameLossesWithoutPrefetch) {
  constexpr auto kBfloat16 = lt::UnitType::bfloat16;
  constexpr auto kAhead = lt::Prefetch::on_gpus;
  const auto expect_near = [](const std::vector<double>& found, const std::vector<double>& wanted, double tolerance) {
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], wanted[i], tolerance * wanted[0]) << "step " << i;
  };
  for (const std::int64_t rows : {64, 16384}) {
    for (const auto reshard : {Reshard::keep, Reshard::recompute}) {
      const auto mixed = wide_losses<lt::ShardOptions{.gather = kBfloat16}>(session(), rows, reshard);
      expect_near(wide_losses<lt::ShardOptions{.gather = kBfloat16, .prefetch = kAhead}>(session(), rows, reshard),
                  mixed, 1e-5);
      if (rows > 64) continue;
      const auto exact = wide_losses<lt::ShardOptions{}>(session(), rows, reshard);
      expect_near(wide_losses<lt::ShardOptions{.prefetch = kAhead}>(session(), rows, reshard), exact, 1e-5);
      expect_near(wide_losses<lt::ShardOptions{.gather = kBfloat16, .reduce = kBfloat16}>(session(), rows, reshard),
                  mixed, 0.03);
      expect_near(mixed, exact, 0.05);
    }
  }
}

TEST_P(LibtorchShardedOnGpus, GoOnIfTheNextUnitIsAnotherAndAfterErrors) {
  const auto data = words();
  const auto ahead = losses_of_changing_orders<lt::Prefetch::always>(session(), data);
  const auto plain = losses_of_changing_orders<lt::Prefetch::never>(session(), data);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(ahead[i] / plain[i], 1, 1e-5) << i;
  expect_goes_on_after_errors<lt::Prefetch::always>(session(), data);
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
