// Losses that are no mean over rows. The same objective in one process, by LibTorch alone, for any number of workers,
// uneven rows, slices, both forms of a step, and a clipped gradient.

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace weighted {

using models::lt::evaluation;
using models::lt::parameters;
using models::lt::Replica;
using models::lt::tensor;
using models::lt::WeightedLoss;

constexpr std::uint64_t kSeed = 7;
constexpr std::int64_t kRows = 24;
constexpr std::int64_t kStepCount = 10;

// ---- an autoencoder whose loss is a sum ----

constexpr std::int64_t kPixels = 12;
constexpr std::int64_t kLatent = 3;

struct Vae : torch::nn::Module {
  Vae() : encoder(kPixels, 8), means(8, kLatent), logarithms(8, kLatent), decoder(kLatent, kPixels) {
    register_module("encoder", encoder);
    register_module("means", means);
    register_module("logarithms", logarithms);
    register_module("decoder", decoder);
  }
  /// The summed loss of the official example. The noise comes with the rows.
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& noise) {
    const auto hidden = torch::relu(encoder(x));
    const auto mean = means(hidden);
    const auto logarithm = logarithms(hidden);
    const auto output = torch::sigmoid(decoder(mean + noise * torch::exp(0.5 * logarithm)));
    const auto reconstruction = torch::binary_cross_entropy(output, x, {}, at::Reduction::Sum);
    return reconstruction - 0.5 * torch::sum(1 + logarithm - mean.pow(2) - logarithm.exp());
  }
  torch::nn::Linear encoder, means, logarithms, decoder;
};

models::lt::SummedLoss vae_loss(Vae& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 2> noise) {
  return {net.loss(tensor(x), tensor(noise))};
}

// ---- a language model with padding ----

constexpr std::int64_t kWords = 11;
constexpr std::int64_t kLength = 7;
constexpr std::int64_t kPadding = 0;

struct LanguageModel : torch::nn::Module {
  LanguageModel() : words(kWords, 6), lstm(torch::nn::LSTMOptions(6, 10).batch_first(true)), out(10, kWords) {
    register_module("words", words);
    register_module("lstm", lstm);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(std::get<0>(lstm(words(x)))); }
  torch::nn::Embedding words;
  torch::nn::LSTM lstm;
  torch::nn::Linear out;
};

torch::Tensor inputs_of(const torch::Tensor& rows) { return rows.narrow(1, 0, kLength); }
torch::Tensor targets_of(const torch::Tensor& rows) { return rows.narrow(1, 1, kLength); }
torch::Tensor class_weights() { return 0.5 + torch::arange(kWords) * 0.1; }

WeightedLoss padded_loss(LanguageModel& net, sr::Scattered<const std::int64_t, 2> rows) {
  return models::lt::cross_entropy(net.forward(inputs_of(tensor(rows))), targets_of(tensor(rows)), kPadding);
}

/// With numbers beside the loss, which on a rank with padding only are no numbers.
struct Numbers {
  sr::Avg<double> loss;
  sr::Avg<float, 1> chances;
  sr::Sum<std::int64_t> targets;
};
torch::Tensor chances_of(const torch::Tensor& scores, const torch::Tensor& targets) {
  const auto weights = class_weights().index_select(0, targets.reshape({-1})) * targets.reshape({-1}).ne(kPadding);
  return (torch::softmax(scores, 2).reshape({-1, kWords}) * weights.unsqueeze(1)).sum(0) / weights.sum();
}
models::lt::Loss<Numbers, WeightedLoss> loss_with_chances(LanguageModel& net,
                                                          sr::Scattered<const std::int64_t, 2> rows) {
  const auto scores = net.forward(inputs_of(tensor(rows)));
  const auto targets = targets_of(tensor(rows));
  const auto loss = models::lt::cross_entropy(scores, targets, kPadding, class_weights());
  const auto chances = chances_of(scores.detach(), targets);
  return {loss,
          {.loss = loss.mean().item<double>(),
           .chances = {std::span(chances.data_ptr<float>(), kWords), sr::Shape{kWords}},
           .targets = targets.ne(kPadding).sum().item<std::int64_t>()}};
}

