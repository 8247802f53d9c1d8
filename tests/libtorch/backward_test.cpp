// Options of the backward pass: reports of final gradients, and the check of gradients.

#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace watched {

using models::lt::BackwardOptions;
using models::lt::FiniteCheck;
using models::lt::GradientAverage;
using models::lt::parameters;
using models::lt::Replica;
using models::lt::tensor;
using models::lt::detail::BoundModule;

using Rows = sr::Scattered<const float, 2>;
using Targets = sr::Scattered<const float, 1>;

constexpr BackwardOptions kReports{.average = GradientAverage::during_backward};
constexpr BackwardOptions kChecks{.check = FiniteCheck::gradients};
constexpr BackwardOptions kBoth{.average = GradientAverage::during_backward, .check = FiniteCheck::gradients};

torch::Tensor square(models::Mlp& net) { return net.forward(torch::ones({5, models::kInputs})).pow(2).mean(); }

/// A gradient that is reported in parts is averaged while the rest is computed.
TEST(LibtorchReports, AreSeveralAndGoFromTheEndToTheBeginning) {
  const auto net = std::make_shared<models::Mlp>();
  BoundModule bound(net);
  std::vector<float> params(73);
  std::vector<float> gradient(params.size());
  const auto flat = [](std::vector<float>& values) {
    return models::lt::detail::FlatVector(sr::ArrayView<float, 1>(values.data(), sr::Shape<1>(values.size())));
  };
  bound.store(flat(params));
  const auto firsts_of = [&](const torch::Tensor& loss) {
    std::vector<std::int64_t> firsts;
    bound.bind(flat(params), flat(gradient));
    bound.backward(loss, {.report = [&](std::int64_t first) { firsts.push_back(first); }});
    EXPECT_TRUE(std::is_sorted(firsts.rbegin(), firsts.rend()));
    EXPECT_EQ(firsts.back(), 0);
    return firsts;
  };
  EXPECT_GE(firsts_of(square(*net)).size(), 2U) << "the last layer is reported before the first";
  const auto of_the_first_layer = net->first(torch::ones({2, models::kInputs})).pow(2).mean();
  EXPECT_EQ(firsts_of(of_the_first_layer).front(), 63) << "what is not used is final before the backward pass";
}

/// A backward pass inside of a backward pass, as that of checkpointed activations.
class Inner : public torch::autograd::Function<Inner> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, models::Mlp* net) {
    context->save_for_backward({x});
    context->saved_data["net"] = reinterpret_cast<std::int64_t>(net);
    return net->forward(x).pow(2).mean();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto& net = *reinterpret_cast<models::Mlp*>(context->saved_data["net"].toInt());
    const torch::AutoGradMode grad_mode(true);
    const auto x = context->get_saved_variables()[0].detach();
    (net.forward(x).pow(2).mean() * gradients[0].item<float>()).backward();
    return {torch::zeros_like(x), {}};
  }
};
class LibtorchBackward : public models::OnSamples<23> {
 protected:
  /// The error of a step with this loss. The parameters stay as they were.
  template <auto kLoss, BackwardOptions kOptions>
  sr::Error error_of() {
    const auto net = session().replicate<Replica<models::Mlp>>(7);
    auto params = parameters(session(), net);
    const auto before = params.get(0).to_vector();
    auto step = models::lt::train_step<sr::Sgd, kLoss, kOptions>(session(), net, params);
    try {
      step(x(), y(), {.learning_rate = 0.1});
      ADD_FAILURE() << "the step did not throw";
    } catch (const sr::Error& error) {
      EXPECT_EQ(error.kind(), sr::ErrorKind::function);
      EXPECT_EQ(params.get(0).to_vector(), before);
      auto good = models::lt::train_step<sr::Sgd, models::mlp_loss, kOptions>(session(), net, params);
      EXPECT_TRUE(std::isfinite(good(x(), y(), {.learning_rate = 0.1})));
      return error;
    }
    return {sr::ErrorKind::usage, ""};
  }
};
INSTANTIATE_ON_WORKERS(LibtorchBackward, 1, 3);

/// Runs 20 steps, and returns the losses and the parameters.
template <auto kLoss, BackwardOptions kOptions, class Net, class... Arguments>
auto losses_of(sr::Session& session, sr::StepForm form, const sr::Data<std::uint8_t, 2>& data,
               const Arguments&... arguments) {
  const auto net = session.replicate<Replica<Net>>(7, arguments...);
  auto params = parameters(session, net);
  auto step =
      models::lt::train_step<sr::Adam, kLoss, kOptions>(session, net, params, {.form = form, .bucket_bytes = 256});
  std::vector<double> losses;
  for (int i = 0; i < 20; ++i) losses.push_back(step(data, {.learning_rate = 0.01}, {.slices = 1 + i % 3}));
  return std::pair(losses, params.get(session.world_size() - 1).to_vector());
}

