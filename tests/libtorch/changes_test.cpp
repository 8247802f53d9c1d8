// Modules that change between steps: frozen and unfrozen parts, replaced and added layers. The losses are those of the
// same training in one process, by LibTorch's own optimizers, for any number of workers, uneven rows, slices, groups, a
// clipped gradient, and both forms of a step.

#include <torch/torch.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tests/libtorch/growing.hpp"
#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace changes {

using models::lt::parameters;
using models::lt::Replica;
using models::lt::tensor;
namespace nn = torch::nn;

using namespace growing;  // NOLINT(google-build-using-namespace): the tests are about all of it

class LibtorchChanges : public models::OnSamples<40> {
 protected:
  /// `make(net, params, options)` makes the step.
  template <class Rule, class Make>
  std::vector<double> train(const Rule& rule, double clip_norm, sr::StepForm form, const Make& make) {
    const auto net = session().replicate<Replica<Growing>>(kSeed);
    auto params = parameters(session(), net);
    const auto groups = undecayed(session(), net);
    auto step = make(net, params, sr::TrainStepOptions{.form = form, .groups = groups, .clip_norm = clip_norm});
    const auto evaluate = models::lt::evaluation<loss>(session(), net, params);
    std::vector<double> losses;
    for (std::int64_t i = 0; i < kStepCount; ++i) {
      const double before = evaluate(x(), y());
      switch (change_before(i)) {
        case 0: models::lt::change<freeze_first>(session(), net, params, std::tie(step)); break;
        case 1: models::lt::change<freeze_last_instead>(session(), net, params, std::tie(step)); break;
        case 2: models::lt::change<replace_last>(session(), net, params, std::tie(step)); break;
        case 3: models::lt::change<add_middle>(session(), net, params, std::tie(step), kWidth, 0.1); break;
        default: break;
      }
      const bool is_other_function = change_before(i) >= 2;
      EXPECT_EQ(evaluate(x(), y()) == before, !is_other_function) << "step " << i;
      const auto batch = batch_of(i);
      losses.push_back(step(x(), y(), rule, {.batch = batch, .slices = 1 + i % 3}));
    }
    if constexpr (requires { step.inner(); }) EXPECT_EQ(step.inner().steps(), kStepCount);
    else EXPECT_EQ(step.steps(), kStepCount);
    EXPECT_TRUE(models::lt::verify_replicas(session(), net).is_same());
    EXPECT_EQ(params.shape(0)[0], (models::kInputs + 1) * kWidth + (kWidth + 1) * kWidth + kWidth + 1);
    return losses;
  }
  template <class Rule>
  void expect_same(const Rule& rule, double clip_norm, const std::vector<double>& serial) {
    EXPECT_LT(serial.back(), 0.7 * serial.front()) << "the model learns, so the losses say something";
    const auto plain = [](const auto& net, const auto& params, const auto& options) {
      return models::lt::train_step<Rule, loss>(session(), net, params, options);
    };
    const auto scaled = [](const auto& net, const auto& params, const auto& options) {
      return models::lt::scaled_step<Rule, loss>(session(), net, params, options, {.scale = 1024});
    };
    for (const auto& losses :
         {train(rule, clip_norm, sr::StepForm::replicated, plain), train(rule, clip_norm, sr::StepForm::sharded, plain),
          train(rule, clip_norm, sr::StepForm::replicated, scaled)}) {
      double worst = 0;
      for (std::size_t i = 0; i < losses.size(); ++i) {
        const double difference = std::abs(losses[i] / serial[i] - 1);
        EXPECT_LT(difference, i < 10 ? 1e-6 : 1e-4) << "step " << i;
        worst = std::max(worst, difference);
      }
      RecordProperty("largest_difference_of_a_loss", std::to_string(worst));
    }
  }
};
INSTANTIATE_ON_WORKERS(LibtorchChanges, 1, 2, 3, 4);

TEST_P(LibtorchChanges, KeepTheStateOfWhatStays) {
  const auto adam = torch::optim::AdamWOptions(0.02).weight_decay(0.1);
  expect_same(sr::Adam{.learning_rate = 0.02, .decoupled_weight_decay = 0.1}, 0.3,
              train_serially<torch::optim::AdamW>(adam, 0.3, all_x(), all_y()));
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01);
  expect_same(sr::SgdMomentum{.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.01}, 0,
              train_serially<torch::optim::SGD>(sgd, 1e9, all_x(), all_y()));
}

