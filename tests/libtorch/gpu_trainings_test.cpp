// Trainings of modules of LibTorch on CUDA devices: continued from a checkpoint, with further numbers, with parameters that
// are frozen or not used, with buffers, and by an optimizer of LibTorch.

#include <torch/torch.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/libtorch/gpu_samples.hpp"
#include "tests/libtorch/matrix_trainer.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace lt = models::lt;
using models::kInputs;
using models::kRowsOnGpus;
using models::kSeedOnGpus;
using testing::HasSubstr;
using testing::Not;

using Rows = sr::Scattered<const float, 2>;
using Targets = sr::Scattered<const float, 1>;
using Tokens = sr::Scattered<const std::uint8_t, 2>;

class LibtorchTrainingOnGpus : public models::SamplesOnGpus {};
INSTANTIATE_ON_GPUS(LibtorchTrainingOnGpus);

// ---- checkpoints

torch::Tensor transformer_in_bfloat16(models::Transformer& net, Tokens rows) {
  const lt::Autocast autocast(torch::kBFloat16);
  return models::transformer_loss(net, rows);
}

/// Trains for eight steps, by graphs in the end, and then for six more. A new module and a new step continue from a
/// checkpoint of the first eight.
template <auto kLoss>
void expect_continues_with_the_same_bits(sr::Session& session, sr::StepForm form) {
  const auto tokens = session.data(models::make_tokens(kRowsOnGpus), sr::Shape{kRowsOnGpus, models::kContext + 1});
  const auto train = [&](auto& step, int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) losses.push_back(step(tokens, {.learning_rate = 0.01}, {.slices = 2}));
    return losses;
  };
  const auto make = [&](std::uint64_t seed) {
    return session.replicate<lt::Replica<models::Transformer>>(seed, std::int64_t{16}, std::int64_t{2});
  };
  const sr::TrainStepOptions options{.form = form, .clip_norm = 0.5};
  const auto placement = form == sr::StepForm::sharded ? sr::Placement::scattered : sr::Placement::replicated;
  const TemporaryFolder folder;

  const auto net = make(kSeedOnGpus);
  const auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Adam, kLoss>(session, net, params, options);
  train(step, 8);
  const auto [m, v] = step.state();
  sr::save_checkpoint(folder / "run", {{"params", params}, {"m", m, placement}, {"v", v, placement}},
                      {{"steps", step.steps()}});
  const auto rest = train(step, 6);

  const auto again = make(kSeedOnGpus + 1);
  auto resumed = lt::parameters(session, again);
  auto second = lt::train_step<sr::Adam, kLoss>(session, again, resumed, options);
  auto [second_m, second_v] = second.state();
  const sr::Checkpoint checkpoint(folder / "run");
  checkpoint.load({{"params", resumed}, {"m", second_m, placement}, {"v", second_v, placement}});
  second.set_steps(checkpoint.value<std::int64_t>("steps"));
  EXPECT_EQ(train(second, 6), rest);
  EXPECT_EQ(resumed.get(0).to_vector(), params.get(0).to_vector());
}

TEST_P(LibtorchTrainingOnGpus, ContinuesWithTheSameBits) {
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    SCOPED_TRACE(form == sr::StepForm::sharded ? "sharded" : "replicated");
    expect_continues_with_the_same_bits<models::transformer_loss>(session(), form);
    expect_continues_with_the_same_bits<transformer_in_bfloat16>(session(), form);
  }
}

// ---- losses that are no mean over rows

constexpr lt::BackwardOptions kDuringBackward{.average = lt::GradientAverage::during_backward};

/// Only rows with a label above 0 count.
lt::WeightedLoss loss_of_some_rows(models::Mlp& net, Rows x, Targets y) {
  const auto counts = lt::tensor(y).gt(0);
  return {((net.forward(lt::tensor(x)) - lt::tensor(y)).square() * counts).sum(), counts.sum()};
}
lt::SummedLoss summed_loss(models::Mlp& net, Rows x, Targets y) {
  return {torch::mse_loss(net.forward(lt::tensor(x)), lt::tensor(y), at::Reduction::Sum)};
}
lt::WeightedLoss loss_of_nothing(models::Mlp& net, Rows x, Targets y) {
  return {loss_of_some_rows(net, x, y).sum * 0, 0};
}

