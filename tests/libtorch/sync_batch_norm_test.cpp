// SyncBatchNorm: any number of ranks has the losses and the running statistics of LibTorch's BatchNorm over all rows.

#include <torch/torch.h>

#include <cmath>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/libtorch/worker_log.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace synchronized {

using models::lt::BackwardOptions;
using models::lt::evaluation;
using models::lt::GradientAverage;
using models::lt::parameters;
using models::lt::Replica;
using models::lt::SyncBatchNorm;
using models::lt::tensor;
namespace nn = torch::nn;

using Rows = sr::Scattered<const float, 2>;
using Targets = sr::Scattered<const float, 1>;

constexpr std::int64_t kRows = 40;
constexpr std::int64_t kChannels = 5;

/// Norms of inputs, of channels with several values for each row, and of hidden values. `Norm1` and `Norm2` are those of
/// LibTorch or SyncBatchNorm. With the usual eps, a batch of two rows is normalized to 1 and -1, whose gradient is almost 0:
/// then rounding decides.
template <class Norm1, class Norm2>
struct Network : nn::Module {
  Network()
      : before(nn::BatchNormOptions(models::kInputs).eps(0.1)),
        convolution(nn::Conv1dOptions(1, kChannels, 3)),
        channels(nn::BatchNormOptions(kChannels).momentum(0.2)),
        hidden(kChannels * (models::kInputs - 2), 7),
        norm(nn::BatchNormOptions(7).affine(false).momentum(torch::nullopt).eps(0.1)),
        last(7, 1) {
    register_module("before", before);
    register_module("convolution", convolution);
    register_module("channels", channels);
    register_module("hidden", hidden);
    register_module("norm", norm);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto values = convolution(before(x).unsqueeze(1)).unsqueeze(3);  // [rows, channels, positions, 1]
    values = torch::relu(channels(values)).flatten(1);
    return last(torch::tanh(norm(hidden(values)))).squeeze(1);
  }

  Norm1 before;
  nn::Conv1d convolution;
  Norm2 channels;
  nn::Linear hidden;
  Norm1 norm;
  nn::Linear last;
};
using Alone = Network<nn::BatchNorm1d, nn::BatchNorm2d>;
using Together = Network<SyncBatchNorm, SyncBatchNorm>;

torch::Tensor together_loss(Together& net, sr::Comm&, Rows x, Targets y) {
  return models::mean_square(net.forward(tensor(x)), tensor(y));
}
torch::Tensor loss_without_comm(Together& net, Rows x, Targets y) {
  return models::mean_square(net.forward(tensor(x)), tensor(y));
}
struct Numbers {
  sr::Avg<double> loss;
  sr::Sum<std::int64_t> rows;
};
models::lt::Loss<Numbers> together_loss_with_numbers(Together& net, Rows x, Targets y, sr::Comm&) {
  const auto loss = models::mean_square(net.forward(tensor(x)), tensor(y));
  return {loss, {loss.item<double>(), x.rows()}};
}

/// All running statistics of a module on each rank: a row for each rank.
template <class Net>
std::vector<float> statistics_in(Net& net) {
  std::vector<float> all;
  for (const auto& each : net.buffers()) {
    const auto values = each.to(torch::kFloat32).contiguous();
    all.insert(all.end(), values.template data_ptr<float>(), values.template data_ptr<float>() + values.numel());
  }
  return all;
}
struct Statistics {
  sr::Gather<float, 2> values;
};
Statistics statistics(Together& net) {
  const auto all = statistics_in(net);
  return {{all, sr::Shape{std::int64_t{1}, static_cast<std::int64_t>(all.size())}}};
}

/// Batches of 2 to 13 rows: often fewer rows than ranks, and rarely a multiple of their number.
std::vector<std::vector<std::int64_t>> uneven_batches() {
  std::mt19937 random(13);
  std::vector<std::vector<std::int64_t>> batches;
  for (const std::size_t rows : {13, 2, 7, 3, 10, 5, 2, 9, 12, 4, 3, 11}) {
    batches.emplace_back(rows);
    for (auto& row : batches.back()) row = static_cast<std::int64_t>(random()) % kRows;
  }
  return batches;
}

