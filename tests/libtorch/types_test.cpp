// Parameters of other types than the variable that holds them, losses that are scaled, and gradients that are sparse. The
// losses are those of the same training in one process, by LibTorch's own optimizers.

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace types {

using models::lt::parameters;
using models::lt::Replica;
using models::lt::tensor;
namespace nn = torch::nn;

constexpr std::uint64_t kSeed = 7;
constexpr std::int64_t kStepCount = 50;
constexpr std::int64_t kRows = 40;

using Rows = sr::Scattered<const float, 2>;
using Targets = sr::Scattered<const float, 1>;

/// Two layers, each of a type of its own. LibTorch for CPUs has few operations in float16, so the products are in float32 or
/// float64.
struct Typed : nn::Module {
  Typed(std::int8_t of_first, std::int8_t of_last) : first(models::kInputs, 9), last(9, 1) {
    first->to(static_cast<torch::ScalarType>(of_first));
    last->to(static_cast<torch::ScalarType>(of_last));
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const auto type = last->weight.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    const auto x = torch::linear(input.to(type), first->weight.to(type), first->bias.to(type));
    return torch::linear(torch::tanh(x), last->weight.to(type), last->bias.to(type)).squeeze(1);
  }
  nn::Linear first, last;
};
std::int8_t code(torch::ScalarType type) { return static_cast<std::int8_t>(type); }

torch::Tensor typed_loss(Typed& net, Rows x, Targets y) {
  const auto output = net.forward(tensor(x));
  return models::mean_square(output, tensor(y).to(output.scalar_type()));
}

std::vector<std::int64_t> batch_of(std::int64_t step) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < 9 + step % 5; ++i) rows.push_back((7 * step + 3 * i) % kRows);
  return rows;
}

/// The training of a module whose parameters are copies of masters of this type.
struct SerialTraining {
  std::vector<double> losses;
  std::vector<torch::Tensor> masters;
};
template <class Loss>
SerialTraining train_serially(nn::Module& net, torch::ScalarType type, const Loss& loss) {
  SerialTraining training;
  for (const auto& each : net.parameters()) training.masters.push_back(each.detach().to(type, false, true));
  torch::optim::Adam adam(training.masters, torch::optim::AdamOptions(0.01));
  for (std::int64_t i = 0; i < kStepCount; ++i) {
    const auto parameters = net.parameters();
    for (std::size_t j = 0; j < parameters.size(); ++j) {
      const torch::NoGradGuard no_gradients;
      parameters[j].mutable_grad().reset();
      auto own = parameters[j];
      own.copy_(training.masters[j]);
    }
    const torch::Tensor value = loss(torch::tensor(batch_of(i)));
    value.backward();
    for (std::size_t j = 0; j < parameters.size(); ++j)
      training.masters[j].mutable_grad() = parameters[j].grad().to_dense().to(type);
    adam.step();
    training.losses.push_back(value.item<double>());
  }
  return training;
}

struct Bounds {
  double first_ten;
  double all;
};
void expect_same(const std::vector<double>& losses, const std::vector<double>& serial, const Bounds& bounds) {
  ASSERT_EQ(losses.size(), serial.size());
  double worst = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double difference = std::abs(losses[i] / serial[i] - 1);
    EXPECT_LT(difference, i < 10 ? bounds.first_ten : bounds.all) << "step " << i;
    worst = std::max(worst, difference);
  }
  testing::Test::RecordProperty("largest_difference_of_a_loss", std::to_string(worst));
}

