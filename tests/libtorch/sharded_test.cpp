// Models whose parameters are divided among the ranks. The losses are those of one process with LibTorch alone, for any
// number of workers, uneven rows, ranks without rows, slices, groups and a clipped gradient.

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/libtorch/sharded_models.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace sharded {
namespace {

struct Options {
  double clip_norm = 0;
  bool has_groups = false;
  double dropout = 0;
};
constexpr double kRate = 0.01;
constexpr double kEpsilon = 1e-4;  // otherwise, Adam makes rounding errors of tiny gradients large

class LibtorchSharded : public OnSharedWorkers {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    OnSharedWorkers::SetUp();
  }
  static sr::Data<std::int64_t, 2> words() { return session().data(sentences(), sr::Shape{kRows, kLength + 1}); }
  static Tensor all_words() { return torch::tensor(sentences()).reshape({kRows, kLength + 1}); }

  struct Training {
    std::vector<double> losses;
    std::vector<double> norms;
  };

  /// Biases and norms, which have one dimension, have no weight decay and half the learning rate.
  template <class Loss>
  static Training train_serially(const Options& options, const Loss& loss) {
    torch::manual_seed(kSeed);
    Net net(0, 0);
    std::vector<Tensor> matrices;
    std::vector<Tensor> vectors;
    for (const auto& each : net.parameters()) (each.dim() < 2 ? vectors : matrices).push_back(each);
    const auto adam = [](double rate, double decay) {
      return torch::optim::AdamWOptions(rate).weight_decay(decay).eps(kEpsilon);
    };
    const double factor = options.has_groups ? 0.5 : 1;
    torch::optim::AdamW first(matrices, adam(kRate, 0.1));
    torch::optim::AdamW second(vectors, adam(kRate * factor, options.has_groups ? 0 : 0.1));
    Training training;
    for (std::int64_t i = 0; i < kStepCount; ++i) {
      net.zero_grad();
      const auto value = loss(net, all_words().index_select(0, torch::tensor(batch_of(i))));
      value.backward();
      if (options.clip_norm != 0)
        training.norms.push_back(nn::utils::clip_grad_norm_(net.parameters(), options.clip_norm));
      first.step();
      second.step();
      training.losses.push_back(value.template item<double>());
    }
    return training;
  }

  template <auto kLoss, lt::ShardOptions kOptions = lt::ShardOptions{}>
  static Training train(Reshard reshard, const Options& options) {
    const auto net = session().replicate<lt::ShardedReplica<Net, kOptions>>(kSeed, static_cast<std::int64_t>(reshard),
                                                                            options.dropout);
    auto params = lt::parameters(session(), net);
    sr::TrainStepOptions chosen{.form = sr::StepForm::fully_sharded, .clip_norm = options.clip_norm};
    for (const auto& part : lt::parts(session(), net)) {
      if (options.has_groups && part.dimensions < 2)
        chosen.groups.push_back({.begin = part.begin, .end = part.end, .learning_rate = 0.5, .weight_decay = 0});
    }
    auto step = lt::train_step<sr::Adam, kLoss>(session(), net, params, chosen);
    const auto data = words();
    Training training;
    for (std::int64_t i = 0; i < kStepCount; ++i) {
      const auto batch = batch_of(i);
      const auto slices = std::min<std::int64_t>(1 + i % 3, std::ssize(batch));
      const auto found = step(data, {.learning_rate = kRate, .epsilon = kEpsilon, .decoupled_weight_decay = 0.1},
                              {.batch = batch, .slices = slices});
      training.losses.push_back(loss_of(found));
      if (options.clip_norm != 0) training.norms.push_back(step.gradient_norm());
    }
    peak_ = lt::gather_peak(session(), net);
    share_ = params.shape(0)[0];
    elements_ = lt::parts(session(), net).back().end;
    return training;
  }

  template <auto kLoss, lt::ShardOptions kOptions = lt::ShardOptions{}, class Loss>
  static void expect_same(Reshard reshard, const Options& options, const Loss& loss, double tolerance = 1e-5) {
    const Training serial = train_serially(options, loss);
    const Training found = train<kLoss, kOptions>(reshard, options);
    for (std::size_t i = 0; i < serial.losses.size(); ++i)
      EXPECT_NEAR(found.losses[i] / serial.losses[i], 1, tolerance) << "step " << i;
    for (std::size_t i = 0; i < serial.norms.size(); ++i)
      EXPECT_NEAR(found.norms[i] / serial.norms[i], 1, tolerance) << "step " << i;
  }
  static double loss_of(const Numbers& numbers) { return numbers.loss; }
  static double loss_of(double loss) { return loss; }

  inline static lt::GatherPeak peak_;
  inline static std::int64_t share_ = 0;     // of each rank
  inline static std::int64_t elements_ = 0;  // of the whole model
};
INSTANTIATE_ON_WORKERS(LibtorchSharded, 1, 2, 3);

TEST_P(LibtorchSharded, TrainLikeOneProcessAndGatherOneUnitAtATime) {
  expect_same<mean_loss>(Reshard::keep, {}, serial_mean);
  EXPECT_LE(peak_.units, 2);  // a Pair contains a unit
  expect_same<mean_loss>(Reshard::recompute, {.clip_norm = 0.5, .has_groups = true}, serial_mean);
  EXPECT_LE(peak_.units, 2);
  expect_same<mean_loss>(Reshard::never, {.has_groups = true}, serial_mean);
  EXPECT_EQ(peak_.units, kBlocks + 2);
  // Padding is less than a page for each of 7 units, and 1032 elements at the end.
  EXPECT_LE(share_, elements_ / world_size() + 1024 * (kBlocks + 3) + 1032);
}

TEST_P(LibtorchSharded, GatherTheNextUnitBeforeItComputes) {
  constexpr lt::ShardOptions kAhead{.prefetch = lt::Prefetch::always};
  expect_same<mean_loss, kAhead>(Reshard::keep, {.clip_norm = 0.5}, serial_mean);
  EXPECT_EQ(peak_.units, world_size() == 1 ? 2 : 3);
  expect_same<mean_loss, kAhead>(Reshard::recompute, {.has_groups = true}, serial_mean);
  EXPECT_EQ(peak_.units, world_size() == 1 ? 2 : 3);
  expect_same<mean_loss, kAhead>(Reshard::never, {}, serial_mean);
}

TEST_P(LibtorchSharded, GoOnIfTheNextUnitIsAnother) {
  EXPECT_EQ(losses_of_changing_orders<lt::Prefetch::always>(session(), words()),
            losses_of_changing_orders<lt::Prefetch::never>(session(), words()));
}

TEST_P(LibtorchSharded, ComputeInBfloat16AndKeepTheParametersExact) {
  constexpr lt::ShardOptions kMixed{.gather = lt::UnitType::bfloat16};
  constexpr lt::ShardOptions kAllMixed{
      .gather = lt::UnitType::bfloat16, .reduce = lt::UnitType::bfloat16, .prefetch = lt::Prefetch::always};
  expect_same<mean_loss, kMixed>(Reshard::keep, {}, serial_mean, 0.03);
  expect_same<mean_loss, kAllMixed>(Reshard::recompute, {.has_groups = true}, serial_mean, 0.03);

  const auto net = session().replicate<lt::ShardedReplica<Net, kMixed>>(kSeed, std::int64_t{0}, 0.0);
  auto params = lt::parameters(session(), net);
  auto step = lt::train_step<sr::Adam, mean_loss>(session(), net, params, {.form = sr::StepForm::fully_sharded});
  step(words(), {.learning_rate = 1e-4});
  const TemporaryFolder folder;
  lt::save(session(), net, params, folder.path() / "before.safetensors");
  step(words(), {.learning_rate = 1e-4});
  lt::load(session(), net, params, folder.path() / "before.safetensors");
  lt::save(session(), net, params, folder.path() / "after.safetensors");
  const lt::Safetensors before(folder.path() / "before.safetensors");
  const lt::Safetensors after(folder.path() / "after.safetensors");
  for (const std::string& name : before.names()) {
    EXPECT_EQ(before.tensor(name).scalar_type(), torch::kFloat32) << name;
    EXPECT_TRUE(before.tensor(name).equal(after.tensor(name))) << name;
  }
  EXPECT_FALSE(before.tensor("block1.wide.weight")
                   .to(torch::kBFloat16)
                   .to(torch::kFloat32)
                   .equal(before.tensor("block1.wide.weight")));
}

TEST_P(LibtorchSharded, MinimizeLossesThatAreNoMeans) {
  const auto padded = [](Net& net, const Tensor& rows) {
    return torch::cross_entropy_loss(scores_of(net, rows).reshape({-1, kWords}), targets_of(rows).reshape({-1}), {},
                                     at::Reduction::Mean, 0);
  };
  expect_same<padded_loss>(Reshard::keep, {.clip_norm = 0.5}, padded);
}

TEST_P(LibtorchSharded, MinimizeSumsWithNumbersBesideThem) {
  const auto net = session().replicate<lt::ShardedReplica<Net>>(kSeed, std::int64_t{0}, 0.0);
  const auto params = lt::parameters(session(), net);
  auto step = lt::train_step<sr::Sgd, summed_loss>(session(), net, params, {.form = sr::StepForm::fully_sharded});
  torch::manual_seed(kSeed);
  Net alone(0, 0);
  torch::optim::SGD sgd(alone.parameters(), kRate);
  const auto data = words();
  for (std::int64_t i = 0; i < kStepCount; ++i) {
    const auto batch = batch_of(i);
    const Numbers found =
        step(data, {.learning_rate = kRate}, {.batch = batch, .slices = std::min<std::int64_t>(2, std::ssize(batch))});
    alone.zero_grad();
    const auto rows = all_words().index_select(0, torch::tensor(batch));
    const auto sum = torch::cross_entropy_loss(scores_of(alone, rows).reshape({-1, kWords}),
                                               targets_of(rows).reshape({-1}), {}, at::Reduction::Sum) /
                     100;
    sum.backward();
    sgd.step();
    EXPECT_EQ(found.rows.value(), static_cast<std::int64_t>(batch.size()));
    EXPECT_NEAR(found.loss * static_cast<double>(batch.size()) / sum.item<double>(), 1, 1e-5) << "step " << i;
  }
  const double evaluated = lt::evaluation<mean_loss>(session(), net, params)(data, {.slices = 3});
  EXPECT_NEAR(evaluated / serial_mean(alone, all_words()).item<double>(), 1, 1e-5);
}

TEST_P(LibtorchSharded, DrawTheSameRandomNumbersAgain) {
  const auto kept = train<mean_loss>(Reshard::keep, {.dropout = 0.3});
  const auto recomputed = train<mean_loss>(Reshard::recompute, {.dropout = 0.3});
  for (std::size_t i = 0; i < kept.losses.size(); ++i) EXPECT_NEAR(recomputed.losses[i] / kept.losses[i], 1, 1e-6);
}

TEST_P(LibtorchSharded, RefuseAnotherOrderOfUnitsOnOneRank) {
  const auto net = session().replicate<lt::ShardedReplica<Net>>(kSeed, std::int64_t{0}, 0.0);
  const auto params = lt::parameters(session(), net);
  auto step = lt::train_step<sr::Sgd, crossed_loss>(session(), net, params, {.form = sr::StepForm::fully_sharded});
  if (world_size() == 1) {
    step(words(), {.learning_rate = kRate});
    return;
  }
  const auto both = "for unit 'block0', rank 1 calls all_gather";
  EXPECT_ERROR(step(words(), {.learning_rate = kRate}), sr::ErrorKind::function, both);
  EXPECT_ERROR(step(words(), {.learning_rate = kRate}), sr::ErrorKind::function, "bytes for unit 'block1'");
  EXPECT_ERROR(lt::evaluation<crossed_loss>(session(), net, params)(words()), sr::ErrorKind::function, both);
}

TEST_P(LibtorchSharded, FreeUnitsAfterAnErrorOnOneRankAndGoOn) {
  expect_goes_on_after_errors<lt::Prefetch::never>(session(), words());
  expect_goes_on_after_errors<lt::Prefetch::always>(session(), words());
}

/// A parameter of a block is also one of the rest.
struct Tied : nn::Module {
  Tied() {
    block = register_module("block", std::make_shared<lt::Sharded<Block>>(0.0));
    weight = register_parameter("head", block->wide->weight);
  }
  std::shared_ptr<lt::Sharded<Block>> block;
  Tensor weight;
};

TEST_P(LibtorchSharded, RefuseParametersThatTwoUnitsUse) {
  const auto net = session().replicate<lt::ShardedReplica<Tied>>(kSeed);
  EXPECT_ERROR(lt::parameters(session(), net), sr::ErrorKind::function,
               "parameter 'head' is tied to one of unit 'block', and is used by the rest of the module");
}

/// Not the same tensor, but the same memory.
struct Alias : nn::Module {
  Alias() : first(3, 3) {
    register_module("first", first);
    second = register_parameter("second", first->weight.detach());
  }
  nn::Linear first;
  Tensor second;
};

TEST_P(LibtorchSharded, RefuseParametersThatShareMemory) {
  const auto net = session().replicate<lt::ShardedReplica<Alias>>(kSeed);
  EXPECT_ERROR(lt::parameters(session(), net), sr::ErrorKind::function, "shares its memory with another tensor");
}

TEST_P(LibtorchSharded, RefuseOtherFormsAndOtherReplicas) {
  const auto net = session().replicate<lt::ShardedReplica<Net>>(kSeed, std::int64_t{0}, 0.0);
  const auto params = lt::parameters(session(), net);
  EXPECT_ERROR((lt::train_step<sr::Sgd, mean_loss>(session(), net, params, {})), sr::ErrorKind::usage,
               "needs the form StepForm::fully_sharded");
  EXPECT_ERROR(lt::parameters(session(), net), sr::ErrorKind::function, "has a variable already");
  const auto doubles = session().shared("doubles", std::vector<double>(static_cast<std::size_t>(params.shape(0)[0])));
  EXPECT_ERROR((lt::evaluation<mean_loss>(session(), net, doubles)(words())), sr::ErrorKind::function,
               "expected Double, the type of the variable");
  const auto whole = session().replicate<lt::Replica<Net>>(kSeed, std::int64_t{0}, 0.0);
  const auto all = lt::parameters(session(), whole);
  EXPECT_ERROR((lt::train_step<sr::Sgd, mean_loss>(session(), whole, all, {.form = sr::StepForm::fully_sharded})),
               sr::ErrorKind::usage, "needs session.replicate<ShardedReplica<Net>>");
}

TEST_P(LibtorchSharded, SaveAndLoadFilesThatDoNotDependOnTheNumberOfRanks) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "net.safetensors";
  torch::manual_seed(kSeed + 1);
  Net alone(0, 0);
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& each : alone.named_parameters()) tensors.emplace_back(each.key(), each.value().detach());
  lt::save_safetensors(file, tensors);

  const auto net = session().replicate<lt::ShardedReplica<Net>>(kSeed, std::int64_t{0}, 0.0);
  auto params = lt::parameters(session(), net);
  lt::load(session(), net, params, file);
  const double loaded = lt::evaluation<mean_loss>(session(), net, params)(words());
  EXPECT_NEAR(loaded / serial_mean(alone, all_words()).item<double>(), 1, 1e-6);

  const auto others = folder.path() / "others.safetensors";
  std::vector<std::pair<std::string, Tensor>> transposed;
  for (const auto& [name, tensor] : tensors)
    transposed.emplace_back("net." + name, (name.ends_with("wide.weight") ? tensor.t() * 2 : tensor * 2).contiguous());
  lt::save_safetensors(others, transposed);
  EXPECT_ERROR(lt::load(session(), net, params, others, {.prefixes = {{"net.", ""}}}), sr::ErrorKind::function,
               "expected 'block0.wide.weight'");
  EXPECT_ERROR(lt::load(session(), net, params, file, {.transposed = {"wide.wieght"}}), sr::ErrorKind::function,
               "expected a matrix whose name ends in 'wide.wieght' (LoadOptions::transposed), found none");
  lt::load(session(), net, params, others, {.prefixes = {{"net.", ""}}, .transposed = {"wide.weight"}});
  {
    const torch::NoGradGuard no_gradients;
    for (auto& each : alone.parameters()) each.mul_(2);
    const double doubled = lt::evaluation<mean_loss>(session(), net, params)(words());
    EXPECT_NEAR(doubled / serial_mean(alone, all_words()).item<double>(), 1, 1e-6);
    for (auto& each : alone.parameters()) each.div_(2);
  }
  lt::load(session(), net, params, file);

  const auto again = folder.path() / "again.safetensors";
  lt::save(session(), net, params, again);
  const lt::Safetensors saved(again);
  EXPECT_EQ(saved.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(saved.tensor(name).equal(tensor)) << name;

  // Also vectors of state, which are divided as the parameters are.
  auto step = lt::train_step<sr::SgdMomentum, mean_loss>(session(), net, params, {.form = sr::StepForm::fully_sharded});
  step(words(), {.learning_rate = 0});
  lt::save(session(), net, step.state()[0], again);
  serial_mean(alone, all_words()).backward();
  for (const auto& each : alone.named_parameters())
    EXPECT_TRUE(lt::Safetensors(again).tensor(each.key()).allclose(each.value().grad(), 1e-4, 1e-6)) << each.key();

  EXPECT_ERROR(lt::save(session(), net, params, folder.path() / "net.pt"), sr::ErrorKind::function, "'.safetensors'");
  lt::save_safetensors(file, {tensors.front()});
  EXPECT_ERROR(lt::load(session(), net, params, file), sr::ErrorKind::function, "found no tensor of this name");
  EXPECT_EQ(lt::load(session(), net, params, file, {.form = lt::LoadForm::partial}).missing.size(), tensors.size() - 1);
  EXPECT_EQ(double{lt::evaluation<mean_loss>(session(), net, params)(words())}, loaded);
}