void freeze_all(Growing& net) { require_gradient(net, false); }
void unfreeze_all(Growing& net) { require_gradient(net, true); }
void freeze_and_throw(Growing& net) {
  freeze_first(net);
  throw std::runtime_error("no such layer");
}
void widen_on_rank_1(Growing& net) {
  const bool is_rank_1 = std::string(std::getenv("RANK")) == "1";
  net.last = net.replace_module("last", nn::Linear(nn::LinearOptions(kWidth, 1).bias(!is_rank_1)));
}

TEST_P(LibtorchChanges, ThatFailLeaveTheParametersAsTheyWere) {
  const auto net = session().replicate<Replica<Growing>>(kSeed);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Adam, loss>(session(), net, params);
  auto other_params = parameters(session(), session().replicate<Replica<Growing>>(kSeed));
  step(x(), y(), {});
  const auto before = params.get(0).to_vector();
  const auto steps = std::tie(step);
  EXPECT_ERROR(models::lt::change<freeze_first>(session(), net, other_params, steps), sr::ErrorKind::usage,
               "change: the step 'loss' trains 'params', expected a step of 'params#2'");
  EXPECT_ERROR(models::lt::change<freeze_all>(session(), net, params, steps), sr::ErrorKind::usage,
               "change: the module has no parameter that requires a gradient");
  EXPECT_ERROR(models::lt::change<freeze_and_throw>(session(), net, params, steps), sr::ErrorKind::function,
               "no such layer");
  EXPECT_ERROR(step(x(), y(), {}), sr::ErrorKind::function, "the last change() of the module has failed");
  EXPECT_EQ(params.get(0).to_vector(), before);
  models::lt::change<unfreeze_all>(session(), net, params, steps);
  EXPECT_EQ(params.get(0).to_vector(), before);
  step(x(), y(), {});
  if (world_size() == 1) return;
  EXPECT_ERROR(models::lt::change<widen_on_rank_1>(session(), net, params, steps), sr::ErrorKind::usage,
               "change: the modules differ: rank 0 has parameter 'last.bias' Float [1], rank 1 has no more parameters");
}

void resize_last(Growing& net) {
  const torch::NoGradGuard no_gradients;
  for (auto* const layer : {&net.first, &net.last}) {
    auto& weight = (*layer)->weight;
    if (layer == &net.last) weight.set_data(torch::full({2, kWidth}, 0.1));
    else weight.set_data(weight.clone());
  }
  net.last->bias.set_data(torch::zeros({2}));
}

/// Steps that did not move with the parameters would train others.
TEST_P(LibtorchChanges, MakeOldStepsErrors) {
  const auto net = session().replicate<Replica<Growing>>(kSeed);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Adam, loss>(session(), net, params);
  auto other = models::lt::train_step<sr::Adam, loss>(session(), net, params);
  auto part = models::lt::train_step<sr::Adam, loss>(session(), net, params,
                                                     {.range = models::lt::range_of(session(), net, "last")});
  EXPECT_ERROR(models::lt::change<freeze_first>(session(), net, params, std::tie(step, part)), sr::ErrorKind::usage,
               "change: the step 'loss' has a range, expected one without");
  step(x(), y(), {});
  models::lt::change<replace_last>(session(), net, params, std::tie(step));  // the same length
  const auto before = params.get(0).to_vector();
  const char* const words = "'params' was laid out anew by change() without the step 'loss'";
  EXPECT_ERROR(other(x(), y(), {}), sr::ErrorKind::usage, words);
  EXPECT_ERROR(part(x(), y(), {}), sr::ErrorKind::usage, words);
  EXPECT_ERROR(models::lt::change<freeze_first>(session(), net, params, std::tie(other)), sr::ErrorKind::usage, words);
  EXPECT_EQ(params.get(0).to_vector(), before);
  // A tensor with another shape is a new parameter, and does not get the old state.
  models::lt::change<resize_last>(session(), net, params, std::tie(step, step));
  EXPECT_EQ(params.shape(0)[0], (models::kInputs + 1) * kWidth + 2 * kWidth + 2);
  const auto state = step.state()[0].get(0).to_vector();
  EXPECT_NE(state[0], 0);
  for (std::size_t i = (models::kInputs + 1) * kWidth; i < state.size(); ++i) EXPECT_EQ(state[i], 0);
}

struct Halved : Growing {
  Halved() { to(torch::kBFloat16); }
};
torch::Tensor halved_loss(Halved& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  return models::mean_square(net.forward(tensor(x).to(torch::kBFloat16)).to(torch::kFloat32), tensor(y));
}
void freeze_last_of_halved(Halved& net) { require_gradient(*net.last, false); }