class LibtorchTypes : public models::OnSamples<kRows> {
 protected:
  /// Trains with workers, with a variable of T, and compares losses and masters.
  template <class T>
  void expect_trains(torch::ScalarType of_first, torch::ScalarType of_last, const Bounds& bounds) {
    torch::manual_seed(kSeed);
    Typed alone(code(of_first), code(of_last));
    const auto serial = train_serially(alone, c10::CppTypeToScalarType<T>::value, [&](const torch::Tensor& rows) {
      const auto output = alone.forward(all_x().index_select(0, rows));
      return models::mean_square(output, all_y().index_select(0, rows).to(output.scalar_type()));
    });
    EXPECT_LT(serial.losses.back(), 0.9 * serial.losses.front());
    for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
      const auto net = session().replicate<Replica<Typed>>(kSeed, code(of_first), code(of_last));
      auto params = parameters<T>(session(), net);
      static_assert(std::is_same_v<decltype(params), sr::Shared<T, 1>>);
      auto step = models::lt::train_step<sr::Adam, typed_loss>(session(), net, params, {.form = form});
      std::vector<double> losses;
      for (std::int64_t i = 0; i < kStepCount; ++i) {
        const auto batch = batch_of(i);
        losses.push_back(step(x(), y(), {.learning_rate = 0.01}, {.batch = batch, .slices = slices_of(i)}));
      }
      expect_same(losses, serial.losses, bounds);
      std::vector<torch::Tensor> all;
      for (const auto& each : serial.masters) all.push_back(each.reshape({-1}).to(torch::kFloat64));
      const auto masters = torch::cat(all);
      const auto found = params.get(0).to_vector();
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], masters[static_cast<std::int64_t>(i)].template item<double>(), 20 * bounds.all);
      expect_files_keep_masters(net, params);
    }
  }
  /// A file has the types of the module. Loading it leaves the digits of the masters that it does not have.
  template <class T>
  void expect_files_keep_masters(const sr::Replicated<Replica<Typed>>& net, sr::Shared<T, 1>& params) {
    const TemporaryFolder folder;
    const auto file = folder.path() / "typed.safetensors";
    const auto before = params.get(0).to_vector();
    models::lt::save(session(), net, params, file);
    models::lt::load(session(), net, params, file);
    EXPECT_EQ(params.get(0).to_vector(), before);
    params.broadcast(std::vector<T>(before.size()));
    models::lt::load(session(), net, params, file);
    const auto after = params.get(0).to_vector();
    for (std::size_t i = 0; i < after.size(); ++i) EXPECT_NEAR(after[i], before[i], std::abs(before[i]) / 128);
  }
  static std::int64_t slices_of(std::int64_t step) { return world_size() == 1 ? 1 : 1 + step % 3; }
};
INSTANTIATE_ON_WORKERS(LibtorchTypes, 1, 2, 3, 4);

/// A gradient of a smaller type is rounded on each rank and in each slice, so it depends on their number.
TEST_P(LibtorchTypes, HaveMastersInTheVariable) {
  const auto rounded = [](double bound) { return world_size() == 1 ? Bounds{1e-6, 1e-4} : Bounds{bound, 10 * bound}; };
  expect_trains<float>(torch::kBFloat16, torch::kFloat32, rounded(2e-3));
  expect_trains<float>(torch::kFloat16, torch::kBFloat16, rounded(2e-3));
  expect_trains<double>(torch::kFloat64, torch::kFloat64, {1e-13, 1e-11});
  expect_trains<double>(torch::kFloat32, torch::kFloat64, {1e-6, 1e-4});
}

TEST_P(LibtorchTypes, AreNotLargerThanThatOfTheVariable) {
  const auto net = session().replicate<Replica<Typed>>(kSeed, code(torch::kFloat64), code(torch::kFloat32));
  EXPECT_ERROR(
      parameters(session(), net), sr::ErrorKind::function,
      "parameter 'first.weight' is Double [9, 6], expected float32, float16 or bfloat16 in a variable of float. "
      "Make the variable with parameters<double>(session, net)");
  const auto mixed = session().replicate<Replica<Typed>>(kSeed, code(torch::kBFloat16), code(torch::kFloat32));
  const auto params = parameters(session(), mixed);
  auto step =
      models::lt::train_step<sr::Sgd, typed_loss,
                             models::lt::BackwardOptions{.average = models::lt::GradientAverage::during_backward}>(
          session(), mixed, params);
  EXPECT_ERROR(
      step(x(), y(), {}), sr::ErrorKind::function,
      "parameter 'first.weight' is BFloat16 [9, 6], and GradientAverage::during_backward expects parameters of "
      "the type of the variable");
}

// ---- scaled losses ----

constexpr double kTiny = 1e-7;
/// Its gradients are too small for float16.
models::lt::WeightedLoss tiny_loss(Typed& net, Rows x, Targets y) {
  return {typed_loss(net, x, y) * kTiny * x.rows(), x.rows()};
}
torch::Tensor nan_loss(Typed& net, Rows x, Targets y) {
  return typed_loss(net, x, y) * std::numeric_limits<float>::quiet_NaN();
}

class LibtorchScaledLoss : public LibtorchTypes {
 protected:
  auto replica() { return session().replicate<Replica<Typed>>(kSeed, code(torch::kFloat16), code(torch::kFloat32)); }
  std::vector<double> serial_losses() {
    torch::manual_seed(kSeed);
    Typed alone(code(torch::kFloat16), code(torch::kFloat32));
    return train_serially(alone, torch::kFloat32,
                          [&](const torch::Tensor& rows) {
                            return models::mean_square(alone.forward(all_x().index_select(0, rows)),
                                                       all_y().index_select(0, rows));
                          })
        .losses;
  }
};
INSTANTIATE_ON_WORKERS(LibtorchScaledLoss, 1, 2, 3, 4);