TEST_P(LibtorchBackward, WithReportsAndChecksHasTheSameBits) {
  const auto tokens = models::make_tokens(23);
  const auto data = session().data(tokens, sr::Shape{23, models::kContext + 1});
  const auto with = [&]<BackwardOptions kOptions>(sr::StepForm form) {
    return losses_of<models::transformer_loss, kOptions, models::Transformer>(session(), form, data, std::int64_t{16},
                                                                              std::int64_t{2});
  };
  const auto plain = with.operator()<BackwardOptions{}>(sr::StepForm::replicated);
  EXPECT_LT(plain.first.back(), plain.first.front());
  EXPECT_EQ(with.operator()<kBoth>(sr::StepForm::replicated), plain);
  const auto sharded = with.operator()<BackwardOptions{}>(sr::StepForm::sharded);
  EXPECT_EQ(with.operator()<BackwardOptions{.check = FiniteCheck::gradients}>(sr::StepForm::sharded), sharded);
}

/// The page faults of tensors that are made and freed, after so many times that the heap has its size.
constexpr std::int64_t kBytesOfTensor = std::int64_t{8} << 20U;
sr::Max<std::int64_t> page_faults(sr::CpuWorker& worker) {
  const models::lt::Guard guard(worker);
  const auto make = [](int times) {
    for (int i = 0; i < times; ++i) {
      std::vector<torch::Tensor> tensors;
      for (int j = 0; j < 8; ++j) tensors.push_back(torch::ones({kBytesOfTensor}, torch::kUInt8));
    }
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return std::int64_t{used.ru_minflt};
  };
  const std::int64_t before = make(16);
  return make(8) - before;
}
/// Otherwise, each step gets the memory of its activations page by page.
TEST_P(LibtorchBackward, FreedTensorsLeaveTheirMemoryToTheNextOnes) {
  const std::int64_t faults = session().function(page_faults)();
  EXPECT_LT(faults, 8 * kBytesOfTensor / ::sysconf(_SC_PAGESIZE)) << "less than all memory in one of eight times";
}

torch::Tensor loss_of_the_first_layer(models::Mlp& net, Rows x, Targets) { return net.first(tensor(x)).pow(2).mean(); }
torch::Tensor loss_of_the_last_layer(models::Mlp& net, Rows x, Targets) {
  return net.last(torch::ones({x.rows(), 9})).pow(2).mean();
}
torch::Tensor loss_that_is_a_parameter(models::Mlp& net, Rows, Targets) { return net.last->bias; }
torch::Tensor loss_with_a_pass_of_the_program(models::Mlp& net, Rows x, Targets y) {
  square(net).backward();
  return models::mlp_loss(net, x, y);
}

TEST_P(LibtorchBackward, WithReportsHasTheGradientOfAnyLoss) {
  const auto gradient_of = [&]<auto kLoss, BackwardOptions kOptions>() {
    const auto net = session().replicate<Replica<models::Mlp>>(7);
    auto params = parameters(session(), net);
    auto step = models::lt::train_step<sr::Sgd, kLoss, kOptions>(session(), net, params, {.bucket_bytes = 16});
    step(x(), y(), {.learning_rate = 0.1});
    return params.get(world_size() - 1).to_vector();
  };
  const auto check = [&]<auto kLoss>() {
    EXPECT_EQ((gradient_of.template operator()<kLoss, kReports>()),
              (gradient_of.template operator()<kLoss, BackwardOptions{}>()));
  };
  check.operator()<loss_of_the_first_layer>();
  check.operator()<loss_of_the_last_layer>();
  check.operator()<loss_that_is_a_parameter>();
  check.operator()<loss_with_a_pass_of_the_program>();
}

TEST_P(LibtorchBackward, AShardedStepDoesNotAverageMeanwhile) {
  const auto net = session().replicate<Replica<models::Mlp>>(7);
  const auto params = parameters(session(), net);
  EXPECT_ERROR((models::lt::train_step<sr::Sgd, models::mlp_loss, kReports>(session(), net, params,
                                                                            {.form = sr::StepForm::sharded})),
               sr::ErrorKind::usage, "during_backward is for the replicated form, and this step is sharded");
}

