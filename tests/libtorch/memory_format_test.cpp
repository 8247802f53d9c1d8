// Modules whose convolutions are channels last: they stay so in the variable, learn the same, and have the same files.

#include <torch/torch.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using models::Convnet;
using models::lt::parameters;
using models::lt::Replica;
using torch::MemoryFormat;

constexpr std::int64_t kImages = 46;

/// Whether the weights of both convolutions are channels last in this rank's module.
struct Formats {
  sr::Min<int> are_channels_last;
  sr::Min<int> are_contiguous;
};
Formats formats(Convnet& net) {
  const auto are = [&](MemoryFormat format) {
    return net.first->weight.is_contiguous(format) && net.second->weight.is_contiguous(format);
  };
  return {are(MemoryFormat::ChannelsLast), are(MemoryFormat::Contiguous)};
}

/// Rank 0 alone has the format channels last.
struct FormatByRank : Convnet {
  FormatByRank() : Convnet(is_first() ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous) {}
  static bool is_first() { return std::string_view(std::getenv("RANK")) == "0"; }
};

class LibtorchMemoryFormat : public OnSharedWorkers {
 protected:
  auto make_net(MemoryFormat format) { return session().replicate<Replica<Convnet>>(std::uint64_t{7}, format); }
  std::vector<double> train(const sr::Replicated<Replica<Convnet>>& net, const sr::Shared<float, 1>& params) {
    const auto images = models::make_images(kImages);
    const auto x =
        session().data(images.x, sr::Shape{kImages, models::kImageSide, models::kImageSide, models::kImageChannels});
    const auto y = session().data(images.y, sr::Shape{kImages});
    auto step = models::lt::train_step<sr::Adam, models::image_loss>(session(), net, params);
    std::vector<double> losses;
    for (int i = 0; i < 20; ++i) losses.push_back(step(x, y, {.learning_rate = 0.01}));
    models::lt::sync_buffers(session(), net);
    return losses;
  }
};
INSTANTIATE_ON_WORKERS(LibtorchMemoryFormat, 1, 3);

TEST_P(LibtorchMemoryFormat, ChannelsLastLearnsTheSame) {
  const auto plain = make_net(MemoryFormat::Contiguous);
  const auto plain_params = parameters(session(), plain);
  const auto net = make_net(MemoryFormat::ChannelsLast);
  const auto params = parameters(session(), net);
  const auto expected = train(plain, plain_params);
  const auto losses = train(net, params);
  ASSERT_LT(expected.back(), 0.5 * expected.front());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i] / expected[i], 1, 1e-4) << "step " << i;

  const auto here = models::lt::evaluation<formats>(session(), net, params)();
  EXPECT_EQ(here.are_channels_last, 1);
  EXPECT_EQ(here.are_contiguous, 0);
  EXPECT_EQ(models::lt::evaluation<formats>(session(), plain, plain_params)().are_contiguous, 1);
}

TEST_P(LibtorchMemoryFormat, AFileDoesNotDependOnTheFormat) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "net.safetensors";
  const auto net = make_net(MemoryFormat::ChannelsLast);
  auto params = parameters(session(), net);
  const auto losses = train(net, params);
  models::lt::save(session(), net, params, file);

  const auto plain = make_net(MemoryFormat::Contiguous);
  auto plain_params = parameters(session(), plain);
  models::lt::load(session(), plain, plain_params, file);
  const double next = train(net, params).front();
  EXPECT_NEAR(train(plain, plain_params).front() / next, 1, 1e-4);
  EXPECT_LT(next, 0.8 * losses.front());
}

TEST_P(LibtorchMemoryFormat, AllRanksHaveOneFormat) {
  const auto net = session().replicate<Replica<FormatByRank>>(7);
  if (world_size() == 1) {
    parameters(session(), net);
    return;
  }
  EXPECT_ERROR(parameters(session(), net), sr::ErrorKind::usage,
               "rank 0 has parameter 'first.weight' Float [8, 3, 3, 3] with strides 27 1 9 3, rank 1 has parameter "
               "'first.weight' Float [8, 3, 3, 3]");
}

}  // namespace
