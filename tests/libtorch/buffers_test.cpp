// Buffers of modules, such as the running statistics of BatchNorm, and frozen parameters.

#include <torch/torch.h>

#include <algorithm>

#include "tests/libtorch/models.hpp"
#include "tests/libtorch/worker_log.hpp"
#include "tests/support/on_workers.hpp"

namespace {

using models::lt::BufferSync;
using models::lt::parameters;
using models::lt::Replica;
using models::lt::sync_buffers;
using models::lt::tensor;
namespace nn = torch::nn;

using Rows = sr::Scattered<const float, 2>;
using Targets = sr::Scattered<const float, 1>;

struct Normalized : nn::Module {
  Normalized() : norm(models::kInputs), frozen(models::kInputs, models::kInputs), last(models::kInputs, 1) {
    register_module("norm", norm);
    register_module("frozen", frozen);
    register_module("last", last);
    for (auto& each : frozen->parameters()) each.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(frozen(norm(x))).squeeze(1); }

  nn::BatchNorm1d norm;
  nn::Linear frozen;
  nn::Linear last;
};
torch::Tensor normalized_loss(Normalized& net, Rows x, Targets y) {
  return models::mean_square(net.forward(tensor(x)), tensor(y));
}

/// The running mean, the frozen weight's first row and the number of batches, as the module has them on each rank.
struct Seen {
  sr::Gather<float, 2> mean;
  sr::Gather<float, 2> frozen;
  sr::Gather<std::int64_t, 1> batches;
};
Seen see(Normalized& net) {
  const auto row = [](const torch::Tensor& t) { return std::span<const float>(t.data_ptr<float>(), models::kInputs); };
  const auto batches = net.norm->num_batches_tracked.item<std::int64_t>();
  return {{row(net.norm->running_mean), sr::Shape{1, models::kInputs}},
          {row(net.frozen->weight), sr::Shape{1, models::kInputs}},
          {std::span(&batches, 1), sr::Shape{1}}};
}

class LibtorchBuffers : public OnSharedWorkers {
 protected:
  /// Trains for some steps, so that the statistics differ between ranks.
  void train(const sr::Replicated<Replica<Normalized>>& net, const sr::Shared<float, 1>& params) {
    const auto samples = models::make_samples(24);
    const auto x = session().data(samples.x, sr::Shape{24, models::kInputs});
    const auto y = session().data(samples.y);
    auto step = models::lt::train_step<sr::Sgd, normalized_loss>(session(), net, params);
    for (int i = 0; i < 3; ++i) step(x, y, {.learning_rate = 0.01});
  }
  Seen seen(const sr::Replicated<Replica<Normalized>>& net, const sr::Shared<float, 1>& params) {
    return models::lt::evaluation<see>(session(), net, params)();
  }
};
INSTANTIATE_ON_WORKERS(LibtorchBuffers, 1, 3);

template <class View>
bool are_rows_equal(const View& rows) {
  for (std::int64_t rank = 1; rank < rows.rows(); ++rank) {
    if (!std::ranges::equal(rows[rank], rows[0])) return false;
  }
  return true;
}

TEST_P(LibtorchBuffers, BecomeThoseOfRankZeroOrTheMean) {
  const auto net = session().replicate<Replica<Normalized>>(7);
  const auto params = parameters(session(), net);
  train(net, params);
  const Seen before = seen(net, params);
  EXPECT_EQ(are_rows_equal(before.mean.view()), world_size() == 1);
  EXPECT_TRUE(are_rows_equal(before.frozen.view()));

  std::vector<float> mean(models::kInputs);
  for (std::int64_t rank = 0; rank < world_size(); ++rank) {
    for (std::int64_t i = 0; i < models::kInputs; ++i)
      mean[static_cast<std::size_t>(i)] += before.mean(rank, i) / static_cast<float>(world_size());
  }
  sync_buffers(session(), net);
  const Seen averaged = seen(net, params);
  EXPECT_TRUE(are_rows_equal(averaged.mean.view()));
  for (std::int64_t i = 0; i < models::kInputs; ++i)
    EXPECT_NEAR(averaged.mean(0, i), mean[static_cast<std::size_t>(i)], 1e-6);
  EXPECT_EQ(averaged.batches.to_vector(), std::vector<std::int64_t>(static_cast<std::size_t>(world_size()), 3));

  train(net, params);
  const Seen again = seen(net, params);
  sync_buffers(session(), net, BufferSync::rank0);
  const Seen copied = seen(net, params);
  EXPECT_TRUE(are_rows_equal(copied.mean.view()));
  EXPECT_TRUE(std::ranges::equal(copied.mean[0], again.mean[0]));
}

TEST_P(LibtorchBuffers, FrozenParametersAreNotTrained) {
  const auto net = session().replicate<Replica<Normalized>>(7);
  const auto params = parameters(session(), net);
  // Weight and bias of the norm, and of the last layer.
  EXPECT_EQ(params.shape(0)[0], 2 * models::kInputs + models::kInputs + 1);
  const Seen before = seen(net, params);
  train(net, params);
  EXPECT_TRUE(std::ranges::equal(seen(net, params).frozen, before.frozen));
}

/// The lines of the log that warn of buffers.
std::size_t warnings_in(const std::string& log) {
  std::size_t count = 0;
  constexpr std::string_view kWords = "differ between ranks: each rank has those of its own rows";
  for (auto at = log.find(kWords); at != std::string::npos; at = log.find(kWords, at + 1)) ++count;
  return count;
}

TEST_P(LibtorchBuffers, ThatDifferAreWarnedOfOnce) {
  const auto net = session().replicate<Replica<Normalized>>(7);
  const auto params = parameters(session(), net);
  const auto warnings_of = [&](const auto& work) {
    return warnings_in(models::log_of<sr::CpuWorker>(session(), work));
  };
  warnings_of([] {});  // those of other tests in this session may come late
  EXPECT_EQ(warnings_of([&] { seen(net, params); }), 0U) << "nothing has changed yet";
  train(net, params);
  sync_buffers(session(), net);
  EXPECT_EQ(warnings_of([&] { seen(net, params); }), 0U);
  train(net, params);
  EXPECT_EQ(warnings_of([&] { seen(net, params); }), world_size() == 1 ? 0U : 1U);
  EXPECT_EQ(warnings_of([&] { seen(net, params); }), 0U) << "once is enough";
}

// ---- update_bn ----------------------------------------------------------------------------------------------------

/// A BatchNorm whose statistics depend on the parameters. A row alone has two values of each channel.
struct Averaged : nn::Module {
  Averaged() : first(models::kInputs, 8), norm(nn::BatchNormOptions(4).momentum(0.3)), last(8, 1) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(norm(torch::tanh(first(x)).view({-1, 4, 2})).flatten(1)).squeeze(1);
  }
  nn::Linear first;
  nn::BatchNorm1d norm;
  nn::Linear last;
};
torch::Tensor averaged_loss(Averaged& net, Rows x, Targets y) {
  return models::mean_square(net.forward(tensor(x)), tensor(y));
}
struct Statistics {
  sr::Gather<float, 2> mean;
  sr::Gather<float, 2> variance;
  sr::Gather<std::int64_t, 1> batches;
  sr::Min<double> momentum;
};
Statistics see_statistics(Averaged& net) {
  const auto row = [](const torch::Tensor& t) { return std::span<const float>(t.data_ptr<float>(), 4); };
  const auto batches = net.norm->num_batches_tracked.item<std::int64_t>();
  return {{row(net.norm->running_mean), sr::Shape{1, 4}},
          {row(net.norm->running_var), sr::Shape{1, 4}},
          {std::span(&batches, 1), sr::Shape{1}},
          net.norm->options.momentum().value_or(-1)};
}

