// Modules of LibTorch on CUDA devices. The losses are those of one process on the CPU. Steps of one shape are replayed as
// CUDA graphs, and what cannot be captured runs without them.

#include <torch/torch.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "tests/libtorch/gpu_samples.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using gpu_test::error_of;
using models::lt::BackwardOptions;
using models::lt::evaluation;
using models::lt::FiniteCheck;
using models::lt::GradientAverage;
using models::lt::parameters;
using models::lt::Replay;
using models::lt::Replica;
using models::lt::tensor;
using models::lt::train_step;

constexpr std::uint64_t kSeed = models::kSeedOnGpus;
constexpr std::int64_t kRows = models::kRowsOnGpus;

/// How often the host code of counted_loss ran in this worker.
int runs = 0;
sr::Max<int> count_runs() { return runs; }

torch::Tensor counted_loss(models::Transformer& net, sr::Scattered<const std::uint8_t, 2> rows) {
  ++runs;
  return models::next_token_loss(net, tensor(rows));
}

class LibtorchOnGpus : public gpu_test::OnGpus {
 protected:
  using Net = Replica<models::Transformer>;

  auto make_net() { return session().replicate<Net>(kSeed, std::int64_t{16}, std::int64_t{2}); }
  auto make_data() { return session().data(models::make_tokens(kRows), sr::Shape{kRows, models::kContext + 1}); }
  int runs_of_the_host() { return session().function(count_runs)(); }

  /// The losses of `steps` steps on all rows, and of those steps with some rows and slices.
  template <class Step>
  static std::vector<double> train(Step& step, const sr::Data<std::uint8_t, 2>& data, int steps, bool is_uneven) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      std::vector<std::int64_t> batch;
      for (std::int64_t row = 0; row < kRows - (is_uneven ? i % 7 : 0); ++row) batch.push_back(row);
      losses.push_back(step(data, rule(), {.batch = batch, .slices = is_uneven ? 1 + i % 3 : 1}));
    }
    return losses;
  }
  static sr::Adam rule() { return {.learning_rate = 0.01, .decoupled_weight_decay = 0.05}; }

  /// The same in this process, on the CPU.
  static std::vector<double> train_serially(int steps, bool is_uneven) {
    torch::manual_seed(kSeed);
    models::Transformer net(16, 2);
    std::vector<torch::Tensor> once;
    for (const auto& each : net.parameters()) {
      if (std::none_of(once.begin(), once.end(), [&](const auto& other) { return other.is_same(each); }))
        once.push_back(each);
    }
    torch::optim::AdamW adamw(once, torch::optim::AdamWOptions(0.01).weight_decay(0.05));
    auto tokens = models::make_tokens(kRows);
    const auto all = torch::from_blob(tokens.data(), {kRows, models::kContext + 1}, torch::kUInt8);
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      adamw.zero_grad();
      const auto loss = models::next_token_loss(net, all.narrow(0, 0, kRows - (is_uneven ? i % 7 : 0)));
      loss.backward();
      adamw.step();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }
  static void expect_near(const std::vector<double>& losses, const std::vector<double>& expected) {
    ASSERT_EQ(losses.size(), expected.size());
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i] / expected[i], 1, i < 10 ? 1e-5 : 0.01) << "step " << i;
    EXPECT_LT(expected.back(), 0.9 * expected.front()) << "the model learns, so the losses say something";
  }
};
INSTANTIATE_ON_GPUS(LibtorchOnGpus);

TEST_P(LibtorchOnGpus, LossesAreThoseOfOneProcess) {
  constexpr int kSteps = 50;
  const auto serial = train_serially(kSteps, true);
  const auto data = make_data();
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    const auto net = make_net();
    const auto params = parameters(session(), net);
    auto step = train_step<sr::Adam, models::transformer_loss>(session(), net, params, {.form = form});
    expect_near(train(step, data, kSteps, true), serial);
    const auto evaluate = evaluation<models::transformer_loss>(session(), net, params);
    const double whole = evaluate(data);
    EXPECT_LT(whole, 0.9 * serial.front());
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(evaluate(data), whole, 1e-6) << "replayed";
  }
}

