// Session::verify with models of LibTorch: right programs, and the mistakes that are typical of them. The buffers and
// random generators are as before.

#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace verified {

using models::lt::tensor;
using Images = sr::Scattered<const float, 2>;
using Labels = sr::Scattered<const std::int64_t, 1>;

constexpr std::int64_t kRows = 14;
constexpr std::int64_t kPixels = 6;
constexpr std::int64_t kClasses = 3;

struct Net : torch::nn::Module {
  explicit Net(std::int64_t kind) : first(kPixels, 8), last(8, kClasses), norm(8), dropout(0.5) {
    register_module("first", first);
    register_module("last", last);
    if (kind == 1) register_module("norm", norm);
    if (kind == 2) register_module("dropout", dropout);
    has_norm = kind == 1;
    has_dropout = kind == 2;
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto hidden = first(x);
    if (has_norm) hidden = norm(hidden);
    if (has_dropout) hidden = dropout(hidden);
    return last(torch::relu(hidden));
  }
  torch::nn::Linear first, last;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout dropout;
  bool has_norm, has_dropout;
};

torch::Tensor mean_loss(Net& net, Images x, Labels y) {
  return torch::cross_entropy_loss(net.forward(tensor(x)), tensor(y));
}
/// A sum that LibTorch's own check does not see, because it is a product.
torch::Tensor hidden_sum(Net& net, Images x, Labels y) { return mean_loss(net, x, y) * x.rows(); }
/// A mean over the rows whose class is not 0, as a loss with padding.
torch::Tensor padded(Net& net, Images x, Labels y) {
  const auto wanted = (tensor(y) != 0).to(torch::kFloat32);
  const auto losses = torch::cross_entropy_loss(net.forward(tensor(x)), tensor(y), {}, at::Reduction::None);
  return (losses * wanted).sum() / wanted.sum();
}
models::lt::WeightedLoss padded_rightly(Net& net, Images x, Labels y) {
  const auto wanted = (tensor(y) != 0).to(torch::kFloat32);
  const auto losses = torch::cross_entropy_loss(net.forward(tensor(x)), tensor(y), {}, at::Reduction::None);
  return {(losses * wanted).sum(), wanted.sum()};
}

class VerifyModels : public OnSharedWorkers {
 protected:
  /// Verifies between two steps. What follows is as without it: also the numbers that dropout draws, and the running
  /// statistics that an evaluation uses.
  template <auto kLoss>
  sr::Verification of(std::int64_t kind) {
    std::vector<float> pixels(kRows * kPixels);
    std::vector<std::int64_t> labels(kRows);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<float>((i * i) % 17) / 17.0F;
    for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int64_t>(i * i % kClasses);
    const auto x = session().data(pixels, sr::Shape{kRows, kPixels});
    const auto y = session().data(labels);
    sr::Verification found;
    const auto trained = [&](bool is_verified) {
      const auto net = session().replicate<models::lt::Replica<Net>>(7, kind);
      const auto params = models::lt::parameters(session(), net);
      auto step = models::lt::train_step<sr::Adam, kLoss>(session(), net, params);
      const sr::Adam rule{.learning_rate = 1e-2};
      step(x, y, rule);
      if (is_verified) found = session().verify(step)(x, y, rule);
      step(x, y, rule);
      models::lt::sync_buffers(session(), net);
      const auto loss = models::lt::evaluation<mean_loss>(session(), net, params)(x, y);
      return std::pair(params.get(0).to_vector(), static_cast<double>(loss));
    };
    EXPECT_EQ(trained(true), trained(false));
    return found;
  }
};
INSTANTIATE_ON_WORKERS(VerifyModels, 1, 3);

TEST_P(VerifyModels, FindsNothingInRightModels) {
  EXPECT_TRUE(of<mean_loss>(0).is_same()) << of<mean_loss>(0);
  EXPECT_TRUE(of<padded_rightly>(0).is_same()) << of<padded_rightly>(0);
}