/// The first scale is far too large, and the scale grows every ten steps, so some later steps are skipped too. Steps that
/// are not skipped are those of the training without a scale.
TEST_P(LibtorchScaledLoss, SkipsStepsWhoseGradientIsNotFinite) {
  const auto serial = serial_losses();
  for (const auto form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    const auto net = replica();
    const auto params = parameters(session(), net);
    auto step = models::lt::scaled_step<sr::Adam, typed_loss>(session(), net, params, {.form = form},
                                                              {.scale = 0x1p40, .growth_interval = 10});
    std::vector<double> losses;
    std::int64_t skipped = 0;
    std::int64_t first_skips = 0;
    while (std::ssize(losses) < kStepCount && skipped < 100) {
      const auto at = std::ssize(losses);
      const auto before = params.get(0).to_vector();
      const double scale = step.scale();
      const double loss = step(x(), y(), {.learning_rate = 0.01}, {.batch = batch_of(at), .slices = slices_of(at)});
      EXPECT_EQ(step.was_skipped(), params.get(0).to_vector() == before);
      if (step.was_skipped()) {
        ++skipped;
        if (losses.empty()) ++first_skips;
        EXPECT_EQ(step.scale(), scale / 2);
        EXPECT_NEAR(loss / serial[static_cast<std::size_t>(at)], 1, 1e-2);
      } else {
        losses.push_back(loss);
      }
    }
    EXPECT_EQ(step.skipped(), skipped);
    EXPECT_EQ(step.inner().steps(), kStepCount);
    EXPECT_GE(first_skips, 20) << "the gradients are larger than 0.06, and float16 ends at 65504";
    EXPECT_GT(skipped, first_skips) << "the scale has grown, and was too large again";
    EXPECT_LT(skipped, 50);
    expect_same(losses, serial, {2e-3, 2e-2});
  }
}

TEST_P(LibtorchScaledLoss, KeepsSmallGradients) {
  const auto serial = serial_losses();
  const auto net = replica();
  const auto params = parameters(session(), net);
  const sr::Adam rule{.learning_rate = 0.01, .epsilon = 1e-8 * kTiny};
  auto step = models::lt::scaled_step<sr::Adam, tiny_loss>(session(), net, params, {.clip_norm = 1}, {.scale = 0x1p27});
  auto plain_net = replica();
  const auto plain_params = parameters(session(), plain_net);
  auto plain = models::lt::train_step<sr::Adam, tiny_loss>(session(), plain_net, plain_params);
  std::vector<double> losses;
  double of_plain = 0;
  for (std::int64_t i = 0; i < kStepCount; ++i) {
    const auto batch = batch_of(i);
    losses.push_back(step(x(), y(), rule, {.batch = batch, .slices = slices_of(i)}) / kTiny);
    of_plain = plain(x(), y(), rule, {.batch = batch, .slices = slices_of(i)}) / kTiny;
  }
  EXPECT_EQ(step.skipped(), 0);
  expect_same(losses, serial, {2e-3, 2e-2});
  EXPECT_GT(std::abs(of_plain / serial.back() - 1), 0.05) << "without a scale, the first layer does not learn";
}

TEST_P(LibtorchScaledLoss, IsAnErrorIfNoScaleHelps) {
  const auto net = replica();
  const auto params = parameters(session(), net);
  const auto before = params.get(0).to_vector();
  auto step = models::lt::scaled_step<sr::Adam, nan_loss>(session(), net, params, {}, {.scale = 1, .backoff = 1e-4});
  step(x(), y(), {});
  step(x(), y(), {});
  EXPECT_ERROR(
      step(x(), y(), {}), sr::ErrorKind::function,
      "the gradient of step 'nan_loss' is not finite with any scale down to 1e-12, so the scale is not the reason");
  EXPECT_EQ(params.get(0).to_vector(), before);
  EXPECT_EQ(step.scale(), 1e-4 * 1e-4) << "as before the step that threw";
  EXPECT_EQ(step.skipped(), 2);
  EXPECT_EQ(step.inner().steps(), 0);
  EXPECT_ERROR((models::lt::scaled_step<sr::Adam, typed_loss>(session(), net, params, {}, {.backoff = 1})),
               sr::ErrorKind::usage,
               "scaled_step: expected a scale above 0, a growth from 1, a backoff between 0 and 1");
}

torch::Tensor throwing_loss(Typed& net, Rows x, Targets y, bool throws) {
  if (throws && x.rows() != 0) throw std::runtime_error("no loss");
  return typed_loss(net, x, y);
}