/// As torch.optim.swa_utils.update_bn over the same rows, where the rows of each rank are a batch of their own.
TEST_P(LibtorchBuffers, OfBatchNormAreRecomputedForAveragedWeights) {
  const auto samples = models::make_samples(24);
  const auto x = session().data(samples.x, sr::Shape{24, models::kInputs});
  const auto y = session().data(samples.y);
  const auto net = session().replicate<Replica<Averaged>>(7);
  const auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Sgd, averaged_loss>(session(), net, params);
  auto average = sr::averaged_weights(session(), params, {.decay = 0.5});
  for (int i = 0; i < 3; ++i) {
    step(x, y, {.learning_rate = 0.3});
    average.update();
  }

  // The last batch has two rows, so that the third rank has none.
  const std::vector<sr::Slice> batches{{0, 13}, {13, 20}, {20, 22}};
  Averaged alone;
  const auto values = torch::tensor(average.values().get(0).to_vector());
  std::int64_t at = 0;
  const torch::NoGradGuard no_gradients;
  for (auto& each : alone.parameters()) {
    each.copy_(values.narrow(0, at, each.numel()).view(each.sizes()));
    at += each.numel();
  }
  alone.norm->options.momentum(torch::nullopt);
  const auto all = torch::tensor(samples.x).reshape({24, models::kInputs});
  for (const auto& [begin, end] : batches) {
    std::int64_t first = begin;
    for (int rank = 0; rank < world_size(); ++rank) {
      const std::int64_t rows = (end - begin) / world_size() + (rank < (end - begin) % world_size() ? 1 : 0);
      if (rows != 0) alone.forward(all.narrow(0, first, rows));
      first += rows;
    }
  }

  const auto update = models::lt::update_bn<averaged_loss>(session(), net, average.values());
  EXPECT_ERROR(update.finish(), sr::ErrorKind::function, "no batch was added");
  for (const auto& batch : batches) update(x, y, {.batch = batch});
  update.finish();
  const Statistics found = models::lt::evaluation<see_statistics>(session(), net, average.values())();
  for (std::int64_t rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(found.batches[rank], alone.norm->num_batches_tracked.item<std::int64_t>());
    for (std::int64_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(found.mean(rank, i), alone.norm->running_mean[i].item<float>(), 1e-6);
      EXPECT_NEAR(found.variance(rank, i), alone.norm->running_var[i].item<float>(), 1e-6);
    }
  }
  EXPECT_EQ(found.momentum, 0.3);
  // The evaluation uses them.
  alone.eval();
  const double expected = models::mean_square(alone.forward(all), torch::tensor(samples.y)).item<double>();
  const double evaluated = models::lt::evaluation<averaged_loss>(session(), net, average.values())(x, y);
  EXPECT_NEAR(evaluated / expected, 1, 1e-6);
}

}  // namespace