/// Trains on batches of different sizes, of which the last rows do not count.
template <auto kLoss, lt::BackwardOptions kOptions, class Objective>
void expect_same_training(sr::Session& session, const sr::Data<float, 2>& x, const sr::Data<float, 1>& y,
                          const sr::TrainStepOptions& options, const Objective& objective) {
  torch::manual_seed(kSeedOnGpus);
  models::Mlp alone;
  torch::optim::SGD sgd(alone.parameters(), torch::optim::SGDOptions(0.002));
  const auto net = session.replicate<lt::Replica<models::Mlp>>(kSeedOnGpus);
  const auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Sgd, kLoss, kOptions>(session, net, params, options);
  for (std::int64_t i = 0; i < 10; ++i) {
    std::vector<std::int64_t> batch;
    for (std::int64_t row = 0; row < kRowsOnGpus - 13 * (i % 2); ++row) batch.push_back(row);
    std::stable_partition(batch.begin(), batch.end(), [&](std::int64_t row) { return y.view()[row] > 0; });
    sgd.zero_grad();
    const torch::Tensor loss = objective(alone, torch::tensor(batch));
    loss.backward();
    const double norm = torch::nn::utils::clip_grad_norm_(
        alone.parameters(), options.clip_norm == 0 ? std::numeric_limits<double>::infinity() : options.clip_norm);
    sgd.step();
    const double found = step(x, y, {.learning_rate = 0.002}, {.batch = batch, .slices = i < 6 ? 1 : 2});
    EXPECT_NEAR(found / loss.item<double>(), 1, 1e-5) << "step " << i;
    if (options.clip_norm != 0) {
      EXPECT_NEAR(step.gradient_norm() / norm, 1, 1e-4) << "step " << i;
    }
  }
}

TEST_P(LibtorchTrainingOnGpus, HasLossesThatAreNoMeanOverRows) {
  const auto some = [&](models::Mlp& net, const torch::Tensor& rows) {
    const auto labels_here = labels().index_select(0, rows);
    const auto counts = labels_here.gt(0);
    return ((net.forward(inputs().index_select(0, rows)) - labels_here).square() * counts).sum() / counts.sum();
  };
  const auto sum = [&](models::Mlp& net, const torch::Tensor& rows) {
    return torch::mse_loss(net.forward(inputs().index_select(0, rows)), labels().index_select(0, rows),
                           at::Reduction::Sum);
  };
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    for (const double clip_norm : {0.0, 0.1}) {
      const sr::TrainStepOptions options{.form = form, .clip_norm = clip_norm};
      expect_same_training<loss_of_some_rows, lt::BackwardOptions{}>(session(), x(), y(), options, some);
      expect_same_training<summed_loss, lt::BackwardOptions{}>(session(), x(), y(), options, sum);
    }
  }
  const sr::TrainStepOptions in_buckets{.bucket_bytes = 64};
  expect_same_training<loss_of_some_rows, kDuringBackward>(session(), x(), y(), in_buckets, some);
  expect_same_training<summed_loss, kDuringBackward>(session(), x(), y(), in_buckets, sum);

  const auto net = session().replicate<lt::Replica<models::Mlp>>(kSeedOnGpus);
  const auto params = lt::parameters(session(), net);
  const auto before = params.get(0).to_vector();
  auto step = lt::train_step<sr::Sgd, loss_of_nothing>(session(), net, params);
  EXPECT_THROW(step(x(), y(), {.learning_rate = 1}).value(), sr::Error);
  EXPECT_EQ(params.get(0).to_vector(), before);
}

// ---- further numbers

struct Numbers {
  sr::Avg<double> loss;
  sr::Sum<std::int64_t> rows;
  sr::Max<float> largest;
};
lt::Loss<Numbers> loss_and_numbers(models::Mlp& net, Rows x, Targets y) {
  const auto output = net.forward(lt::tensor(x));
  const auto value = models::mean_square(output, lt::tensor(y));
  return {value, {value.item<double>(), output.size(0), output.max().item<float>()}};
}
struct Scores {
  sr::Sum<std::int64_t> positive;
  sr::Gather<float, 1> outputs;
};
Scores scores(models::Mlp& net, Rows x) {
  const auto output = net.forward(lt::tensor(x)).cpu();
  return {output.gt(0).sum().item<std::int64_t>(),
          {std::vector<float>(output.data_ptr<float>(), output.data_ptr<float>() + output.numel()),
           sr::Shape{output.numel()}}};
}