/// 0 times the gradient of a square root at 0, which is infinite.
Tensor loss_with_an_endless_slope(Net& net, sr::Scattered<const std::int64_t, 2> rows) {
  return torch::sqrt(net.blocks[0]->forward(net.words(lt::tensor(rows))) * 0).sum();
}

TEST_P(LibtorchSharded, NameAParameterWhoseGradientIsNotFinite) {
  const auto net = session().replicate<lt::ShardedReplica<Net>>(kSeed, std::int64_t{0}, 0.0);
  const auto params = lt::parameters(session(), net);
  auto step =
      lt::train_step<sr::Sgd, loss_with_an_endless_slope, lt::BackwardOptions{.check = lt::FiniteCheck::gradients}>(
          session(), net, params, {.form = sr::StepForm::fully_sharded});
  EXPECT_ERROR(step(words(), {.learning_rate = kRate}), sr::ErrorKind::function,
               "the gradient of parameter 'block0.narrow");
}

Tensor killed_loss(Net& net, sr::Scattered<const std::int64_t, 2> rows, sr::Comm& comm, bool dies) {
  auto x = net.blocks[0]->forward(net.words(lt::tensor(rows)));
  if (dies && comm.rank() == comm.world_size() - 1) std::raise(SIGKILL);
  return net.blocks[1]->forward(x).square().mean();
}