/// Sentences of different lengths. The last third of the rows is padding.
std::vector<std::int64_t> sentences() {
  std::vector<std::int64_t> words;
  std::mt19937 random(3);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const std::int64_t length = row >= 2 * kRows / 3 ? 1 : 2 + static_cast<std::int64_t>(random()) % kLength;
    auto word = static_cast<std::int64_t>(random() % (kWords - 1));
    for (std::int64_t i = 0; i <= kLength; ++i) {
      words.push_back(i < length ? 1 + word : kPadding);
      word = (3 * word + static_cast<std::int64_t>(random() % 2)) % (kWords - 1);
    }
  }
  return words;
}

// ---- the same training with workers and without ----

/// Rows of a step: their number differs, and they end with rows of padding only.
std::vector<std::int64_t> batch_of(std::int64_t step) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < 9 + step % 4; ++i) rows.push_back((5 * step + 3 * i) % (2 * kRows / 3));
  for (std::int64_t i = 0; i < 6; ++i) rows.push_back(2 * kRows / 3 + i);
  return rows;
}

struct Training {
  std::vector<double> losses;
  std::vector<double> norms;
};
constexpr double kNotClipped = std::numeric_limits<double>::infinity();

class LibtorchWeightedLosses : public OnSharedWorkers {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    OnSharedWorkers::SetUp();
  }

  template <class Net, class Loss>
  static Training train_serially(double clip_norm, const Loss& loss) {
    torch::manual_seed(kSeed);
    Net net;
    torch::optim::SGD sgd(net.parameters(), 0.02);
    Training training;
    for (std::int64_t i = 0; i < kStepCount; ++i) {
      sgd.zero_grad();
      const auto value = loss(net, torch::tensor(batch_of(i)));
      value.backward();
      training.norms.push_back(torch::nn::utils::clip_grad_norm_(net.parameters(), clip_norm));
      sgd.step();
      training.losses.push_back(value.template item<double>());
    }
    return training;
  }

  /// Trains with workers in both forms of a step, with and without clipping, and compares. `loss` computes the loss of some
  /// rows in this process.
  template <auto kLoss, class Net, class Loss, class... Data>
  static void expect_same(double clip_norm, const Loss& loss, const Data&... data) {
    for (const double clip : {kNotClipped, clip_norm}) {
      const Training serial = train_serially<Net>(clip, loss);
      EXPECT_EQ(serial.norms.front() > clip, clip != kNotClipped);
      for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
        const auto net = session().replicate<Replica<Net>>(kSeed);
        const auto params = parameters(session(), net);
        auto step = models::lt::train_step<sr::Sgd, kLoss>(session(), net, params,
                                                           {.form = form, .clip_norm = clip == kNotClipped ? 0 : clip});
        for (std::int64_t i = 0; i < kStepCount; ++i) {
          const auto batch = batch_of(i);
          const auto at = static_cast<std::size_t>(i);
          const auto found = step(data..., {.learning_rate = 0.02}, {.batch = batch, .slices = 1 + i % 3});
          EXPECT_NEAR(loss_of(found) / serial.losses[at], 1, 1e-6) << "step " << i;
          if (clip != kNotClipped) {
            EXPECT_NEAR(step.gradient_norm() / serial.norms[at], 1, 1e-5) << "step " << i;
          }
          worst_ = std::max(worst_, std::abs(loss_of(found) / serial.losses[at] - 1));
        }
      }
    }
    RecordProperty("largest_difference_of_a_loss", std::to_string(worst_));
  }
  static double loss_of(const Numbers& numbers) { return numbers.loss; }
  static double loss_of(double loss) { return loss; }

  static sr::Data<std::int64_t, 2> words() { return session().data(sentences(), sr::Shape{kRows, kLength + 1}); }
  static torch::Tensor all_words() { return torch::tensor(sentences()).reshape({kRows, kLength + 1}); }

  inline static double worst_ = 0;
};
INSTANTIATE_ON_WORKERS(LibtorchWeightedLosses, 1, 2, 3, 4);