class LibtorchSyncBatchNorm : public models::OnSamples<kRows> {
 protected:
  /// The losses of LibTorch's own module in this process.
  std::vector<double> train_alone(Alone& net) const {
    torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    std::vector<double> losses;
    for (const auto& batch : uneven_batches()) {
      sgd.zero_grad();
      const auto rows = torch::tensor(batch);
      const auto loss = models::mean_square(net.forward(all_x().index_select(0, rows)), all_y().index_select(0, rows));
      loss.backward();
      sgd.step();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }
  void expect_statistics(const sr::Gather<float, 2>& found, const std::vector<float>& wanted) const {
    ASSERT_EQ(found.rows(), world_size());
    ASSERT_EQ(static_cast<std::size_t>(found.size()), wanted.size() * static_cast<std::size_t>(world_size()));
    for (std::int64_t rank = 0; rank < found.rows(); ++rank) {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_EQ(found(rank, static_cast<std::int64_t>(i)), found(0, static_cast<std::int64_t>(i)));
        EXPECT_NEAR(found(rank, static_cast<std::int64_t>(i)), wanted[i], 1e-5 * std::max(1.0F, std::abs(wanted[i])));
      }
    }
  }
};
INSTANTIATE_ON_WORKERS(LibtorchSyncBatchNorm, 1, 3);

TEST_P(LibtorchSyncBatchNorm, HasTheLossesAndStatisticsOfOneProcess) {
  torch::manual_seed(7);
  Alone alone;
  const auto wanted = train_alone(alone);
  EXPECT_LT(wanted.back(), wanted.front());
  alone.eval();
  const double evaluated = models::mean_square(alone.forward(all_x()), all_y()).item<double>();

  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    const auto net = session().replicate<Replica<Together>>(7);
    const auto params = parameters(session(), net);
    auto step = models::lt::train_step<sr::Momentum, together_loss>(session(), net, params, {.form = form});
    std::vector<double> losses;
    for (const auto& batch : uneven_batches())
      losses.push_back(step(x(), y(), {.learning_rate = 0.05}, {.batch = batch}));
    for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(losses[i] / wanted[i], 1, 1e-5) << "step " << i;
    EXPECT_NEAR(losses.back() / wanted.back(), 1, 1e-4);
    expect_statistics(evaluation<statistics>(session(), net, params)().values, statistics_in(alone));
    // In evaluation mode, also on ranks without rows.
    EXPECT_NEAR((evaluation<together_loss>(session(), net, params)(x(), y(), {.slices = 3})) / evaluated, 1, 1e-4);
    const std::vector<std::int64_t> one{3};
    EXPECT_TRUE(std::isfinite(evaluation<together_loss>(session(), net, params)(x(), y(), {.batch = one})));
  }
}

TEST_P(LibtorchSyncBatchNorm, ComesWithOtherNumbersAndReports) {
  constexpr BackwardOptions kReports{.average = GradientAverage::during_backward,
                                     .check = models::lt::FiniteCheck::gradients};
  torch::manual_seed(7);
  Alone alone;
  const auto wanted = train_alone(alone);
  const auto net = session().replicate<Replica<Together>>(7);
  const auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Momentum, together_loss_with_numbers, kReports>(session(), net, params);
  std::size_t i = 0;
  for (const auto& batch : uneven_batches()) {
    const Numbers found = step(x(), y(), {.learning_rate = 0.05}, {.batch = batch});
    EXPECT_NEAR(found.loss / wanted[i], 1, 1e-4) << "step " << i;
    EXPECT_EQ(found.rows.value(), static_cast<std::int64_t>(batch.size()));
    ++i;
  }
}