TEST_P(LibtorchChanges, KeepTheMasterWeightsOfParametersIn16Bits) {
  const auto net = session().replicate<Replica<Halved>>(kSeed);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Adam, halved_loss>(session(), net, params);
  for (int i = 0; i < 5; ++i) step(x(), y(), {});
  auto before = params.get(0).to_vector();
  models::lt::change<freeze_last_of_halved>(session(), net, params, std::tie(step));
  before.resize((models::kInputs + 1) * kWidth);
  EXPECT_EQ(params.get(0).to_vector(), before);
  step(x(), y(), {});
}

// ---- workers that are replaced ----

void kill_rank(sr::CpuWorker& worker, int rank) {
  if (worker.rank() == rank) std::raise(SIGKILL);
}

class LibtorchRestore : public testing::TestWithParam<int> {
 protected:
  static constexpr std::int64_t kRows = 40;

  LibtorchRestore() {
    const auto samples = models::make_samples(kRows);
    x_ = session_->data(samples.x, sr::Shape{kRows, models::kInputs});
    y_ = session_->data(samples.y);
  }
  static sr::SessionOptions options() {
    sr::SessionOptions options = options_of_computing(GetParam());
    options.on_worker_lost = sr::OnWorkerLost::respawn;
    return options;
  }
  void TearDown() override { session_->close(); }
  void lose(int rank) { EXPECT_ERROR(session_->function(kill_rank)(rank), sr::ErrorKind::worker_lost, "is new"); }
  /// Trains with three changes. `disturb` is called after a change and some steps.
  template <class Disturb>
  std::vector<double> train(const Disturb& disturb) {
    const auto net = session_->replicate<Replica<Growing>>(kSeed);
    auto params = parameters(*session_, net);
    auto step = models::lt::train_step<sr::Adam, loss>(*session_, net, params);
    std::vector<double> losses;
    const auto run = [&] {
      for (int i = 0; i < 3; ++i) losses.push_back(step(*x_, *y_, {.learning_rate = 0.02}));
    };
    run();
    models::lt::change<freeze_first>(*session_, net, params, std::tie(step));
    run();
    disturb(net, params, step);
    models::lt::change<add_middle>(*session_, net, params, std::tie(step), kWidth, 0.1);
    models::lt::change<replace_last>(*session_, net, params, std::tie(step));
    run();
    disturb(net, params, step);
    run();
    EXPECT_TRUE(models::lt::verify_replicas(*session_, net).is_same());
    return losses;
  }

  std::unique_ptr<sr::Session> session_ = std::make_unique<sr::Session>(options());
  std::optional<sr::Data<float, 2>> x_;
  std::optional<sr::Data<float, 1>> y_;
};
INSTANTIATE_ON_WORKERS(LibtorchRestore, 1, 3);

/// The first layer was trained before it was frozen, so its values are not those of the constructor.
TEST_P(LibtorchRestore, RepeatsTheChangesOnANewWorker) {
  const auto undisturbed = train([](const auto&, auto&, auto&) {});
  if (GetParam() == 1) return;
  const auto restored = train([&](const auto& net, auto& params, auto& step) {
    lose(0);
    const char* const words = "rank 0 is a new worker, whose object was constructed anew. Call restore(session, net)";
    EXPECT_ERROR(step(*x_, *y_, {}), sr::ErrorKind::usage, words);
    EXPECT_ERROR((models::lt::evaluation<loss>(*session_, net, params)(*x_, *y_)), sr::ErrorKind::usage, words);
    EXPECT_EQ(models::lt::restore(*session_, net), models::lt::Restored::from_a_rank);
    EXPECT_EQ(models::lt::restore(*session_, net), models::lt::Restored::nothing);
  });
  EXPECT_EQ(restored, undisturbed);
  // A change restores too.
  int calls = 0;
  const auto changed = train([&](const auto& net, auto&, auto&) {
    lose(2);
    if (++calls == 2) models::lt::restore(*session_, net);
  });
  EXPECT_EQ(changed, undisturbed);
}

TEST_P(LibtorchRestore, SaysIfNoRankHasKeptItsModule) {
  const auto net = session_->replicate<Replica<Growing>>(kSeed);
  auto params = parameters(*session_, net);
  auto step = models::lt::train_step<sr::Adam, loss>(*session_, net, params);
  models::lt::change<add_middle>(*session_, net, params, std::tie(step), kWidth, 0.1);
  const auto before = params.get(0).to_vector();
  for (int rank = 0; rank < GetParam(); ++rank) lose(rank);
  if (GetParam() > 1) {  // else the variable is lost too
    EXPECT_ERROR(models::lt::change<freeze_first>(*session_, net, params, std::tie(step)), sr::ErrorKind::usage,
                 "change: no rank has kept its module");
  }
  EXPECT_EQ(models::lt::restore(*session_, net), models::lt::Restored::as_constructed);
  params.broadcast(before);
  if (GetParam() > 1) step(*x_, *y_, {});
}