TEST_P(VerifyModels, FindsASum) {
  const auto found = of<hidden_sum>(0);
  EXPECT_EQ(found.reason, sr::VerifyReason::is_sum) << found;
  // The text names the parameter that differs most.
  EXPECT_NE(found.to_string().find("most in '"), std::string::npos) << found;
}

TEST_P(VerifyModels, FindsPadding) { EXPECT_EQ(of<padded>(0).reason, sr::VerifyReason::rows_together); }

TEST_P(VerifyModels, NamesTheNormalisation) {
  const auto found = of<mean_loss>(1);
  EXPECT_EQ(found.reason, sr::VerifyReason::rows_together);
  EXPECT_NE(found.advice.find("BatchNorm1d"), std::string::npos) << found;
  EXPECT_NE(found.advice.find("'norm'"), std::string::npos) << found;
}

TEST_P(VerifyModels, NamesTheDropout) {
  const auto found = of<mean_loss>(2);
  EXPECT_EQ(found.reason, sr::VerifyReason::random_numbers);
  EXPECT_NE(found.advice.find("'dropout'"), std::string::npos) << found;
}

/// The module of another step is no reason.
TEST_P(VerifyModels, DoesNotNameAModuleThatTheCallDoesNotUse) {
  const auto net = session().replicate<models::lt::Replica<Net>>(7, 1);
  const auto params = models::lt::parameters(session(), net);
  const auto f = session().function([](sr::Scattered<const float, 1> x) -> sr::Avg<double> { return x[0]; });
  const auto found = session().verify(f)(session().data(std::vector{1.0F, 2.0F, 3.0F}));
  EXPECT_EQ(found.reason, sr::VerifyReason::rows_together);
  EXPECT_EQ(found.advice.find("BatchNorm1d"), std::string::npos) << found;
}

/// Changes the module of one rank, as a failure in the middle of an update would.
void change(Net& net) {
  const torch::NoGradGuard no_gradients;
  net.last->bias.add_(1);
}
class OwnTrainer {
 public:
  OwnTrainer() : net_((torch::manual_seed(7), std::make_shared<Net>(0))) {}
  sr::Avg<double> step(sr::CpuWorker& worker, sr::Comm& comm, bool fails, bool is_checked) {
    using models::lt::ReplicaCheck;
    return models::lt::Guard(worker, comm).run([&]() -> sr::Avg<double> {
      if (fails && worker.rank() == worker.world_size() - 1) change(*net_);
      net_->zero_grad();
      net_->forward(torch::ones({2, kPixels})).sum().backward();
      models::lt::average(comm, *net_, is_checked ? ReplicaCheck::on : ReplicaCheck::off);
      return 0.0;
    });
  }

 private:
  std::shared_ptr<Net> net_;
};

TEST_P(VerifyModels, FindsAModuleThatDiffersInABodyOfTheProgram) {
  const auto step = session().function(&OwnTrainer::step, session().replicate<OwnTrainer>());
  step(false, true);
  step(true, false);  // nobody notices
  if (world_size() == 1) return step(false, true), void();
  EXPECT_ERROR(step(false, true), sr::ErrorKind::function, "'last.bias' differs between ranks");
}

TEST_P(VerifyModels, ComparesReplicas) {
  const auto net = session().replicate<models::lt::Replica<Net>>(7, 1);
  const auto params = models::lt::parameters(session(), net);
  EXPECT_TRUE(models::lt::verify_replicas(session(), net).is_same());
  if (world_size() == 1) return;
  std::vector<float> values = params.get(1).to_vector();
  values[0] += 1;
  auto changed = params;
  changed.set(1, values);
  const auto found = models::lt::verify_replicas(session(), net);
  ASSERT_EQ(found.differences.size(), 1U) << found;
  EXPECT_EQ(found.differences[0].run, "on rank 1");
  EXPECT_EQ(found.differences[0].what, "'first.weight'");
}

}  // namespace verified
}  // namespace
