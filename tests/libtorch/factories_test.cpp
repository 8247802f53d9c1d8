// Replicas whose module comes from a factory function.

#include <torch/torch.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace factories {

using models::lt::parameters;
using models::lt::replicate;
using models::lt::tensor;
namespace nn = torch::nn;

constexpr std::uint64_t kSeed = 7;

nn::Sequential make_sequential(std::int64_t width, const std::string& activation) {
  nn::Sequential net(nn::Linear(models::kInputs, width));
  if (activation == "tanh") net->push_back(nn::Tanh());
  net->push_back(nn::Linear(width, 1));
  return net;
}
std::shared_ptr<models::Mlp> make_shared_mlp(std::int64_t width) { return std::make_shared<models::Mlp>(width); }
models::Mlp make_mlp(std::int64_t width) { return models::Mlp(width); }

using Rows = sr::Scattered<const float, 2>;
using Targets = sr::Scattered<const float, 1>;
torch::Tensor sequential_loss(nn::Sequential& net, Rows x, Targets y) {
  return models::mean_square(net->forward(tensor(x)).squeeze(1), tensor(y));
}

class LibtorchFactory : public models::OnSamples<20> {
 protected:
  template <auto kLoss, class Net>
  std::vector<double> losses_of(const Net& net) {
    const auto params = parameters(session(), net);
    auto step = models::lt::train_step<sr::Adam, kLoss>(session(), net, params);
    std::vector<double> losses;
    for (int i = 0; i < 10; ++i) losses.push_back(step(x(), y(), {.learning_rate = 0.02}));
    return losses;
  }
};
INSTANTIATE_ON_WORKERS(LibtorchFactory, 1, 3);

/// Each of these modules makes the same layers in the same order as Mlp.
TEST_P(LibtorchFactory, MakesTheModuleThatItsConstructorWouldMake) {
  const auto constructed =
      losses_of<models::mlp_loss>(session().replicate<models::lt::Replica<models::Mlp>>(kSeed, std::int64_t{5}));
  EXPECT_LT(constructed.back(), 0.9 * constructed.front());
  EXPECT_EQ(losses_of<models::mlp_loss>(replicate<make_mlp>(session(), kSeed, 5)), constructed);
  EXPECT_EQ(losses_of<models::mlp_loss>(replicate<make_shared_mlp>(session(), kSeed, 5)), constructed);
  EXPECT_EQ(losses_of<sequential_loss>(replicate<make_sequential>(session(), kSeed, 5, "tanh")), constructed);
  constexpr auto kLambda = [](std::int64_t width) { return make_sequential(width, "tanh"); };
  EXPECT_EQ(losses_of<sequential_loss>(replicate<kLambda>(session(), kSeed, 5)), constructed);
}

nn::Sequential make_none() { return nullptr; }
nn::Sequential throw_instead() { throw std::runtime_error("no such architecture"); }
TEST_P(LibtorchFactory, MustReturnAModule) {
  EXPECT_ERROR(parameters(session(), replicate<make_none>(session(), kSeed)), sr::ErrorKind::function,
               "the factory returned an empty module, expected one with parameters");
  EXPECT_ERROR(parameters(session(), replicate<throw_instead>(session(), kSeed)), sr::ErrorKind::function,
               "no such architecture");
}

/// Ranks get seeds of their own after the construction only, so the factories ask the process.
int rank_of_process() { return std::atoi(std::getenv("RANK")); }
nn::Sequential wider_on_rank_1() { return make_sequential(rank_of_process() == 1 ? 6 : 5, "tanh"); }
nn::Sequential deeper_on_rank_1() {
  auto net = make_sequential(5, "tanh");
  if (rank_of_process() == 1) net->push_back(nn::Linear(1, 1));
  return net;
}
nn::Sequential other_activation_on_rank_1() {
  nn::Sequential net(nn::Linear(models::kInputs, 5));
  if (rank_of_process() == 1) net->push_back(nn::ReLU());
  else net->push_back(nn::Tanh());
  return net;
}
nn::Sequential other_dropout_on_rank_1() {
  return nn::Sequential(nn::Linear(models::kInputs, 5), nn::Dropout(rank_of_process() == 1 ? 0.25 : 0.5));
}

TEST_P(LibtorchFactory, MustReturnTheSameModuleOnEveryRank) {
  const auto error_of = [&](const auto& net) {
    try {
      parameters(session(), net);
    } catch (const sr::Error& error) {
      EXPECT_EQ(error.kind(), sr::ErrorKind::usage);
      return std::string(error.what());
    }
    return std::string();
  };
  const auto expect = [&](const auto& net, const std::string& words) {
    const std::string error = error_of(net);
    if (world_size() == 1) EXPECT_EQ(error, "");
    else EXPECT_NE(error.find("the modules differ: " + words), std::string::npos) << error;
  };
  expect(replicate<wider_on_rank_1>(session(), kSeed),
         "rank 0 has parameter '0.weight' Float [5, 6], rank 1 has parameter '0.weight' Float [6, 6]");
  expect(replicate<deeper_on_rank_1>(session(), kSeed),
         "rank 0 has no more parameters, rank 1 has parameter '3.weight' Float [1, 1]");
  expect(replicate<other_activation_on_rank_1>(session(), kSeed),
         "rank 0 has module '1' torch::nn::Tanh(), rank 1 has module '1' torch::nn::ReLU()");
  expect(replicate<other_dropout_on_rank_1>(session(), kSeed),
         "rank 0 has module '1' torch::nn::Dropout(p=0.5, inplace=false), rank 1 has module '1' "
         "torch::nn::Dropout(p=0.25, inplace=false)");
}

}  // namespace factories
}  // namespace
