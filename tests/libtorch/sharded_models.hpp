#pragma once

// Models with Sharded modules for the tests, their losses, and the rows that they learn.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace sharded {

namespace nn = torch::nn;
namespace lt = models::lt;
using lt::Reshard;
using torch::Tensor;

constexpr std::uint64_t kSeed = 7;
constexpr std::int64_t kWords = 13;
constexpr std::int64_t kWidth = 24;
constexpr std::int64_t kWide = 200;  // so a copy is so large that its parts are mapped
constexpr std::int64_t kLength = 6;
constexpr std::int64_t kRows = 24;
constexpr std::int64_t kStepCount = 10;
constexpr std::int64_t kBlocks = 4;

struct Block : nn::Module {
  explicit Block(double dropout)
      : dropout(dropout), norm(nn::LayerNormOptions({kWidth})), wide(kWidth, kWide), narrow(kWide, kWidth) {
    register_module("norm", norm);
    register_module("wide", wide);
    register_module("narrow", narrow);
  }
  Tensor forward(const Tensor& x) {
    return x + torch::dropout(narrow(torch::gelu(wide(norm(x)))), dropout, is_training());
  }

  double dropout;
  nn::LayerNorm norm;
  nn::Linear wide, narrow;
};

/// A block with another one in it, and with two inputs, a value and two outputs. The second input needs no gradient.
struct Pair : nn::Module {
  Pair(Reshard reshard, double dropout) : mix(2 * kWidth, kWidth) {
    inner = register_module("inner", std::make_shared<lt::Sharded<Block>>(reshard, dropout));
    register_module("mix", mix);
  }
  std::tuple<Tensor, Tensor> forward(const Tensor& x, const Tensor& places, double scale) {
    const auto y = inner->forward(x);
    return {mix(torch::cat({y, places.expand_as(y)}, 2)) * scale, y.mean()};
  }

  std::shared_ptr<lt::Sharded<Block>> inner;
  nn::Linear mix;
};

/// The embedding is also the output layer, and is in no unit. The last block is used twice.
struct Net : nn::Module {
  Net(std::int64_t reshard, double dropout) : words(kWords, kWidth), norm(nn::LayerNormOptions({kWidth})) {
    register_module("words", words);
    register_module("norm", norm);
    const auto form = static_cast<Reshard>(reshard);
    for (std::int64_t i = 0; i < kBlocks; ++i)
      blocks.push_back(
          register_module("block" + std::to_string(i), std::make_shared<lt::Sharded<Block>>(form, dropout)));
    pair = register_module("pair", std::make_shared<lt::Sharded<Pair>>(form, form, dropout));
  }
  Tensor forward(const Tensor& tokens) {
    auto x = words(tokens);
    for (const auto& block : blocks) x = block->forward(x);
    const auto places = torch::arange(kLength, x.options()).unsqueeze(1) / kLength;
    const auto [y, mean] = pair->forward(x, places, 0.5);
    x = blocks.back()->forward(x + y) + mean;
    return torch::linear(norm(x), words->weight);
  }

  nn::Embedding words;
  nn::LayerNorm norm;
  std::vector<std::shared_ptr<lt::Sharded<Block>>> blocks;
  std::shared_ptr<lt::Sharded<Pair>> pair;
};

inline Tensor targets_of(const Tensor& rows) { return rows.narrow(1, 1, kLength); }
inline Tensor scores_of(Net& net, const Tensor& rows) { return net.forward(rows.narrow(1, 0, kLength)); }

inline Tensor mean_loss(Net& net, sr::Scattered<const std::int64_t, 2> rows) {
  const auto all = lt::tensor(rows);
  return torch::cross_entropy_loss(scores_of(net, all).reshape({-1, kWords}), targets_of(all).reshape({-1}));
}
/// Targets 0 do not count.
inline lt::WeightedLoss padded_loss(Net& net, sr::Scattered<const std::int64_t, 2> rows) {
  return lt::cross_entropy(scores_of(net, lt::tensor(rows)), targets_of(lt::tensor(rows)), 0);
}
struct Numbers {
  sr::Avg<double> loss;
  sr::Sum<std::int64_t> rows;
};
inline lt::Loss<Numbers, lt::SummedLoss> summed_loss(Net& net, sr::Scattered<const std::int64_t, 2> rows, sr::Comm&) {
  const auto all = lt::tensor(rows);
  const auto sum = torch::cross_entropy_loss(scores_of(net, all).reshape({-1, kWords}), targets_of(all).reshape({-1}),
                                             {}, at::Reduction::Sum);
  const std::int64_t count = all.size(0);
  return {{sum / 100}, {count == 0 ? 0 : sum.item<double>() / 100 / static_cast<double>(count), count}};
}