TEST_P(LibtorchTrainingOnGpus, ReturnsFurtherNumbers) {
  torch::manual_seed(kSeedOnGpus);
  models::Mlp alone;
  torch::optim::SGD sgd(alone.parameters(), torch::optim::SGDOptions(0.1));
  const auto net = session().replicate<lt::Replica<models::Mlp>>(kSeedOnGpus);
  const auto params = lt::parameters(session(), net);
  auto step = lt::train_step<sr::Sgd, loss_and_numbers>(session(), net, params);
  for (int i = 0; i < 6; ++i) {
    const auto largest = alone.forward(inputs()).max().item<float>();
    const double loss = take_serial_step(alone, sgd);
    const Numbers numbers = step(x(), y(), {.learning_rate = 0.1});
    EXPECT_NEAR(numbers.loss / loss, 1, 1e-5) << "step " << i;
    EXPECT_EQ(numbers.rows, kRowsOnGpus);
    EXPECT_NEAR(numbers.largest, largest, 1e-5);
  }
  const Scores found = lt::evaluation<scores>(session(), net, params)(x());
  const auto expected = alone.forward(inputs());
  EXPECT_EQ(found.positive, expected.gt(0).sum().item<std::int64_t>());
  const auto outputs = found.outputs.to_vector();
  ASSERT_EQ(outputs.size(), static_cast<std::size_t>(kRowsOnGpus));
  EXPECT_TRUE(torch::allclose(torch::tensor(outputs), expected, 1e-4, 1e-5));
}

TEST_P(LibtorchTrainingOnGpus, SaysWhyItIsNotReplayedUnlessTheProgramSaidSo) {
  const auto net = session().replicate<lt::Replica<models::Mlp>>(kSeedOnGpus);
  const auto params = lt::parameters(session(), net);
  const auto log_of_steps = [&](auto& step) {
    return log_of([&] {
      for (int i = 0; i < 6; ++i) step(x(), y(), {.learning_rate = 0.01});
    });
  };
  auto chosen = lt::train_step<sr::Adam, loss_and_numbers, lt::BackwardOptions{.replay = lt::Replay::never}>(
      session(), net, params);
  EXPECT_THAT(log_of_steps(chosen), Not(HasSubstr("without a CUDA graph")));
  auto during =
      lt::train_step<sr::Adam, models::mlp_loss, lt::BackwardOptions{.average = lt::GradientAverage::during_backward}>(
          session(), net, params);
  EXPECT_THAT(log_of_steps(during), Not(HasSubstr("without a CUDA graph"))) << "an option is not worth a warning";
  auto step = lt::train_step<sr::Adam, loss_and_numbers>(session(), net, params);
  const std::string log = log_of_steps(step);
  const std::string words = "a replayable function runs without a CUDA graph from now on";
  EXPECT_THAT(log, HasSubstr(words));
  EXPECT_EQ(log.find(words), log.rfind(words)) << "once is enough";
}

// ---- parameters that are frozen or not used

struct Partial : torch::nn::Module {
  Partial() : frozen(kInputs, kInputs), unused(3, 2), last(kInputs, 1) {
    register_module("frozen", frozen);
    register_module("unused", unused);
    register_module("last", last);
    for (auto& each : frozen->parameters()) each.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(frozen(x))).squeeze(1); }

  torch::nn::Linear frozen;
  torch::nn::Linear unused;
  torch::nn::Linear last;
};
torch::Tensor partial_loss(Partial& net, Rows x, Targets y) {
  return models::mean_square(net.forward(lt::tensor(x)), lt::tensor(y));
}
sr::Gather<float, 2> frozen_weight(Partial& net) {
  const auto weight = net.frozen->weight.cpu();
  return {std::vector<float>(weight.data_ptr<float>(), weight.data_ptr<float>() + weight.numel()),
          sr::Shape{weight.size(0), weight.size(1)}};
}

TEST_P(LibtorchTrainingOnGpus, LeavesFrozenAndUnusedParametersAlone) {
  torch::manual_seed(kSeedOnGpus);
  Partial alone;
  torch::optim::SGD sgd(alone.last->parameters(), torch::optim::SGDOptions(0.1));
  const auto net = session().replicate<lt::Replica<Partial>>(kSeedOnGpus);
  const auto params = lt::parameters(session(), net);
  constexpr std::int64_t kUnused = 3 * 2 + 2;
  ASSERT_EQ(params.shape(0)[0], kUnused + kInputs + 1);
  const auto before = params.get(0).to_vector();
  auto step = lt::train_step<sr::Sgd, partial_loss>(session(), net, params);
  for (int i = 0; i < 8; ++i) {
    const double loss = take_serial_step(alone, sgd);
    EXPECT_NEAR(step(x(), y(), {.learning_rate = 0.1}) / loss, 1, 1e-5) << "step " << i;
  }
  const auto after = params.get(world_size() - 1).to_vector();
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + kUnused, after.begin()));
  EXPECT_NE(after, before);
  const auto weights = lt::evaluation<frozen_weight>(session(), net, params)();
  const auto expected = alone.frozen->weight.flatten();
  for (std::int64_t row = 0; row < weights.rows(); ++row) {
    for (std::int64_t i = 0; i < kInputs; ++i)
      EXPECT_EQ(weights(row, i), expected[row % kInputs * kInputs + i].item<float>());
  }
}