TEST_P(LibtorchOnGpus, StepsOfOneShapeAreReplayed) {
  constexpr int kSteps = 20;
  const auto data = make_data();
  const auto net = make_net();
  const auto params = parameters(session(), net);
  auto replayed = train_step<sr::Adam, counted_loss>(session(), net, params);
  const auto losses = train(replayed, data, kSteps, false);
  // Calls take turns in two sets of input buffers. Each set has a first run and a capture.
  EXPECT_EQ(runs_of_the_host(), 4);
  expect_near(losses, train_serially(kSteps, false));

  const auto again = make_net();
  const auto others = parameters(session(), again);
  auto plain = train_step<sr::Adam, counted_loss, BackwardOptions{.replay = Replay::never}>(session(), again, others);
  expect_near(train(plain, data, kSteps, false), losses);
  EXPECT_EQ(runs_of_the_host(), 4 + kSteps);
}

TEST_P(LibtorchOnGpus, ModulesThatAreChannelsLastLearnTheSame) {
  constexpr std::int64_t kImages = 44;
  const auto images = models::make_images(kImages);
  const auto x =
      session().data(images.x, sr::Shape{kImages, models::kImageSide, models::kImageSide, models::kImageChannels});
  const auto y = session().data(images.y, sr::Shape{kImages});
  std::vector<std::vector<double>> losses;
  for (const auto format : {torch::MemoryFormat::Contiguous, torch::MemoryFormat::ChannelsLast}) {
    const auto net = session().replicate<Replica<models::Convnet>>(kSeed, format);
    const auto params = parameters(session(), net);
    auto step = train_step<sr::Adam, models::image_loss>(session(), net, params);
    auto& own = losses.emplace_back();
    for (int i = 0; i < 20; ++i) own.push_back(step(x, y, {.learning_rate = 0.01}));
  }
  for (std::size_t i = 0; i < losses[0].size(); ++i) EXPECT_NEAR(losses[1][i] / losses[0][i], 1, 0.01) << "step " << i;
  EXPECT_LT(losses[0].back(), 0.5 * losses[0].front());
}

torch::Tensor waiting_loss(models::Transformer& net, sr::Scattered<const std::uint8_t, 2> rows) {
  const auto loss = counted_loss(net, rows);
  return loss.item<float>() > 1e9 ? loss * 2 : loss;
}

TEST_P(LibtorchOnGpus, ALossThatCannotBeCapturedRunsWithoutAGraph) {
  constexpr int kSteps = 12;
  const auto data = make_data();
  const auto serial = train_serially(kSteps, false);
  const auto net = make_net();
  const auto params = parameters(session(), net);
  auto waiting = train_step<sr::Adam, waiting_loss>(session(), net, params);
  expect_near(train(waiting, data, kSteps, false), serial);
  EXPECT_EQ(runs_of_the_host(), kSteps + 1) << "the capture was tried once";
}

TEST_P(LibtorchOnGpus, OptionsOfTheBackwardPassGiveTheSameLosses) {
  constexpr int kSteps = 12;
  const auto data = make_data();
  const auto serial = train_serially(kSteps, true);
  const auto net = make_net();
  const auto params = parameters(session(), net);
  auto during =
      train_step<sr::Adam, models::transformer_loss, BackwardOptions{.average = GradientAverage::during_backward}>(
          session(), net, params, {.bucket_bytes = 1024});
  expect_near(train(during, data, kSteps, true), serial);
  const auto again = make_net();
  const auto others = parameters(session(), again);
  auto checked = train_step<sr::Adam, models::transformer_loss, BackwardOptions{.check = FiniteCheck::gradients}>(
      session(), again, others);
  expect_near(train(checked, data, kSteps, true), serial);
}