void add_second_bias(Growing& net) {
  if (net.named_children().contains("extra")) net.unregister_module("extra");  // of a change that failed
  net.first->register_parameter("second", torch::zeros({kWidth}));
}
void add_third_bias(Growing& net) { net.first->register_parameter("third", torch::zeros({kWidth})); }
torch::Tensor loss_of_biases(Growing& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  torch::Tensor hidden = net.first(tensor(x));
  for (const auto* const name : {"second", "third"}) {
    const auto parameters = net.first->named_parameters(false);
    const auto* const found = parameters.find(name);
    if (found != nullptr) hidden = hidden + (name[0] == 's' ? 1 : 3) * *found;
  }
  return models::mean_square(net.last(torch::tanh(hidden)).squeeze(1), tensor(y));
}
/// All ranks propose what they have, and rank 0 has a layer more.
void differ_on_rank_0(Growing& net) {
  if (std::string(std::getenv("RANK")) == "0") net.register_module("extra", nn::Linear(2, 2));
}
void freeze_biases(Growing& net) {
  auto parameters = net.first->named_parameters(false);
  for (const auto* const name : {"second", "third"}) parameters[name].requires_grad_(false);
}
void unfreeze_biases(Growing& net) {
  auto parameters = net.first->named_parameters(false);
  for (const auto* const name : {"second", "third"}) parameters[name].requires_grad_(true);
}

/// The state of a frozen parameter goes to the same parameter, although a change has failed and rank 0 was replaced.
TEST_P(LibtorchRestore, AFrozenParameterGetsItsOwnState) {
  if (GetParam() == 1) return;
  const auto state_after = [&](bool is_disturbed) {
    const auto net = session_->replicate<Replica<Growing>>(kSeed);
    auto params = parameters(*session_, net);
    auto step = models::lt::train_step<sr::Adam, loss_of_biases>(*session_, net, params);
    const auto steps = std::tie(step);
    if (is_disturbed) {
      EXPECT_ERROR(models::lt::change<differ_on_rank_0>(*session_, net, params, steps), sr::ErrorKind::usage,
                   "the modules differ");
    }
    models::lt::change<add_second_bias>(*session_, net, params, steps);
    models::lt::change<add_third_bias>(*session_, net, params, steps);
    for (int i = 0; i < 3; ++i) step(*x_, *y_, {.learning_rate = 0.02});
    models::lt::change<freeze_biases>(*session_, net, params, steps);
    if (is_disturbed) {
      lose(0);
      EXPECT_EQ(models::lt::restore(*session_, net), models::lt::Restored::from_a_rank);
    }
    models::lt::change<unfreeze_biases>(*session_, net, params, steps);
    step(*x_, *y_, {.learning_rate = 0.02});
    return step.state()[0].get(0).to_vector();
  };
  EXPECT_EQ(state_after(true), state_after(false));
}

/// Dies in the change itself, if the file exists.
void kill_in_change(Growing& net, int rank, std::string_view file) {
  if (std::atoi(std::getenv("RANK")) == rank && std::filesystem::remove(std::filesystem::path(file)))
    std::raise(SIGKILL);
  freeze_first(net);
}

TEST_P(LibtorchRestore, AChangeInWhichAWorkerIsLostCanBeMadeAgain) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "dies").string();
  const auto net = session_->replicate<Replica<Growing>>(kSeed);
  auto params = parameters(*session_, net);
  auto step = models::lt::train_step<sr::Adam, loss>(*session_, net, params);
  models::lt::change<add_middle>(*session_, net, params, std::tie(step), kWidth, 0.1);
  step(*x_, *y_, {});
  const int last = GetParam() - 1;
  std::ofstream(file) << "x";
  EXPECT_ERROR(models::lt::change<kill_in_change>(*session_, net, params, std::tie(step), last, file),
               sr::ErrorKind::worker_lost, "is new");
  if (GetParam() == 1) return;
  models::lt::change<kill_in_change>(*session_, net, params, std::tie(step), last, file);
  step(*x_, *y_, {});
  EXPECT_TRUE(models::lt::verify_replicas(*session_, net).is_same());
}

}  // namespace changes
}  // namespace