/// The other ranks wait for it in a gather.
TEST_P(LibtorchSharded, NameARankThatIsKilledDuringAGather) {
  const auto net = session().replicate<lt::ShardedReplica<Net>>(kSeed, std::int64_t{0}, 0.0);
  const auto params = lt::parameters(session(), net);
  auto step = lt::train_step<sr::Sgd, killed_loss>(session(), net, params, {.form = sr::StepForm::fully_sharded});
  EXPECT_ERROR(step(words(), true, {.learning_rate = kRate}), sr::ErrorKind::worker_lost,
               "rank " + std::to_string(world_size() - 1));
  end_session();
}

Tensor loss_with_a_freed_weight(Net& net, sr::Scattered<const std::int64_t, 2> rows) {
  const auto x = net.blocks[0]->forward(net.words(lt::tensor(rows)));
  return x.square().mean() + net.blocks[1]->wide->weight.sum();
}

TEST(LibtorchShardedUnit, IsNamedIfItsParametersAreUsedElsewhere) {
  sr::Session session(options_of_computing(1));
  const auto net = session.replicate<lt::ShardedReplica<Net>>(kSeed, std::int64_t{0}, 0.0);
  const auto params = lt::parameters(session, net);
  const auto evaluation = lt::evaluation<loss_with_a_freed_weight>(session, net, params);
  EXPECT_ERROR(evaluation(session.data(sentences(), sr::Shape{kRows, kLength + 1})), sr::ErrorKind::worker_lost,
               "it used the parameters of unit 'block1', which are gathered only while it computes");
}