TEST_P(LibtorchWeightedLosses, AreSumsOverAllRows) {
  torch::manual_seed(5);
  const auto x = torch::rand({kRows, kPixels});
  const auto noise = torch::randn({kRows, kLatent});
  const auto loss = [&](Vae& net, const torch::Tensor& rows) {
    return net.loss(x.index_select(0, rows), noise.index_select(0, rows));
  };
  const auto data = [](const torch::Tensor& values) {
    return session().data(std::vector(values.data_ptr<float>(), values.data_ptr<float>() + values.numel()),
                          sr::Shape{values.size(0), values.size(1)});
  };
  expect_same<vae_loss, Vae>(3, loss, data(x), data(noise));
}

TEST_P(LibtorchWeightedLosses, AreMeansOverTheTargetsThatCount) {
  const auto all = all_words();
  const auto with_weights = [&](const torch::Tensor& weights) {
    return [&all, weights](LanguageModel& net, const torch::Tensor& rows) {
      const auto words = all.index_select(0, rows);
      return torch::cross_entropy_loss(net.forward(inputs_of(words)).reshape({-1, kWords}),
                                       targets_of(words).reshape({-1}), weights, at::Reduction::Mean, kPadding);
    };
  };
  expect_same<padded_loss, LanguageModel>(0.1, with_weights({}), words());
  expect_same<loss_with_chances, LanguageModel>(0.1, with_weights(class_weights()), words());
}

/// With 24 rows and three or four workers, the last one has padding only.
TEST_P(LibtorchWeightedLosses, WeighTheNumbersBesideThem) {
  const auto net = session().replicate<Replica<LanguageModel>>(kSeed);
  const auto params = parameters(session(), net);
  torch::manual_seed(kSeed);
  LanguageModel alone;
  const auto scores = alone.forward(inputs_of(all_words())).detach();
  const auto targets = targets_of(all_words());
  const auto chances = chances_of(scores, targets);
  const auto loss = models::lt::cross_entropy(scores, targets, kPadding, class_weights()).mean().item<double>();
  for (const std::int64_t slices : {1, 2, 5}) {
    const auto found = evaluation<loss_with_chances>(session(), net, params)(words(), {.slices = slices});
    EXPECT_NEAR(found.loss / loss, 1, 1e-6);
    EXPECT_EQ(found.targets.value(), targets.ne(kPadding).sum().item<std::int64_t>());
    for (std::size_t i = 0; i < kWords; ++i)
      EXPECT_NEAR(found.chances[static_cast<std::int64_t>(i)] / chances[static_cast<std::int64_t>(i)].item<float>(), 1,
                  1e-5);
  }
  const double plain = evaluation<padded_loss>(session(), net, params)(words(), {.slices = 5});
  EXPECT_NEAR(plain / models::lt::cross_entropy(scores, targets, kPadding).mean().item<double>(), 1, 1e-6);
}

/// A rank whose mean is 0 / 0 contributes nothing.
WeightedLoss mean_times_count(LanguageModel& net, sr::Scattered<const std::int64_t, 2> rows) {
  const auto loss = padded_loss(net, rows);
  return {loss.mean() * loss.count, loss.count};
}
WeightedLoss negative_count(LanguageModel& net, sr::Scattered<const std::int64_t, 2> rows) {
  return {padded_loss(net, rows).sum, -2};
}