torch::Tensor loss_with_a_throwing_hook(models::Mlp& net, Rows x, Targets y) {
  auto output = net.forward(tensor(x));
  output.register_hook([](const torch::Tensor&) { throw std::out_of_range("the hook had enough"); });
  return models::mean_square(output, tensor(y));
}
/// LibTorch itself fails in a hook of the program.
constexpr int kHookLine = __LINE__ + 1;
torch::Tensor wrong_product(const torch::Tensor& gradient) { return torch::mm(gradient, gradient); }
torch::Tensor loss_with_a_wrong_hook(models::Mlp& net, Rows x, Targets y) {
  auto output = net.forward(tensor(x));
  if (x.first_row() != 0 || x.rows() == 23)
    output.register_hook([](const torch::Tensor& gradient) { return wrong_product(gradient); });
  return models::mean_square(output, tensor(y));
}

TEST_P(LibtorchBackward, AnExceptionInAHookIsTheStepsErrorWithRankAndLine) {
  const sr::Error thrown = error_of<loss_with_a_throwing_hook, kReports>();
  EXPECT_NE(thrown.failure().cause.find("the hook had enough"), std::string::npos) << thrown.what();
  for (const sr::Error& error :
       {error_of<loss_with_a_wrong_hook, kReports>(), error_of<loss_with_a_wrong_hook, BackwardOptions{}>()}) {
    const std::string cause = error.failure().cause;
    EXPECT_EQ(error.rank() > 0, world_size() > 1) << error.what();
    EXPECT_NE(cause.find("self must be a matrix"), std::string::npos) << cause;
    if (!models::names_lines()) continue;
    EXPECT_NE(cause.find("backward_test.cpp:" + std::to_string(kHookLine)), std::string::npos) << cause;
  }
}

torch::Tensor inner_pass_loss(models::Mlp& net, Rows x, Targets y) {
  return Inner::apply(torch::ones({4, models::kInputs}, torch::requires_grad()), &net) + models::mlp_loss(net, x, y);
}
TEST_P(LibtorchBackward, AReportThatIsRefusedIsTheStepsError) {
  const std::string cause = error_of<inner_pass_loss, kReports>().failure().cause;
  EXPECT_NE(cause.find("was added to after it was final"), std::string::npos) << cause;
}

torch::Tensor loss_that_ends_the_process(models::Mlp& net, Rows x, Targets y) {
  auto output = net.forward(tensor(x));
  if (x.first_row() != 0) output.register_hook([](const torch::Tensor&) { std::raise(SIGKILL); });
  return models::mean_square(output, tensor(y));
}
TEST_P(LibtorchBackward, AWorkerThatDiesBetweenReportsIsNamed) {
  if (world_size() == 1) GTEST_SKIP() << "needs a second rank";
  {
    const auto net = session().replicate<Replica<models::Mlp>>(7);
    auto params = parameters(session(), net);
    auto step = models::lt::train_step<sr::Sgd, loss_that_ends_the_process, kReports>(session(), net, params);
    EXPECT_ERROR(step(x(), y(), {}), sr::ErrorKind::worker_lost, "rank ");
  }
  end_session();
}

// ---- gradients that are not finite ----

/// The value is 0, but its derivative is not a number.
torch::Tensor loss_with_a_bad_root(models::Mlp& net, Rows x, Targets y) {
  return models::mlp_loss(net, x, y) + torch::sqrt(net.first->bias.pow(2).sum() * 0);
}
torch::Tensor loss_with_a_bad_output(models::Mlp& net, Rows x, Targets y) {
  auto output = net.forward(tensor(x));
  output.register_hook(
      [](const torch::Tensor& gradient) { return gradient * std::numeric_limits<float>::quiet_NaN(); });
  return models::mean_square(output, tensor(y));
}

TEST_P(LibtorchBackward, NamesTheFirstParameterWhoseGradientIsNotFinite) {
  for (const std::string& cause : {error_of<loss_with_a_bad_root, kChecks>().failure().cause,
                                   error_of<loss_with_a_bad_root, kBoth>().failure().cause}) {
    EXPECT_NE(cause.find("the gradient of parameter 'first.bias' is nan at element 0 in training run 1 of this module"),
              std::string::npos)
        << cause;
  }
  // The last layer is the first in the backward pass.
  const std::string cause = error_of<loss_with_a_bad_output, kChecks>().failure().cause;
  EXPECT_NE(cause.find("the gradient of parameter 'last."), std::string::npos) << cause;
  EXPECT_NE(cause.find("is nan at element 0"), std::string::npos) << cause;
}

TEST_P(LibtorchBackward, ChecksOnlyTheLossByDefault) {
  const auto net = session().replicate<Replica<models::Mlp>>(7);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Sgd, loss_with_a_bad_root>(session(), net, params);
  EXPECT_TRUE(std::isfinite(step(x(), y(), {.learning_rate = 0.1})));
  EXPECT_TRUE(std::isnan(params.get(0)[54]));  // first.weight has 54 elements
}

}  // namespace watched
}  // namespace