torch::Tensor broken_loss(models::Mlp& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  const auto output = net.forward(tensor(x));
  return models::mean_square(output, tensor(y)) + 0 * torch::sqrt(net.first->bias - net.first->bias.detach()).sum();
}
torch::Tensor wrong_shapes(models::Mlp& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  return models::mean_square(net.forward(tensor(x).narrow(1, 0, 2)), tensor(y));
}
/// The last rank is killed in its backward pass.
torch::Tensor killed_loss(models::Mlp& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  const auto loss = models::mlp_loss(net, x, y);
  loss.register_hook([](const torch::Tensor& gradient) {
    if (std::atoi(std::getenv("RANK")) + 1 == std::atoi(std::getenv("WORLD_SIZE"))) std::raise(SIGKILL);
    return gradient;
  });
  return loss;
}

class LibtorchMlpOnGpus : public models::SamplesOnGpus {};
INSTANTIATE_ON_GPUS(LibtorchMlpOnGpus);

TEST_P(LibtorchMlpOnGpus, ErrorsSayWhatIsWrong) {
  const auto net = session().replicate<Replica<models::Mlp>>(kSeed);
  const auto params = parameters(session(), net);
  auto checked =
      train_step<sr::Adam, broken_loss, BackwardOptions{.check = FiniteCheck::gradients}>(session(), net, params);
  const auto nan = error_of([&] { checked(x(), y(), {.learning_rate = 0.01}); });
  EXPECT_NE(std::string(nan.what()).find("first.bias"), std::string::npos) << nan.what();
  auto shapes = train_step<sr::Adam, wrong_shapes>(session(), net, params);
  const auto error = error_of([&] { shapes(x(), y(), {.learning_rate = 0.01}); });
  EXPECT_NE(std::string(error.what()).find("(cuda"), std::string::npos) << error.what();
  auto good = train_step<sr::Adam, models::mlp_loss>(session(), net, params);
  EXPECT_TRUE(std::isfinite(double(good(x(), y(), {.learning_rate = 0.01})))) << "the session goes on";
}

TEST_P(LibtorchMlpOnGpus, ARankThatIsKilledInTheBackwardPassIsNamed) {
  const auto net = session().replicate<Replica<models::Mlp>>(kSeed);
  const auto params = parameters(session(), net);
  auto step = train_step<sr::Adam, killed_loss>(session(), net, params);
  const auto error = error_of([&] { step(x(), y(), {.learning_rate = 0.01}); });
  EXPECT_THAT(error.what(),
              testing::ContainsRegex("rank " + std::to_string(world_size() - 1) + " .*was lost.*SIGKILL"));
  end_session();
}

/// Syncrun's layers. In a graph, the gradients of each are branches.
struct Layers : torch::nn::Module {
  static constexpr std::int64_t kWidth = 16;

  Layers()
      : first(models::kInputs, kWidth),
        norm1(torch::nn::LayerNormOptions({kWidth})),
        middle(kWidth, kWidth),
        norm2(torch::nn::LayerNormOptions({kWidth})),
        last(kWidth, 1) {
    register_module("first", first);
    register_module("norm1", norm1);
    register_module("middle", middle);
    register_module("norm2", norm2);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& inputs) {
    const auto x = models::lt::linear(inputs, first->weight, first->bias);
    const auto normal = models::lt::layer_norm(x, norm1->weight, norm1->bias);
    const auto change = models::lt::linear(torch::gelu(normal), middle->weight, middle->bias);
    const auto [sum, norm] = models::lt::add_layer_norm(x, change, norm2->weight, norm2->bias);
    return models::lt::linear(sum + norm, last->weight, last->bias).squeeze(1);
  }

  torch::nn::Linear first;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear middle;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear last;
};
torch::Tensor layers_loss(Layers& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  ++runs;
  const models::lt::Autocast autocast(torch::kBFloat16);
  return models::mean_square(net.forward(tensor(x)).to(torch::kFloat32), tensor(y));
}