/// Sentences. The last third has targets that do not count only.
inline std::vector<std::int64_t> sentences() {
  std::vector<std::int64_t> words;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t i = 0; i <= kLength; ++i)
      words.push_back(row >= 2 * kRows / 3 && i > 0 ? 0 : (row * 5 + i * i + row * i) % kWords);
  }
  return words;
}

/// Rows of a step: 1 to 11, so some ranks and slices have none.
inline std::vector<std::int64_t> batch_of(std::int64_t step) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < 1 + (step * 5) % 11; ++i) rows.push_back((5 * step + 3 * i) % (2 * kRows / 3));
  for (std::int64_t i = 0; i < step % 3; ++i) rows.push_back(2 * kRows / 3 + i);
  return rows;
}

/// The mean over these rows, in this process.
inline Tensor serial_mean(Net& net, const Tensor& rows) {
  return torch::cross_entropy_loss(scores_of(net, rows).reshape({-1, kWords}), targets_of(rows).reshape({-1}));
}

/// A step and an evaluation have orders of their own. The evaluation runs the blocks in another order than the step, and
/// `count` blocks of it.
inline Tensor changing_loss(Net& net, sr::Scattered<const std::int64_t, 2> rows, std::int64_t count) {
  auto x = net.words(lt::tensor(rows));
  for (std::int64_t i = 0; i < count; ++i)
    x = net.blocks[static_cast<std::size_t>(torch::GradMode::is_enabled() ? i : count - 1 - i)]->forward(x);
  return x.square().mean();
}

template <lt::Prefetch kPrefetch>
std::vector<double> losses_of_changing_orders(sr::Session& session, const sr::Data<std::int64_t, 2>& words) {
  using Replica = lt::ShardedReplica<Net, lt::ShardOptions{.prefetch = kPrefetch}>;
  const auto net = session.replicate<Replica>(kSeed, std::int64_t{0}, 0.0);
  const auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Adam, changing_loss>(session, net, params, {.form = sr::StepForm::fully_sharded});
  auto evaluate = lt::evaluation<changing_loss>(session, net, params);
  std::vector<double> found;
  for (const std::int64_t count : {4, 2, 3, 3, 1, 4, 4}) {
    found.push_back(step(words, count, {.learning_rate = 0.01}, {.slices = 2}));
    found.push_back(evaluate(words, 5 - count));
  }
  return found;
}

/// Throws in the backward pass.
struct Failing : torch::autograd::Function<Failing> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list gradients) {
    TORCH_CHECK(false, "the test fails");
    return gradients;
  }
};
inline Tensor failing_loss(Net& net, sr::Scattered<const std::int64_t, 2> rows, sr::Comm& comm, bool fails) {
  auto x = net.words(lt::tensor(rows));
  for (std::size_t i = 0; i < net.blocks.size(); ++i) {
    x = net.blocks[i]->forward(x);
    if (fails && i == 1 && comm.rank() == comm.world_size() - 1) x = Failing::apply(x);
  }
  return x.square().mean();
}

/// The losses after errors on one rank are those without errors.
template <lt::Prefetch kPrefetch>
void expect_goes_on_after_errors(sr::Session& session, const sr::Data<std::int64_t, 2>& words) {
  using Replica = lt::ShardedReplica<Net, lt::ShardOptions{.prefetch = kPrefetch}>;
  std::vector<double> losses;
  for (const bool fails : {false, true}) {
    const auto net = session.replicate<Replica>(kSeed, std::int64_t{0}, 0.0);
    const auto params = lt::parameters(session, net);
    auto step = lt::train_step<sr::Adam, failing_loss>(session, net, params, {.form = sr::StepForm::fully_sharded});
    const sr::Adam rule{.learning_rate = 0.01};
    step(words, false, rule);
    if (fails) {
      EXPECT_ERROR(step(words, true, rule), sr::ErrorKind::function, "the test fails");
      EXPECT_ERROR(step(words, true, rule), sr::ErrorKind::function,
                   "rank " + std::to_string(session.world_size() - 1));
    }
    step(words, false, rule);
    losses.push_back(step(words, false, rule));
    EXPECT_EQ(step.steps(), 3);
    EXPECT_EQ(lt::gather_peak(session, net).units,
              kPrefetch == lt::Prefetch::always && session.world_size() > 1 ? 2 : 1);
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-6 * losses[0]);
}

/// Rank 1 runs two equal blocks in another order.
inline Tensor crossed_loss(Net& net, sr::Scattered<const std::int64_t, 2> rows, sr::Comm& comm) {
  auto x = net.words(lt::tensor(rows));
  const bool is_crossed = comm.rank() == 1;
  for (const int i : is_crossed ? std::array{1, 0} : std::array{0, 1})
    x = net.blocks[static_cast<std::size_t>(i)]->forward(x);
  return x.square().mean();
}

}  // namespace sharded