// ---- buffers

struct BatchNormalized : torch::nn::Module {
  BatchNormalized() : norm(kInputs), last(kInputs, 1) {
    register_module("norm", norm);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(norm(x)).squeeze(1); }

  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};
torch::Tensor batch_norm_loss(BatchNormalized& net, Rows x, Targets y) {
  return models::mean_square(net.forward(lt::tensor(x)), lt::tensor(y));
}
/// The running mean of each rank.
sr::Gather<float, 2> running_means(BatchNormalized& net) {
  const auto mean = net.norm->running_mean.cpu();
  return {std::vector<float>(mean.data_ptr<float>(), mean.data_ptr<float>() + kInputs), sr::Shape{1, kInputs}};
}

TEST_P(LibtorchTrainingOnGpus, MakesBuffersEqual) {
  const auto net = session().replicate<lt::Replica<BatchNormalized>>(kSeedOnGpus);
  const auto params = lt::parameters(session(), net);
  auto step = lt::train_step<sr::Sgd, batch_norm_loss>(session(), net, params);
  const auto see = lt::evaluation<running_means>(session(), net, params);
  for (int i = 0; i < 6; ++i) step(x(), y(), {.learning_rate = 0.01});
  const auto before = see();
  ASSERT_EQ(before.rows(), world_size());
  EXPECT_EQ(std::ranges::equal(before[0], before[world_size() - 1]), world_size() == 1);
  lt::sync_buffers(session(), net);
  const auto after = see();
  for (std::int64_t i = 0; i < kInputs; ++i) {
    float mean = 0;
    for (int rank = 0; rank < world_size(); ++rank) mean += before(rank, i) / static_cast<float>(world_size());
    for (int rank = 0; rank < world_size(); ++rank) EXPECT_NEAR(after(rank, i), mean, 1e-6);
  }
  for (int i = 0; i < 3; ++i) step(x(), y(), {.learning_rate = 0.01});
  const auto first = see();
  lt::sync_buffers(session(), net, lt::BufferSync::rank0);
  const auto copied = see();
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_TRUE(std::ranges::equal(copied[rank], first[0]));
}

// ---- an optimizer of LibTorch

class OwnTrainer {
 public:
  explicit OwnTrainer(sr::CudaWorker& worker) {
    const lt::Guard guard(worker);
    torch::manual_seed(kSeedOnGpus);
    net_ = std::make_shared<models::Mlp>();
    net_->to(torch::kCUDA);
    adam_.emplace(net_->parameters(), 0.01);
  }

  sr::Avg<double> step(sr::CudaWorker& worker, sr::Comm& comm, Rows x, Targets y) {
    const lt::Guard guard(worker);
    return guard.run([&]() -> sr::Avg<double> {
      adam_->zero_grad();
      const auto value = models::mean_square(net_->forward(lt::tensor(x)), lt::tensor(y));
      value.backward();
      lt::average(comm, *net_);
      adam_->step();
      return value.item<double>();
    });
  }

 private:
  std::shared_ptr<models::Mlp> net_;
  std::optional<torch::optim::Adam> adam_;
};

TEST_P(LibtorchTrainingOnGpus, CanUseAnOptimizerOfLibtorch) {
  torch::manual_seed(kSeedOnGpus);
  models::Mlp alone;
  torch::optim::Adam adam(alone.parameters(), torch::optim::AdamOptions(0.01));
  const auto trainer = session().replicate<OwnTrainer>();
  const auto step = session().function(&OwnTrainer::step, trainer);
  for (int i = 0; i < 10; ++i) {
    const double loss = take_serial_step(alone, adam);
    EXPECT_NEAR(step(x(), y()) / loss, 1, 1e-5) << "step " << i;
  }
}

TEST_P(LibtorchTrainingOnGpus, OfMatricesByMuonAndAdafactorIsThatOfPython) {
  matrices::expect_as_python(session(), 1e-10);
}

}  // namespace