TEST_P(LibtorchMlpOnGpus, BranchesOfAGraphHaveTheBitsOfAStepWithoutOne) {
  constexpr int kSteps = 30;
  const auto losses = [&]<BackwardOptions kOptions>() {
    const auto net = session().replicate<Replica<Layers>>(kSeed);
    const auto params = parameters(session(), net);
    auto step = train_step<sr::Adam, layers_loss, kOptions>(session(), net, params);
    std::vector<double> all;
    for (int i = 0; i < kSteps; ++i) all.push_back(step(x(), y(), {.learning_rate = 0.01}));
    return all;
  };
  const auto replayed = losses.operator()<BackwardOptions{}>();
  const int captured = session().function(count_runs)();
  EXPECT_LT(captured, kSteps) << "most steps are replayed";
  EXPECT_EQ(losses.operator()<BackwardOptions{.replay = Replay::never}>(), replayed);
  EXPECT_EQ(session().function(count_runs)(), captured + kSteps);
  EXPECT_LT(replayed.back(), 0.5 * replayed.front());
}

TEST_P(LibtorchMlpOnGpus, FilesAreReadWithoutAGpu) {
  const TemporaryFolder folder;
  const auto net = session().replicate<Replica<models::Mlp>>(kSeed);
  auto params = parameters(session(), net);
  const auto evaluate = evaluation<models::mlp_loss>(session(), net, params);
  const double before = evaluate(x(), y());
  for (const char* const name : {"net.pt", "net.safetensors"}) {
    const auto file = folder.path() / name;
    models::lt::save(session(), net, params, file);
    params.broadcast(std::vector<float>(static_cast<std::size_t>(params.shape(0)[0])));
    EXPECT_NE(double(evaluate(x(), y())), before);
    models::lt::load(session(), net, params, file);
    EXPECT_NEAR(evaluate(x(), y()), before, 1e-6);
  }
  auto alone = std::make_shared<models::Mlp>();
  torch::load(alone, (folder.path() / "net.pt").string());
  EXPECT_NEAR(models::mean_square(alone->forward(inputs()), labels()).item<double>(), before, 1e-6);
}

TEST_P(LibtorchMlpOnGpus, ANormThatIsNotFiniteChangesNothing) {
  const auto net = session().replicate<Replica<models::Mlp>>(kSeed);
  const auto params = parameters(session(), net);
  const auto before = params.get(0).to_vector();
  std::vector<float> huge(static_cast<std::size_t>(kRows), std::numeric_limits<float>::infinity());
  const auto labels = session().data(huge, sr::Shape{kRows});
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    auto step = train_step<sr::Adam, models::mlp_loss>(session(), net, params, {.form = form, .clip_norm = 1});
    for (int i = 0; i < 6; ++i) EXPECT_FALSE(std::isfinite(double(step(x(), labels, {.learning_rate = 0.01}))));
    EXPECT_FALSE(std::isfinite(step.gradient_norm()));
    EXPECT_EQ(params.get(0).to_vector(), before);
  }
}

/// Statistics over the rows of all ranks.
struct Normalized : torch::nn::Module {
  Normalized() : first(models::kInputs, 8), norm(8), last(8, 1) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(norm(first(x)))).squeeze(1); }

  torch::nn::Linear first;
  models::lt::SyncBatchNorm norm;
  torch::nn::Linear last;
};
torch::Tensor normalized_loss(Normalized& net, sr::Comm&, sr::Scattered<const float, 2> x,
                              sr::Scattered<const float, 1> y) {
  return models::mean_square(net.forward(tensor(x)), tensor(y));
}

TEST_P(LibtorchMlpOnGpus, SyncBatchNormIsThatOfOneProcess) {
  torch::manual_seed(kSeed);
  Normalized alone;
  torch::optim::SGD sgd(alone.parameters(), torch::optim::SGDOptions(0.05));
  const auto net = session().replicate<Replica<Normalized>>(kSeed);
  const auto params = parameters(session(), net);
  auto step = train_step<sr::Sgd, normalized_loss>(session(), net, params);
  for (int i = 0; i < 10; ++i) {
    const double loss = take_serial_step(alone, sgd);
    EXPECT_NEAR(step(x(), y(), {.learning_rate = 0.05}) / loss, 1, 1e-5) << "step " << i;
  }
}

}  // namespace