/// The values of a checkpoint of two ranks would be in other places.
TEST(LibtorchShardedCheckpoint, FitsOnlyTheSameNumberOfRanks) {
  const TemporaryFolder folder;
  double wanted = 0;
  for (const int ranks : {2, 2, 1, 3}) {
    sr::Session session(options_of_computing(ranks));
    const auto net = session.replicate<lt::ShardedReplica<Net>>(kSeed, std::int64_t{0}, 0.0);
    auto params = lt::parameters(session, net);
    const auto evaluate = [&] {
      return double{
          lt::evaluation<mean_loss>(session, net, params)(session.data(sentences(), sr::Shape{kRows, kLength + 1}))};
    };
    if (wanted == 0) {
      wanted = evaluate();
      sr::save_checkpoint(folder.path(), {{"params", params, sr::Placement::scattered}});
      continue;
    }
    const auto load_and_evaluate = [&] {
      sr::Checkpoint(folder.path()).load({{"params", params}});
      return evaluate();
    };
    if (ranks == 2) EXPECT_EQ(load_and_evaluate(), wanted);
    else EXPECT_THROW(load_and_evaluate(), sr::Error);
  }
}

TEST(LibtorchShardedRespawn, DoesNotGoOnWithInitialValues) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "net.safetensors";
  sr::SessionOptions options = options_of_computing(2);
  options.on_worker_lost = sr::OnWorkerLost::respawn;
  sr::Session session(options);
  const auto net = session.replicate<lt::ShardedReplica<Net>>(kSeed, std::int64_t{0}, 0.0);
  auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Sgd, killed_loss>(session, net, params, {.form = sr::StepForm::fully_sharded});
  const auto evaluation = lt::evaluation<mean_loss>(session, net, params);
  const auto data = session.data(sentences(), sr::Shape{kRows, kLength + 1});
  step(data, false, {.learning_rate = 1});
  lt::save(session, net, params, file);
  const double wanted = evaluation(data);
  EXPECT_ERROR(step(data, true, {.learning_rate = 1}), sr::ErrorKind::worker_lost, "rank 1");
  EXPECT_ERROR(step(data, false, {.learning_rate = 1}), sr::ErrorKind::usage, "'params'");
  EXPECT_ERROR(evaluation(data), sr::ErrorKind::usage, "'params'");
  lt::load(session, net, params, file);
  EXPECT_NEAR(double{evaluation(data)} / wanted, 1, 1e-9);
  step(data, false, {.learning_rate = 1});
  EXPECT_NE(double{evaluation(data)}, wanted);
}

}  // namespace
}  // namespace sharded