/// With two slices, the rows of a slice on all ranks are a batch of their own.
TEST_P(LibtorchSyncBatchNorm, HasStatisticsOfEachSlice) {
  const auto net = session().replicate<Replica<Together>>(7);
  const auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Sgd, together_loss>(session(), net, params);
  const double loss = step(x(), y(), {.learning_rate = 0}, {.slices = 2});

  torch::manual_seed(7);
  Alone alone;
  std::vector<std::vector<std::int64_t>> slices(2);
  const std::int64_t ranks = world_size();
  for (std::int64_t rank = 0, begin = 0; rank < ranks; ++rank) {
    const std::int64_t rows = kRows / ranks + (rank < kRows % ranks ? 1 : 0);
    for (std::int64_t i = 0; i < rows; ++i) slices[i < rows - rows / 2 ? 0 : 1].push_back(begin + i);
    begin += rows;
  }
  double wanted = 0;
  for (const auto& slice : slices) {
    const auto rows = torch::tensor(slice);
    wanted += models::mean_square(alone.forward(all_x().index_select(0, rows)), all_y().index_select(0, rows))
                  .item<double>() *
              static_cast<double>(slice.size()) / static_cast<double>(kRows);
  }
  EXPECT_NEAR(loss / wanted, 1, 1e-5);
  expect_statistics(evaluation<statistics>(session(), net, params)().values, statistics_in(alone));
}

TEST_P(LibtorchSyncBatchNorm, HasTheFilesOfBatchNormAndNoWarnings) {
  const TemporaryFolder folder;
  const auto net = session().replicate<Replica<Together>>(7);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Sgd, together_loss>(session(), net, params);
  double wanted = 0;
  const std::string log = models::log_of<sr::CpuWorker>(session(), [&] {
    for (int i = 0; i < 3; ++i) step(x(), y(), {.learning_rate = 0.05});
    models::lt::save(session(), net, params, folder / "net.pt");
    wanted = evaluation<together_loss>(session(), net, params)(x(), y());
  });
  EXPECT_EQ(log.find("differ between ranks"), std::string::npos);

  auto alone = std::make_shared<Alone>();
  torch::load(alone, folder.at("net.pt"));
  alone->eval();
  EXPECT_NEAR(models::mean_square(alone->forward(all_x()), all_y()).item<double>() / wanted, 1, 1e-5);
  // And the other way round, without Syncrun.
  torch::save(alone, folder.at("alone.pt"));
  auto other = std::make_shared<Together>();
  torch::load(other, folder.at("alone.pt"));
  other->eval();
  EXPECT_NEAR(models::mean_square(other->forward(all_x()), all_y()).item<double>() / wanted, 1, 1e-5);
}

/// A body of its own, with an optimizer of LibTorch.
class OwnSyncTrainer {
 public:
  OwnSyncTrainer()
      : net_((torch::manual_seed(7), std::make_shared<Together>())),
        sgd_(net_->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)) {}
  sr::Avg<double> step(sr::CpuWorker& worker, sr::Comm& comm, Rows x, Targets y) {
    const models::lt::Guard guard(worker, comm);
    return guard.run([&]() -> sr::Avg<double> {
      sgd_.zero_grad();
      const auto loss = models::mean_square(net_->forward(tensor(x)), tensor(y));
      loss.backward();
      models::lt::average(comm, *net_);
      sgd_.step();
      return x.rows() == 0 ? 0 : loss.item<double>();
    });
  }

 private:
  std::shared_ptr<Together> net_;
  torch::optim::SGD sgd_;
};

TEST_P(LibtorchSyncBatchNorm, WorksInABodyOfTheProgram) {
  torch::manual_seed(7);
  Alone alone;
  const auto wanted = train_alone(alone);
  const auto trainer = session().replicate<OwnSyncTrainer>();
  const auto step = session().function(&OwnSyncTrainer::step, trainer);
  std::size_t i = 0;
  for (const auto& batch : uneven_batches())
    EXPECT_NEAR(step(x(), y(), {.batch = batch}) / wanted[i++], 1, 1e-4) << "step " << i;
}

torch::Tensor loss_in_bfloat16(Together& net, sr::Comm&, Rows x, Targets y) {
  const models::lt::Autocast autocast(torch::kBFloat16);
  return models::mean_square(net.forward(tensor(x)).to(torch::kFloat32), tensor(y));
}
TEST_P(LibtorchSyncBatchNorm, WorksWithAutocast) {
  const auto net = session().replicate<Replica<Together>>(7);
  auto params = parameters(session(), net);
  auto plain = models::lt::train_step<sr::Sgd, together_loss>(session(), net, params);
  auto mixed = models::lt::train_step<sr::Sgd, loss_in_bfloat16>(session(), net, params);
  const double wanted = plain(x(), y(), {.learning_rate = 0});
  EXPECT_NEAR(mixed(x(), y(), {.learning_rate = 0}) / wanted, 1, 0.02);
}