TEST_P(LibtorchWeightedLosses, MayCountNothingOnSomeRanksButNotOnAll) {
  const auto net = session().replicate<Replica<LanguageModel>>(kSeed);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Sgd, mean_times_count>(session(), net, params);
  const double wanted = evaluation<padded_loss>(session(), net, params)(words());
  EXPECT_NEAR(double{step(words(), {.learning_rate = 0.1}, {.slices = 3})} / wanted, 1, 1e-6);
  const auto before = params.get(0).to_vector();
  for (const float each : before) EXPECT_TRUE(std::isfinite(each));

  const std::vector<std::int64_t> padding{20, 21, 22, 23};
  EXPECT_ERROR(step(words(), {}, {.batch = padding}), sr::ErrorKind::function,
               "the counts of all ranks and slices add up to 0, expected a finite number above 0");
  EXPECT_ERROR(evaluation<padded_loss>(session(), net, params)(words(), {.batch = padding}).value(),
               sr::ErrorKind::usage, "the counts of the loss on all ranks add up to 0");
  auto wrong = models::lt::train_step<sr::Sgd, negative_count>(session(), net, params);
  EXPECT_ERROR(wrong(words(), {}), sr::ErrorKind::function,
               "the count of the loss is -2, expected a finite number from 0");
  EXPECT_EQ(params.get(0).to_vector(), before);
}

// ---- losses that would train another objective

torch::Tensor sum_as_a_mean(Vae& net, sr::Scattered<const float, 2> x) {
  return net.loss(tensor(x), torch::zeros({x.rows(), kLatent}));
}
torch::Tensor mean_of_some(LanguageModel& net, sr::Scattered<const std::int64_t, 2> rows) {
  return torch::cross_entropy_loss(net.forward(inputs_of(tensor(rows))).reshape({-1, kWords}),
                                   targets_of(tensor(rows)).reshape({-1}), {}, at::Reduction::Mean, kPadding);
}

/// The error of a step of so many slices, and the parameters stay as they were. Empty: it succeeds.
template <auto kLoss, class Net, class Data>
std::string error_of_a_step(sr::Session& session, const Data& data, const sr::CallOptions& options) {
  const auto net = session.replicate<Replica<Net>>(kSeed);
  auto params = parameters(session, net);
  auto step = models::lt::train_step<sr::Adam, kLoss>(session, net, params);
  const auto before = params.get(0).to_vector();
  try {
    step(data, {}, options);
  } catch (const sr::Error& error) {
    EXPECT_EQ(params.get(0).to_vector(), before);
    // A loss does not write to the parameters, and the state of Adam is as before.
    EXPECT_EQ(error.failure().undefined, std::vector<std::string>{params.name() + ".gradient"});
    return error.what();
  }
  return "";
}

TEST_P(LibtorchWeightedLosses, AreRefusedIfTheyClaimToBeMeans) {
  const auto pixels = session().data(std::vector<float>(kRows * kPixels, 0.25F), sr::Shape{kRows, kPixels});
  const bool is_one = world_size() == 1;
  for (const std::int64_t slices : {1, 2}) {
    const auto of_sum = error_of_a_step<sum_as_a_mean, Vae>(session(), pixels, {.slices = slices});
    const auto of_mean = error_of_a_step<mean_of_some, LanguageModel>(session(), words(), {.slices = slices});
    if (is_one && slices == 1) {
      EXPECT_EQ(of_sum + of_mean, "") << "on one rank, any loss is the objective";
      continue;
    }
    EXPECT_NE(
        of_sum.find("the loss is a sum over rows (BinaryCrossEntropyBackward0 with Reduction::Sum), expected their "
                    "mean. Return a libtorch::SummedLoss"),
        std::string::npos)
        << of_sum;
    EXPECT_NE(of_mean.find("the loss is a mean over targets with the total weight"), std::string::npos) << of_mean;
  }
  if (!is_one) return;
  const std::vector<std::int64_t> padding{20, 21};
  const auto of_padding = error_of_a_step<mean_of_some, LanguageModel>(session(), words(), {.batch = padding});
  EXPECT_NE(
      of_padding.find("all parameters are finite before this step; the loss is a mean over targets with the total "
                      "weight 0, expected 14"),
      std::string::npos)
      << of_padding;
  EXPECT_EQ(of_padding.find("learning rate"), std::string::npos) << of_padding;
}

}  // namespace weighted
}  // namespace