TEST_P(LibtorchScaledLoss, IsAsBeforeAfterAStepThatThrew) {
  const auto net = replica();
  const auto params = parameters(session(), net);
  auto step = models::lt::scaled_step<sr::Adam, throwing_loss>(session(), net, params, {}, {.scale = 0x1p60});
  step(x(), y(), false, {});
  ASSERT_TRUE(step.was_skipped());
  EXPECT_ERROR(step(x(), y(), true, {}), sr::ErrorKind::function, "no loss");
  EXPECT_TRUE(step.was_skipped());
  EXPECT_EQ(step.skipped(), 1);
  EXPECT_EQ(step.scale(), 0x1p59);
  EXPECT_EQ(step.inner().steps(), 0);
}

// ---- replicas whose parameters are copies ----

TEST_P(LibtorchScaledLoss, IsTheMasterWeightsThatVerifyReplicasCompares) {
  const auto net = replica();
  auto params = parameters(session(), net);
  const auto evaluate = models::lt::evaluation<typed_loss>(session(), net, params);
  auto values = params.get(0).to_vector();
  for (float& value : values) value += 1;
  params.broadcast(values);
  const std::vector<std::int64_t> one{0};
  evaluate(x(), y(), {.batch = one});  // only one rank has copies of the new values
  EXPECT_ERROR(models::lt::verify_replicas(session(), net), sr::ErrorKind::function,
               "verify_replicas(session, net, params)");
  EXPECT_TRUE(models::lt::verify_replicas(session(), net, params).is_same());
  if (world_size() == 1) return;
  values[0] += 1e-5F;  // the copy in float16 is the same
  params.set(1, values);
  const auto found = models::lt::verify_replicas(session(), net, params);
  ASSERT_EQ(found.differences.size(), 1U) << found;
  EXPECT_EQ(found.differences[0].what, "'first.weight'");
}

// ---- sparse gradients ----

constexpr std::int64_t kWords = 12;
/// The same table for two words of a row, or for one in 16 bits: LibTorch for CPUs does not add sparse gradients of 16 bits.
struct Words : nn::Module {
  explicit Words(bool is_sparse, std::int8_t type)
      : table(nn::EmbeddingOptions(kWords, 4).sparse(is_sparse)), last(4, 1) {
    table->to(static_cast<torch::ScalarType>(type));
    register_module("table", table);
    register_module("last", last);
  }
  torch::Tensor loss(const torch::Tensor& words) {
    const auto first = table(words.select(1, 0)).to(torch::kFloat32);
    const bool is_used_twice = table->weight.scalar_type() == torch::kFloat32;
    const auto second = is_used_twice ? table(words.select(1, 1)) : first;
    return (last(torch::tanh(first) * second).squeeze(1) - words.select(1, 2)).square().mean();
  }
  nn::Embedding table;
  nn::Linear last;
};
torch::Tensor words_loss(Words& net, sr::Scattered<const std::int64_t, 2> words) { return net.loss(tensor(words)); }

TEST_P(LibtorchTypes, OfGradientsCanBeSparse) {
  std::vector<std::int64_t> values;
  for (std::int64_t row = 0; row < kRows; ++row) values.insert(values.end(), {row % 5, (3 * row) % 11, row % 3});
  const auto words = session().data(values, sr::Shape{kRows, 3});
  const auto train = [&]<class T>(T, bool is_sparse, torch::ScalarType type) {
    const auto net = session().replicate<Replica<Words>>(kSeed, is_sparse, code(type));
    const auto params = parameters<T>(session(), net);
    const auto before = params.get(0).to_vector();
    auto step = models::lt::train_step<sr::Adam, words_loss>(session(), net, params);
    std::vector<double> losses;
    for (std::int64_t i = 0; i < kStepCount; ++i)
      losses.push_back(step(words, {.learning_rate = 0.02}, {.batch = batch_of(i), .slices = 1 + i % 2}));
    const auto after = params.get(0).to_vector();
    const std::size_t used = type == torch::kFloat32 ? 11 : 5;  // words in the batches
    for (std::size_t i = 0; i < used * 4; ++i) EXPECT_NE(after[i], before[i]) << "word " << i / 4;
    return losses;
  };
  const auto dense = train(0.0F, false, torch::kFloat32);
  expect_same(train(0.0F, true, torch::kFloat32), dense, {1e-6, 1e-5});
  expect_same(train(0.0, true, torch::kFloat32), train(0.0, false, torch::kFloat32), {1e-6, 1e-5});
  expect_same(train(0.0F, true, torch::kBFloat16), train(0.0F, false, torch::kBFloat16), {2e-3, 2e-2});
}

}  // namespace types
}  // namespace