// ---- errors ----

torch::Tensor loss_with_second_derivatives(Together& net, sr::Comm&, Rows x, Targets y) {
  const auto input = tensor(x).clone().requires_grad_();
  const auto loss = models::mean_square(net.forward(input), tensor(y));
  return loss + torch::autograd::grad({loss}, {input}, {}, true, true)[0].pow(2).mean();
}
torch::Tensor loss_of_fewer_columns(Together& net, sr::Comm&, Rows x, Targets) {
  return net.before(tensor(x).narrow(1, 0, 2)).mean();
}
torch::Tensor loss_that_throws_on_the_last_rank(Together& net, sr::Comm& comm, Rows x, Targets y) {
  const auto output = net.forward(tensor(x));
  if (comm.rank() + 1 == comm.world_size()) throw std::runtime_error("the last rank had enough");
  return models::mean_square(output, tensor(y));
}
torch::Tensor loss_that_kills_the_last_rank(Together& net, sr::Comm& comm, Rows x, Targets y) {
  auto output = net.forward(tensor(x));
  if (comm.rank() + 1 == comm.world_size()) output.register_hook([](const torch::Tensor&) { std::raise(SIGKILL); });
  return models::mean_square(output, tensor(y));
}

TEST_P(LibtorchSyncBatchNorm, SaysWhatIsWrong) {
  const auto net = session().replicate<Replica<Together>>(7);
  auto params = parameters(session(), net);
  const auto before = params.get(0).to_vector();
  const auto run = [&](auto step, const std::vector<std::int64_t>& batch) {
    step(x(), y(), {.learning_rate = 0.1}, {.batch = batch});
  };
  const std::vector<std::int64_t> all = counting<std::int64_t>(kRows);
  using sr::ErrorKind;
  EXPECT_ERROR(run(models::lt::train_step<sr::Sgd, loss_of_fewer_columns>(session(), net, params), all),
               ErrorKind::function, ", 2], expected floating-point values in the shape [rows, 6] or [rows, 6, ...]");
  EXPECT_ERROR(run(models::lt::train_step<sr::Sgd, loss_that_throws_on_the_last_rank>(session(), net, params), all),
               ErrorKind::function, "the last rank had enough");
  if (world_size() > 1) {
    EXPECT_ERROR(run(models::lt::train_step<sr::Sgd, loss_without_comm>(session(), net, params), all),
                 ErrorKind::function, "Give the loss a parameter sr::Comm&");
    EXPECT_ERROR(run(models::lt::train_step<sr::Sgd, together_loss>(session(), net, params), {5}), ErrorKind::function,
                 "all ranks together have 1 values of each channel, expected at least 2");
    EXPECT_ERROR(run(models::lt::train_step<sr::Sgd, loss_with_second_derivatives>(session(), net, params), all),
                 ErrorKind::function, "second derivatives are not supported");
  }
  EXPECT_EQ(params.get(0).to_vector(), before);
  // The session goes on.
  run(models::lt::train_step<sr::Sgd, together_loss>(session(), net, params), all);
  EXPECT_NE(params.get(0).to_vector(), before);
}

TEST_P(LibtorchSyncBatchNorm, NamesARankThatDiesWhileOthersWaitInTheBackwardPass) {
  if (world_size() == 1) GTEST_SKIP() << "needs a second rank";
  {
    const auto net = session().replicate<Replica<Together>>(7);
    auto params = parameters(session(), net);
    auto step = models::lt::train_step<sr::Sgd, loss_that_kills_the_last_rank>(session(), net, params);
    EXPECT_ERROR(step(x(), y(), {}), sr::ErrorKind::worker_lost, "rank " + std::to_string(world_size() - 1));
  }
  end_session();
}

}  // namespace synchronized
}  // namespace
